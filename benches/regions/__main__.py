"""Simulates a limit that several regions share by leases from a home, and checks that no fault lets more pass than the limit.

    python3 benches/regions                      the short form, with tables of what it found
    python3 benches/regions --long --json FILE   all tables, minutes; FILE is for lease_picture.py
    python3 benches/regions --mistake NAME       the shortest schedule of faults that shows a deliberate mistake; ends with 1

Each region has a store with purses, and pays requests from what it has leased. Nothing here runs the gateway: the protocol, the
network and the clocks are a model, on one thread, and the same in every run. Ends with 1 if an excess, or a goal, is missed.
"""

import argparse
import datetime
import json
import pathlib
import sys

import tables
from faults import play, search, shortest
from protocol import MISTAKES


def show_mistake(name, seeds):
    rules = tables.with_mistake(name)
    found = search(rules, range(seeds))
    if found is None:
        print(f"{name}: no excess in {seeds} random schedules")
        return 0
    found = shortest(rules, found)
    print(f"{name}: {MISTAKES[name]}", *found.lines(), play(rules, found)[1], sep="\n")
    return 1


def measure(long, seeds, path):
    names = list(tables.WINDOWS) if long else ["1000/min", "10 000/h"]
    table, broken, wrong = tables.faults(seeds)
    print(f"{datetime.date.today()}, simulated: 3 regions, round trips to home 1, 80 and 250 ms\n\n{table}\n")
    if broken:
        print("The shortest for the first form:\n\n```text", *broken, "```\n", sep="\n")
    table, missed = tables.mistakes()
    wrong += missed
    print(f"{table}\n\n{tables.demonstrations()}\n")
    table, met = tables.goals(names)
    print(f"{table}\n")
    if not met:
        wrong.append("the chosen form misses a goal: see the last table")
    if long:
        cells = {"date": str(datetime.date.today()), "windows": tables.shares(names, tables.SHARES),
                 "buckets": tables.bucket_cells([0.01, 0.05, 0.1, 0.25, 0.5])}
        print(tables.shares_table(cells["windows"]), tables.bucket_table(cells["buckets"]), tables.triggers(), tables.returns(), tables.many_keys(), sep="\n\n")
        wrong += [f"an excess: {each}" for each in cells["windows"] + cells["buckets"] if each["excess"] > 0]
        if path:
            path.write_text(json.dumps(cells, indent=1), encoding="utf-8")
    for each in wrong:
        print(each, file=sys.stderr)
    return 1 if wrong else 0


def main():
    parser = argparse.ArgumentParser(prog="python3 benches/regions", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--seeds", type=int, help="random schedules of faults: 300, with --long 20000")
    parser.add_argument("--json", type=pathlib.Path, help="where to write the figures of --long")
    parser.add_argument("--mistake", choices=MISTAKES, metavar="NAME", help=", ".join(MISTAKES))
    arguments = parser.parse_args()
    if arguments.json and not arguments.long:
        parser.error("--json needs --long")
    if arguments.mistake:
        return show_mistake(arguments.mistake, arguments.seeds or tables.PATIENCE)
    return measure(arguments.long, arguments.seeds or (20_000 if arguments.long else 300), arguments.json)


if __name__ == "__main__":
    sys.exit(main())
