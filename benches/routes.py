#!/usr/bin/env python3
"""What many routes cost: CPU per request with 1 and with 1000 routes, in four shapes of a file, and without `routes`.

    python3 benches/routes.py [--rounds 5] [--seconds 4]

`hosts`: each for a host. `tenants`: each for a host and a subtree of its paths. `paths`: each for a subtree of paths. `headers`:
each for a value of one header. Requests take the last route of the file; all routes lead to one upstream. No rule is asked.
"""

import json
import tempfile

import rig

ONE, MANY = 1, 1000
HOST = "last.example.com"


def hosts(number, count):
    """each for a host"""
    return {"host": HOST if number == count else f"host-{number}.example.com"}


def tenants(number, count):
    """each for a host and a subtree of its paths"""
    return {"host": HOST if number == count else f"host-{number // 4}.example.com",
            "path": "/*" if number == count else f"/v1/part-{number}/*"}


def paths(number, count):
    """each for a subtree of paths"""
    return {"path": "/*" if number == count else f"/v1/part-{number}/*"}


def headers(number, count):
    """each for a value of one header"""
    return {"header:x-plan": "wanted" if number == count else f"plan-{number}"}


def settings(shape, count):
    """`count` is 0 for a file without `routes`."""
    listen, upstream = f"127.0.0.1:{rig.PROXY}", f"http://127.0.0.1:{rig.UPSTREAM}"
    if count == 0:
        return {"listen": listen, "upstream": upstream}
    routes = [{"name": f"r{n}", "match": shape(n, count), "upstream": "all"} for n in range(1, count + 1)]
    return {"listen": listen, "upstreams": {"all": {"endpoints": [upstream]}}, "routes": routes}


def main():
    arguments = rig.arguments(__doc__)
    program = rig.cargo("--bin", "tollgate") / "tollgate"
    print(rig.headline(arguments))
    print(f"\n| CPU per request | none | {ONE} route | {MANY} routes | ratio of the last two | budget |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as path:
        folder = rig.Folder(path)
        upstream = folder.upstream()
        try:
            for shape in (hosts, tenants, paths, headers):
                costs = {0: [], ONE: [], MANY: []}
                for _ in range(arguments.rounds):
                    for count in costs:
                        # JSON is YAML.
                        file = folder.write("gateway.yaml", json.dumps(settings(shape, count)))
                        cost, _ = rig.measure([program, "run", "-c", file], arguments.seconds,
                                              "-H", f"Host: {HOST}", "-H", "x-plan: wanted")
                        costs[count].append(cost)
                none, one, many = (rig.median(costs[count]) for count in costs)
                ratio = rig.median(b / a for a, b in zip(costs[ONE], costs[MANY]))
                print(f"| {shape.__doc__} | {none:.1f} µs | {one:.1f} µs | {many:.1f} µs | {ratio:.2f} | 1.10 |")
        finally:
            upstream.terminate()
            upstream.wait()


if __name__ == "__main__":
    main()
