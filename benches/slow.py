#!/usr/bin/env python3
"""Thousands of slow clients, and what a normal one beside them notices.

    cargo build --release && python3 benches/slow.py [--clients 5000] [--idle 10000] [--nginx]

Each kind in turn: heads that come by two bytes a second, bodies that stall after their first byte, clients that take
nothing of an answer of a mebibyte, connections on which nothing is said; and, on a listener with TLS, handshakes that end after
the first message of the client, which waits or disconnects. They come at 1500 a second, so that it is not their
coming that is measured. Says how long after the last had come the last was gone, what they were answered, how long the requests
of four normal clients took meanwhile, and the most memory that the gateway has held by then. Of the four one is passed on, one
refused by a rule, one asks the upstream itself over a connection of its own for each request, and one an nginx that none of
this concerns: what they notice of the machine alone. With --nginx it is an nginx that is in the gateway's place, with the
same bounds. Needs nginx, and an open-file limit above twice the number of clients.
"""

import argparse
import multiprocessing
import os
import pathlib
import re
import resource
import socket
import ssl
import subprocess
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
# Connections a second.
PACE = 1500
LIMITS = "{header_timeout: 5s, body_timeout: 5s, idle_timeout: 8s, connections_per_client: unlimited}"
# Answers from memory, sends a file, and waits for the whole of a body before it asks itself. What its kernel holds is not what
# is measured, so that is little.
NGINX = """
daemon off; worker_processes 1; worker_rlimit_nofile 20000; pid {folder}/{port}.pid; error_log /dev/null;
events {{ worker_connections 16384; }}
http {{
  access_log off; keepalive_requests 1000000; client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
  uwsgi_temp_path {folder}; scgi_temp_path {folder};
  server {{
    listen 127.0.0.1:{port} backlog=4096 sndbuf=64k; root {folder};
    location / {{ return 200 "ok"; }}
    location /big {{ }}
    location /body {{ proxy_pass http://127.0.0.1:{port}/; }}
  }}
}}
"""


# In the place of the gateway: the same times, and as much of an answer in memory as nginx takes unasked.
INSTEAD = """
daemon off; worker_processes auto; worker_rlimit_nofile 60000; pid {folder}/{port}.pid; error_log /dev/null;
events {{ worker_connections 30000; }}
http {{
  access_log off; keepalive_requests 1000000; client_body_temp_path {folder}; proxy_temp_path {folder};
  fastcgi_temp_path {folder}; uwsgi_temp_path {folder}; scgi_temp_path {folder};
  client_header_timeout 5s; client_body_timeout 5s; send_timeout 5s; keepalive_timeout 8s; proxy_request_buffering off;
  upstream behind {{ server 127.0.0.1:{behind}; keepalive 256; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096 reuseport;
    location = /refused {{ default_type application/json; return 403 "{{}}"; }}
    location / {{ proxy_pass http://behind; proxy_http_version 1.1; proxy_set_header Connection ""; }}
    location = /open {{ stub_status; }}
  }}
}}
"""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def nginx(folder, template=NGINX, behind=None):
    port = free_port()
    os.chmod(folder, 0o755)
    (pathlib.Path(folder) / "big").write_bytes(bytes(1 << 20))
    file = pathlib.Path(folder) / f"nginx-{port}.conf"
    file.write_text(template.format(folder=folder, port=port, behind=behind), encoding="ascii")
    process = subprocess.Popen(["/usr/sbin/nginx", "-c", file], stderr=subprocess.DEVNULL)
    time.sleep(0.5)
    return process, port


def spread(took):
    took.sort()
    return f"{took[len(took) // 2]:.2f} | {took[len(took) * 99 // 100]:.2f} | {took[-1]:.1f}" if took else "- | - | -"


def normal(port, seconds, opening, target, fresh, result):
    """One request after another, and how long each took, in milliseconds: while others come, and from then on."""
    connection = None
    start = time.monotonic()
    coming, here = [], []
    while time.monotonic() < start + seconds:
        begin = time.monotonic()
        if fresh or connection is None:
            connection = socket.create_connection(("127.0.0.1", port))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(b"GET %s HTTP/1.1\r\nHost: a\r\n\r\n" % target)
        answer = b""
        while not answer.rstrip().endswith((b"\r\n\r\nok", b"}")):
            part = connection.recv(4096)
            if not part:
                raise OSError("the normal client was cut")
            answer += part
        (coming if begin < start + opening else here).append((time.monotonic() - begin) * 1000)
        time.sleep(0.004)
    result.put(f"{spread(coming)} | {spread(here)}")


def counted(url, pattern):
    """How many connections the gateway, or the nginx in its place, says are open."""
    page = urllib.request.urlopen(url, timeout=10).read().decode()
    return sum(float(value) for value in re.findall(pattern, page, re.M))


def high_water(process):
    """The most memory that a process and its children have held, in MiB."""
    children = pathlib.Path(f"/proc/{process}/task/{process}/children").read_text(encoding="ascii").split()
    texts = (pathlib.Path(f"/proc/{one}/status").read_text(encoding="ascii") for one in (process, *children))
    return sum(int(re.search(r"VmHWM:\s+(\d+)", text).group(1)) for text in texts) / 1024


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


def statuses(clients):
    """The statuses that were answered, and how often."""
    counts = {}
    for client in clients:
        try:
            first = client.recv(12)
            # After a hello of TLS it is the server's.
            status = first[9:12].decode() if first.startswith(b"HTTP/") else "TLS" if first else "closed"
        except OSError:
            status = "cut"
        counts[status] = counts.get(status, 0) + 1
    return ", ".join(f"{status}: {count}" for status, count in sorted(counts.items()))


def hello():
    """The first message of a client of TLS 1.3: the server has done most of its work when it has answered it."""
    context = ssl.create_default_context()
    arrived, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        context.wrap_bio(arrived, sent, server_hostname="localhost").do_handshake()
    except ssl.SSLWantReadError:
        return sent.read()


def close(clients):
    """Those that have been answered: the others would be gone before they were read."""
    for client in clients:
        try:
            client.recv(1, socket.MSG_PEEK)
            client.close()
        except OSError:
            pass


def phase(name, number, first, each_second, ports, opened, seconds, bound, memory):
    port, slow, upstream, elsewhere = ports
    # Who has just come takes the gateway's spare connection to the upstream, so what is passed on next needs a new one.
    asked = (port, b"/", False), (port, b"/refused", False), (upstream, b"/", True), (elsewhere, b"/", False)
    results = [multiprocessing.Queue() for _ in asked]
    besides = [multiprocessing.Process(target=normal, args=(where, seconds, number / PACE, target, fresh, result))
               for (where, target, fresh), result in zip(asked, results)]
    for beside in besides:
        beside.start()
    begin = time.monotonic()
    clients = []
    for place in range(number):
        time.sleep(max(0, begin + place / PACE - time.monotonic()))
        clients.append(connect(slow, first))
        if each_second is close and place % 100 == 99:
            close(clients[place - 99:])
    opening = time.monotonic() - begin
    most, gone = 0, None
    while time.monotonic() - begin < seconds - 1:
        time.sleep(0.5)
        each_second(clients)
        here = opened()
        most = max(most, here)
        if gone is None and most > 2 and here <= 2:
            gone = time.monotonic() - begin - opening
    took = " | ".join(result.get() for result in results)
    for beside in besides:
        beside.join()
    came = f"{opening:.1f} s" if number else "-"
    gone = f"{gone:.1f} s" if gone else "-"
    print(f"| {name} | {max(most - 2, 0):.0f} | {came} | {bound} | {gone} | {statuses(clients) or '-'} | {took} "
          f"| {memory():.0f} |", flush=True)
    for client in clients:
        client.close()


def tollgate(folder, behind):
    file = pathlib.Path(folder) / "gateway.yaml"
    rule = "{name: ip, limit_keys: [ip:address], algorithm_config: {rps: 100000, burst: 100000}}"
    subprocess.run([ROOT / "scripts/certificate", "localhost"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    pair = "cert_file: certificates/server.pem, key_file: certificates/server.key"
    file.write_text(
        f"listeners: [{{address: 127.0.0.1:0}}, {{address: 127.0.0.1:0, tls: {{certificates: [{{{pair}}}]}}}}]\n"
        f"admin: 127.0.0.1:0\nupstream: http://127.0.0.1:{behind}\n"
        f"limits: {LIMITS}\nrules: [{{name: no, match: {{path: /refused}}, action: deny}}, {rule}]\n", encoding="ascii")
    command = [TARGET / "release/tollgate", "run", "-c", file]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    port, secure, admin = (int(process.stdout.readline().rsplit(":", 1)[1]) for _ in range(3))
    process.stdout.readline()
    return process, port, secure, admin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=5000)
    parser.add_argument("--nginx", action="store_true", help="in the gateway's place")
    parser.add_argument("--idle", type=int, help="10 000, or as many as the gateway has files for")
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as folder:
        (behind, answers), (other, elsewhere) = nginx(folder), nginx(folder)
        if arguments.nginx:
            gateway, port = nginx(folder, INSTEAD, answers)
            secure = None
            # It counts the connection that asks.
            url, pattern, own = f"http://127.0.0.1:{port}/open", r"^Active connections: (\d+)", 1
        else:
            gateway, port, secure, admin = tollgate(folder, answers)
            url, pattern, own = f"http://127.0.0.1:{admin}/metrics", r"^tollgate_http_connections(?:{.*})? (\S+)$", 0

        def opened():
            return counted(url, pattern) - own

        def memory():
            return high_water(gateway.pid)

        def nothing(_):
            pass

        try:
            normal_ones = "passed", "refused", "at the upstream", "elsewhere"
            took = " | ".join(f"{who}{when}: median ms | p99 | worst" for who in normal_ones
                              for when in (" while they come", ""))
            print(f"| clients | open | opened in | bound | last one gone | answered | {took} | MiB |")
            print("|---" * (7 + 6 * len(normal_ones)) + "|")
            head, body = b"GET / HTTP/1.1\r\nHost: a\r\nX: ", b"POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nx"
            idle = arguments.idle or min(10_000, (hard - 384) // 2 - 2)
            some, reading = arguments.clients, b"GET /big HTTP/1.1\r\nHost: a\r\n\r\n"
            for name, number, first, each_second, seconds, bound in [
                ("none", 0, b"", nothing, 5, "-"),
                ("slow heads", some, head, drip, 16, "5 s"),
                ("stalled bodies", some, body, nothing, 16, "5 s"),
                ("slow readers", some, reading, nothing, 20, "5 s"),
                ("idle", idle, b"", nothing, 24, "8 s"),
                ("stalled handshakes", some, hello(), nothing, 16, "5 s"),
                ("cut handshakes", some, hello(), close, 8, "-"),
                ("none", 0, b"", nothing, 5, "-"),
            ]:
                slow = secure if "handshakes" in name else port
                if slow is None:
                    continue
                phase(name, number, first, each_second, (port, slow, answers, elsewhere), opened, seconds, bound, memory)
        finally:
            gateway.terminate()
            gateway.wait()
            for server in behind, other:
                server.terminate()
                server.wait()


if __name__ == "__main__":
    main()
