#!/usr/bin/env python3
"""Ten requests in flight: who counts right after clients that leave, and after a process that is killed?

    cargo build --release && python3 benches/slots.py [--aborts 2000] [--stream 1] [--only NAME]

Each of Tollgate (in memory; two gateways on one Redis), nginx `limit_conn`, HAProxy with `conn_cur` in a stick table, Envoy with
`max_requests` of a circuit breaker, and LiteLLM with `max_parallel_requests` of a key (two on one Redis) limits one key to 10
requests in flight. The
upstream counts by itself how many run. In turn:

- 64 callers in a loop, each of whose requests ends at a random place: whole, or the client leaves after part of the head, before
  the answer, in the body, or during an upload, with FIN or RST; or the upstream resets. `reached` is how many of them the upstream
  saw: the others were refused, or left before. `most` is what ran at the same time at the upstream.
- The upstream is gone, and the callers go on. `no upstream` is how many requests were answered with 500 or above.
- The callers break another limit, which answers 403, or 503 at Tollgate. `other limit` is how many of them it refused.
- Then nothing runs. `left` is how many of 10 streams pass that begin at the same time: 10 if no slot has leaked.
- A stream goes on for `--stream` seconds, and then 10 others come: `beside` is how many of them pass: 9.
- With 10 streams open the process is killed with SIGKILL: one of two with Tollgate on Redis, the workers of nginx, which its
  master starts again. `free after` is when 10 pass again, beside those that still run. `most then` is what ran at the upstream.

Not measured: `maxconn` of HAProxy, where requests wait instead, Envoy's adaptive concurrency, which has no fixed number, and another
limit of Envoy and LiteLLM.

Needs redis-server, nginx, haproxy; Envoy and LiteLLM come from the Python package index.
"""

import argparse
import asyncio
import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time

import rig
from rig import free_port

LIMIT, CALLERS = 10, 64

TOLLGATE = """listen: 127.0.0.1:{port}
upstream: http://127.0.0.1:{upstream}
store: {store}
policies:
- name: slots
  rules: [{{name: all, limit_keys: [header:x-key], algorithm: concurrency, algorithm_config: {{limit: 10}}}}]
- name: other
  rules: [{{name: other, limit_keys: [header:x-other], algorithm: fixed_window, algorithm_config: {{limit: 1, window: 1h}}, status: 503}}]
"""
NGINX = """daemon off; worker_processes 2; pid {folder}/nginx.pid; error_log /dev/null;
events {{ worker_connections 4096; }}
http {{ access_log off; client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
  uwsgi_temp_path {folder}; scgi_temp_path {folder};
  limit_conn_zone $http_x_key zone=all:1m; limit_conn_status 429;
  limit_req_zone $http_x_other zone=other:1m rate=1r/m; limit_req_status 403;
  server {{ listen 127.0.0.1:{port}; location / {{ limit_conn all 10; limit_req zone=other; proxy_buffering off; proxy_pass http://127.0.0.1:{upstream}; }} }} }}
"""
HAPROXY = rig.HAPROXY_HEAD + """backend slots
  stick-table type string len 64 size 100k expire 1h store conn_cur
frontend web
  bind 127.0.0.1:{port}
  http-request track-sc0 req.hdr(x-key) table slots
  http-request deny deny_status 429 if {{ sc0_conn_cur gt 10 }}
  http-request deny deny_status 403 if {{ req.hdr(x-other) -m found }}
  default_backend up
backend up
  server up 127.0.0.1:{upstream}
"""
# Keys are in a database, or come from a function like this one.
LITELLM_KEYS = """from litellm.proxy._types import UserAPIKeyAuth

async def key_of_ten(request, api_key):
    return UserAPIKeyAuth(api_key=api_key, max_parallel_requests=10)
"""
LITELLM = """model_list:
  - model_name: fake
    litellm_params: {{model: openai/fake, api_base: "http://127.0.0.1:{upstream}/v1", api_key: none, max_retries: 0}}
general_settings: {{master_key: sk-0123456789abcdef0123456789abcdef, custom_auth: keys.key_of_ten}}
litellm_settings: {{num_retries: 0, cache: true, cache_params: {{type: redis, host: 127.0.0.1, port: {redis}, mode: default_off}}}}
router_settings: {{num_retries: 0, disable_cooldowns: true, redis_host: 127.0.0.1, redis_port: {redis}}}
"""
CHUNK = (b'data: {"id":"1","object":"chat.completion.chunk","created":1,"model":"fake",'
         b'"choices":[{"index":0,"delta":{"role":"assistant","content":"a"},"finish_reason":null}]}\n\n')
BREAKER = "\n    circuit_breakers: {thresholds: [{max_requests: 10, max_connections: 1000, max_pending_requests: 1000}]}\n"

class Upstream:
    """Answers in pieces, and counts how many requests run at the same time, and the most of them."""

    def __init__(self):
        self.running = self.most = self.begun = self.port = 0
        self.connections = set()

    async def start(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", self.port, backlog=1024)
        self.port = self.server.sockets[0].getsockname()[1]

    def stop(self):
        """Accepts no connection any more, and ends those that are open."""
        self.server.close()
        for writer in list(self.connections):
            writer.transport.abort()

    async def serve(self, reader, writer):
        self.connections.add(writer)
        try:
            await self.serve_all(reader, writer)
        finally:
            self.connections.discard(writer)

    async def serve_all(self, reader, writer):
        with contextlib.suppress(Exception):
            while head := await reader.readuntil(b"\r\n\r\n"):
                if length := [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]:
                    # What kind of answer is wanted is in the path, or in a call of a model in the message.
                    head += await reader.readexactly(int(length[0].split(b":")[1]))
                self.running += 1
                self.begun += 1
                self.most = max(self.most, self.running)
                # Leaving of the other side ends a stream.
                watch = asyncio.ensure_future(reader.read(1)) if b"/stream" in head else None
                try:
                    if not await self.answer(head, writer, watch):
                        return
                finally:
                    self.running -= 1
                    if watch:
                        watch.cancel()
                if watch:
                    return
        writer.close()

    async def answer(self, head, writer, watch):
        if b"/reset" in head:
            await asyncio.sleep(random.random() * 0.01)
            writer.transport.abort()
            return False
        await asyncio.sleep(random.random() * 0.005)
        kind = b"text/event-stream" if b"/v1/" in head else b"text/plain"
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: " + kind + b"\r\nTransfer-Encoding: chunked\r\n\r\n")
        pieces = 0
        while pieces < 4 or watch:
            writer.write(b"%x\r\n%s\r\n" % (len(CHUNK), CHUNK))
            await writer.drain()
            pieces += 1
            if watch:
                done, _ = await asyncio.wait([watch], timeout=0.05)
                if done:
                    return False
            else:
                await asyncio.sleep(random.random() * 0.003)
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


def plain(path):
    return b"GET %s HTTP/1.1\r\nHost: a.test\r\nX-Key: k\r\nConnection: close\r\n\r\n" % path


def call_of_model(path):
    body = b'{"model":"fake","stream":true,"messages":[{"role":"user","content":"%s"}]}' % path
    head = (b"POST /v1/chat/completions HTTP/1.1\r\nHost: a.test\r\nAuthorization: Bearer sk-k\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n")
    return head % len(body) + body


async def begin(port, request):
    """The connection of a request, with its status."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request(b"/stream"))
    try:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
    except (asyncio.IncompleteReadError, ConnectionError, asyncio.TimeoutError):
        return 0, reader, writer
    return int(head.split()[1]), reader, writer


async def abort(port, request):
    """One request that ends at a random place."""
    way = random.choice(["whole", "part of the head", "before the answer", "in the body", "upstream", "upload"])
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        if way == "part of the head":
            writer.write(request(b"/")[:30])
            await writer.drain()
        elif way == "upload":
            head = request(b"/").split(b"\r\n\r\n")[0].replace(b"GET", b"POST")
            head = b"\r\n".join(line for line in head.split(b"\r\n") if not line.startswith(b"Content-Length"))
            writer.write(head + b"\r\nContent-Length: 100000\r\n\r\nhalf")
            await asyncio.sleep(random.random() * 0.006)
        else:
            writer.write(request(b"/reset" if way == "upstream" else b"/"))
            if way == "before the answer":
                await asyncio.sleep(random.random() * 0.006)
            elif way == "in the body":
                await asyncio.wait_for(reader.read(200), 10)
            else:
                await asyncio.wait_for(reader.read(), 10)
        if random.random() < 0.5:
            writer.transport.abort()
        else:
            writer.close()
    except (OSError, asyncio.TimeoutError):
        pass


async def answered(port, request, fields=b""):
    """The status of a whole answer, or 0."""
    with contextlib.suppress(OSError, asyncio.TimeoutError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(b"/").replace(b"Host: a.test", b"Host: a.test" + fields))
        answer = await asyncio.wait_for(reader.read(), 20)
        writer.close()
        # Envoy refuses with 503, as it answers when the upstream is gone, and adds this field.
        overload = b"x-envoy-overloaded" in answer
        return 429 if overload else int(answer.split()[1]) if answer else 0
    return 0


async def streams(ports, count, request):
    """Begins so many streams at the same time: those that passed."""
    begun = await asyncio.gather(*[begin(ports[number % len(ports)], request) for number in range(count)])
    for status, _, writer in begun:
        if status != 200:
            writer.close()
    return [writer for status, _, writer in begun if status == 200]


def listening(port, minutes=1):
    def connected():
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.1):
            return True
    rig.soon(f"port {port}", connected, minutes)


async def at_rest(upstream, seconds=20):
    begin = time.monotonic()
    while upstream.running and time.monotonic() - begin < seconds:
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.5)


# The rows of Tollgate that broke its promise.
failures = []


async def trial(name, upstream, start, aborts, stream, request):
    """The row of the table. `start` starts all processes of a proxy: a list of each process, its port, and how to start it again."""
    upstream.most = upstream.begun = 0
    started = start()
    try:
        ports = [port for _, port, _ in started]
        async def caller(number):
            for _ in range(number, aborts, CALLERS):
                await abort(ports[number % len(ports)], request)
        await asyncio.gather(*map(caller, range(CALLERS)))
        most, reached = upstream.most, upstream.begun
        await at_rest(upstream)

        async def statuses(fields=b""):
            found = []
            for _ in range(10):
                found += await asyncio.gather(*[answered(ports[number % len(ports)], request, fields) for number in range(CALLERS)])
            return found
        upstream.stop()
        gone = sum(status >= 500 for status in await statuses())
        await upstream.start()
        other = "not measured"
        if name.startswith(("Tollgate", "nginx", "HAProxy")):
            other = (await statuses(b"\r\nX-Other: k")).count(503 if name.startswith("Tollgate") else 403)
        await at_rest(upstream)
        open_streams = await streams(ports, LIMIT, request)
        left = len(open_streams)
        for writer in open_streams[1:]:
            writer.close()
        await asyncio.sleep(stream)
        goes_on = upstream.running
        others = await streams(ports, LIMIT, request)
        beside = f"{len(others)} of {LIMIT - 1}" if goes_on else "the stream was ended"
        for writer in open_streams[:1] + others:
            writer.close()
        await at_rest(upstream)
        # Half of the streams are those of the process that is killed, if there are two.
        held = await streams(ports, LIMIT, request)
        process, port, again = started[0]
        upstream.most = upstream.running
        killed = time.monotonic()
        workers = rig.family(process.pid)[1:] if name.startswith("nginx") else []
        if workers:
            for worker in workers:
                os.kill(worker, signal.SIGKILL)
        else:
            process.kill()
            process.wait()
            if len(started) == 1:
                started[0] = (again(), port, again)
                listening(port)
        passing = held[1::2] if len(started) > 1 else []
        while len(passing) < LIMIT and time.monotonic() - killed < 75:
            passing += await streams(ports[1:] or ports, LIMIT - len(passing), request)
            await asyncio.sleep(0.02)
        took = time.monotonic() - killed
        free = f"{took:.1f} s" if len(passing) >= LIMIT else "not in 75 s"
        if name.startswith("Tollgate") and not (left == LIMIT and beside == f"{LIMIT - 1} of {LIMIT - 1}" and took < 8 and upstream.most <= LIMIT):
            failures.append(name)
        for writer in held + passing:
            writer.close()
        print(f"| {name} | {aborts} | {reached} | {most} | {gone} | {other} | {left} of {LIMIT} | {beside} | {free} | {upstream.most} |", flush=True)
        await at_rest(upstream)
    finally:
        for process, _, _ in started:
            process.kill()
            process.wait()


def starting(commands):
    """Starts one process for each command, which is made of its port."""
    def start():
        started = []
        for command in commands:
            port = free_port()
            again = lambda command=command, port=port: subprocess.Popen(
                command(port), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            started.append((again(), port, again))
            listening(port)
        time.sleep(1)
        return started
    return start


async def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--aborts", type=int, default=2000)
    parser.add_argument("--stream", type=float, default=1, help="how long a stream goes on before others come, in seconds")
    parser.add_argument("--only", help="the name of one row")
    arguments = parser.parse_args()
    upstream = Upstream()
    await upstream.start()
    with tempfile.TemporaryDirectory() as made:
        folder, redis = rig.Folder(made), free_port()
        server = subprocess.Popen(["redis-server", "--port", str(redis), "--save", "", "--dir", made], stdout=subprocess.DEVNULL)
        rig.wait_for(redis)

        def tollgate(store):
            def command(port):
                text = TOLLGATE.format(port=port, upstream=upstream.port, store=store)
                return [rig.program(), "run", "-c", folder.write(f"{port}.yaml", text)]
            return command

        def written(template, name, *command):
            return lambda port: [*command, folder.write(name, template.format(port=port, upstream=upstream.port, folder=made))]

        def envoy(port):
            command = folder.envoy(port, 2)
            file = folder.path / "envoy.yaml"
            text = file.read_text(encoding="ascii").replace(f"port_value: {rig.UPSTREAM}", f"port_value: {upstream.port}")
            # Envoy ends an answer after 15 s if nothing else is said.
            text = text.replace("route: {cluster: upstream}", "route: {cluster: upstream, timeout: 0s}")
            file.write_text(text.replace("    type: STATIC\n", f"    type: STATIC{BREAKER}"), encoding="ascii")
            return command

        on_redis = tollgate(f"{{redis: {{url: 'redis://127.0.0.1:{redis}'}}, gateways: 2}}")
        rows = {
            "Tollgate, memory": starting([tollgate("{memory: {}}")]),
            "Tollgate, two on one Redis": starting([on_redis] * 2),
            "nginx `limit_conn`": starting([written(NGINX, "nginx.conf", "/usr/sbin/nginx", "-c")]),
            "HAProxy `conn_cur`": starting([written(HAPROXY, "haproxy.cfg", "/usr/sbin/haproxy", "-db", "-f")]),
            "Envoy `max_requests`": starting([envoy]),
        }
        def litellm(port):
            program = subprocess.run([rig.ROOT / "scripts/pypi-server", "litellm"], check=True, capture_output=True, text=True)
            folder.write("keys.py", LITELLM_KEYS)
            text = LITELLM.format(upstream=upstream.port, redis=redis)
            return ["env", "NO_DOCS=True", program.stdout.strip(), "--config", folder.write("litellm.yaml", text), "--port", str(port)]

        rows["LiteLLM `max_parallel_requests`, two on one Redis"] = starting([litellm] * 2)
        print(f"\n| | aborts | reached | most | no upstream | other limit | left | beside | free after | most then |\n"
              "|---|---|---|---|---|---|---|---|---|---|")
        try:
            for name, start in rows.items():
                if arguments.only in (None, name):
                    calls = name.startswith("LiteLLM")
                    # Which answers some hundred calls a second.
                    aborts = min(arguments.aborts, 2000) if calls else arguments.aborts
                    await trial(name, upstream, start, aborts, arguments.stream, call_of_model if calls else plain)
        finally:
            server.kill()
            server.wait()
    if failures:
        sys.exit(f"failed: {', '.join(failures)}")


if __name__ == "__main__":
    asyncio.run(main())
