"""What is played: the limit, its leases, and the form of the protocol. `DRAFT` is the first form, `CHOSEN` what replaces it."""

from dataclasses import dataclass, replace

from events import SECOND

# A token is a million units, so that a token each second is a unit each microsecond.
TOKEN = 1_000_000

# Mistakes that the judge must find, and what each one does.
MISTAKES = {
    "credit-before-debit": "the purse has what it asks for before home has paid, and keeps it if home pays less",
    "credit-twice": "the purse takes an answer for which it does not wait",
    "endless-purse": "a purse outlives its period",
    "own-clock": "a purse ends when the period ends on the clock of its region",
    "from-the-credit": "a purse ends what remains of the period after the credit, not after the mark",
    "mix-periods": "what is left of the last period is added to a lease of this one",
    "forget-number": "home does not keep the last number of a region",
    "pay-the-last": "a word with an older number is answered with the last amount, and the purse takes it",
    "number-from-one": "a new purse begins with number 1, and words have no tag",
    "return-first": "home gets what is returned before the purse has given it",
    "return-to-any-period": "home takes what is returned for another period",
    "old-remains": "a repeated answer says what remained of the period at the first time",
    "no-reserve": "home's token bucket grants its whole burst, whatever lies in purses",
    "ask-too-much": "a region asks for the largest lease, whatever is in its purse",
}


@dataclass(frozen=True)
class Limit:
    """A fixed window of `window` microseconds, or a token bucket of `rate` tokens per second if there is no window."""
    amount: int
    window: int = 0
    rate: int = 0
    largest_cost: int = 1


@dataclass(frozen=True)
class Rules:
    # A lease or return without an answer is sent again under its number. Otherwise a credit after home.timeout is lost.
    repeat: bool
    # A word has a random tag beside its number, and home answers again only if both are equal.
    tags: bool
    # What lies in purses is held by home's token bucket. Otherwise its burst is less by regions × largest lease.
    held: bool
    # A fixed window's home gives at most its rest / (regions × portions), at least the asking cost.
    taper: bool
    # After a lease that is smaller than what was asked for, a token bucket's region does not ask for this long.
    pause: int
    # When a region asks in the background: "trip", "credit" or "10s" (see Store.reorder).
    trigger: str
    share: float = 0.01
    least: int = 1
    # When an idle purse gives back what is left, and when a region asks again after home was short.
    return_after: int = 60 * SECOND
    ask_again: int = 60 * SECOND
    # How long a token bucket's purse lives after its last lease, if home holds it.
    life: int = 600 * SECOND
    # Home gives at most its rest / (regions × portions) if it tapers.
    portions: int = 2
    timeout: int = SECOND // 2
    regions: int = 3
    mistake: str = ""

    def largest_lease(self, limit):
        return max(self.least, limit.largest_cost, int(limit.amount * self.share + 1e-9))

    def but(self, **changes):
        return replace(self, **changes)


DRAFT = Rules(repeat=False, tags=False, held=False, taper=False, pause=0, trigger="credit")
CHOSEN = Rules(repeat=True, tags=True, held=True, taper=True, pause=SECOND // 10, trigger="trip")


def chosen_for(limit):
    """With the defaults for this limit: the share, and 3 % of the window, or of the time in which a bucket is full again."""
    whole = limit.window or limit.amount * SECOND // limit.rate
    return_after = max(10 * SECOND, whole * 3 // 100)
    return CHOSEN.but(share=0.05 if limit.window else 0.25, return_after=return_after, life=10 * return_after)


@dataclass
class Word:
    """What a region says to home about one bucket."""
    region: str
    key: int
    number: int
    tag: int
    kind: str  # "lease" or "return"
    amount: int  # asked for, or given back
    cost: int  # the least that helps
    left: int  # what was in the purse at the mark, without what is given back
    period: int
    mark: int  # the region's clock at the mark of this try


@dataclass
class Answer:
    number: int
    tag: int
    kind: str
    amount: int
    period: int
    remains: int  # of the period or of the hold, in microseconds from the moment of the answer
    again: int = 0  # when home can pay again, if it paid less than was asked for
    older: bool = False  # `number` is the last that home knows; nothing was changed
    mark: int = 0
