#!/usr/bin/env python3
"""Thousands of slow clients, and what a normal one beside them notices.

    cargo build --release && python3 benches/slow.py [--clients 5000] [--idle 10000]

Each kind in turn: heads that come by two bytes a second, bodies that stall behind their first byte, clients that take
nothing of an answer of a mebibyte, connections on which nothing is said. They come at 1500 a second, so that it is not their
coming that is measured. Says how long after the last had come the last was gone, what they were told, how long the requests
of two normal clients took meanwhile, of which one is passed on and the other refused by a rule, and the most memory that the
gateway has held by then. Needs nginx, and an open-file limit above twice the number of clients.
"""

import argparse
import multiprocessing
import os
import pathlib
import re
import resource
import socket
import subprocess
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
# Connections a second.
PACE = 1500
LIMITS = "{header_timeout: 5s, body_timeout: 5s, idle_timeout: 8s}"
# Answers from memory, sends a file, and waits for the whole of a body before it asks itself. What its kernel holds is not what
# is measured, so that is little.
NGINX = """
daemon off; worker_processes 1; worker_rlimit_nofile 20000; pid {folder}/pid; error_log /dev/null;
events {{ worker_connections 16384; }}
http {{
  access_log off; client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
  uwsgi_temp_path {folder}; scgi_temp_path {folder};
  server {{
    listen 127.0.0.1:{port} backlog=4096 sndbuf=64k; root {folder};
    location / {{ return 200 "ok"; }}
    location /big {{ }}
    location /body {{ proxy_pass http://127.0.0.1:{port}/; }}
  }}
}}
"""


def upstream(folder):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    os.chmod(folder, 0o755)
    (pathlib.Path(folder) / "big").write_bytes(bytes(1 << 20))
    file = pathlib.Path(folder) / "nginx.conf"
    file.write_text(NGINX.format(folder=folder, port=port), encoding="ascii")
    process = subprocess.Popen(["/usr/sbin/nginx", "-c", file], stderr=subprocess.DEVNULL)
    time.sleep(0.5)
    return process, port


def normal(port, seconds, target, result):
    """One request after another, and how long each took, in milliseconds."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    took, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        begin = time.monotonic()
        connection.sendall(b"GET %s HTTP/1.1\r\nHost: a\r\n\r\n" % target)
        answer = b""
        while not answer.rstrip().endswith((b"\r\n\r\nok", b"}")):
            part = connection.recv(4096)
            if not part:
                raise OSError("the normal client was cut")
            answer += part
        took.append((time.monotonic() - begin) * 1000)
        time.sleep(0.004)
    took.sort()
    result.put(f"{took[len(took) // 2]:.2f} | {took[len(took) * 99 // 100]:.2f} | {took[-1]:.1f}")


def gauge(admin, name):
    page = urllib.request.urlopen(f"http://127.0.0.1:{admin}/metrics", timeout=10).read().decode()
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", page, re.M))


def connect(port, first):
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    client.setblocking(False)
    client.send(first)
    return client


def drip(clients):
    for client in clients:
        try:
            client.send(b"x")
        except OSError:
            pass


def told(clients):
    """The statuses that were answered, and how often."""
    counts = {}
    for client in clients:
        try:
            status = client.recv(12)[9:12].decode() or "closed"
        except OSError:
            status = "cut"
        counts[status] = counts.get(status, 0) + 1
    return ", ".join(f"{status}: {count}" for status, count in sorted(counts.items()))


def phase(name, number, first, each_second, port, admin, seconds, bound, memory):
    results = [multiprocessing.Queue() for _ in range(2)]
    besides = [multiprocessing.Process(target=normal, args=(port, seconds, target, result))
               for target, result in zip((b"/", b"/refused"), results)]
    for beside in besides:
        beside.start()
    begin = time.monotonic()
    clients = []
    for place in range(number):
        time.sleep(max(0, begin + place / PACE - time.monotonic()))
        clients.append(connect(port, first))
    opening = time.monotonic() - begin
    most, gone = 0, None
    while time.monotonic() - begin < seconds - 1:
        time.sleep(0.5)
        each_second(clients)
        here = gauge(admin, "tollgate_http_connections")
        most = max(most, here)
        if gone is None and most > 2 and here <= 2:
            gone = time.monotonic() - begin - opening
    passed, refused = (result.get() for result in results)
    for beside in besides:
        beside.join()
    opened = f"{opening:.1f} s" if number else "-"
    gone = f"{gone:.1f} s" if gone else "-"
    print(f"| {name} | {max(most - 2, 0):.0f} | {opened} | {bound} | {gone} | {told(clients) or '-'} | {passed} | {refused} "
          f"| {memory():.0f} |", flush=True)
    for client in clients:
        client.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=5000)
    parser.add_argument("--idle", type=int, help="10 000, or as many as the gateway has files for")
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as folder:
        behind, answers = upstream(folder)
        file = pathlib.Path(folder) / "gateway.yaml"
        rule = "{name: ip, limit_keys: [ip:address], algorithm_config: {rps: 100000, burst: 100000}}"
        file.write_text(
            f"listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nupstream: http://127.0.0.1:{answers}\n"
            f"limits: {LIMITS}\nrules: [{{name: no, match: {{path: /refused}}, action: deny}}, {rule}]\n", encoding="ascii")
        command = [TARGET / "release/tollgate", "run", "-c", file]
        gateway = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        port, admin = (int(gateway.stdout.readline().rsplit(":", 1)[1]) for _ in range(2))
        gateway.stdout.readline()

        def memory():
            status = pathlib.Path(f"/proc/{gateway.pid}/status").read_text(encoding="ascii")
            return int(re.search(r"VmHWM:\s+(\d+)", status).group(1)) / 1024

        def nothing(_):
            pass

        try:
            print("| clients | open | opened in | bound | last one gone | told "
                  "| passed: median ms | p99 | worst | refused: median ms | p99 | worst | MiB |")
            print("|---|---|---|---|---|---|---|---|---|---|---|---|---|")
            head, body = b"GET / HTTP/1.1\r\nHost: a\r\nX: ", b"POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nx"
            idle = arguments.idle or min(10_000, (hard - 320) // 2 - 2)
            some, reading = arguments.clients, b"GET /big HTTP/1.1\r\nHost: a\r\n\r\n"
            for name, number, first, each_second, seconds, bound in [
                ("none", 0, b"", nothing, 5, "-"),
                ("slow heads", some, head, drip, 16, "5 s"),
                ("stalled bodies", some, body, nothing, 16, "5 s"),
                ("slow readers", some, reading, nothing, 20, "5 s"),
                ("idle", idle, b"", nothing, 24, "8 s"),
                ("none", 0, b"", nothing, 5, "-"),
            ]:
                phase(name, number, first, each_second, port, admin, seconds, bound, memory)
        finally:
            gateway.terminate()
            gateway.wait()
            behind.terminate()
            behind.wait()


if __name__ == "__main__":
    main()
