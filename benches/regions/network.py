"""One direction of a connection: words can be late, lost, doubled, or cut off by a partition."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Disturbance:
    """What happens to words sent between `begin` and `end`: `share` of them are lost, doubled or late, up to `delay`."""
    kind: str
    begin: int
    end: int
    share: float
    delay: int = 0


class Link:
    def __init__(self, events, random, delay):
        self.events = events
        self.random = random
        self.delay = delay
        self.disturbances = []

    def send(self, deliver, *arguments):
        delays = [self.delay + int(self.delay * 0.1 * self.random.random())]
        for each in self.disturbances:
            if each.begin <= self.events.now < each.end and self.random.random() < each.share:
                if each.kind == "lost":
                    return
                later = self.random.randrange(each.delay + 1)
                if each.kind == "doubled":
                    delays.append(delays[0] + later)
                else:
                    delays = [delay + later for delay in delays]
        for delay in delays:
            self.events.after(delay, deliver, *arguments)
