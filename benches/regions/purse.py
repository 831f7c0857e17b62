"""A region's store: its purses, and the acts on them. Each method is one atomic script on the store's clock."""

from dataclasses import dataclass, field

from events import MILLISECOND, SECOND
from protocol import Word


@dataclass
class Mark:
    """The word for whose answer a purse waits, and when it is sent again without a request."""
    word: Word
    until: int
    tries: int = 1


@dataclass
class Purse:
    number: int
    left: int = 0
    period: int = -1
    ends: int = 0
    waiting: Mark = None
    short_until: int = 0
    touched: int = 0
    # What was asked for since the last mark, and paid since the last credit.
    since_mark: int = 0
    since_credit: int = 0
    # What a round trip has cost lately.
    trip: int = 0
    # What was paid in this slice of time and in the one before.
    slice: int = 0
    slices: list = field(default_factory=lambda: [0, 0])


class Store:
    def __init__(self, name, rules, limit, clock, random):
        self.name = name
        self.rules = rules
        self.limit = limit
        self.clock = clock
        self.random = random
        self.largest = rules.largest_lease(limit)
        self.purses = {}
        # The least favourable clock: the next new purse has this number.
        self.next_number = None

    def flush(self):
        self.purses.clear()

    def purse(self, key):
        now = self.clock.now()
        purse = self.purses.get(key)
        if purse is None:
            number = now // MILLISECOND
            if self.rules.mistake == "number-from-one":
                number = 0
            if self.next_number is not None:
                number, self.next_number = self.next_number, None
            purse = self.purses[key] = Purse(number)
        ends = purse.ends
        if self.rules.mistake == "own-clock" and self.limit.window:
            ends = (purse.period + 1) * self.limit.window
        if purse.left and now >= ends and self.rules.mistake != "endless-purse" and self.has_end():
            purse.left = 0
        return purse

    def has_end(self):
        return self.limit.window or self.rules.held

    def pay(self, key, cost):
        """Returns what the request learns, and the word that is to be sent, if any."""
        purse, now = self.purse(key), self.clock.now()
        if purse.left >= cost:
            period = purse.period
            purse.left -= cost
            purse.touched = now
            purse.since_mark += cost
            purse.since_credit += cost
            if self.rules.trigger == "10s":
                self.count_slice(purse, now, cost)
            word = self.mark(key, purse, cost) if purse.left < self.reorder(purse, cost) else None
            return "paid", period, word
        if self.short(purse, now):
            return "short", None, None
        word = self.mark(key, purse, cost)
        purse.since_mark += cost
        return "wait", None, word

    def count_slice(self, purse, now, cost):
        slice_now = now // (10 * SECOND)
        if slice_now != purse.slice:
            purse.slices = [0, purse.slices[0] if slice_now == purse.slice + 1 else 0]
            purse.slice = slice_now
        purse.slices[0] += cost

    def reorder(self, purse, cost):
        """Below this a region asks in the background."""
        if self.rules.trigger == "10s":
            return sum(purse.slices) / 2
        if self.rules.trigger == "credit":
            return purse.since_credit / 2
        least = max(cost, self.largest // 8)
        if 2 * purse.trip > self.largest:
            # A lease is too small for a round trip: every request waits, and crumbs would make it worse.
            return least
        # Twice what a round trip costs, so that the purse is not empty before the answer comes.
        return max(least, min(2 * purse.trip, self.largest // 2))

    def under_way(self, purse, now):
        """Whether an answer is still expected. A mark in the future is of a clock that was set back."""
        if not self.rules.repeat:
            return now < purse.waiting.until
        return 0 <= now - purse.waiting.word.mark < self.rules.timeout

    def short(self, purse, now):
        """Whether home is known to be short: never for longer than `ask_again`, whatever the clock does."""
        return now < purse.short_until and (purse.short_until <= now + self.rules.ask_again or not self.rules.repeat)

    def mark(self, key, purse, cost):
        """Marks the purse as waiting for a lease. Returns the word, or None if one is under way or nothing is missing."""
        now = self.clock.now()
        if purse.waiting and not (self.rules.repeat and purse.waiting.word.kind == "return"):
            if self.under_way(purse, now):
                return None
            if self.rules.repeat:
                return self.again(purse)
        # No lease waits for the answer to a return: if home hears the lease first, what is given back is lost.
        missing = self.largest if self.rules.mistake == "ask-too-much" else self.largest - purse.left
        if missing < 1 or self.short(purse, now):
            return None
        return self.new_word(key, purse, "lease", missing, min(missing, max(1, cost - purse.left)))

    def new_word(self, key, purse, kind, amount, cost):
        now = self.clock.now()
        purse.number += 1
        word = Word(self.name, key, purse.number, self.random.getrandbits(62), kind, amount, cost, purse.left, purse.period, now)
        purse.waiting = Mark(word, now + self.rules.timeout)
        purse.since_mark = 0
        if kind == "lease" and self.rules.mistake == "credit-before-debit":
            purse.left += amount
            if self.limit.window:
                purse.period = now // self.limit.window
                purse.ends = (purse.period + 1) * self.limit.window
        return word

    def again(self, purse):
        """The same word at a new time. Without requests later tries are further apart."""
        mark, now = purse.waiting, self.clock.now()
        mark.word = Word(**{**vars(mark.word), "mark": now})
        mark.tries += 1
        mark.until = now + min(self.rules.timeout << mark.tries, self.rules.ask_again)
        return mark.word

    def repeat(self, key, word):
        """The word again if the purse still waits for its answer."""
        purse = self.purses.get(key)
        if not purse or not purse.waiting or purse.waiting.word.number != word.number or purse.waiting.word.tag != word.tag:
            return None
        if purse.waiting.word.mark <= self.clock.now() < purse.waiting.until:
            return None
        return self.again(purse)

    def credit(self, key, answer):
        """Takes home's answer. Returns whether the purse waited for it."""
        if key not in self.purses:
            return False
        purse, now = self.purse(key), self.clock.now()
        mark = purse.waiting
        if answer.older:
            # The tag of an older word is not known here: whatever is waited for below that number changed nothing at home.
            if mark and mark.word.number <= answer.number and (mark.word.number < answer.number or mark.word.tag != answer.tag):
                purse.waiting = None
                purse.number = max(purse.number, answer.number)
                if answer.amount:
                    self.fill(purse, answer)
                return True
            return False
        waits = mark and mark.word.number == answer.number and (not self.rules.tags or mark.word.tag == answer.tag)
        if waits and not self.rules.repeat and now > mark.until:
            waits = False
        if not waits and not (self.rules.mistake == "credit-twice" and answer.kind == "lease"):
            return False
        purse.waiting = None
        if answer.kind == "return":
            if self.rules.mistake == "return-first":
                purse.left = max(0, purse.left - mark.word.amount)
            return True
        purse.trip = max(purse.since_mark, (purse.trip + purse.since_mark) // 2)
        # From the mark, so never later than home means.
        purse.short_until = min(answer.mark + answer.again, now + self.rules.ask_again)
        if answer.amount:
            self.fill(purse, answer)
        return True

    def fill(self, purse, answer):
        purse.since_credit = 0
        purse.touched = self.clock.now()
        if self.rules.mistake == "credit-before-debit":
            answer.amount = 0
        if answer.period != purse.period and self.rules.mistake not in ("mix-periods", "endless-purse"):
            purse.left = 0
        purse.left += answer.amount
        purse.period = answer.period
        begin = self.clock.now() if self.rules.mistake == "from-the-credit" else answer.mark
        purse.ends = begin + answer.remains

    def sweep(self, key):
        """Gives back what is not needed. Returns the word, if any, and when to look again (None: not before the next credit)."""
        now, rules = self.clock.now(), self.rules
        if key not in self.purses:
            return None, None
        purse = self.purse(key)
        if not purse.left or not (self.limit.window or rules.held):
            return None, None
        if purse.waiting:
            return None, rules.return_after
        untouched = now - purse.touched
        if 0 <= untouched < rules.return_after:
            return None, rules.return_after - untouched
        back = purse.left
        if rules.mistake != "return-first":
            purse.left -= back
        return self.new_word(key, purse, "return", back, 0), rules.return_after
