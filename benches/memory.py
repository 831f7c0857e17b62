#!/usr/bin/env python3
"""Bytes per bucket of the memory store, and the time from start to `ready`.

    cargo build --release && python3 benches/memory.py [--buckets 10000,100000,1000000]

Makes so many buckets, one for each value of a query parameter, and divides what the process has grown by their number: at its peak
while they were made (`VmHWM`), and some seconds after that.
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
ALGORITHMS = {"token_bucket": "{rate: 100/day}", "fixed_window": "{limit: 100, window: 2d}"}


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


def memory(process, name):
    """What the kernel says of a process in its `status`, in bytes."""
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
    return int(re.search(rf"{name}:\s+(\d+)", status).group(1)) * 1024


def measure(algorithm, buckets):
    """Bytes per bucket at the peak and after it, and milliseconds to `ready`."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "gateway.yaml"
        limit = f"algorithm: {algorithm}, algorithm_config: {ALGORITHMS[algorithm]}"
        file.write_text(
            f"listen: 127.0.0.1:0\nthreads: 1\nupstream: http://127.0.0.1:{upstream()}\n"
            f'rules: [{{name: user, limit_keys: ["query:u"], {limit}}}]\n',
            encoding="ascii",
        )
        begin = time.monotonic()
        command = [rig.program(), "run", "-c", file]
        gateway = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
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

            def settle():
                # The allocator returns what it has freed, and metrics fold their samples, within some seconds.
                for _ in range(7):
                    time.sleep(1)
                    make(0, 2000)

            # What the process needs for itself is there before the count begins.
            settle()
            before = memory(gateway, "VmRSS")
            # The peak is counted from here on.
            pathlib.Path(f"/proc/{gateway.pid}/clear_refs").write_text("5", encoding="ascii")
            make(2000, 2000 + buckets)
            peak = memory(gateway, "VmHWM") - before
            settle()
            return peak / buckets, (memory(gateway, "VmRSS") - before) / buckets, ready
        finally:
            gateway.kill()
            gateway.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--buckets", default="10000,100000,1000000")
    sizes = [int(size) for size in parser.parse_args().buckets.split(",")]
    measured = {(algorithm, size): measure(algorithm, size) for size in sizes for algorithm in ALGORITHMS}
    print("| algorithm | buckets | bytes per bucket, peak | after it |\n|---|---|---|---|")
    for (algorithm, size), (peak, steady, _) in measured.items():
        print(f"| {algorithm} | {size} | {peak:.0f} | {steady:.0f} |")
    print("\n| | measured | budget |\n|---|---|---|")
    for (algorithm, size), (_, steady, _) in measured.items():
        print(f"| bytes per bucket of a {algorithm} in memory, {size} buckets | {steady:.0f} | 128 |")
    print(f"| milliseconds from the start to `ready` | {sorted(ready for _, _, ready in measured.values())[len(measured) // 2]:.0f} | 100 |")


if __name__ == "__main__":
    main()
