#!/usr/bin/env python3
"""CPU per request and requests per second: Tollgate, bare Pingora and nginx, side by side in one run.

    python3 benches/proxy.py [--rounds 40] [--seconds 1]

Builds what it measures, starts an nginx that answers `ok` from memory, and drives each proxy in turn with wrk over 64
keep-alive connections. CPU is the kernel's own accounting of the proxy's threads. Ratios are medians over rounds, in each of
which everything is measured once, one after the other; beside them is where the middle half of the rounds lies.
"""

import os
import subprocess
import tempfile

import rig
from rig import ROOT, UPSTREAM, free_port

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


def main():
    arguments = rig.arguments(__doc__, rounds=40, seconds=1)
    subprocess.run([ROOT / "scripts/need", "cmake", "nginx", "wrk"], check=True)
    tollgate, bare_system, bare_mimalloc = build()
    cores = len(os.sched_getaffinity(0))

    with tempfile.TemporaryDirectory() as folder:
        folder = rig.Folder(folder)

        def gateway(name, rules=""):
            port = free_port()
            text = f"listen: 127.0.0.1:{port}\nupstream: http://127.0.0.1:{UPSTREAM}\n{rules}"
            return [tollgate, "run", "-c", folder.write(name, text)], port

        def bare(program, layout):
            port = free_port()
            return [program, f"127.0.0.1:{port}", f"127.0.0.1:{UPSTREAM}", layout], port

        plain = free_port()
        subjects = {
            "bare Pingora, as its docs show it": bare(bare_system, "docs"),
            "bare Pingora, a socket for each core, mimalloc": bare(bare_mimalloc, "sockets"),
            "bare Pingora, all of our layout, mimalloc": bare(bare_mimalloc, "ours"),
            "nginx, plain proxy": (folder.nginx("proxy", plain, cores, rig.PASS), plain),
            "Tollgate, no rules": gateway("none.yaml"),
            "Tollgate, one rule in memory": gateway("rule.yaml", RULE),
        }
        rounds = rig.rounds_beside_upstream(folder, subjects, arguments)

    print(f"{rig.headline(arguments)}\n")
    rig.keep(arguments, rig.table(rounds, upstream=True))
    print("\n| CPU per request | ratio | middle half | budget |\n|---|---|---|---|")
    docs, sockets, ours, plain, none, rule = subjects
    pairs = ((none, docs, 1.00), (none, sockets, 1.10), (none, ours, 1.10), (rule, none, 1.10), (none, plain, None))
    for name, other, budget in pairs:
        print(f"| {name} / {other} | {rig.ratio(rounds, name, other)} | {f'{budget:.2f}' if budget else ''} |")


if __name__ == "__main__":
    main()
