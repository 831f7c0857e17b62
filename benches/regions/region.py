"""A region: its gateways ask its store, and home over an ocean. Acts in its own store take no time here."""

import copy

from events import MILLISECOND
from purse import Store

# How long a word for which no request waits can wait for others, to travel with them in one call.
TOGETHER = 20 * MILLISECOND


class Request:
    __slots__ = ("cost", "deadline", "arrived", "waits", "done")

    def __init__(self, cost, arrived, deadline):
        self.cost = cost
        self.arrived = arrived
        self.deadline = deadline
        self.waits = False
        self.done = False


class Region:
    def __init__(self, name, events, rules, limit, clock, random, links, home, judge, counts):
        self.name = name
        self.events = events
        self.rules = rules
        self.clock = clock
        self.store = Store(name, rules, limit, clock, random)
        self.to_home, self.from_home, self.near = links
        self.home = home
        self.judge = judge
        self.counts = counts
        self.waiters = {}
        self.outbox = []
        self.sweeping = set()
        self.kept = None

    def arrive(self, key, cost):
        self.counts.requests += 1
        now = self.events.now
        self.take(key, Request(cost, now, now + self.rules.timeout))

    def take(self, key, request):
        """Returns whether the request has to wait for home."""
        verdict, period, word = self.store.pay(key, request.cost)
        waits = verdict == "wait"
        if verdict == "paid":
            self.judge.passed(self.name, key, request.cost, period)
            self.counts.passed += request.cost
            self.end(request)
        elif verdict == "short":
            self.refuse(key, request)
        elif not request.waits:
            request.waits = True
            self.waiters.setdefault(key, []).append(request)
            self.events.at(request.deadline, self.give_up, key, request)
            self.counts.waited += 1
        if word:
            self.send(word, urgent=waits)
        return waits

    def end(self, request):
        request.done = True
        self.counts.wait += self.events.now - request.arrived

    def refuse(self, key, request):
        self.end(request)
        self.counts.refused += 1
        self.judge.refused(self.name, key, request.cost)

    def give_up(self, key, request):
        """`on_failure: deny`."""
        if not request.done:
            self.end(request)
            self.counts.failed += 1
            self.judge.refused(self.name, key, request.cost)
            self.waiters[key].remove(request)

    def send(self, word, urgent):
        self.outbox.append(word)
        if urgent:
            self.call()
        elif len(self.outbox) == 1:
            self.events.after(TOGETHER, self.call)

    def call(self):
        """One call with all words that wait."""
        words, self.outbox = self.outbox, []
        if not words:
            return
        self.counts.calls += 1
        self.counts.words += len(words)
        for word in words:
            self.to_home.send(self.at_home, word)
            if self.rules.repeat:
                mark = self.store.purses[word.key].waiting if word.key in self.store.purses else None
                delay = mark.until - mark.word.mark if mark else self.rules.timeout
                self.events.after(delay + MILLISECOND, self.repeat, word)

    def repeat(self, word):
        again = self.store.repeat(word.key, word)
        if again:
            self.send(again, urgent=bool(self.waiters.get(word.key)))

    def at_home(self, word):
        answer = self.home.act(word)
        self.from_home.send(self.answered, word, answer)

    def answered(self, word, answer):
        self.near.send(self.credit, word, copy.copy(answer))

    def credit(self, word, answer):
        if not self.store.credit(word.key, answer):
            return
        waiting = self.waiters.get(word.key, [])
        served = 0
        # Those behind one that still waits do so too.
        while served < len(waiting) and not self.take(word.key, waiting[served]):
            served += 1
        self.waiters[word.key] = waiting[served:]
        self.look_after(word.key)

    def look_after(self, key):
        """Looks for a surplus again and again, while the purse has something in it."""
        if key not in self.sweeping:
            self.sweeping.add(key)
            self.events.after(self.rules.return_after, self.sweep, key)

    def sweep(self, key):
        word, after = self.store.sweep(key)
        if word and word.kind == "return":
            self.judge.gave_back(self.name, key, word.amount)
            self.counts.returns += 1
        if word:
            self.send(word, urgent=False)
        if after is None:
            self.sweeping.discard(key)
        else:
            self.events.after(after, self.sweep, key)

    def keep(self):
        """What the store has on its disk."""
        self.kept = copy.deepcopy(self.store.purses), self.judge.acknowledged(self.name)

    def restore(self):
        """The store comes back without what it has acknowledged since `keep`."""
        self.store.purses, before = copy.deepcopy(self.kept[0]), self.kept[1]
        self.judge.allow_again(before, self.judge.acknowledged(self.name))
