"""The queue of events of the simulation, and the clocks of its servers. Times are whole microseconds."""

import heapq

SECOND = 1_000_000
MILLISECOND = 1_000


class Events:
    def __init__(self):
        self.now = 0
        self.queue = []
        self.order = 0

    def at(self, time, act, *arguments):
        heapq.heappush(self.queue, (max(time, self.now), self.order, act, arguments))
        self.order += 1

    def after(self, delay, act, *arguments):
        self.at(self.now + delay, act, *arguments)

    def run(self, until):
        queue = self.queue
        while queue and queue[0][0] <= until:
            self.now, _, act, arguments = heapq.heappop(queue)
            act(*arguments)
        self.now = until


class Clock:
    """A server's clock: apart from the true time by an offset, which a fault can change."""

    def __init__(self, events, offset=0):
        self.events = events
        self.offset = offset

    def now(self):
        return self.events.now + self.offset

    def step(self, by):
        self.offset += by
