#!/usr/bin/env python3
"""What a bucket of each algorithm takes, in memory and in Redis.

    cargo build --release && python3 benches/buckets.py [ALGORITHM...]

Makes buckets, one for each value of a query parameter, and charges each several times, one pass over all of them after the
other: of a `sliding_window` one pass in each of its steps. Then it divides what the gateway, or the `used_memory` of Redis
without that of its connections, has grown by the number of buckets. Takes some minutes.
"""

import argparse
import pathlib
import re
import socket
import subprocess
import tempfile
import time

import rig
from rig import UPSTREAM, free_port

PIPELINED = 100
STEP = 4
# By name: the limit, how many buckets, how often each is charged, and how many seconds a pass takes at least.
ROWS = {
    "token_bucket": ("algorithm_config: {rate: 100/day}", 100_000, 1, 0),
    "fixed_window": ("algorithm: fixed_window, algorithm_config: {limit: 100, window: 2d}", 100_000, 1, 0),
    "leaky_bucket":
        ("algorithm: leaky_bucket, algorithm_config: {rate: 100/day, queue: 0, max_wait: 1s, delay_after: 50}", 100_000, 1, 0),
    "sliding_window, granted in one step":
        ("algorithm: sliding_window, algorithm_config: {limit: 1000, window: 10d}", 100_000, 1, 0),
    "sliding_window, granted in each of 10 steps":
        (f"algorithm: sliding_window, algorithm_config: {{limit: 1000, window: {10 * STEP}s}}", 8_000, 10, STEP),
    "sliding_log, 1 grant": ("algorithm: sliding_log, algorithm_config: {limit: 100, window: 1d}", 100_000, 1, 0),
    "sliding_log, 10 grants": ("algorithm: sliding_log, algorithm_config: {limit: 100, window: 1d}", 15_000, 10, 0),
    "sliding_log, 100 grants": ("algorithm: sliding_log, algorithm_config: {limit: 100, window: 1d}", 3_000, 100, 0),
}


def resident(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) * 1024


def used(port):
    """What Redis holds for its data: all memory but what its clients' connections take."""
    text = subprocess.run(["redis-cli", "-p", str(port), "INFO", "memory"], check=True, stdout=subprocess.PIPE, text=True).stdout
    number = {name: int(value) for name, value in re.findall(r"^(\w+):(\d+)\r?$", text, re.M)}
    return number["used_memory"] - number["mem_clients_normal"]


def charge(connection, first, last):
    """One request for each of these buckets."""
    for start in range(first, last, PIPELINED):
        numbers = range(start, min(start + PIPELINED, last))
        connection.sendall(b"".join(b"GET /?u=%d HTTP/1.1\r\nHost: a\r\n\r\n" % u for u in numbers))
        passed, answers = 0, b""
        while passed < len(numbers):
            answers += connection.recv(1 << 16)
            passed = answers.count(b"HTTP/1.1 200")
            if b"HTTP/1.1 4" in answers or b"HTTP/1.1 5" in answers:
                raise SystemExit(f"not every request passed: {answers[:200]}")


def measure(folder, limit, buckets, times, seconds, redis):
    """Bytes per bucket, in Redis or in memory."""
    store = f"store: {{redis: {{url: 'redis://127.0.0.1:{redis}', timeout: 5s}}}}\n" if redis else ""
    rule = f"{{name: user, limit_keys: ['query:u'], {limit}}}"
    text = f"listen: 127.0.0.1:0\nthreads: 1\nupstream: http://127.0.0.1:{UPSTREAM}\nrules: [{rule}]\n{store}"
    gateway = rig.Gateway(folder.write("gateway.yaml", text))
    with rig.ending(gateway.process):
        connection = socket.create_connection(("127.0.0.1", gateway.ports["http"]))
        # What the process needs for itself is there before the count begins.
        for _ in range(10):
            charge(connection, buckets, buckets + 2000)
        time.sleep(3)
        taken = (lambda: used(redis)) if redis else (lambda: resident(gateway.process.pid))
        before = taken()
        for _ in range(times):
            begin = time.monotonic()
            charge(connection, 0, buckets)
            left = seconds - (time.monotonic() - begin)
            if seconds and left < 0:
                raise SystemExit(f"a pass took {-left:.1f} s too long")
            time.sleep(max(left, 0))
        # Metrics fold their samples within some seconds. A window loses no step meanwhile.
        time.sleep(0 if seconds else 3)
        return (taken() - before) / buckets


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithms", nargs="*", metavar="ALGORITHM", help="only rows that begin with one of these")
    chosen = tuple(parser.parse_args().algorithms or [""])
    with tempfile.TemporaryDirectory() as path:
        folder, port = rig.Folder(path), free_port()
        server = subprocess.Popen(["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly",
                                   "no", "--dir", path], stdout=subprocess.DEVNULL)
        with rig.ending(folder.upstream(), server):
            rig.wait_for(port)
            print("| bytes per bucket | buckets | memory | Redis |\n|---|---|---|---|")
            for name, (limit, buckets, times, seconds) in ROWS.items():
                if not name.startswith(chosen):
                    continue
                memory = measure(folder, limit, buckets, times, seconds, None)
                subprocess.run(["redis-cli", "-p", str(port), "FLUSHALL"], check=True, stdout=subprocess.DEVNULL)
                redis = measure(folder, limit, buckets, times, seconds, port)
                print(f"| {name} | {buckets} | {memory:.0f} | {redis:.0f} |", flush=True)


if __name__ == "__main__":
    main()
