"""The tables: what faults find, what sizes of leases do, and whether the goals are reached."""

from demand import DAY, ONE, Demand
from demonstrations import rows
from events import SECOND
from faults import play, random_schedule, search, shortest
from measure import Measured
from protocol import CHOSEN, DRAFT, MISTAKES, Limit, chosen_for

MINUTE, HOUR, MONTH = 60 * SECOND, 3600 * SECOND, 30 * DAY
# How many random schedules a mistake may survive.
PATIENCE = 2000
WINDOWS = {
    "1000/min": (Limit(1000, window=MINUTE), 10, 0.0),
    "10 000/h": (Limit(10_000, window=HOUR), 4, 0.0),
    "1000/day": (Limit(1000, window=DAY), 4, 0.8),
    "100 000/day": (Limit(100_000, window=DAY), 1, 0.8),
    "100 000/month": (Limit(100_000, window=MONTH), 1, 0.8),
}
BUCKETS = {"5/s, burst 10": Limit(10, rate=5), "50/s, burst 100": Limit(100, rate=50), "1000/s, burst 2000": Limit(2000, rate=1000)}
SHARES = [0.001, 0.003, 0.01, 0.03, 0.05, 0.1]


def percent(value, digits=1):
    return "never" if value is None else f"{100 * value:.{digits}f} %"


def table(head, lines):
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *("| " + " | ".join(map(str, line)) + " |" for line in lines)])


def window(rules, name, load, spread=None):
    """The figures of a fixed window whose limit is asked for `load` times."""
    limit, periods, swing = WINDOWS[name]
    measured = Measured(rules, limit)
    Demand(measured.world, load * limit.amount / (limit.window / SECOND), spread, swing=swing)
    return measured.run(periods * limit.window).figures()


def bucket(rules, name, load, spread=None, seconds=60):
    limit = BUCKETS[name]
    measured = Measured(rules, limit)
    Demand(measured.world, load * limit.rate, spread)
    return measured.run(seconds * SECOND).figures()


def faults(schedules):
    """Returns the table, the shortest schedule that breaks the first form, and what should not be."""
    failing, wrong = [], []
    for rules in (DRAFT, CHOSEN):
        failing.append([seed for seed in range(schedules) if play(rules, random_schedule(seed))[0] > 0])
    if failing[1]:
        found = shortest(CHOSEN, random_schedule(failing[1][0]))
        wrong.append("\n".join(["the chosen form lets more pass than the limit:", *found.lines(), play(CHOSEN, found)[1]]))
    lines = [["the first form", schedules, len(failing[0])], ["the chosen form", schedules, len(failing[1])]]
    broken = []
    if failing[0]:
        found = min((shortest(DRAFT, random_schedule(seed)) for seed in failing[0][:3]), key=lambda each: len(each.requests))
        broken = [*found.lines(), play(DRAFT, found)[1]]
    return table(["", "random schedules of faults", "with an excess"], lines), broken, wrong


def with_mistake(name):
    # The size of a lease is a promise only where nothing holds what lies in purses.
    return (CHOSEN.but(held=False) if name == "ask-too-much" else CHOSEN).but(mistake=name)


def mistakes():
    """Every mistake with the first schedule that shows it."""
    lines, wrong = [], []
    for name, words in MISTAKES.items():
        found = search(with_mistake(name), range(PATIENCE))
        if found is None:
            wrong.append(f"the mistake {name} is not found in {PATIENCE} schedules")
        else:
            lines.append([f"`{name}`", words, found.seed + 1])
    return table(["mistake", "what it does", "schedules until it is found"], lines), wrong


def demonstrations():
    return table(["", "the first form", "the chosen form"], rows())


def shares(names, sizes):
    """The figures by limit, form and share."""
    cells = []
    for name in names:
        limit = WINDOWS[name][0]
        for share in sizes:
            for form, rules in (("first", DRAFT), ("chosen", chosen_for(limit))):
                rules = rules.but(share=share)
                steady, over = window(rules, name, 0.9), window(rules, name, 1.5)
                cells.append({"limit": name, "share": share, "form": form, "lease": rules.largest_lease(limit), "calls": steady["calls"],
                              "waited": steady["waited"], "stranded": steady["stranded"], "first": over["first"],
                              "false": over["false"], "granted": over["granted"], "steadily refused": steady["refused"],
                              "excess": max(steady["excess"], over["excess"])})
    return cells


def shares_table(cells):
    lines = [[each["limit"], percent(each["share"]), each["lease"], each["form"], f"{each['calls']:.4f}", percent(each["waited"], 2),
              percent(each["stranded"]), percent(each["first"]), percent(each["granted"], 2)] for each in cells]
    return table(["limit", "share", "largest lease", "form", "calls home per request", "requests that wait for home",
                  "in purses at the end", "spent at the first refusal", "granted in the end"], lines)


def bucket_cells(sizes):
    cells = []
    for name, limit in BUCKETS.items():
        for share in sizes:
            for form, rules in (("first", DRAFT), ("chosen", chosen_for(limit))):
                rules = rules.but(share=share)
                if form == "first" and limit.amount - 3 * rules.largest_lease(limit) < 1:
                    continue
                steady, far, over = bucket(rules, name, 0.9), bucket(rules, name, 0.9, ONE), bucket(rules, name, 1.5)
                whole = limit.rate * 60 + limit.amount
                cells.append({"limit": name, "share": share, "form": form, "lease": rules.largest_lease(limit), "calls": steady["calls"],
                              "refused": steady["refused"], "far": far["refused"], "over calls": over["calls"],
                              "granted": over["passed"] / whole, "excess": max(each["excess"] for each in (steady, far, over))})
    return cells


def bucket_table(cells):
    lines = [[each["limit"], percent(each["share"]), each["lease"], each["form"], f"{each['calls']:.4f}", percent(each["refused"]),
              percent(each["far"]), f"{each['over calls']:.3f}", percent(each["granted"])] for each in cells]
    return table(["limit", "share", "largest lease", "form", "calls home per request at 0.9", "refused at 0.9", "refused at 0.9 in the far region alone",
                  "calls per request at 1.5", "granted at 1.5"], lines)


def triggers():
    """When a region should ask: calls and waits of a steady load."""
    names = {"10s": "half of what was paid in the last 10 to 20 s", "credit": "half of what was paid since the last credit",
             "trip": "twice a round trip's, at least 1/8, at most 1/2 of the largest lease"}
    lines = []
    for trigger, words in names.items():
        line = [words]
        for name, share in (("1000/min", 0.1), ("10 000/h", 0.05), ("100 000/day", 0.05)):
            figures = window(chosen_for(WINDOWS[name][0]).but(share=share, trigger=trigger), name, 0.9)
            line.append(f"{figures['calls']:.4f}, {percent(figures['waited'], 2)}")
        figures = bucket(CHOSEN.but(share=0.25, trigger=trigger), "1000/s, burst 2000", 0.9)
        line.append(f"{figures['calls']:.4f}, {percent(figures['waited'], 2)}")
        lines.append(line)
    return table(["asks below", "1000/min, 10 %", "10 000/h, 5 %", "100 000/day, 5 %", "1000/s, burst 2000, 25 %"], lines)


def returns():
    """When an idle purse should give back: calls of a steady load, and what is spent at the first refusal after one region has stopped."""
    lines = []
    for part in (0.0007, 0.003, 0.01, 0.03, 0.1, 1):
        line = [f"{100 * part:g} %"]
        for name in ("1000/day", "100 000/month"):
            limit, _, swing = WINDOWS[name]
            rules = chosen_for(limit).but(return_after=max(10 * SECOND, int(limit.window * part)))
            measured = Measured(rules, limit)
            rate = limit.amount / (limit.window / SECOND)
            # One region stops at half of the period with what it has leased; the others want more than all of it.
            Demand(measured.world, rate, {"us": (1, 20)}, swing=swing, end=limit.window // 2)
            Demand(measured.world, 1.2 * rate, {"eu": (0.6, 14), "ap": (0.4, 6)}, swing=swing, seed=2)
            stopped = measured.run(limit.window).figures()
            line += [f"{window(rules, name, 0.9)['calls']:.4f}", percent(stopped["first"])]
        lines.append(line)
    head = ["of the window"]
    for name in ("1000/day", "100 000/month"):
        head += [f"{name}: calls per request", "spent at the first refusal"]
    return table(head, lines)


def many_keys():
    """Keys by Zipf, the first of which asks for 1.5 times its limit; words to home travel together if they are 20 ms apart at most."""
    lines = []
    for amount, keys in ((1000, 1000), (10_000, 200)):
        limit = Limit(amount, window=DAY)
        rate = 1.5 * amount / 86_400 * sum(1 / rank for rank in range(1, keys + 1))
        for form, rules in (("first", DRAFT), ("chosen", chosen_for(limit))):
            measured = Measured(rules, limit)
            Demand(measured.world, rate, keys=keys, swing=0.8)
            figures = measured.run(DAY).figures()
            lines.append([f"{amount}/day", keys, form, int(figures["requests"]), f"{figures['words']:.4f}", f"{figures['calls']:.4f}",
                          percent(figures["waited"], 2), percent(figures["refused"]), figures["excess"]])
    return table(["limit of each key", "keys", "form", "requests", "words per request", "calls per request", "wait for home", "refused",
                  "excess"], lines)


def goals(names):
    """One region alone, and all regions: what is spent at the first refusal, and what is granted in the end."""
    lines, met = [], True
    for name in names:
        limit = WINDOWS[name][0]
        for form, rules in (("first", DRAFT), ("chosen", chosen_for(limit))):
            alone, everywhere = window(rules, name, 1.5, ONE), window(rules, name, 1.5)
            steady = window(rules, name, 0.9)
            lines.append([name, form, rules.largest_lease(limit), percent(alone["first"], 2), percent(everywhere["first"], 2),
                          percent(everywhere["granted"], 3), f"{steady['calls']:.4f}", max(each["excess"] for each in (alone, everywhere, steady))])
            if form == "chosen":
                met = met and alone["first"] >= 0.97 and everywhere["granted"] >= 0.9995 and everywhere["excess"] == 0
                met = met and (limit.amount < 5000 or steady["calls"] <= 0.01)
    return table(["limit", "form", "largest lease", "first refusal: one region", "first refusal: everywhere", "granted everywhere",
                  "calls per request", "excess"], lines), met
