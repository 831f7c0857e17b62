#!/usr/bin/env python3
"""CPU per request and requests per second: Tollgate, bare Pingora and nginx, side by side in one run.

    python3 benches/proxy.py [--rounds 5] [--seconds 4]

Builds what it measures, starts an nginx that answers `ok` from memory, and drives each proxy in turn with wrk over 64
keep-alive connections. CPU is the kernel's own accounting of the proxy's threads; the ratios are medians over rounds, in
each of which everything is measured once, so that a machine that slows down slows them all.
"""

import os
import signal
import subprocess
import sys
import tempfile

import rig
from rig import PROXY, ROOT, UPSTREAM, median

FILE = f"listen: 127.0.0.1:{PROXY}\nupstream: http://127.0.0.1:{UPSTREAM}\n"
RULE = "rules: [{name: all, limit_keys: [ip:address], algorithm_config: {rps: 1000000, burst: 1000000}}]\n"


def build():
    """Returns the programs: the gateway, and the bare proxy with the system's allocator and with ours."""
    bare = {}
    for allocator, features in (("system", []), ("mimalloc", ["--features", "bench-mimalloc"])):
        target = rig.cargo("--example", "bare", *features)
        bare[allocator] = target / "examples" / f"bare-{allocator}"
        bare[allocator].unlink(missing_ok=True)
        (target / "examples" / "bare").rename(bare[allocator])
    return rig.cargo("--bin", "tollgate") / "tollgate", bare["system"], bare["mimalloc"]


def measure(command, seconds):
    # A bare Pingora that is asked to leave takes its time.
    ending = signal.SIGKILL if "bare" in str(command[0]) else signal.SIGTERM
    return rig.measure(command, seconds, ending=ending)


def main():
    arguments = rig.arguments(__doc__)
    subprocess.run([ROOT / "scripts/need", "cmake", "nginx", "wrk"], check=True)
    tollgate, bare_system, bare_mimalloc = build()
    cores = len(os.sched_getaffinity(0))

    with tempfile.TemporaryDirectory() as folder:
        folder = rig.Folder(folder)
        addresses = [f"127.0.0.1:{PROXY}", f"127.0.0.1:{UPSTREAM}"]
        none, rule = folder.write("none.yaml", FILE), folder.write("rule.yaml", FILE + RULE)
        subjects = {
            "bare Pingora, as its docs show it": [bare_system, *addresses, "docs"],
            "bare Pingora, a socket for each core, mimalloc": [bare_mimalloc, *addresses, "sockets"],
            "bare Pingora, all of our layout, mimalloc": [bare_mimalloc, *addresses, "ours"],
            "nginx, plain proxy": folder.nginx("proxy", PROXY, cores, rig.PASS),
            "Tollgate, no rules": [tollgate, "run", "-c", none],
            "Tollgate, one rule in memory": [tollgate, "run", "-c", rule],
        }
        upstream = folder.upstream()
        try:
            rounds = []
            for number in range(arguments.rounds):
                print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr)
                rounds.append({name: measure(command, arguments.seconds) for name, command in subjects.items()})
        finally:
            upstream.terminate()
            upstream.wait()

    def ratio(name, other):
        return median(each[name][0] / each[other][0] for each in rounds)

    print(f"{rig.headline(arguments)}\n")
    print("| | CPU µs per request | requests/s |\n|---|---|---|")
    rows = {}
    for name in subjects:
        cost, rate = (median(each[name][place] for each in rounds) for place in (0, 1))
        rows[name] = {"cpu_microseconds": cost, "requests_per_second": rate}
        print(f"| {name} | {cost:.1f} | {rate:.0f} |")
    rig.keep(arguments, rows)
    print("\n| CPU per request | ratio | budget |\n|---|---|---|")
    docs, sockets, ours, plain, none, rule = subjects
    pairs = ((none, docs, 1.00), (none, sockets, 1.10), (none, ours, 1.10), (rule, none, 1.10), (none, plain, None))
    for name, other, budget in pairs:
        print(f"| {name} / {other} | {ratio(name, other):.2f} | {f'{budget:.2f}' if budget else ''} |")


if __name__ == "__main__":
    main()
