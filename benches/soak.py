#!/usr/bin/env python3
"""Minutes of mixed traffic, and whether memory or files grow.

    cargo build --release && python3 benches/soak.py [--minutes 3]

Requests with keys that come once and keys that return, refusals, invalid heads, connections that go at once, and a
reload every ten seconds. Prints memory and open files every ten seconds, and how fast memory grew over the second half.
Needs nginx and wrk.
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
FILE = """listen: 127.0.0.1:0
upstream: http://127.0.0.1:{upstream}
store: {{memory: {{max_buckets: 100000}}}}
rules: [{{name: key, limit_keys: [query:k], algorithm_config: {{rps: 1, burst: {burst}}}}}]
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=3)
    seconds = int(parser.parse_args().minutes * 60)
    with tempfile.TemporaryDirectory() as made:
        folder = rig.Folder(made)
        mixed = folder.write("mixed.lua", LUA)
        file = folder.write("gateway.yaml", FILE.format(upstream=rig.UPSTREAM, burst=5))
        with contextlib.ExitStack() as stack:
            stack.enter_context(rig.ending(folder.upstream()))
            gateway = rig.Gateway(file)
            stack.enter_context(rig.ending(gateway.process))
            command = ["wrk", "-t1", "-c64", f"-d{seconds}s", "-s", mixed, f"http://127.0.0.1:{gateway.ports['http']}"]
            load = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            stack.enter_context(rig.ending(load))
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
            print(re.search(r"(\d+) requests in \S+", load.stdout.read()).group(0))
    half = samples[len(samples) // 2:]
    times, sizes = ([sample[place] for sample in half] for place in (0, 1))
    middle, mean = sum(times) / len(half), sum(sizes) / len(half)
    slope = sum((t - middle) * (s - mean) for t, s in half) / (sum((t - middle) ** 2 for t in times) or 1)
    print(f"{slope * 3600:+.1f} MiB an hour over the second half")


if __name__ == "__main__":
    main()
