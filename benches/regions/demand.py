"""Requests as they come: Poisson in each region, with the curve of a day, over keys by Zipf."""

import math
from bisect import bisect
from itertools import accumulate
from random import Random

from events import SECOND

DAY = 86_400 * SECOND
# The shares of the demand, and the hour of the highest one.
SPREAD = {"eu": (0.5, 14), "us": (0.3, 20), "ap": (0.2, 6)}
ONE = {"ap": (1.0, 6)}


class Demand:
    """`rate` requests per second over all regions and keys in the mean; twice `swing` lie between the hours of a day."""

    def __init__(self, world, rate, spread=None, keys=1, swing=0.0, begin=0, end=math.inf, seed=1):
        self.world = world
        self.swing = swing
        self.end = end
        self.random = Random(seed)
        self.keys = list(accumulate(1 / rank for rank in range(1, keys + 1)))
        for name, (share, hour) in (spread or SPREAD).items():
            if rate * share > 0:
                world.events.at(begin, self.first, world.regions[name], rate * share / SECOND, hour)

    def first(self, region, rate, hour):
        highest = rate * (1 + self.swing)
        self.world.events.after(int(self.random.expovariate(highest)), self.arrive, region, rate, highest, hour)

    def arrive(self, region, rate, highest, hour):
        events, random = self.world.events, self.random
        if events.now >= self.end:
            return
        if not self.swing or random.random() * highest < rate * self.curve(events.now, hour):
            key = bisect(self.keys, random.random() * self.keys[-1]) if len(self.keys) > 1 else 0
            region.arrive(key, 1)
        events.after(1 + int(random.expovariate(highest)), self.arrive, region, rate, highest, hour)

    def curve(self, now, hour):
        return 1 + self.swing * math.cos(2 * math.pi * (now / DAY - hour / 24))
