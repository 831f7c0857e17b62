#!/usr/bin/env python3
"""What benches/budgets.py must measure for a quantile as the reservation, calculated from its mixes alone.

    python3 benches/budgets_calculated.py [--callers 64] [--rounds 100]

The world is as there, without programs: a call takes the time that the upstream of benches/budgets.py takes, a decision takes none, the
limit knows at once what is spent and held, and each call holds the quantile of the costs in its mix. `ratio` is this quantile, divided
by the mean. All callers begin at once, so `callers` × quantile are held from then on, of a limit of 200 means. The first refusal
comes when what is spent has reached the rest: 1 - callers / 200 × ratio.
"""

import argparse
import heapq
import itertools
import statistics

from budget_calls import AGAIN, EACH, FIRST, IDLE, MEAN_CALLS, MIXES, SEED, Mix

QUANTILES = [0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99, 1]
SAMPLE = 20_000


def quantile(costs, share):
    """Of sorted costs, as the gateway takes it."""
    return costs[max(0, round(share * len(costs)) - 1)]


def play(mix, callers, reserve, seed):
    """What was spent beyond the limit, and what was spent at the first false refusal (1 without one), as shares of the limit."""
    calls, events, order = mix.calls(f"{SEED} {seed}"), [], itertools.count()
    spent = running = admitted = 0
    active, false_at = 0, None

    def at(time, what, call):
        heapq.heappush(events, (time, next(order), what, call))

    for caller in range(callers):
        at(caller * 1e-4, "ask", next(calls))
    while events:
        now, _, what, call = heapq.heappop(events)
        cost = sum(call[:2])
        if what == "end":
            spent, running, active = spent + cost, running - 1, now
            at(now, "ask", next(calls))
        elif spent + reserve * (running + 1) <= mix.limit:
            running, admitted, active = running + 1, admitted + cost, now
            at(now + FIRST + EACH * call[1], "end", call)
        else:
            if false_at is None and admitted + cost <= mix.limit:
                false_at = spent / mix.limit
            if running or now - active < IDLE:
                at(now + AGAIN, "ask", call)
    return max(0, spent - mix.limit) / mix.limit, 1 if false_at is None else false_at


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--callers", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=100)
    arguments = parser.parse_args()
    print("| mix | quantile | ratio | 1 - callers / 200 × ratio | first false refusal (worst) | over (worst) |\n|---|---|---|---|---|---|")
    for mix in map(Mix, MIXES):
        costs = sorted(sum(call[:2]) for call in itertools.islice(mix.calls(SEED), SAMPLE))
        for share in QUANTILES:
            reserve = quantile(costs, share)
            ratio = reserve / mix.mean
            overs, falses = zip(*[play(mix, arguments.callers, reserve, seed) for seed in range(arguments.rounds)])
            first = max(0, 1 - arguments.callers / MEAN_CALLS * ratio)
            print(f"| {mix.name} | {100 * share:.0f} % | {ratio:.2f} | {100 * first:.1f} % | {100 * statistics.median(falses):.1f} % "
                  f"({100 * min(falses):.1f} %) | {100 * statistics.median(overs):.1f} % ({100 * max(overs):.1f} %) |")


if __name__ == "__main__":
    main()
