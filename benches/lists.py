#!/usr/bin/env python3
"""What lists in files cost: time to `ready`, time of a reload, memory, and CPU per request, with ten and with many entries.

    cargo build --release && python3 benches/lists.py [--rounds 5] [--seconds 4]

`in_file` holds a million texts of 36 bytes, as UUIDs are, `cidr_file` a million networks of IPv4 with 24 to 32 bits, and
`overrides_file` 100 000 values, also of 36 bytes, with the numbers of one of 20 plans or each with its own. No request is in a list, so that each is looked up and goes on. A reload is
measured from the change of the list's file to the metric that tells its new length.
"""

import ipaddress
import json
import random
import tempfile
import time
import urllib.request
import uuid

import rig

FEW, MANY, MOST_OVERRIDES = 10, 1_000_000, 100_000
ADMIN = rig.free_port()


def texts(count):
    """`in_file`, of UUIDs"""
    numbers = random.Random(1)
    return [str(uuid.UUID(int=numbers.getrandbits(128))) for _ in range(count)]


def networks(count):
    """`cidr_file`, of IPv4 networks"""
    numbers = random.Random(1)
    # Not 127.0.0.0/8, from where the load comes.
    first = lambda: (numbers.randrange(128, 224) << 24) | numbers.getrandbits(24)
    return [str(ipaddress.ip_network((first(), numbers.randrange(24, 33)), strict=False)) for _ in range(count)]


def plans(count):
    """`overrides_file`, of UUIDs, 20 plans"""
    return [f"{text},{1000000 + number % 20},2000000" for number, text in enumerate(texts(count))]


def contracts(count):
    """`overrides_file`, of UUIDs, each its own numbers"""
    return [f"{text},{1000000 + number},2000000" for number, text in enumerate(texts(count))]


# The first line of each file.
HEADERS = {plans: "value,rps,burst\n", contracts: "value,rps,burst\n"}


def content(shape, lines):
    return HEADERS.get(shape, "") + "\n".join(lines) + "\n"


def settings(shape):
    if shape in HEADERS:
        rule = {"name": "own", "limit_keys": ["header:x-user"], "overrides_file": "list.csv",
                "algorithm_config": {"rps": 1000000, "burst": 1000000}}
        return {"listen": f"127.0.0.1:{rig.PROXY}", "admin": f"127.0.0.1:{ADMIN}", "threads": 1,
                "upstream": f"http://127.0.0.1:{rig.UPSTREAM}", "rules": [rule]}
    match = {"header:x-user": {"in_file": "list.txt"}} if shape is texts else {"ip:address": {"cidr_file": "list.txt"}}
    return {"listen": f"127.0.0.1:{rig.PROXY}", "admin": f"127.0.0.1:{ADMIN}", "threads": 1,
            "upstream": f"http://127.0.0.1:{rig.UPSTREAM}",
            "rules": [{"name": "listed", "match": match, "action": "deny"}, {"name": "rest", "action": "allow"}]}


def entries():
    with urllib.request.urlopen(f"http://127.0.0.1:{ADMIN}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return next((int(float(line.split()[1])) for line in lines if line.startswith("tollgate_list_entries{")), None)


def resident(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024


def life(shape, file, list_file, lines):
    """Milliseconds to `ready`, megabytes then, and milliseconds of a reload that takes one entry away."""
    begun = time.monotonic()
    gateway = rig.Gateway(file)
    try:
        ready, memory, before = (time.monotonic() - begun) * 1000, resident(gateway.process.pid), entries()
        changed = time.monotonic()
        list_file.write_text(content(shape, lines[1:]), encoding="ascii")
        while entries() == before:
            time.sleep(0.01)
        return ready, memory, (time.monotonic() - changed) * 1000
    finally:
        gateway.process.terminate()
        gateway.process.wait()


def main():
    arguments = rig.arguments(__doc__)
    program = rig.cargo("--bin", "tollgate") / "tollgate"
    print(rig.headline(arguments))
    print("\n| list | entries | ready | memory | reload (with up to 1 s until it is noticed) | CPU per request |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as path:
        folder = rig.Folder(path)
        upstream = folder.upstream()
        try:
            for shape in (texts, networks, plans, contracts):
                costs = {}
                many = MOST_OVERRIDES if shape in HEADERS else MANY
                for count in (FEW, many):
                    lines = shape(count)
                    list_file = folder.write("list.csv" if shape in HEADERS else "list.txt", content(shape, lines))
                    file = folder.write("gateway.yaml", json.dumps(settings(shape)))
                    ready, memory, reload = life(shape, file, list_file, lines)
                    list_file.write_text(content(shape, lines), encoding="ascii")
                    measured = [rig.measure([program, "run", "-c", file], arguments.seconds, "-H", "x-user: nobody")[0]
                                for _ in range(arguments.rounds)]
                    costs[count] = rig.median(measured)
                    print(f"| {shape.__doc__} | {count} | {ready:.0f} ms | {memory:.1f} MB | {reload:.0f} ms "
                          f"| {costs[count]:.1f} µs |", flush=True)
                print(f"| | ratio | | | | {costs[many] / costs[FEW]:.2f} |")
        finally:
            upstream.terminate()
            upstream.wait()


if __name__ == "__main__":
    main()
