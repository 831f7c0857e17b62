"""Regions and their home, put together: round trips of 1, 80 and 250 ms."""

import copy
from dataclasses import dataclass, field
from random import Random

from events import MILLISECOND, SECOND, Clock, Events
from home import Home
from judge import Judge
from network import Link
from region import Region

ROUND_TRIPS = {"eu": 1 * MILLISECOND, "us": 80 * MILLISECOND, "ap": 250 * MILLISECOND}
# The first moment on the clocks of all servers: some time after 1970, at no boundary.
START = 1_000_000_007 * MILLISECOND


@dataclass
class Counts:
    requests: int = 0
    passed: int = 0  # their costs
    refused: int = 0
    failed: int = 0
    waited: int = 0
    wait: int = 0
    calls: int = 0
    words: int = 0
    returns: int = 0


@dataclass
class World:
    rules: object
    limit: object
    seed: int = 0
    # How far each region's clock is from home's.
    apart: dict = field(default_factory=dict)
    # A region whose name two stores have.
    twin: str = ""
    round_trips: dict = field(default_factory=lambda: dict(ROUND_TRIPS))

    def __post_init__(self):
        self.events = Events()
        self.random = Random(self.seed)
        self.home_clock = Clock(self.events, START)
        self.home = Home(self.rules, self.limit, self.home_clock)
        self.judge = Judge(self.limit, self.home_clock)
        self.counts = Counts()
        self.regions = {name: self.region(name) for name in self.round_trips}
        if self.twin:
            self.regions["twin"] = self.region(self.twin)
        self.kept = None

    def region(self, name):
        clock = Clock(self.events, START + self.apart.get(name, 0))
        there, back, near = [Link(self.events, Random(self.random.getrandbits(32)), delay) for delay in
                             (self.round_trips[name] // 2, self.round_trips[name] // 2, MILLISECOND // 4)]
        return Region(name, self.events, self.rules, self.limit, clock, Random(self.random.getrandbits(32)), (there, back, near),
                      self.home, self.judge, self.counts)

    def run(self, until):
        self.events.run(until)

    def keep_home(self):
        self.kept = copy.deepcopy(self.home.buckets), dict(self.home.debited)

    def restore_home(self):
        """Home fails over to a server that lacks what it has acknowledged since `keep_home`."""
        self.home.buckets = copy.deepcopy(self.kept[0])
        self.judge.allow_again(self.kept[1], self.home.debited)

    def in_purses(self, key):
        """What lies in purses, or is on its way to one."""
        return sum(region.store.purses[key].left for region in self.regions.values() if key in region.store.purses)


def seconds(time):
    return f"{time / SECOND:g} s"
