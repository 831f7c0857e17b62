#!/usr/bin/env python3
"""A million clients that come once: what each store holds of them, and what is left of them afterwards.

    cargo build --release && python3 benches/keys.py [--keys 1000000]

Every request has a key of its own. Prints for the memory store, bounded at a tenth of the keys, and for Redis: the buckets
held at most, the memory of the process that holds them, the size of /metrics before and after, and the buckets when their
time to full has passed. Needs nginx, wrk and redis-server.
"""

import argparse
import os
import pathlib
import re
import socket
import subprocess
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
# Long enough that most of them are there at the same time.
FULL_AFTER = 60
NGINX = """
daemon off; worker_processes 1; pid {folder}/pid; error_log /dev/null;
events {{ worker_connections 1024; }}
http {{
  access_log off; keepalive_requests 1000000000; client_body_temp_path {folder}; proxy_temp_path {folder};
  fastcgi_temp_path {folder}; uwsgi_temp_path {folder}; scgi_temp_path {folder};
  server {{ listen 127.0.0.1:{port}; location / {{ return 204; }} }}
}}
"""
LUA = """
local number = {begin}
request = function()
  number = number + 1
  return "GET /?k=" .. number .. " HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n"
end
"""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def page(admin):
    return urllib.request.urlopen(f"http://127.0.0.1:{admin}/metrics", timeout=10).read()


def value(admin, name):
    found = re.findall(rf"^{name}(?:{{.*}})? (\S+)$", page(admin).decode(), re.M)
    return int(sum(float(each) for each in found))


def resident(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) / 1024


def measure(name, store, keys, folder, upstream, held, holder):
    file = folder / "gateway.yaml"
    file.write_text(
        f"listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nupstream: http://127.0.0.1:{upstream}\nstore: {store}\n"
        f"rules: [{{name: key, limit_keys: [query:k], algorithm_config: {{rate: {60 // FULL_AFTER}/min, burst: 1}}}}]\n",
        encoding="ascii")
    command = [TARGET / "release/tollgate", "run", "-c", file]
    gateway = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        port, admin = (int(gateway.stdout.readline().rsplit(":", 1)[1]) for _ in range(2))
        gateway.stdout.readline()
        subprocess.run(["wrk", "-t1", "-c1", "-d1s", f"http://127.0.0.1:{port}/?k=first"], capture_output=True, check=True)
        before, begin, most, memory, sent = len(page(admin)), time.monotonic(), 0, 0.0, 0
        while sent < keys:
            script = folder / "keys.lua"
            script.write_text(LUA.format(begin=sent), encoding="ascii")
            out = subprocess.run(["wrk", "-t1", "-c64", "-d2s", "-s", script, f"http://127.0.0.1:{port}"],
                                 capture_output=True, text=True, check=True).stdout
            # A request that was under way when wrk ended has used its number as well.
            sent += int(re.search(r"(\d+) requests in", out).group(1)) + 64
            most = max(most, held(admin))
            memory = max(memory, resident(holder(gateway)))
        took, after = time.monotonic() - begin, len(page(admin))
        time.sleep(FULL_AFTER + 2)
        evicted = value(admin, "rate_limiter_evicted_total")
        print(f"| {name} | {sent} in {took:.0f} s | {most} | {evicted} | {memory:.0f} MiB | {before} | {after} | {held(admin)} |", flush=True)
    finally:
        gateway.terminate()
        gateway.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000)
    keys = parser.parse_args().keys
    with tempfile.TemporaryDirectory() as made:
        folder, upstream, redis = pathlib.Path(made), free_port(), free_port()
        folder.chmod(0o755)
        (folder / "nginx.conf").write_text(NGINX.format(folder=folder, port=upstream), encoding="ascii")
        servers = [subprocess.Popen(["/usr/sbin/nginx", "-c", folder / "nginx.conf"], stderr=subprocess.DEVNULL),
                   subprocess.Popen(["redis-server", "--port", str(redis), "--save", "", "--dir", made],
                                    stdout=subprocess.DEVNULL)]
        time.sleep(1)

        def in_redis(_):
            out = subprocess.run(["redis-cli", "-p", str(redis), "--raw", "dbsize"], capture_output=True, text=True, check=True)
            return int(out.stdout)

        try:
            print("| store | keys | buckets at most | evicted | memory | /metrics before | after | buckets in the end |")
            print("|---|---|---|---|---|---|---|---|")
            measure("memory", f"{{memory: {{max_buckets: {keys // 10}}}}}", keys, folder, upstream,
                    lambda admin: value(admin, "rate_limiter_buckets"), lambda gateway: gateway.pid)
            measure("Redis", f"{{redis: {{url: 'redis://127.0.0.1:{redis}', timeout: 1s}}}}", keys, folder, upstream,
                    in_redis, lambda _: servers[1].pid)
        finally:
            for server in servers:
                server.terminate()
                server.wait()


if __name__ == "__main__":
    main()
