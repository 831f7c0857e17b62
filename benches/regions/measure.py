"""Plays one limit under one demand, and measures calls home, waits, refusals while something was left, and what is stranded."""

from collections import defaultdict

from world import World


class Measured:
    """Of a world that runs: how the limit's periods went."""

    def __init__(self, rules, limit, **options):
        self.world = World(rules, limit, **options)
        self.limit = limit
        self.false = 0
        self.first_refusals = {}
        self.ends = []
        self.world.judge.on_refusal = self.refused
        if limit.window:
            # Periods begin with the run.
            self.world.home_clock.offset -= self.world.home_clock.offset % limit.window
            self.world.judge.offset = self.world.home_clock.offset

    def refused(self, region, key, cost):
        world = self.world
        rest = world.home.rest(world.home.bucket(key), "", 0)
        if rest + world.in_purses(key) >= cost:
            self.false += 1
        # A request that asks home just before the end of a period is refused for that one.
        if self.limit.window and world.home_clock.now() % self.limit.window > 2 * world.rules.timeout:
            period = world.home.period()
            self.first_refusals.setdefault((key, period), world.judge.by_lease[key, period] / self.limit.amount)

    def run(self, until):
        if self.limit.window:
            for end in range(self.limit.window, until + 1, self.limit.window):
                self.world.events.at(end - 1, self.look)
        self.world.run(until)
        return self

    def look(self):
        """At the end of a period: what was granted, and what home has given beyond that."""
        period = self.world.home.period()
        for key, bucket in self.world.home.buckets.items():
            if bucket.period == period:
                granted = self.world.judge.by_lease[key, period]
                self.ends.append((key, granted / self.limit.amount, (bucket.spent - granted) / self.limit.amount))

    def figures(self):
        counts, ends = self.world.counts, self.ends
        requests = max(1, counts.requests)
        figures = defaultdict(float)
        figures |= {
            "requests": counts.requests,
            "calls": counts.calls / requests,
            "words": counts.words / requests,
            "waited": counts.waited / requests,
            "wait": counts.wait / max(1, counts.waited) / 1000,
            "refused": (counts.refused + counts.failed) / requests,
            "failed": counts.failed / requests,
            "false": self.false / requests,
            "passed": counts.passed,
            "excess": self.world.judge.excess()[0],
        }
        if ends:
            figures["granted"] = sum(granted for _, granted, _ in ends) / len(ends)
            figures["stranded"] = sum(stranded for *_, stranded in ends) / len(ends)
        figures["first"] = min(self.first_refusals.values(), default=None)
        return figures
