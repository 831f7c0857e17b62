#!/usr/bin/env python3
"""CPU per request and requests per second: Tollgate, bare Pingora and nginx, side by side in one run.

    python3 benches/proxy.py [--rounds 5] [--seconds 4]

Builds what it measures, starts an nginx that answers `ok` from memory, and drives each proxy in turn with wrk over 64
keep-alive connections. CPU is the kernel's own accounting of the proxy's threads; the ratios are medians over rounds, in
each of which everything is measured once, so that a machine that slows down slows them all.
"""

import argparse
import datetime
import os
import pathlib
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONNECTIONS = 64


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


UPSTREAM, PROXY = free_port(), free_port()

NGINX = """
daemon off; worker_processes {workers}; pid {folder}/{name}.pid; error_log /dev/null;
events {{ worker_connections 4096; }}
http {{
  access_log off; keepalive_requests 1000000000;
  client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
  uwsgi_temp_path {folder}; scgi_temp_path {folder};
  upstream up {{ server 127.0.0.1:%d; keepalive 256; keepalive_requests 1000000000; }}
  server {{ listen 127.0.0.1:{port} reuseport; location / {{ {location} }} }}
}}
""" % UPSTREAM
PASS = 'proxy_pass http://up; proxy_http_version 1.1; proxy_set_header Connection "";'
FILE = f"listen: 127.0.0.1:{PROXY}\nupstream: http://127.0.0.1:{UPSTREAM}\n"
RULE = "rules: [{name: all, limit_keys: [ip:address], algorithm_config: {rps: 1000000, burst: 1000000}}]\n"


def build():
    """Returns the programs: the gateway, and the bare proxy with the system's allocator and with ours."""
    def cargo(*arguments):
        subprocess.run(["cargo", "build", "--release", "--locked", *arguments], cwd=ROOT, check=True)

    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
    bare = {}
    for allocator, features in (("system", []), ("mimalloc", ["--features", "bench-mimalloc"])):
        cargo("--example", "bare", *features)
        bare[allocator] = target / "examples" / f"bare-{allocator}"
        bare[allocator].unlink(missing_ok=True)
        (target / "examples" / "bare").rename(bare[allocator])
    cargo("--bin", "tollgate")
    return target / "tollgate", bare["system"], bare["mimalloc"]


def wait_for(port):
    for _ in range(200):
        try:
            with socket.create_connection(("127.0.0.1", port), 0.1):
                return
        except OSError:
            time.sleep(0.02)
    sys.exit(f"nothing listens on port {port}")


def family(pid):
    """The process and its children: nginx works in children."""
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as children:
        return [pid, *(int(child) for child in children.read().split())]


def cpu_microseconds(pid):
    total = 0
    for member in family(pid):
        for task in os.listdir(f"/proc/{member}/task"):
            with open(f"/proc/{member}/task/{task}/schedstat", encoding="ascii") as schedstat:
                total += int(schedstat.read().split()[0])
    return total / 1000


def wrk(seconds):
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", f"http://127.0.0.1:{PROXY}/"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    if "Non-2xx" in output or "Socket errors" in output:
        sys.exit(f"not every request passed:\n{output}")
    return int(re.search(r"(\d+) requests in", output).group(1))


def measure(command, seconds):
    """CPU microseconds per request, and requests per second."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(PROXY)
        wrk(1)
        before = cpu_microseconds(process.pid)
        requests = wrk(seconds)
        return (cpu_microseconds(process.pid) - before) / requests, requests / seconds
    finally:
        process.send_signal(signal.SIGKILL if "bare" in str(command[0]) else signal.SIGTERM)
        process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=4)
    arguments = parser.parse_args()
    subprocess.run([ROOT / "scripts/need", "cmake", "nginx", "wrk"], check=True)
    tollgate, bare_system, bare_mimalloc = build()
    cores = len(os.sched_getaffinity(0))

    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)

        def write(name, text):
            path = pathlib.Path(folder) / name
            path.write_text(text, encoding="ascii")
            return path

        def nginx(name, port, workers, location):
            text = NGINX.format(name=name, port=port, workers=workers, location=location, folder=folder)
            return ["/usr/sbin/nginx", "-c", write(name, text)]

        addresses = [f"127.0.0.1:{PROXY}", f"127.0.0.1:{UPSTREAM}"]
        none, rule = write("none.yaml", FILE), write("rule.yaml", FILE + RULE)
        subjects = {
            "bare Pingora, as its docs show it": [bare_system, *addresses, "docs"],
            "bare Pingora, a socket for each core, mimalloc": [bare_mimalloc, *addresses, "sockets"],
            "bare Pingora, all of our layout, mimalloc": [bare_mimalloc, *addresses, "ours"],
            "nginx, plain proxy": nginx("proxy", PROXY, cores, PASS),
            "Tollgate, no rules": [tollgate, "run", "-c", none],
            "Tollgate, one rule in memory": [tollgate, "run", "-c", rule],
        }
        upstream = subprocess.Popen(nginx("upstream", UPSTREAM, 1, 'return 200 "ok\\n";'))
        try:
            wait_for(UPSTREAM)
            rounds = []
            for number in range(arguments.rounds):
                print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr)
                rounds.append({name: measure(command, arguments.seconds) for name, command in subjects.items()})
        finally:
            upstream.terminate()
            upstream.wait()

    def median(values):
        return statistics.median(list(values))

    def ratio(name, other):
        return median(each[name][0] / each[other][0] for each in rounds)

    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as cpuinfo:
        machine = re.search(r"model name\s*: (.*)", cpuinfo.read())
    print(f"{datetime.date.today()}, {cores} cores of {machine.group(1) if machine else 'unknown'}, "
          f"{CONNECTIONS} keep-alive connections, {arguments.rounds} rounds of {arguments.seconds} s\n")
    print("| | CPU µs per request | requests/s |\n|---|---|---|")
    for name in subjects:
        cost, rate = (median(each[name][place] for each in rounds) for place in (0, 1))
        print(f"| {name} | {cost:.1f} | {rate:.0f} |")
    print("\n| CPU per request | ratio | budget |\n|---|---|---|")
    docs, sockets, ours, plain, none, rule = subjects
    pairs = ((none, docs, 1.00), (none, sockets, 1.10), (none, ours, 1.10), (rule, none, 1.10), (none, plain, None))
    for name, other, budget in pairs:
        print(f"| {name} / {other} | {ratio(name, other):.2f} | {f'{budget:.2f}' if budget else ''} |")


if __name__ == "__main__":
    main()
