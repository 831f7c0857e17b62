#!/usr/bin/env python3
"""A process that hands its sockets to the next one, again and again under load, and how many requests that fails.

    cargo build --release && python3 benches/upgrade.py [--times 50]

Each time the gateway gets SIGUSR2, and the one before has left when it is the next one's turn. Prints how many requests were
sent and how many failed, by what they got instead of a 200; the exit code is 1 where one has. Needs nginx and wrk.
"""

import argparse
import contextlib
import os
import pathlib
import re
import signal
import sys
import tempfile
import time

import rig

FILE = """listen: 127.0.0.1:0
upstream: http://127.0.0.1:{upstream}
rules: [{{name: all, limit_keys: [ip:address], algorithm_config: {{rps: 1000000, burst: 1000000}}}}]
"""


def is_gone(pid):
    try:
        return ") Z" in pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except FileNotFoundError:
        return True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=50)
    times = parser.parse_args().times
    with contextlib.ExitStack() as stack:
        folder = rig.Folder(stack.enter_context(tempfile.TemporaryDirectory()))
        file, log = folder.write("gateway.yaml", FILE.format(upstream=rig.UPSTREAM)), folder.path / "log"
        stack.enter_context(rig.ending(folder.upstream()))
        with log.open("w", encoding="ascii") as lines:
            gateway = rig.Gateway(file, log=lines)
        stack.enter_context(rig.ending(gateway.process))
        # The others are nobody's children.
        pids = [gateway.process.pid]
        stack.callback(lambda: is_gone(pids[-1]) or os.kill(pids[-1], signal.SIGINT))
        load = rig.Load(folder, gateway.ports["http"])
        stack.enter_context(rig.ending(load.process))
        for handover in range(times):
            os.kill(pids[-1], signal.SIGUSR2)

            def next_pid():
                # The log has all of them, in their order.
                found = re.findall(r"handed over pid=(\d+)", log.read_text(encoding="ascii"))
                return found[handover:] and int(found[handover])

            pids.append(rig.soon(f"handover {handover + 1}", next_pid))
            rig.soon(f"the end of process {pids[-2]}", lambda: is_gone(pids[-2]))
        # The last one has had requests of its own.
        time.sleep(1)
        passed, failures = load.end()
    return rig.verdict(f"{times} handovers", passed, failures)


if __name__ == "__main__":
    sys.exit(main())
