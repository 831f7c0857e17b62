#!/usr/bin/env python3
"""Minutes of mixed traffic, and whether memory or files grow.

    cargo build --release && python3 benches/soak.py [--minutes 3] [--rate N] [--reloads 2] [--idle]

Requests with keys that come once and keys that return, refusals, invalid heads, connections that go at once, and some
reloads in each cycle; a third of them in plain HTTP/1.1, the others over TLS, by HTTP/1.1 and HTTP/2. A cycle is 25 seconds
of traffic and 10 seconds of rest, after which every bucket is full and every connection closed. What is held then cannot be of a
request under way: the memory of the process without its mapped files, buckets, connections, lines of /metrics, and open files.
Prints that after each rest, and in the end how fast the memory grew over the second half, with the standard error of that. With --rate
each of the three kinds of traffic has at most so many requests a second, beside other work on the machine; --idle leaves the traffic out,
and the reloads alone are measured. Needs nginx, wrk, h2load and openssl.
"""

import argparse
import contextlib
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
import urllib.request

import rig

LUA = """
local number = {first}
request = function()
  number = number + 1
  local key = number % 3 == 0 and "once" .. number or "again" .. number % 100
  local more = number % 50 == 0 and "Connection: close\\r\\n" or number % 97 == 0 and "X Y: z\\r\\n" or ""
  return "GET /?k=" .. key .. " HTTP/1.1\\r\\nHost: a\\r\\n" .. more .. "\\r\\n"
end
"""
FILE = """admin: 127.0.0.1:0
listeners:
  - {{name: plain, address: 127.0.0.1:0}}
  - {{name: tls, address: 127.0.0.1:0, tls: {{certificates: [{{cert_file: certificates/server.pem, key_file: certificates/server.key}}]}}}}
upstream: http://127.0.0.1:{upstream}
store: {{memory: {{max_buckets: 100000}}}}
rules: [{{name: key, limit_keys: [query:k], algorithm_config: {{rps: 1, burst: {burst}}}}}]
"""


LOAD, REST = 25, 10


def held(gateway):
    """Memory in MiB, and counts by name."""
    status = pathlib.Path(f"/proc/{gateway.process.pid}/status").read_text(encoding="ascii")
    with urllib.request.urlopen(f"http://127.0.0.1:{gateway.ports['admin']}/metrics") as answer:
        metrics = answer.read().decode()
    total = lambda name: sum(float(value) for value in re.findall(rf"(?m)^{name}(?:{{.*}})? (\S+)$", metrics))
    return int(re.search(r"RssAnon:\s+(\d+)", status)[1]) / 1024, {
        "buckets": round(total("rate_limiter_buckets")),
        "connections": round(total("tollgate_http_connections")),
        "lines of metrics": metrics.count("\n"),
        "files": len(os.listdir(f"/proc/{gateway.process.pid}/fd")),
    }


def slope(samples):
    """The slope of the least squares line through these points, and its standard error, in their units."""
    if len(samples) < 3:
        return 0, 0
    times, sizes = zip(*samples)
    middle, mean = sum(times) / len(samples), sum(sizes) / len(samples)
    width = sum((t - middle) ** 2 for t in times)
    slope = sum((t - middle) * (s - mean) for t, s in samples) / width
    rest = sum((s - mean - slope * (t - middle)) ** 2 for t, s in samples)
    return slope, (rest / (len(samples) - 2) / width) ** 0.5


def answered(text, pattern):
    return sum(map(int, re.findall(pattern, text)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("--rate", type=int)
    parser.add_argument("--reloads", type=int, default=2, help="in each cycle")
    parser.add_argument("--idle", action="store_true")
    given = parser.parse_args()
    # Each of 32 connections waits so many milliseconds, each of 8 has its share.
    delay = f"delay = function() return {32_000 // given.rate} end" if given.rate else ""
    pace = f"--rps {given.rate / 8}" if given.rate else ""
    requests = {"HTTP/1.1": 0, "HTTP/1.1 over TLS": 0}
    with tempfile.TemporaryDirectory() as made:
        folder = rig.Folder(made)
        subprocess.run([rig.ROOT / "scripts/certificate", "localhost"], cwd=made, check=True, stdout=subprocess.DEVNULL)
        targets = folder.write("targets", "".join(f"/?k=again{number}\n" for number in range(100)))
        file = folder.write("gateway.yaml", FILE.format(upstream=rig.UPSTREAM, burst=5))
        with contextlib.ExitStack() as stack:
            stack.enter_context(rig.ending(folder.upstream()))
            gateway = rig.Gateway(file)
            stack.enter_context(rig.ending(gateway.process))
            plain, tls = (f"{scheme}://127.0.0.1:{gateway.ports[scheme]}" for scheme in ("http", "https"))
            # Each time with new connections, for as long as the others last.
            again = f"while h2load -c8 -m8 -D5 {pace} -i {targets} --base-uri {tls} >>{made}/h2load; do :; done"
            samples, begin = [], time.monotonic()
            for cycle in range(max(3, round(given.minutes * 60 / (LOAD + REST)))):
                # Keys that come once are others in each cycle.
                mixed = folder.write("mixed.lua", LUA.replace("{first}", str(cycle * 100_000_000)) + delay)
                wrk = ["wrk", "-t1", "-c32", f"-d{LOAD}s", "-s", mixed]
                load = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
                        for command in ([*wrk, plain], [*wrk, tls], ["timeout", str(LOAD), "sh", "-c", again])
                        if not given.idle]
                with rig.ending(*load):
                    started = time.monotonic()
                    for reload in range(given.reloads):
                        time.sleep(max(0, started + LOAD * (reload + 1) / (given.reloads + 1) - time.monotonic()))
                        file.write_text(FILE.format(upstream=rig.UPSTREAM, burst=5 + reload % 2), encoding="ascii")
                        gateway.process.send_signal(signal.SIGHUP)
                    for protocol, process in zip(requests, load):
                        requests[protocol] += answered(process.communicate()[0], r"(\d+) requests in")
                    for process in load:
                        process.wait()
                time.sleep(REST)
                memory, counts = held(gateway)
                samples.append((time.monotonic() - begin, memory))
                counted = ", ".join(f"{count} {name}" for name, count in counts.items())
                print(f"{samples[-1][0]:5.0f} s  {memory:6.2f} MiB  {counted}", flush=True)
            for protocol, count in requests.items():
                print(f"{protocol}: {count} requests")
            text = "" if given.idle else (folder.path / "h2load").read_text(encoding="utf-8")
            done, failed = (answered(text, rf"(\d+) {what}") for what in ("done", "errored"))
            print(f"HTTP/2 over TLS: {done} requests, {failed} failed")
    per_second, error = slope(samples[len(samples) // 2:])
    print(f"{per_second * 3600:+.1f} ± {error * 3600:.1f} MiB an hour over the second half")


if __name__ == "__main__":
    main()
