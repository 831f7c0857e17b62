#!/usr/bin/env python3
"""Failed requests while endpoints of an upstream are ill: the gateway, HAProxy and nginx with equal settings, in the same run.

    cargo build --release && python3 benches/upstreams.py [--rate 300] [--debug] [FAULT...]

Three endpoints, each a process of its own, behind each of the three proxies. Clients send GET requests at a fixed rate through each
of them, at the same time, while one endpoint has a fault for some seconds and recovers:

    killed      SIGKILL, and started again
    stopped     SIGSTOP, and SIGCONT
    slow        answers after 3 s, three times the read timeout
    refuses     closes its listening socket, and opens it again
    resets      resets every connection as soon as it has read a request
    503         answers 503, checks included
    flaps       answers 503 every other half second
    all         one is killed and comes back, one is stopped, and one answers 503, so that at least one is well at any time

Prints for each proxy how many requests failed (any status but 200, or none within 10 s), and the longest time. All have the same
times: 500 ms to connect, 1 s to answer, checks every 500 ms that fall after 2 and rise after 2, two retries at other endpoints.
nginx has no active checks: it takes an endpoint out for 2 s after 2 failures. Ends with 1 if the gateway fails more requests
than HAProxy by more than a thousandth of those that were sent. Needs haproxy and nginx.
"""

import argparse
import asyncio
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
# In seconds: before a fault, with it, and after it.
BEFORE, ILL, AFTER = 1.5, 5, 3
PATIENCE = 10
FAULTS = ["killed", "stopped", "slow", "refuses", "resets", "503", "flaps", "all"]

GATEWAY = """
listen: 127.0.0.1:{port}
upstreams:
  api:
    endpoints: [{endpoints}]
    timeouts: {{connect: 500ms, read: 1s, write: 1s, idle: 4s}}
    health: {{path: /healthz, interval: 500ms, timeout: 500ms, fall: 2, rise: 2}}
    ejection: {{consecutive: 5, for: 2s, max_share: 67%}}
    retries: {{max: 2, budget: 100%}}
routes: [{{name: all, upstream: api}}]
"""

HAPROXY = """
global
  nbthread 1
defaults
  mode http
  timeout connect 500ms
  timeout server 1s
  timeout client 10s
  timeout queue 1s
  retries 2
  option redispatch 1
  retry-on conn-failure empty-response response-timeout
frontend front
  bind 127.0.0.1:{port}
  default_backend api
backend api
  balance roundrobin
  http-reuse always
  option httpchk GET /healthz
  default-server check inter 500ms fall 2 rise 2 observe layer7 error-limit 5 on-error fail-check
  timeout check 500ms
{endpoints}
"""

NGINX = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log /dev/null;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
  uwsgi_temp_path {folder}; scgi_temp_path {folder}; keepalive_requests 1000000;
  upstream api {{ {endpoints} keepalive 64; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://api; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_connect_timeout 500ms; proxy_read_timeout 1s; proxy_send_timeout 1s;
      proxy_next_upstream error timeout; proxy_next_upstream_tries 3;
    }}
  }}
}}
"""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


# An endpoint: what it does is in a file, so that nothing has to be sent to a process that is stopped.


async def endpoint(port, file):
    def mode():
        return pathlib.Path(file).read_text(encoding="ascii")

    async def serve(reader, writer):
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                now = mode()
                if now == "resets":
                    linger = (1).to_bytes(4, "little") + bytes(4)
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    writer.transport.abort()
                    return
                if now == "slow":
                    await asyncio.sleep(3)
                ill = now == "503" or now == "flaps" and int(time.time() * 2) % 2
                status = b"503 Service Unavailable" if ill else b"200 OK"
                writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 2\r\n\r\nok")
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = None
    while True:
        if (mode() == "refuses") == (server is not None):
            if server:
                server.close()
                server = None
            else:
                server = await asyncio.start_server(serve, "127.0.0.1", port, backlog=1024, reuse_address=True)
        await asyncio.sleep(0.02)


class Endpoint:
    def __init__(self, folder, number):
        self.port, self.file = free_port(), pathlib.Path(folder) / f"endpoint-{number}"
        self.behave("well")
        self.start()

    def behave(self, mode):
        new = self.file.with_suffix(".new")
        new.write_text(mode, encoding="ascii")
        new.rename(self.file)

    def start(self):
        self.process = subprocess.Popen([sys.executable, __file__, "--endpoint", str(self.port), str(self.file)])

    def end(self):
        self.process.kill()
        self.process.wait()

    def fall_ill(self, fault):
        if fault == "killed":
            self.end()
        elif fault == "stopped":
            self.process.send_signal(signal.SIGSTOP)
        else:
            self.behave(fault)

    def recover(self, fault):
        if fault == "killed":
            self.start()
        elif fault == "stopped":
            self.process.send_signal(signal.SIGCONT)
        else:
            self.behave("well")


async def request(port, idle):
    """One GET request on a connection that is kept. Returns its status; 0 without one."""
    reader, writer = idle.pop() if idle else (None, None)
    try:
        if writer is None:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = int(head.split("content-length:")[1].split("\r\n")[0]) if "content-length:" in head else None
        if length is not None:
            await reader.readexactly(length)
        if length is None or "connection: close" in head or head.startswith("http/1.0"):
            writer.close()
        else:
            idle.append((reader, writer))
        return int(head.split(" ")[1])
    except (OSError, asyncio.IncompleteReadError):
        if writer:
            writer.close()
        return 0


async def load(port, rate, seconds, result):
    """Requests at a fixed rate, whatever happened to those before: their statuses and times."""
    idle, tasks, start = [], [], time.monotonic()

    async def one():
        begin = time.monotonic()
        try:
            status = await asyncio.wait_for(request(port, idle), PATIENCE)
        except asyncio.TimeoutError:
            status = 0
        result.append((begin - start, status, time.monotonic() - begin))

    for number in range(int(rate * seconds)):
        await asyncio.sleep(max(0, start + number / rate - time.monotonic()))
        tasks.append(asyncio.create_task(one()))
    await asyncio.gather(*tasks)
    for _, writer in idle:
        writer.close()


async def faults(endpoints, fault):
    first, second, third = endpoints
    await asyncio.sleep(BEFORE)
    if fault != "all":
        first.fall_ill(fault)
        await asyncio.sleep(ILL)
        first.recover(fault)
        return await asyncio.sleep(AFTER)
    first.fall_ill("killed")
    await asyncio.sleep(2)
    first.recover("killed")
    await asyncio.sleep(2.5)
    second.fall_ill("stopped")
    await asyncio.sleep(2.5)
    third.fall_ill("503")
    await asyncio.sleep(3)
    second.recover("stopped")
    third.recover("503")
    await asyncio.sleep(AFTER)


def proxies(folder, endpoints, program):
    ports = [free_port() for _ in range(3)]
    addresses = [f"127.0.0.1:{one.port}" for one in endpoints]
    listed = ", ".join(f'"http://{one}"' for one in addresses)
    servers = "\n".join(f"  server s{number} {one}" for number, one in enumerate(addresses))
    passive = " ".join(f"server {one} max_fails=2 fail_timeout=2s;" for one in addresses)
    texts = [
        ("gateway.yaml", GATEWAY.format(port=ports[0], endpoints=listed)),
        ("haproxy.cfg", HAPROXY.format(port=ports[1], endpoints=servers)),
        ("nginx.conf", NGINX.format(port=ports[2], endpoints=passive, folder=folder)),
    ]
    files = []
    for name, text in texts:
        files.append(pathlib.Path(folder) / name)
        files[-1].write_text(text, encoding="ascii")
    commands = [
        [program, "run", "-c", files[0]],
        ["/usr/sbin/haproxy", "-db", "-f", files[1]],
        ["/usr/sbin/nginx", "-c", files[2]],
    ]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return ports, [subprocess.Popen(command, **quiet) for command in commands]


def wait_for(port):
    for _ in range(500):
        try:
            return socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.02)
    sys.exit(f"nothing listens on port {port}")


async def run(fault, rate, program):
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        endpoints = [Endpoint(folder, number) for number in range(3)]
        for one in endpoints:
            wait_for(one.port)
        ports, processes = proxies(folder, endpoints, program)
        try:
            for port in ports:
                wait_for(port)
            await asyncio.sleep(1)
            seconds = BEFORE + AFTER + (10 if fault == "all" else ILL)
            results = [[] for _ in ports]
            loads = [load(port, rate, seconds, result) for port, result in zip(ports, results)]
            await asyncio.gather(faults(endpoints, fault), *loads)
        finally:
            for one in endpoints:
                one.process.send_signal(signal.SIGCONT)
                one.end()
            for process in processes:
                process.terminate()
                process.wait()
    failed = [sum(status != 200 for _, status, _ in result) for result in results]
    cells = []
    for result, count in zip(results, failed):
        statuses = sorted({status for _, status, _ in result if status != 200})
        why = f" ({', '.join(str(status) for status in statuses)})" if statuses else ""
        cells.append(f"{count}{why}, {max(took for _, _, took in result):.2f} s")
    print(f"| {fault} | {len(results[0])} | {' | '.join(cells)} |", flush=True)
    return failed[0] <= failed[1] + len(results[0]) / 1000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("faults", nargs="*", choices=[*FAULTS, []], metavar="FAULT")
    parser.add_argument("--rate", type=int, default=300, help="requests a second through each proxy")
    parser.add_argument("--debug", action="store_true", help="the debug build")
    parser.add_argument("--endpoint", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.endpoint:
        return asyncio.run(endpoint(int(arguments.endpoint[0]), arguments.endpoint[1]))
    program = TARGET / ("debug" if arguments.debug else "release") / "tollgate"
    print("| fault | requests | gateway: failed, longest | HAProxy | nginx |\n|---|---|---|---|---|", flush=True)
    passed = [asyncio.run(run(fault, arguments.rate, program)) for fault in arguments.faults or FAULTS]
    sys.exit(0 if all(passed) else 1)


if __name__ == "__main__":
    main()
