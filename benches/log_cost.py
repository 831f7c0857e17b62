#!/usr/bin/env python3
"""What the access log costs: CPU per request of the gateway without it, with lines that are not asked for, and with all.

    python3 benches/log_cost.py [--rounds 5] [--seconds 4]

Over 64 keep-alive connections, with one rule in memory that lets all requests pass, or refuses all but one. The log is a
file in the folder for temporary files; where that is no disk, name another with TMPDIR. CPU is that of all threads of the
gateway, so of the one that writes as well.
"""

import re
import subprocess
import sys
import tempfile
import urllib.request

import rig
from rig import PROXY, ROOT, UPSTREAM, median

ADMIN = rig.free_port()
FILE = f"listen: 127.0.0.1:{PROXY}\nadmin: 127.0.0.1:{ADMIN}\nupstream: http://127.0.0.1:{UPSTREAM}\n"
PASS = "rules: [{name: all, limit_keys: [ip:address], algorithm_config: {rps: 1000000, burst: 1000000}}]\n"
REFUSE = "rules: [{name: all, limit_keys: [ip:address], algorithm_config: {rate: 1/day}}]\n"
SUBJECTS = {
    "passing, no access log": (PASS, None),
    "passing, refusals logged": (PASS, "when: [refused]"),
    "passing, all logged": (PASS, "when: all"),
    "passing, all logged, two attributes": (PASS, "when: all, attributes: [ip:address, path]"),
    "refused, no access log": (REFUSE, None),
    "refused, refusals logged": (REFUSE, "when: [refused]"),
}


def dropped():
    with urllib.request.urlopen(f"http://127.0.0.1:{ADMIN}/metrics") as metrics:
        return int(re.search(r"^tollgate_access_log_dropped_total (\d+)$", metrics.read().decode(), re.M).group(1))


def main():
    arguments = rig.arguments(__doc__)
    subprocess.run([ROOT / "scripts/need", "cmake", "nginx", "wrk"], check=True)
    tollgate = rig.cargo("--bin", "tollgate") / "tollgate"

    with tempfile.TemporaryDirectory() as path:
        folder = rig.Folder(path)
        log = folder.path / "access.jsonl"
        commands = {}
        for name, (rules, access_log) in SUBJECTS.items():
            text = FILE + rules + (f"access_log: {{to: access.jsonl, {access_log}}}\n" if access_log else "")
            commands[name] = [tollgate, "run", "-c", folder.write(f"{len(commands)}.yaml", text)]
        upstream = folder.upstream()
        try:
            rounds, lengths = [], {}
            for number in range(arguments.rounds):
                print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr)
                rounds.append({})
                for name, command in commands.items():
                    rounds[-1][name] = rig.measure_all({PROXY: command}, arguments.seconds, counts=[dropped],
                                                       refusals="refused" in name)
                    if log.exists():
                        with log.open("rb") as lines:
                            count = sum(1 for _ in lines)
                        lengths[name] = log.stat().st_size / count if count else None
                        log.unlink()
        finally:
            upstream.terminate()
            upstream.wait()

    print(f"{rig.headline(arguments)}\n")
    print("| | CPU µs per request | more | requests/s | bytes in a line | lines dropped |\n|---|---|---|---|---|---|")
    rows = {}
    for name in SUBJECTS:
        without = f"{name.split(',')[0]}, no access log"
        cost, rate, lost = (median(each[name][place] for each in rounds) for place in range(3))
        more = median(each[name][0] - each[without][0] for each in rounds)
        rows[name] = {"cpu_microseconds": cost, "requests_per_second": rate}
        length = f"{lengths[name]:.0f}" if lengths.get(name) else ""
        print(f"| {name} | {cost:.1f} | {'' if name == without else f'{more:+.1f}'} | {rate:.0f} | {length} | {lost:.0%} |")
    rig.keep(arguments, rows)


if __name__ == "__main__":
    main()
