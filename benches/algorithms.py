#!/usr/bin/env python3
"""What each algorithm costs: CPU per request, with one rule in memory and in Redis (one hot key), against token_bucket.

    python3 benches/algorithms.py [--rounds 12] [--seconds 1]

Nothing is refused, and nothing waits: the limits are far above the load. A `sliding_log` cannot be: of it and of a
token_bucket with the same numbers most requests are refused, and its bucket holds 1000 grants. All gateways run all the time
and are driven in turns of a second, behind the same wrk and before the same nginx. Ratios are medians over rounds; beside them
is where the middle half of the rounds lies. The CPU of Redis is included.
"""

import argparse
import statistics
import subprocess
import tempfile

import rig
from rig import ROOT, UPSTREAM, free_port, median

# By name: a rule's algorithm, whose numbers stay far above the load, and its budgets in memory and in Redis.
TOKEN_BUCKET = "algorithm: token_bucket, algorithm_config: {rps: 1000000, burst: 1000000}"
ALGORITHMS = {
    "fixed_window, an hour": "algorithm: fixed_window, algorithm_config: {limit: 1000000000, window: 1h}",
    "fixed_window, a month in Berlin":
        "algorithm: fixed_window, algorithm_config: {limit: 1000000000, window: month, timezone: Europe/Berlin}",
    # In each of its steps something was granted.
    "sliding_window, 10 steps of a second":
        "algorithm: sliding_window, algorithm_config: {limit: 1000000000, window: 10s}",
    "sliding_window, 60 steps of a sixth":
        "algorithm: sliding_window, algorithm_config: {limit: 1000000000, window: 10s, steps: 60}",
    "leaky_bucket":
        "algorithm: leaky_bucket, algorithm_config: {rps: 1000000, queue: 0, max_wait: 1s, delay_after: 1000000}",
}
BUDGETS = {"memory": 1.05, "Redis": 1.15}
# A slot is given back at the end of its request, too.
CONCURRENCY = "algorithm: concurrency, algorithm_config: {limit: 1000000000}"
BUDGETS_OF_CONCURRENCY = {"memory": 1.10, "Redis": 1.50}
# By name: an algorithm, what it is compared with under the same overload, and its budget.
OVERLOADED = {
    "sliding_log of 1000": ("algorithm: sliding_log, algorithm_config: {limit: 1000, window: 1s}",
                            "token_bucket of 1000", "algorithm_config: {rps: 1000, burst: 1000}", 1.50),
}


def quartiles(ratios):
    return statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=int, default=1)
    arguments = parser.parse_args()
    subprocess.run([ROOT / "scripts/need", "cmake", "nginx", "wrk", "redis-server"], check=True)
    program = rig.cargo("--bin", "tollgate") / "tollgate"

    # In the order of the table: what is measured, what it is compared with, and the budget.
    comparisons = [((name, store), ("token_bucket", store), budget)
                   for name in ALGORITHMS for store, budget in BUDGETS.items()]
    comparisons += [(("concurrency", store), ("token_bucket", store), budget)
                    for store, budget in BUDGETS_OF_CONCURRENCY.items()]
    rules, refusing = {"token_bucket": TOKEN_BUCKET, "concurrency": CONCURRENCY, **ALGORITHMS}, set()
    for name, (rule, other_name, other, budget) in OVERLOADED.items():
        rules |= {name: rule, other_name: other}
        comparisons += [((name, store), (other_name, store), budget) for store in BUDGETS]
        refusing |= {(each, store) for each in (name, other_name) for store in BUDGETS}

    with tempfile.TemporaryDirectory() as path:
        folder = rig.Folder(path)
        port = free_port()
        server = subprocess.Popen(["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly",
                                   "no", "--dir", path], stdout=subprocess.DEVNULL)
        stores = {"memory": "", "Redis": f"store: {{redis: {{url: 'redis://127.0.0.1:{port}', timeout: 5s}}}}\non_store_failure: deny\n"}
        subjects = {}
        for index, (name, store) in enumerate(sorted({subject for pair in comparisons for subject in pair[:2]})):
            listen = free_port()
            text = (f"listen: 127.0.0.1:{listen}\nupstream: http://127.0.0.1:{UPSTREAM}\n{stores[store]}"
                    f"rules: [{{name: rule-{index}, limit_keys: [ip:address], {rules[name]}}}]\n")
            file = folder.write(f"gateway-{index}.yaml", text)
            subprocess.run([program, "check", file], check=True, stdout=subprocess.DEVNULL)
            subjects[name, store] = [program, "run", "-c", file], listen
        upstream = folder.upstream()
        try:
            rig.wait_for(port)
            rounds = list(rig.in_turns(subjects, arguments.rounds, arguments.seconds, server.pid, refusing))
        finally:
            for process in (upstream, server):
                process.terminate()
                process.wait()

    print(rig.headline(arguments))
    print("\n| CPU µs per request, Redis included | compared with | its CPU | this | ratio | middle half | budget |\n"
          "|---|---|---|---|---|---|---|")
    for this, other, budget in comparisons:
        cost = {subject: [sum(each[subject][:2]) for each in rounds] for subject in (this, other)}
        low, middle, high = quartiles([after / before for before, after in zip(cost[other], cost[this])])
        print(f"| {this[0]}, {this[1]} | {other[0]} | {median(cost[other]):.1f} | {median(cost[this]):.1f} | {middle:.3f} | "
              f"{low:.3f} to {high:.3f} | {budget:.2f} |")


if __name__ == "__main__":
    main()
