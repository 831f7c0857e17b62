"""Schedules of faults: random ones, playing one in a small world, and the shortest one that still fails."""

from dataclasses import dataclass, replace
from random import Random

from events import MILLISECOND, SECOND
from network import Disturbance
from protocol import TOKEN, Limit
from world import World

LINKS = ("to_home", "from_home", "near")
END = 12 * SECOND


@dataclass(frozen=True)
class Fault:
    kind: str
    at: int
    region: str = ""
    link: str = ""
    until: int = 0
    share: float = 0.0
    delay: int = 0

    def __str__(self):
        def time(value):
            return f"{value / SECOND:.3f} s"

        words = {
            "lost": f"{self.region}, {self.link}: {self.share:.0%} of the words are lost until {time(self.until)}",
            "doubled": f"{self.region}, {self.link}: {self.share:.0%} are doubled, up to {time(self.delay)} apart, until {time(self.until)}",
            "late": f"{self.region}, {self.link}: {self.share:.0%} are up to {time(self.delay)} late, until {time(self.until)}",
            "flush": f"the store of {self.region} is flushed",
            "set": f"the clock of {self.region} is set by {time(self.delay)}",
            "set-home": f"home's clock is set by {time(self.delay)}",
            "repeat-number": f"the store of {self.region} is flushed, and its clock set so that the next lease has home's last number",
            "restore": f"the store of {self.region} comes back without what it acknowledged in the last {time(self.delay)}",
            "restore-home": f"home comes back without what it acknowledged in the last {time(self.delay)}",
            "reload": "a file with a fifth of the share is in force everywhere",
            "twin": f"two stores are called {self.region} from the start",
            "apart": f"the clock of {self.region} is {time(self.delay)} from home's from the start",
        }
        return f"{time(self.at)}: {words[self.kind]}"


@dataclass(frozen=True)
class Schedule:
    """A limit, the requests and the faults; the same seed gives the same run."""
    seed: int
    limit: Limit
    share: float
    faults: tuple
    requests: tuple  # (time, region, cost)

    def lines(self):
        limit = self.limit
        kind = f"limit {limit.amount} in {limit.window / SECOND:g} s" if limit.window else f"{limit.rate}/s, burst {limit.amount}"
        head = (f"seed {self.seed}: {kind}, largest lease {max(limit.largest_cost, int(limit.amount * self.share))}, "
                f"{len(self.requests)} requests")
        lines = [(fault.at, str(fault)) for fault in self.faults]
        if len(self.requests) <= 12:
            lines += [(time, f"{time / SECOND:.3f} s: a request of {cost} in {region}") for time, region, cost in self.requests]
        return [head, *(line for _, line in sorted(lines))]


def random_schedule(seed):
    random = Random(seed)
    if random.random() < 0.6:
        limit = Limit(random.choice([8, 30, 60]), window=random.choice([1, 3, 5]) * SECOND, largest_cost=random.choice([1, 1, 3]))
    else:
        limit = Limit(random.choice([20, 60]), rate=random.choice([2, 10, 30]), largest_cost=random.choice([1, 1, 3]))
    share = random.choice([0.05, 0.1, 0.25, 0.4])
    clocks_apart = random.random() < 0.5
    faults = [Fault("apart", 0, region, delay=random.randrange(-2000, 2000) * MILLISECOND)
              for region in ("eu", "us", "ap") if clocks_apart]
    kinds = ["lost", "doubled", "late", "set"] * 3 + ["flush", "repeat-number", "set-home", "restore", "restore-home", "twin", "reload"]
    for _ in range(random.randrange(1, 7)):
        kind, at, region = random.choice(kinds), random.randrange(END), random.choice(["eu", "us", "ap"])
        fault = Fault(kind, at, region)
        if kind in ("lost", "doubled", "late"):
            fault = replace(fault, link=random.choice(LINKS), until=at + random.randrange(200, 6000) * MILLISECOND,
                            share=random.choice([0.2, 0.5, 1.0]), delay=random.choice([100, 600, 3000]) * MILLISECOND)
        elif kind in ("set", "set-home"):
            fault = replace(fault, delay=random.choice([-4000, -2000, -1000, -100, 2000]) * MILLISECOND)
        elif kind in ("restore", "restore-home"):
            fault = replace(fault, delay=min(at, random.choice([100, 400, 1000, 4000]) * MILLISECOND))
        elif kind == "twin":
            fault = replace(fault, at=0)
        faults.append(fault)
    return Schedule(seed, limit, share, tuple(faults), tuple(random_requests(random, limit)))


def random_requests(random, limit):
    """Silence, steady demand around the limit, and crowds that want all of it at once, by turns."""
    usual = limit.amount / limit.window if limit.window else limit.rate / SECOND
    now, requests = 0, []
    while now < END and len(requests) < 500:
        silence, crowd = random.random() < 0.4, random.random() < 0.4
        end = now + random.randrange(200, 2500) * MILLISECOND
        demand = limit.amount / (200 * MILLISECOND) if crowd else usual * random.choice([0.5, 1.5, 4])
        left = 2 * limit.amount
        while not silence and now < end and left:
            now += 1 + int(random.expovariate(demand))
            left -= 1
            requests.append((now, random.choice(["eu", "us", "ap", "twin"]), random.randrange(1, limit.largest_cost + 1)))
        now = max(now, end)
    return requests


def play(rules, schedule):
    """Returns the excess and where it was found."""
    faults = schedule.faults
    rules = rules.but(share=schedule.share, return_after=SECOND * 2 // 5, ask_again=SECOND, life=3 * SECOND)
    if rules.mistake == "number-from-one":
        rules = rules.but(tags=False)
    apart = {fault.region: fault.delay for fault in faults if fault.kind == "apart"}
    twin = next((fault.region for fault in faults if fault.kind == "twin"), "")
    world = World(rules, schedule.limit, schedule.seed, apart, twin)
    for time, region, cost in schedule.requests:
        world.events.at(time, world.regions[region if region in world.regions else "eu"].arrive, 0, cost)
    for fault in faults:
        plan(world, fault)
    if twin and not schedule.limit.window:
        # Home knows of one of the two purses. The heartbeat finds such a pair.
        world.judge.allow_everywhere(rules.largest_lease(schedule.limit))
    world.run(END + 5 * SECOND)
    return world.judge.excess()


def plan(world, fault):
    events = world.events
    named = [region for region in world.regions.values() if region.name == fault.region]
    if fault.kind in ("lost", "doubled", "late"):
        for region in named:
            getattr(region, fault.link).disturbances.append(Disturbance(fault.kind, fault.at, fault.until, fault.share, fault.delay))
    elif fault.kind == "flush":
        events.at(fault.at, named[0].store.flush)
    elif fault.kind == "repeat-number":
        events.at(fault.at, repeat_number, world, named[0])
    elif fault.kind == "set":
        # A purse can outlive its period by a clock that was set back.
        world.judge.clocks_were_set = True
        events.at(fault.at, named[0].clock.step, fault.delay)
    elif fault.kind == "set-home":
        world.judge.clocks_were_set = True
        # As of any token bucket whose clock is set forward.
        world.judge.allow_everywhere(max(0, fault.delay) * world.limit.rate / TOKEN)
        events.at(fault.at, world.home_clock.step, fault.delay)
    elif fault.kind == "reload":
        events.at(fault.at, reload, world)
    elif fault.kind == "restore":
        events.at(fault.at - fault.delay, named[0].keep)
        events.at(fault.at, named[0].restore)
    elif fault.kind == "restore-home":
        events.at(fault.at - fault.delay, world.keep_home)
        events.at(fault.at, world.restore_home)


def reload(world):
    """A file with a fifth of the share is in force everywhere."""
    rules = world.rules.but(share=world.rules.share / 5)
    world.home.rules = rules
    for region in world.regions.values():
        region.rules = region.store.rules = rules
        region.store.largest = rules.largest_lease(world.limit)


def repeat_number(world, region):
    region.store.flush()
    bucket = world.home.buckets.get(0)
    entry = bucket and bucket.entries.get(region.name)
    if entry:
        world.judge.clocks_were_set = True
        region.store.next_number = entry.number - 1


def search(rules, seeds):
    """Plays a random schedule for each seed. Returns the first that fails, or None."""
    for seed in seeds:
        schedule = random_schedule(seed)
        if play(rules, schedule)[0] > 0:
            return schedule
    return None


def shortest(rules, schedule):
    """Leaves out faults and requests as long as what remains still fails."""
    def fails(faults, requests):
        return play(rules, replace(schedule, faults=faults, requests=requests))[0] > 0

    faults, requests = shrunk(schedule.faults, lambda kept: fails(kept, schedule.requests)), schedule.requests
    requests = shrunk(requests, lambda kept: fails(faults, kept))
    faults = shrunk(faults, lambda kept: fails(kept, requests))
    return replace(schedule, faults=faults, requests=requests)


def shrunk(items, fails):
    """Removes runs of items, long ones first."""
    size = max(1, len(items) // 2)
    while size:
        place = 0
        while place < len(items):
            kept = items[:place] + items[place + size:]
            if fails(kept):
                items = kept
            else:
                place += size
        size //= 2
    return items
