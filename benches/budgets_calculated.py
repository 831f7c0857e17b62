#!/usr/bin/env python3
"""What benches/budgets.py must measure for a quantile as the reservation and for `worst`, calculated from its mixes alone.

    python3 benches/budgets_calculated.py [--callers 64] [--rounds 100]

The world is as there, without programs: a call takes the time that the upstream of benches/budgets.py takes, a decision takes none, and the
limit knows at once what is spent and held. `worst` is the prompt and the `max_tokens` of a call. Otherwise each call holds the quantile of
the costs in its mix, and never more than `worst`. `ratio` is what a call holds in the mean, divided by what it costs. All callers begin
at once, so `callers` × the mean hold is held from then on, of a limit of 200 means. The first refusal comes when what is spent has
reached the rest: 1 - callers / 200 × ratio.
"""

import argparse
import heapq
import itertools
import statistics

from budget_calls import AGAIN, IDLE, MEAN_CALLS, MIXES, Mix

QUANTILES = [0.8, 0.85, 0.9, 0.95, 0.98]


def quantile(costs, share):
    """Of sorted costs, as the gateway takes it."""
    return costs[max(0, round(share * len(costs)) - 1)]


def play(mix, callers, hold, number):
    """What was spent beyond the limit, and what was spent at the first false refusal (1 without one), as shares of the limit."""
    calls, events, order = mix.calls(number), [], itertools.count()
    spent = held = admitted = running = 0
    active, false_at = 0, None

    def at(time, what, call):
        heapq.heappush(events, (time, next(order), what, call))

    for caller in range(callers):
        at(caller * 1e-4, "ask", next(calls))
    while events:
        now, _, what, call = heapq.heappop(events)
        cost = call.tokens
        if what == "end":
            spent, held, running, active = spent + cost, held - hold(call), running - 1, now
            at(now, "ask", next(calls))
        elif spent + held + hold(call) <= mix.limit:
            held, running, admitted, active = held + hold(call), running + 1, admitted + cost, now
            at(now + call.milliseconds / 1000, "end", call)
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
    print("| mix | holds | ratio | 1 - callers / 200 × ratio | first false refusal (worst) | over (worst) |\n|---|---|---|---|---|---|")
    for mix in map(Mix, MIXES):
        costs = sorted(call.tokens for call in mix.all)

        def worst(call, mix=mix):
            return call.input + mix.max_tokens

        def learned(share, costs=costs, worst=worst):
            return lambda call: min(quantile(costs, share), worst(call))

        holds = {f"{100 * share:.0f} %": learned(share) for share in QUANTILES} | {"`worst`": worst}
        for name, hold in holds.items():
            ratio = statistics.mean(map(hold, mix.all)) / mix.mean
            overs, falses = zip(*[play(mix, arguments.callers, hold, number) for number in range(arguments.rounds)])
            first = max(0, 1 - arguments.callers / MEAN_CALLS * ratio)
            print(f"| {mix.name} | {name} | {ratio:.2f} | {100 * first:.1f} % | {100 * statistics.median(falses):.1f} % "
                  f"({100 * min(falses):.1f} %) | {100 * statistics.median(overs):.1f} % ({100 * max(overs):.1f} %) |")


if __name__ == "__main__":
    main()
