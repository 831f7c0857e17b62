#!/usr/bin/env python3
"""Bytes per bucket of the memory store, and the time from start to `ready`.

    cargo build --release && python3 benches/memory.py [--buckets 200000]

Makes so many buckets, one for each value of a query parameter, and divides what the process has grown by their number.
"""

import argparse
import pathlib
import re
import socket
import subprocess
import tempfile
import threading
import time

import rig

PIPELINED = 50


def upstream():
    """Answers every request with 204."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(connection):
        lines = connection.makefile("rb")
        while lines.readline():
            while lines.readline() not in (b"\r\n", b""):
                pass
            connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

    def accept():
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return listener.getsockname()[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--buckets", type=int, default=200_000)
    buckets = parser.parse_args().buckets
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "gateway.yaml"
        rule = '{name: user, limit_keys: ["query:u"], algorithm_config: {rate: 100/day}}'
        file.write_text(
            f"listen: 127.0.0.1:0\nthreads: 1\nupstream: http://127.0.0.1:{upstream()}\nrules: [{rule}]\n",
            encoding="ascii",
        )
        begin = time.monotonic()
        command = [rig.program(), "run", "-c", file]
        gateway = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            port = int(re.search(r":(\d+)$", gateway.stdout.readline()).group(1))
            gateway.stdout.readline()
            ready = (time.monotonic() - begin) * 1000
            connection = socket.create_connection(("127.0.0.1", port))

            def make(first, last):
                for start in range(first, last, PIPELINED):
                    numbers = range(start, min(start + PIPELINED, last))
                    connection.sendall(b"".join(b"GET /?u=%d HTTP/1.1\r\nHost: a\r\n\r\n" % u for u in numbers))
                    answers = b""
                    while answers.count(b"HTTP/1.1 204") < len(numbers):
                        answers += connection.recv(1 << 16)

            def resident():
                status = pathlib.Path(f"/proc/{gateway.pid}/status").read_text(encoding="ascii")
                return int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) * 1024

            # What the process needs for itself is there before the count begins.
            make(0, 2000)
            before = resident()
            make(2000, 2000 + buckets)
            # The allocator returns what it has freed, and metrics fold their samples, within some seconds.
            for _ in range(7):
                time.sleep(1)
                make(0, 2000)
            print("| | measured | budget |\n|---|---|---|")
            print(f"| bytes per bucket of a token bucket in memory, {buckets} buckets | {(resident() - before) / buckets:.0f} | 128 |")
            print(f"| milliseconds from the start to `ready` | {ready:.0f} | 100 |")
        finally:
            gateway.kill()
            gateway.wait()


if __name__ == "__main__":
    main()
