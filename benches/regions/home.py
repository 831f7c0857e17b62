"""Home: the bucket that regions lease from, and what it remembers of each region."""

from dataclasses import dataclass, field, replace

from protocol import TOKEN, Answer


@dataclass
class Entry:
    """The last word of a region. `held` is what can lie in its purse, and counts until `ends`."""
    number: int
    tag: int
    answer: Answer
    ends: int
    held: int = 0


@dataclass
class Bucket:
    period: int
    at: int
    spent: int = 0  # units of a token bucket, whole costs of a fixed window
    entries: dict = field(default_factory=dict)


class Home:
    def __init__(self, rules, limit, clock):
        self.rules = rules
        self.limit = limit
        self.clock = clock
        self.buckets = {}
        # What was debited in all, by key: grows only.
        self.debited = {}

    def period(self):
        return self.clock.now() // self.limit.window if self.limit.window else 0

    def bucket(self, key):
        now = self.clock.now()
        bucket = self.buckets.get(key)
        if bucket is None:
            bucket = self.buckets[key] = Bucket(self.period(), now)
        if self.limit.window:
            if self.period() > bucket.period:
                bucket.period, bucket.spent = self.period(), 0
            return bucket
        bucket.spent = max(0, bucket.spent - self.limit.rate * max(0, now - bucket.at))
        bucket.at = max(bucket.at, now)
        for entry in bucket.entries.values():
            if entry.held and now >= entry.ends:
                # The purse has ended. It may have been spent to its end.
                bucket.spent += entry.held * TOKEN
                entry.held = 0
        return bucket

    def act(self, word):
        """What one script does: at most one debit or credit for each number."""
        bucket, rules = self.bucket(word.key), self.rules
        last = bucket.entries.get(word.region)
        if last and word.number <= last.number and rules.mistake != "forget-number":
            if word.number == last.number and (not rules.tags or word.tag == last.tag):
                remains = max(0, last.ends - self.clock.now())
                if not rules.repeat or rules.mistake == "old-remains":
                    remains = last.answer.remains
                return replace(last.answer, remains=remains, mark=word.mark)
            amount = last.answer.amount if rules.mistake == "pay-the-last" else 0
            return replace(last.answer, older=True, amount=amount, mark=word.mark)
        held = last.held if last else 0
        if word.kind == "return":
            answer, held = self.take_back(bucket, word, held, known=last is not None)
        else:
            answer, held = self.lease(bucket, word, held)
        ends = self.clock.now() + answer.remains
        bucket.entries[word.region] = Entry(word.number, word.tag, answer, ends, held)
        return answer

    def remains(self, bucket):
        if self.limit.window:
            return (bucket.period + 1) * self.limit.window - self.clock.now()
        return self.rules.life

    def lease(self, bucket, word, held):
        held = self.settle(bucket, word, held)
        rest = self.rest(bucket, word.region, held)
        amount = min(word.amount, rest)
        if self.rules.taper and self.limit.window:
            amount = min(amount, max(word.cost, rest // (self.rules.portions * self.rules.regions)))
        if amount < word.cost:
            again = self.remains(bucket) if self.limit.window else max(self.time_to(bucket, word, held), self.rules.pause)
            return Answer(word.number, word.tag, "lease", 0, bucket.period, self.remains(bucket), again, mark=word.mark), held
        self.debited[word.key] = self.debited.get(word.key, 0) + amount
        if self.limit.window:
            bucket.spent += amount
        elif self.rules.held:
            held += amount
        else:
            bucket.spent += amount * TOKEN
        pause = 0 if self.limit.window or amount == word.amount else self.rules.pause
        return Answer(word.number, word.tag, "lease", amount, bucket.period, self.remains(bucket), pause, mark=word.mark), held

    def take_back(self, bucket, word, held, known):
        if self.limit.window:
            # A home that knows nothing of this region has lost the debit as well.
            if known and (word.period == bucket.period or self.rules.mistake == "return-to-any-period"):
                bucket.spent = max(0, bucket.spent - word.amount)
        else:
            # What is given back was held, and is free now; the rest of what was held and is gone was spent.
            held = max(0, held - word.amount)
            held = self.settle(bucket, word, held)
        return Answer(word.number, word.tag, "return", 0, bucket.period, self.remains(bucket), mark=word.mark), held

    def settle(self, bucket, word, held):
        """What has left the purse since the region's last word is spent; what is in it now stays held."""
        if self.limit.window or not self.rules.held:
            return 0
        bucket.spent += max(0, held - word.left) * TOKEN
        return word.left

    def unspent(self, bucket, region, held):
        """Of a token bucket, in units."""
        burst = self.limit.amount
        if self.rules.mistake == "no-reserve":
            reserve = 0
        elif self.rules.held:
            reserve = held + sum(entry.held for name, entry in bucket.entries.items() if name != region)
        else:
            reserve = self.rules.regions * self.rules.largest_lease(self.limit)
        return (burst - reserve) * TOKEN - bucket.spent

    def rest(self, bucket, region, held):
        if self.limit.window:
            return self.limit.amount - bucket.spent
        return max(0, self.unspent(bucket, region, held) // TOKEN)

    def time_to(self, bucket, word, held):
        """When a token bucket can pay, if no purse gives anything back."""
        missing = word.cost * TOKEN - self.unspent(bucket, word.region, held)
        return max(0, -(-missing // self.limit.rate))
