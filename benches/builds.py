#!/usr/bin/env python3
"""CPU per request of two builds of Tollgate, side by side in one run: what a change costs.

    python3 benches/builds.py OTHER [--rounds 24] [--seconds 1]

OTHER is the binary of the other build, usually the one before the change. Both run without rules, with one rule in memory,
with one in Redis (one hot key), and with one over several regions, whose home is the same Redis; behind the same wrk and
before the same nginx, in turns of a second. Ratios are medians over rounds; beside them is where the middle half of the
rounds lies. The CPU of Redis is included.
"""

import argparse
import pathlib
import statistics
import subprocess
import tempfile

import rig
from rig import ROOT, UPSTREAM, free_port, median

RULE = "rules: [{name: all, limit_keys: [ip:address], algorithm_config: {rps: 1000000, burst: 1000000}}]\n"
GLOBAL = RULE.replace("{name: all", "{name: all, scope: global")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--seconds", type=int, default=1)
    arguments = parser.parse_args()
    subprocess.run([ROOT / "scripts/need", "cmake", "nginx", "wrk", "redis-server"], check=True)
    builds = {"other": arguments.other.resolve(), "this": rig.cargo("--bin", "tollgate") / "tollgate"}

    with tempfile.TemporaryDirectory() as path:
        folder = rig.Folder(path)
        port = free_port()
        server = subprocess.Popen(["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly",
                                   "no", "--dir", path], stdout=subprocess.DEVNULL)
        redis = f"redis: {{url: 'redis://127.0.0.1:{port}'}}"
        store = f"store: {{{redis}}}\non_store_failure: deny\n"
        regions = f"store: {{{redis}, home: {{{redis}, region: eu, regions: [eu, us]}}}}\non_store_failure: deny\n"
        cases = {"no rules": "", "one rule in memory": RULE, "one rule in Redis": store + RULE,
                 "one rule over regions": regions + GLOBAL}

        def gateway(build, case, rules):
            listen = free_port()
            text = f"listen: 127.0.0.1:{listen}\nupstream: http://127.0.0.1:{UPSTREAM}\n{rules}"
            name = f"{build}-{case.replace(' ', '-')}.yaml"
            return [builds[build], "run", "-c", folder.write(name, text)], listen

        subjects = {(build, case): gateway(build, case, rules) for case, rules in cases.items() for build in builds}
        upstream = folder.upstream()
        try:
            rig.wait_for(port)
            rounds = list(rig.in_turns(subjects, arguments.rounds, arguments.seconds, server.pid))
        finally:
            for process in (upstream, server):
                process.terminate()
                process.wait()

    print("| CPU µs per request, Redis included | other | this | this / other | middle half |\n|---|---|---|---|---|")
    for case in cases:
        other, this = ([sum(each[build, case][:2]) for each in rounds] for build in builds)
        ratios = [after / before for before, after in zip(other, this)]
        low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        print(f"| {case} | {median(other):.1f} | {median(this):.1f} | {middle:.3f} | {low:.3f} to {high:.3f} |")


if __name__ == "__main__":
    main()
