#!/usr/bin/env python3
"""Minutes of mixed traffic, and whether memory or files grow.

    cargo build --release && python3 benches/soak.py [--minutes 3]

Requests with keys that come once and keys that return, refusals, heads that are none, connections that go at once, and a
reload every ten seconds. Prints memory and open files every ten seconds, and how fast memory grew over the second half.
Needs nginx and wrk.
"""

import argparse
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
NGINX = """
daemon off; worker_processes 1; pid {folder}/pid; error_log /dev/null;
events {{ worker_connections 1024; }}
http {{
  access_log off; client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
  uwsgi_temp_path {folder}; scgi_temp_path {folder};
  server {{ listen 127.0.0.1:{port}; location / {{ return 200 "ok"; }} }}
}}
"""
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
    with tempfile.TemporaryDirectory() as made, socket.create_server(("127.0.0.1", 0)) as probe:
        folder, upstream = pathlib.Path(made), probe.getsockname()[1]
        probe.close()
        folder.chmod(0o755)
        (folder / "nginx.conf").write_text(NGINX.format(folder=folder, port=upstream), encoding="ascii")
        (folder / "mixed.lua").write_text(LUA, encoding="ascii")
        file = folder / "gateway.yaml"
        file.write_text(FILE.format(upstream=upstream, burst=5), encoding="ascii")
        behind = subprocess.Popen(["/usr/sbin/nginx", "-c", folder / "nginx.conf"], stderr=subprocess.DEVNULL)
        command = [TARGET / "release/tollgate", "run", "-c", file]
        gateway = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        port = int(gateway.stdout.readline().rsplit(":", 1)[1])
        gateway.stdout.readline()
        load = subprocess.Popen(["wrk", "-t1", "-c64", f"-d{seconds}s", "-s", folder / "mixed.lua", f"http://127.0.0.1:{port}"],
                                stdout=subprocess.PIPE, text=True)
        samples, begin = [], time.monotonic()
        try:
            while load.poll() is None:
                time.sleep(min(10, max(1, seconds - (time.monotonic() - begin))))
                status = pathlib.Path(f"/proc/{gateway.pid}/status").read_text(encoding="ascii")
                memory = int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) / 1024
                files = len(os.listdir(f"/proc/{gateway.pid}/fd"))
                samples.append((time.monotonic() - begin, memory))
                print(f"{samples[-1][0]:5.0f} s  {memory:6.1f} MiB  {files} files", flush=True)
                file.write_text(FILE.format(upstream=upstream, burst=5 + len(samples) % 2), encoding="ascii")
                gateway.send_signal(signal.SIGHUP)
            print(re.search(r"(\d+) requests in \S+", load.stdout.read()).group(0))
        finally:
            for process in (load, gateway, behind):
                process.terminate()
                process.wait()
    half = samples[len(samples) // 2:]
    times, sizes = ([sample[place] for sample in half] for place in (0, 1))
    middle, mean = sum(times) / len(half), sum(sizes) / len(half)
    slope = sum((t - middle) * (s - mean) for t, s in half) / (sum((t - middle) ** 2 for t in times) or 1)
    print(f"{slope * 3600:+.1f} MiB an hour over the second half")


if __name__ == "__main__":
    main()
