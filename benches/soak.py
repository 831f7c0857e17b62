#!/usr/bin/env python3
"""Minutes of mixed traffic, and whether memory or files grow.

    cargo build --release && python3 benches/soak.py [--minutes 3] [--rate N]

Requests with keys that come once and keys that return, refusals, invalid heads, connections that go at once, and a
reload every ten seconds; half of them in plain HTTP/1.1, the others over TLS, by HTTP/1.1 and HTTP/2. Prints memory and open
files every ten seconds, and how fast memory grew over the second half. With --rate each of the three kinds of traffic has at most
so many requests a second, beside other work on the machine. Needs nginx, wrk, h2load and openssl.
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

import rig

LUA = """
local number = 0
request = function()
  number = number + 1
  local key = number % 3 == 0 and "once" .. number or "again" .. number % 100
  local more = number % 50 == 0 and "Connection: close\\r\\n" or number % 97 == 0 and "X Y: z\\r\\n" or ""
  return "GET /?k=" .. key .. " HTTP/1.1\\r\\nHost: a\\r\\n" .. more .. "\\r\\n"
end
"""
FILE = """listeners:
  - {{name: plain, address: 127.0.0.1:0}}
  - {{name: tls, address: 127.0.0.1:0, tls: {{certificates: [{{cert_file: certificates/server.pem, key_file: certificates/server.key}}]}}}}
upstream: http://127.0.0.1:{upstream}
store: {{memory: {{max_buckets: 100000}}}}
rules: [{{name: key, limit_keys: [query:k], algorithm_config: {{rps: 1, burst: {burst}}}}}]
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("--rate", type=int)
    given = parser.parse_args()
    seconds = int(given.minutes * 60)
    # Each of 32 connections waits so many milliseconds, each of 8 has its share.
    delay = f"delay = function() return {32_000 // given.rate} end" if given.rate else ""
    pace = f"--rps {given.rate / 8}" if given.rate else ""
    with tempfile.TemporaryDirectory() as made:
        folder = rig.Folder(made)
        subprocess.run([rig.ROOT / "scripts/certificate", "localhost"], cwd=made, check=True, stdout=subprocess.DEVNULL)
        targets = folder.write("targets", "".join(f"/?k=again{number}\n" for number in range(100)))
        mixed = folder.write("mixed.lua", LUA + delay)
        file = folder.write("gateway.yaml", FILE.format(upstream=rig.UPSTREAM, burst=5))
        with contextlib.ExitStack() as stack:
            stack.enter_context(rig.ending(folder.upstream()))
            gateway = rig.Gateway(file)
            stack.enter_context(rig.ending(gateway.process))
            plain, tls = (f"{scheme}://127.0.0.1:{gateway.ports[scheme]}" for scheme in ("http", "https"))
            wrk = ["wrk", "-t1", "-c32", f"-d{seconds}s", "-s", mixed]
            # Each time with new connections, for as long as the others last.
            again = f"while h2load -c8 -m8 -D5 {pace} -i {targets} --base-uri {tls} >>{made}/h2load; do :; done"
            load, *others = (subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
                             for command in ([*wrk, plain], [*wrk, tls], ["timeout", str(seconds), "sh", "-c", again]))
            stack.enter_context(rig.ending(load, *others))
            samples, begin = [], time.monotonic()
            while load.poll() is None:
                time.sleep(min(10, max(1, seconds - (time.monotonic() - begin))))
                status = pathlib.Path(f"/proc/{gateway.process.pid}/status").read_text(encoding="ascii")
                memory = int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) / 1024
                files = len(os.listdir(f"/proc/{gateway.process.pid}/fd"))
                samples.append((time.monotonic() - begin, memory))
                print(f"{samples[-1][0]:5.0f} s  {memory:6.1f} MiB  {files} files", flush=True)
                file.write_text(FILE.format(upstream=rig.UPSTREAM, burst=5 + len(samples) % 2), encoding="ascii")
                gateway.process.send_signal(signal.SIGHUP)
            for protocol, one in (("HTTP/1.1", load), ("HTTP/1.1 over TLS", others[0])):
                answered = re.search(r"(\d+) requests in", one.communicate()[0]).group(1)
                print(f"{protocol}: {answered} requests in {seconds} s")
            text = (folder.path / "h2load").read_text(encoding="utf-8")
            answered, failed = (sum(map(int, re.findall(rf"(\d+) {what}", text))) for what in ("done", "errored"))
            print(f"HTTP/2 over TLS: {answered} requests, {failed} failed")
    half = samples[len(samples) // 2:]
    times, sizes = ([sample[place] for sample in half] for place in (0, 1))
    middle, mean = sum(times) / len(half), sum(sizes) / len(half)
    slope = sum((t - middle) * (s - mean) for t, s in half) / (sum((t - middle) ** 2 for t in times) or 1)
    print(f"{slope * 3600:+.1f} MiB an hour over the second half")


if __name__ == "__main__":
    main()
