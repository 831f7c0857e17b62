#!/usr/bin/env python3
"""The invalid heads of tests/heads.txt, sent to nginx, HAProxy and the gateway, and what each answers.

    cargo build --release && python3 benches/raw.py

Each is in front of an upstream of its own, which records what reaches it. Prints a table: what each answers, and what it passes
on, `N passed on` where N requests reached the upstream, `waits` where a second brings nothing. Needs nginx and haproxy.
"""

import concurrent.futures
import re
import socket
import tempfile

import rig
import three_proxies

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


def heads():
    for line in three_proxies.lines("heads.txt"):
        status, name, text = re.fullmatch(r"(\d+) (.*?): (.*)", line).groups()
        yield name, three_proxies.unescaped(text), status


class Upstream(three_proxies.Server):
    """Answers every request that it can find in what comes, and counts them."""

    seen = 0

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
    passing = f"proxy_pass http://127.0.0.1:{upstream.port}; proxy_http_version 1.1;"
    return three_proxies.start(
        name, folder,
        gateway=lambda port: f"listen: 127.0.0.1:{port}\nupstream: http://127.0.0.1:{upstream.port}\n",
        nginx=lambda port: folder.nginx("nginx", port, 1, passing),
        haproxy=lambda port: HAPROXY.format(port=port, upstream=upstream.port))


def main():
    names, all_heads = three_proxies.NAMES, list(heads())
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
