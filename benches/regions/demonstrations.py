"""What the first form of the protocol gets wrong, one fault at a time, beside the chosen form."""

from demand import DAY, ONE, Demand
from events import MILLISECOND, SECOND
from faults import reload
from measure import Measured
from network import Disturbance
from protocol import CHOSEN, DRAFT, Limit, chosen_for


def slow_home(rules):
    """For ten minutes the round trip to home is longer than home.timeout: 700 ms. Returns what nobody can spend in that day."""
    limit = Limit(100_000, window=DAY)
    measured = Measured(rules, limit)
    world = measured.world
    Demand(world, 0.9 * limit.amount / 86_400)
    for region in world.regions.values():
        usual = region.to_home.delay
        for time, delay in ((3600 * SECOND, 350 * MILLISECOND), (4200 * SECOND, usual)):
            for link in (region.to_home, region.from_home):
                world.events.at(time, setattr, link, "delay", delay)
    # In the last half of the day all regions want more than is left.
    Demand(world, limit.amount / 86_400, begin=DAY // 2, seed=2)
    return f"{1 - measured.run(DAY).figures()['granted']:.1%} of the day's limit is lost"


def clock_set_back(rules):
    """A region's clock is set back by an hour while its lease is under way, and the answer is lost."""
    limit = Limit(100_000, window=DAY)
    measured = Measured(rules, limit)
    world = measured.world
    ap = world.regions["ap"]
    # A word sent between these two moments has no answer.
    ap.from_home.disturbances.append(Disturbance("lost", 0, 2 * SECOND, 1.0))
    Demand(world, 5, spread=ONE, begin=SECOND)
    world.events.at(2 * SECOND, ap.clock.step, -3600 * SECOND)
    first = []
    passed = world.judge.passed

    def watch(*arguments):
        first.append(world.events.now)
        passed(*arguments)

    world.judge.passed = watch
    measured.run(5000 * SECOND)
    return f"the first request passes after {first[0] / SECOND:.0f} s" if first else "no request passes"


def smaller_share(rules):
    """All regions have full purses of a token bucket when a file with a fifth of the share comes into force."""
    limit = Limit(100, rate=1)
    measured = Measured(rules.but(share=0.25), limit)
    world = measured.world
    Demand(world, 3, end=4 * SECOND)
    world.events.at(90 * SECOND, reload, world)
    Demand(world, 60, begin=90 * SECOND)
    measured.run(100 * SECOND)
    return f"{world.judge.excess()[0]:.1f} above burst + rate × T, burst 100"


def slow_key(rules):
    """A key with a thousand requests a day in three regions."""
    limit = Limit(1000, window=DAY)
    measured = Measured(rules, limit)
    Demand(measured.world, 0.9 * limit.amount / 86_400, swing=0.8)
    figures = measured.run(DAY).figures()
    return f"{figures['calls']:.3f} calls home per request; {figures['waited']:.1%} of the requests wait for home"


def cut_off(rules):
    """The far region, with a fifth of the demand, hears nothing from home for ten minutes."""
    limit = Limit(10_000, window=3600 * SECOND)
    measured = Measured(rules, limit)
    world = measured.world
    ap = world.regions["ap"]
    for link in (ap.to_home, ap.from_home):
        link.disturbances.append(Disturbance("lost", 900 * SECOND, 1500 * SECOND, 1.0))
    Demand(world, 0.9 * limit.amount / 3600)
    figures = measured.run(3600 * SECOND).figures()
    return f"{figures['failed'] * figures['requests']:.0f} of some 300 requests are refused meanwhile"


def far_region(rules):
    """All of a token bucket's demand, nine tenths of its rate, is in the region whose round trip is 250 ms."""
    limit = Limit(2000, rate=1000)
    measured = Measured(rules, limit)
    Demand(measured.world, 900, spread=ONE)
    figures = measured.run(20 * SECOND).figures()
    return f"{figures['refused']:.1%} of the requests are refused"


DEMONSTRATIONS = {
    "home answers after 700 ms for ten minutes, 100 000/day": (slow_home, Limit(100_000, window=DAY)),
    "a region is cut off for ten minutes, 10 000/h": (cut_off, Limit(10_000, window=3600 * SECOND)),
    "a region's clock is set back by an hour, and an answer is lost": (clock_set_back, Limit(100_000, window=DAY)),
    "token_bucket: a file with a fifth of the share comes into force": (smaller_share, Limit(100, rate=1)),
    "1000/day, with a demand of nine tenths": (slow_key, Limit(1000, window=DAY)),
    "1000/s, burst 2000, with a demand of nine tenths in one far region": (far_region, Limit(2000, rate=1000)),
}


def rows():
    """Each demonstration with what the two forms do."""
    for name, (play, limit) in DEMONSTRATIONS.items():
        yield name, play(DRAFT), play(chosen_for(limit))
