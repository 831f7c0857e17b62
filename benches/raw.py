#!/usr/bin/env python3
"""The invalid heads of tests/heads.txt, sent to nginx, HAProxy and the gateway, and what each answers.

    cargo build --release && python3 benches/raw.py

Each is in front of an upstream of its own, which records what reaches it. Prints a table: what each answers, and what it passes
on, `N passed on` where N requests reached the upstream, `waits` where a second brings nothing. Needs nginx and haproxy.
"""

import concurrent.futures
import re
import socket
import subprocess
import tempfile
import threading

import rig

HAPROXY = """
defaults
  mode http
  timeout connect 1s
  timeout client 5s
  timeout server 5s
listen raw
  bind 127.0.0.1:{port}
  server upstream 127.0.0.1:{upstream}
"""
ESCAPES = {"r": b"\r", "n": b"\n", "t": b"\t", "0": b"\0", "\\": b"\\"}


def unescaped(text):
    """The bytes that a line of heads.txt means."""
    parts = b""
    for times, repeated, byte, escape, plain in re.findall(r"\\\*(\d+)\((.*?)\)|\\x(..)|\\(.)|([^\\]+)", text):
        if times:
            parts += unescaped(repeated) * int(times)
        elif byte:
            parts += bytes([int(byte, 16)])
        else:
            parts += ESCAPES[escape] if escape else plain.encode()
    return parts


def heads():
    for line in (rig.ROOT / "tests/heads.txt").read_text(encoding="ascii").splitlines():
        if line and not line.startswith("#"):
            status, name, text = re.fullmatch(r"(\d+) (.*?): (.*)", line).groups()
            yield name, unescaped(text), status


class Upstream:
    """Answers every request that it can find in what comes, and counts them."""

    def __init__(self):
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.seen = 0
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            threading.Thread(target=self.serve, args=(self.socket.accept()[0],), daemon=True).start()

    def serve(self, stream):
        read = b""
        try:
            while part := stream.recv(65536):
                read += part
                while b"\r\n\r\n" in read:
                    _, read = read.split(b"\r\n\r\n", 1)
                    # A last chunk ends in the same way, and is no request.
                    if re.search(rb"(?m)^\S+ \S+ HTTP/1", _):
                        self.seen += 1
                        stream.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        except OSError:
            pass


def ask(port, upstream, head):
    before = upstream.seen
    answer = b""
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.settimeout(1)
        try:
            client.sendall(head)
            while part := client.recv(65536):
                answer += part
            ended = "closed"
        except TimeoutError:
            ended = "waits"
        except OSError:
            ended = "cut"
    statuses = re.findall(rb"HTTP/1\.[01] (\d{3})", answer)
    said = ", ".join(status.decode() for status in statuses) or ("page" if answer else ended)
    passed = upstream.seen - before
    return f"{said}; {passed} passed on" if passed else said


def start(name, folder, upstream):
    """A proxy before this upstream: its process and its port."""
    port = rig.free_port()
    if name == "gateway":
        file = folder.write("gateway.yaml", f"listen: 127.0.0.1:{port}\nupstream: http://127.0.0.1:{upstream.port}\n")
        command = [rig.program(), "run", "-c", file]
    elif name == "nginx":
        passing = f"proxy_pass http://127.0.0.1:{upstream.port}; proxy_http_version 1.1;"
        command = folder.nginx("nginx", port, 1, passing)
    else:
        file = folder.write("haproxy.cfg", HAPROXY.format(port=port, upstream=upstream.port))
        command = ["/usr/sbin/haproxy", "-db", "-f", file]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    rig.wait_for(port)
    return process, port


def main():
    names, all_heads = ["gateway", "nginx", "haproxy"], list(heads())
    with tempfile.TemporaryDirectory() as made:
        folder = rig.Folder(made)
        upstreams = [Upstream() for _ in names]
        proxies = [start(name, folder, upstream) for name, upstream in zip(names, upstreams)]
        try:
            def answers(proxy, upstream):
                return [ask(proxy[1], upstream, head) for _, head, _ in all_heads]

            with concurrent.futures.ThreadPoolExecutor() as pool:
                columns = list(pool.map(answers, proxies, upstreams))
        finally:
            for process, _ in proxies:
                process.terminate()
                process.wait()
    same = 0
    print("| what is sent | gateway | nginx | HAProxy |\n|---|---|---|---|")
    for (name, _, status), *row in zip(all_heads, *columns):
        if any("passed on" in cell or cell in ("waits", "page") or cell != status for cell in row):
            print(f"| {name} | {' | '.join(row)} |")
        else:
            same += 1
    print(f"\n{same} of {len(all_heads)} get the same answer from all three and reach no upstream: they are left out.")
    for name, upstream in zip(names, upstreams):
        print(f"{name}: {upstream.seen} requests reached its upstream")


if __name__ == "__main__":
    main()
