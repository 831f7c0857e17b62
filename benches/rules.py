#!/usr/bin/env python3
"""What a long file costs: CPU per request with 10 and with 1000 rules, in four shapes of a file.

    python3 benches/rules.py [--rounds 5] [--seconds 4]

`plans`: rules of one policy, each for a value of one header. `paths`: each for a subtree of paths. `policies`: each in a
policy of its own, which is for one value of a header. `prefixes`: each for a prefix, which no index finds. Requests meet the
last rule of the file; its limit is in memory and is never used up.
"""

import json
import tempfile

import rig

FEW, MANY = 10, 1000


def rule(number, match, key):
    return {"name": f"r{number}", "match": match, "limit_keys": [key], "algorithm_config": {"rps": 1000000, "burst": 1000000}}


def plans(count):
    """one policy, each rule for a value of one header"""
    return {"rules": [rule(n, {"header:x-plan": "wanted" if n == count else f"plan-{n}"}, "header:x-user")
                      for n in range(1, count + 1)]}


def paths(count):
    """one policy, each for a subtree of paths"""
    return {"rules": [rule(n, {"path": "/*" if n == count else f"/v1/part-{n}/*"}, "header:x-user")
                      for n in range(1, count + 1)]}


def policies(count):
    """each in a policy of its own, for a value of one header"""
    return {"policies": [{"name": f"p{n}", "match": {"header:x-plan": "wanted" if n == count else f"plan-{n}"},
                          "rules": [rule(n, {}, "header:x-user")]} for n in range(1, count + 1)]}


def prefixes(count):
    """one policy, each for a prefix of one header"""
    return {"rules": [rule(n, {"header:x-plan": {"prefix": "want" if n == count else f"plan-{n}"}}, "header:x-user")
                      for n in range(1, count + 1)]}


def main():
    arguments = rig.arguments(__doc__)
    program = rig.cargo("--bin", "tollgate") / "tollgate"
    print(rig.headline(arguments))
    print(f"\n| CPU per request | {FEW} rules | {MANY} rules | ratio | budget |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as path:
        folder = rig.Folder(path)
        upstream = folder.upstream()
        try:
            for shape in (plans, paths, policies, prefixes):
                costs = {FEW: [], MANY: []}
                for _ in range(arguments.rounds):
                    for count in costs:
                        settings = {"listen": f"127.0.0.1:{rig.PROXY}", "upstream": f"http://127.0.0.1:{rig.UPSTREAM}",
                                    **shape(count)}
                        # JSON is YAML.
                        file = folder.write("gateway.yaml", json.dumps(settings))
                        cost, _ = rig.measure([program, "run", "-c", file], arguments.seconds,
                                              "-H", "x-plan: wanted", "-H", "x-user: ann")
                        costs[count].append(cost)
                few, many = rig.median(costs[FEW]), rig.median(costs[MANY])
                ratio = rig.median(b / a for a, b in zip(costs[FEW], costs[MANY]))
                budget = "" if shape is prefixes else "1.10"
                print(f"| {shape.__doc__} | {few:.1f} µs | {many:.1f} µs | {ratio:.2f} | {budget} |")
        finally:
            upstream.terminate()
            upstream.wait()


if __name__ == "__main__":
    main()
