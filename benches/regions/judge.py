"""Sums what passes over all regions, and says by how much it is above the limit: 0 unless a store has lost what it acknowledged."""

from collections import defaultdict

from protocol import TOKEN


class Judge:
    def __init__(self, limit, home_clock):
        self.limit = limit
        self.home_clock = home_clock
        # Before any fault: periods as clients see them.
        self.offset = home_clock.offset
        # By key and period: the period of the lease, and the period on an undisturbed clock of home.
        self.by_lease = defaultdict(int)
        self.by_clock = defaultdict(int)
        self.levels = {}
        self.most = defaultdict(int)
        # What may pass again because a store has lost what it acknowledged, by key; and whether clocks were set.
        self.allowed = defaultdict(int)
        self.everywhere = 0
        self.clocks_were_set = False
        # What a region's store has let pass or given back.
        self.by_region = defaultdict(lambda: defaultdict(int))
        # Called at each refusal, if somebody measures.
        self.on_refusal = None

    def passed(self, region, key, cost, period):
        self.by_region[region][key] += cost
        now = self.home_clock.events.now
        if self.limit.window:
            self.by_lease[key, period] += cost
            self.by_clock[key, (now + self.offset) // self.limit.window] += cost
            return
        # A bucket with any debt: the highest level is the largest excess over all windows.
        at, level = self.levels.get(key, (now, 0))
        level = max(0, level - self.limit.rate * (now - at)) + cost * TOKEN
        self.levels[key] = now, level
        self.most[key] = max(self.most[key], level)

    def refused(self, region, key, cost):
        if self.on_refusal:
            self.on_refusal(region, key, cost)

    def gave_back(self, region, key, amount):
        self.by_region[region][key] += amount

    def acknowledged(self, region):
        return dict(self.by_region[region])

    def allow_again(self, before, after):
        for key, amount in after.items():
            self.allowed[key] += amount - before.get(key, 0)

    def allow_everywhere(self, amount):
        self.everywhere += amount

    def excess(self):
        """The largest amount above a limit, over all keys and windows, and where."""
        found = (0, "")
        if self.limit.window:
            for name, sums in (("leased for period", self.by_lease), ("passed in period", self.by_clock)):
                if sums is self.by_clock and self.clocks_were_set:
                    continue
                for (key, period), amount in sums.items():
                    over = amount - self.limit.amount - self.allowed[key] - self.everywhere
                    found = max(found, (over, f"key {key}: {amount} of {self.limit.amount} {name} {period}"))
        else:
            for key, level in self.most.items():
                over = (level - (self.limit.amount + self.allowed[key] + self.everywhere) * TOKEN) / TOKEN
                found = max(found, (over, f"key {key}: {level / TOKEN - self.limit.amount:.3f} above burst + rate × T"))
        return found
