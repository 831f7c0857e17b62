//! Steps a purse: what a region has leased from the home of a limit and not spent yet. It is a bucket in the region's own store, and is
//! charged in the same act as the other buckets of a request.
//!
//! A purse pays while something is left. What it cannot pay is refused with the wait [`ASK_HOME`], unless home is known to be short:
//! then with the time until home is asked again. The caller asks home and tries again.
//!
//! While home gives no answer, a purse may also pay from the [`RegionShare`], if its limit allows that.
//!
//! The other changes of a purse are acts of their own ([`PurseAct`]). An act that sends something to home first writes down the
//! word that is sent, so only one lease of a purse is under way over all gateways of a region, and no answer is credited twice.
//!
//! Invariant: every number stays below 2^53, so that the same steps are exact in a store that counts in doubles.

#[cfg(test)]
mod home_raise_tests;
mod purse_act;
mod purse_level;
mod region_share;
#[cfg(test)]
mod region_share_tests;
mod stored_purse;
#[cfg(test)]
mod tests;

use sha2::{Digest, Sha256};
use smallvec::smallvec;

use super::{Home, HomeAnswer, LeaseSize, MarkedWord, WordId, WordKind};
use crate::algorithm::budget::SpentLimit;
use crate::algorithm::fixed_window::{self, FixedWindow};
use crate::algorithm::step::{ChargeResult, EXACT, Entry, Numbers, Step};
use crate::cost::Cost;
use crate::truncated_hash::first_bytes;
use base::time::{Micros, Timestamp};
pub use purse_act::{PurseAct, PurseReply};
pub(in crate::algorithm::lease) use purse_level::PurseContents;
pub use region_share::RegionShare;
use stored_purse::{MOST_TRIES, PendingWord, StoredPurse, StoredRaise, StoredShare};

/// The wait of a request that a purse cannot pay, if home may be able to.
pub const ASK_HOME: Micros = Micros(0);

/// The beginning of what is hashed as the numbers of a purse.
const NUMBERS_OF_PURSES: &[u8] = b"tollgate/8 numbers";

/// For how many times `return_after`, or the time in which home should answer, the home of a token bucket holds what lies in a purse, after the
/// last word of its region.
const LIVES: u64 = 10;

/// How many times `return_after`, or the time in which home should answer, an answer is waited for.
const WAITS_FOR_ANSWER: u64 = 10;

/// The settings of the purses of one limit in one region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Purse {
    /// The limit that holds over all regions.
    limit: SpentLimit,
    /// Of this limit. Every request needs it for the key of its purse.
    numbers_hash: [u8; 16],
    /// The most that a purse holds, and asks home for.
    size: LeaseSize,
    /// How long an answer of home is expected.
    timeout: Micros,
    /// After how long an untouched purse gives back what is left. Also how long home is believed to be short.
    return_after: Micros,
    share: RegionShare,
}

impl Purse {
    /// Makes the purses of a limit. `None` if nothing fits into one, or if the numbers are too large.
    pub fn new(limit: SpentLimit, largest: Cost, timeout: Micros, return_after: Micros) -> Option<Purse> {
        let is_exact = largest.thousandths() <= EXACT >> 2;
        Purse::sized(limit, LeaseSize::fixed(largest), timeout, return_after).filter(|_| is_exact)
    }

    /// Makes the purses of a limit, each with a share of the limit. `None` as for [`Purse::new`].
    pub fn sized(limit: SpentLimit, size: LeaseSize, timeout: Micros, return_after: Micros) -> Option<Purse> {
        let limit = limit.without_thresholds();
        let numbers_hash = hash_of_numbers(&limit);
        let purse = Purse { limit, numbers_hash, size, timeout, return_after, share: RegionShare::None };
        let is_exact = timeout.0.max(return_after.0) <= EXACT >> 8;
        let is_positive = purse.largest() > Cost::default() && timeout.0 > 0 && return_after.0 > 0;
        (is_exact && is_positive).then_some(purse)
    }

    /// Returns purses that count what their region has leased, beside what it may spend while home gives no answer: one of so many
    /// shares. If a share is too small for any amount, nothing changes.
    #[must_use]
    pub fn with_shares(self, regions: u64) -> Purse {
        self.counting(RegionShare::Counted { regions })
    }

    /// Returns purses that count as those of [`Purse::with_shares`] do, but must not spend a share: another file may allow it.
    #[must_use]
    pub fn with_unspent_shares(self, regions: u64) -> Purse {
        self.counting(RegionShare::Unspent { regions })
    }

    fn counting(self, share: RegionShare) -> Purse {
        let counting = Purse { share, ..self };
        if counting.share_limit().is_some() { counting } else { self }
    }

    /// Returns the purses while home gives no answer: they pay what they lack from the share of their region. `None` if they have none.
    pub fn without_home(&self) -> Option<Purse> {
        let RegionShare::Counted { regions } = self.share else { return None };
        Some(Purse { share: RegionShare::Spent { regions }, ..*self })
    }

    /// Returns the share of a region, which it may spend without home. Zero if it must not.
    pub fn share_of_region(&self) -> Cost {
        let share = self.share_limit().filter(|_| !matches!(self.share, RegionShare::Unspent { .. }));
        share.map_or(Cost::default(), |share| share.ceiling())
    }

    /// Returns the most that a purse holds, and asks home for.
    pub fn largest(&self) -> Cost {
        self.size.of(self.limit.ceiling())
    }

    /// Returns after how long an untouched purse gives back what is left.
    pub fn return_after(&self) -> Micros {
        self.return_after
    }

    /// Returns a limit of one region that grants one purse in each period. A token bucket has none: its purse comes back after the time for
    /// which home holds a purse.
    pub(in crate::algorithm) fn alone(&self) -> SpentLimit {
        let (most, life) = (self.largest().min(self.limit.ceiling()), self.patience(LIVES));
        let window = match self.limit {
            SpentLimit::FixedWindow(window) => window.with_amount(most),
            SpentLimit::TokenBucket(_) => {
                let life = life.clamp(fixed_window::SHORTEST, fixed_window::LONGEST);
                FixedWindow::of_amount(most, fixed_window::Window::FirstRequest(life))
            }
        };
        window.map_or(self.limit, SpentLimit::FixedWindow)
    }

    /// Returns this many times the time after which a region gives back, or after which an answer of home is late.
    fn patience(&self, times: u64) -> Micros {
        Micros(self.return_after.max(self.timeout).0.saturating_mul(times))
    }

    /// Returns the home of the limit over this number of regions. `None` without regions, or if there are too many.
    pub fn home(&self, regions: u64) -> Option<Home> {
        Home::new(self.limit, regions, self.patience(LIVES))
    }

    /// Returns a hash of what a purse was leased for: the burst or limit, which may differ from request to request, and the rate or the
    /// window. A purse of another window would end with a period that home has shortened.
    pub fn numbers_hash(&self) -> [u8; 16] {
        self.numbers_hash
    }

    /// Returns the limit that holds over all regions.
    pub fn limit(&self) -> &SpentLimit {
        &self.limit
    }

    /// Returns the purses of the limit that `change` makes of this limit.
    #[must_use]
    pub(in crate::algorithm) fn with(&self, change: impl FnOnce(&SpentLimit) -> SpentLimit) -> Purse {
        let limit = change(&self.limit);
        Purse { limit, numbers_hash: hash_of_numbers(&limit), ..*self }
    }

    /// Returns purses that show a larger burst or limit, by the raises at home. They are those of the limit without raises.
    #[must_use]
    pub(in crate::algorithm) fn raised(&self, by: Cost) -> Purse {
        Purse { limit: self.limit.raised(by), ..*self }
    }

    /// Returns the settings as integers for the Lua twin, for a call at about the time `near`.
    pub(in crate::algorithm) fn numbers(&self, near: Timestamp) -> Numbers {
        let [largest, ceiling] = [self.largest(), self.limit.ceiling()].map(Cost::thousandths);
        let mut numbers = smallvec![largest, self.timeout.0, self.return_after.0, ceiling];
        if let Some(share) = self.share_limit() {
            numbers.push(self.share.code());
            numbers.extend(share.numbers(near));
        }
        numbers
    }

    /// Computes the result of charging `cost` at `now`. `None` is the state of a purse that was never filled. An invalid state
    /// counts as an empty purse.
    pub(in crate::algorithm) fn step(&self, state: Option<&[u64]>, cost: Cost, now: Timestamp) -> Step {
        let purse = self.open(state, now);
        let charge = match purse.left.checked_sub(cost.thousandths()) {
            _ if self.limit.ceiling() == Cost::default() => ChargeResult::Never,
            Some(left) => {
                let since_mark = plus(purse.since_mark, cost.thousandths());
                let purse = StoredPurse { left, since_mark, touched: now, ..purse };
                ChargeResult::Fits { level: self.level(&purse, now), entry: self.entry(&purse), delay: Micros(0) }
            }
            None if cost > self.limit.ceiling() => ChargeResult::Never,
            None if self.is_short_of(&purse, cost, now) => ChargeResult::Short { wait: purse.short_until.since(now) },
            None => self.pay_from_share(&purse, cost, now).unwrap_or(ChargeResult::Short { wait: ASK_HOME }),
        };
        Step { untouched: self.level(&purse, now), charge }
    }

    /// Pays what the purse lacks from the share of its region. `None` if it must not.
    fn pay_from_share(&self, purse: &StoredPurse, cost: Cost, now: Timestamp) -> Option<ChargeResult> {
        let (share, stored) = self.share_limit().filter(|_| self.share.is_spent()).zip(purse.share)?;
        let lacking = cost.less(Cost::from_thousandths(purse.left));
        Some(match share.step(Some(&stored.words), lacking, now).charge {
            ChargeResult::Fits { entry, .. } => {
                let since_mark = plus(purse.since_mark, cost.thousandths());
                let debt = plus(stored.debt, lacking.thousandths());
                let share = StoredShare::of(&entry, debt);
                let purse = StoredPurse { left: 0, since_mark, touched: now, share, ..*purse };
                ChargeResult::Fits { level: self.level(&purse, now), entry: self.entry(&purse), delay: Micros(0) }
            }
            // Home may answer before the share can pay.
            ChargeResult::Short { wait } => ChargeResult::Short { wait: wait.max(Micros(1)).min(self.return_after) },
            _ => ChargeResult::Short { wait: self.return_after },
        })
    }

    /// Returns whether home should be asked for more, in the background, after a request of this cost. `state` is that after
    /// the request. [`PurseAct::Mark`] does so.
    pub fn is_low(&self, state: &[u64], cost: Cost, now: Timestamp) -> bool {
        let purse = self.open(Some(state), now);
        let is_under_way =
            purse.waiting.is_some_and(|waiting| waiting.kind == WordKind::Lease && self.is_expected(&waiting, now));
        // A request that costs more than the largest lease gets one of its own size.
        let level = self.reorder_level(&purse, cost.min(self.largest()));
        !is_under_way && !self.is_short(&purse, now) && purse.left < level
    }

    /// Changes a purse by an act. Returns the entry to store, if anything has changed, and what came of the act.
    pub fn act(&self, state: Option<&[u64]>, act: PurseAct, now: Timestamp) -> (Option<Entry>, PurseReply) {
        let purse = self.open(state, now);
        let changed = match act {
            PurseAct::Mark { cost, tag } => self.mark(purse, cost, tag, now),
            PurseAct::Resend { id } => self.resend(purse, id, now),
            PurseAct::Credit { answer, mark, wanted } => {
                self.credit(purse, &answer, mark, wanted, now).map(|purse| (purse, PurseReply::Credited))
            }
            PurseAct::Surplus { tag, idle } => self.surplus(purse, tag, idle, now),
        };
        match changed {
            Some((purse, reply)) => (Some(self.entry(&purse)), reply),
            None => (None, PurseReply::Nothing),
        }
    }

    fn mark(&self, mut purse: StoredPurse, cost: Cost, tag: u64, now: Timestamp) -> Option<(StoredPurse, PurseReply)> {
        // No lease waits for the answer to a return. If home hears the lease first, what is given back is lost.
        if let Some(waiting) = purse.waiting.filter(|waiting| waiting.kind == WordKind::Lease) {
            return (!self.is_expected(&waiting, now)).then(|| self.again(purse, waiting, now)).flatten();
        }
        let most = self.largest().max(cost).thousandths().min(EXACT);
        let missing = most.saturating_sub(purse.left);
        if missing == 0 || self.is_short_of(&purse, cost, now) || purse.left >= self.reorder_level(&purse, cost) {
            return None;
        }
        let cost = cost.thousandths();
        let least = if cost > purse.left { cost - purse.left } else { cost }.max(1).min(missing);
        let until = now.plus(self.timeout);
        purse.begin_word(now);
        let left = purse.left;
        purse.waiting =
            Some(PendingWord { kind: WordKind::Lease, tag, amount: missing, least, left, mark: now, until, tries: 0 });
        self.send(purse)
    }

    fn surplus(
        &self,
        mut purse: StoredPurse,
        tag: u64,
        idle: Micros,
        now: Timestamp,
    ) -> Option<(StoredPurse, PurseReply)> {
        // Nobody may know of the word: the reply of the act that wrote it was lost.
        let is_late = |waiting: &PendingWord| waiting.kind == WordKind::Return && !waiting.is_too_early(now);
        if let Some(waiting) = purse.waiting.filter(is_late) {
            return self.again(purse, waiting, now);
        }
        // A moment in the future is of a clock that was set back.
        let is_touched = purse.touched <= now && now.since(purse.touched) < idle;
        // What a single large request has leased, and has not spent, goes back from a purse in use, too.
        let left = if is_touched { purse.left.min(self.largest().thousandths()) } else { 0 };
        let amount = purse.left - left;
        if amount == 0 || purse.waiting.is_some() {
            return None;
        }
        purse.begin_word(now);
        let until = now.plus(self.timeout);
        purse.left = left;
        purse.waiting =
            Some(PendingWord { kind: WordKind::Return, tag, amount, least: 0, left, mark: now, until, tries: 0 });
        self.send(purse)
    }

    fn resend(&self, purse: StoredPurse, id: WordId, now: Timestamp) -> Option<(StoredPurse, PurseReply)> {
        let waiting = purse.waiting.filter(|waiting| WordId { number: purse.number, tag: waiting.tag } == id)?;
        if waiting.is_too_early(now) {
            return None;
        }
        self.again(purse, waiting, now)
    }

    /// Marks the purse again for the same word. Without requests later tries are further apart.
    fn again(&self, mut purse: StoredPurse, waiting: PendingWord, now: Timestamp) -> Option<(StoredPurse, PurseReply)> {
        let tries = (waiting.tries + 1).min(MOST_TRIES);
        let wait = self.timeout.0.saturating_mul(1 << tries).min(self.return_after.0.max(self.timeout.0));
        purse.waiting = Some(PendingWord { mark: now, until: now.plus(Micros(wait)), tries, ..waiting });
        self.send(purse)
    }

    fn send(&self, purse: StoredPurse) -> Option<(StoredPurse, PurseReply)> {
        let PendingWord { mark, until, .. } = purse.waiting?;
        Some((purse, PurseReply::Send(MarkedWord { word: purse.word()?, mark, again_after: until.since(mark) })))
    }

    /// Takes an answer of home. `None` if the purse does not wait for it.
    fn credit(
        &self,
        mut purse: StoredPurse,
        answer: &HomeAnswer,
        mark: Timestamp,
        wanted: Cost,
        now: Timestamp,
    ) -> Option<StoredPurse> {
        let waiting = purse.waiting?;
        let own = WordId { number: purse.number, tag: waiting.tag };
        // The clock may have been set back since the mark.
        let mark = mark.min(now);
        match *answer {
            HomeAnswer::Older { last } => {
                // The word that is waited for was not heard, and never will be.
                if own.number > last.number || own == last {
                    return None;
                }
                Some(StoredPurse { number: last.number.min(EXACT - 1), waiting: None, ..purse })
            }
            HomeAnswer::Answer { id, .. } if id != own => None,
            HomeAnswer::Answer { kind, given, period, remains, again_after, rest, raise, .. } => {
                purse.waiting = None;
                (purse.left_at_home, purse.heard) = (rest.thousandths().min(EXACT), limited(mark));
                let raised = raise.amount.thousandths().min(EXACT);
                let ends = limited(mark.plus(raise.remains));
                purse.raise = (raised > 0).then_some(StoredRaise { amount: raised, ends });
                if kind == WordKind::Return {
                    purse.share = purse.share.map(|share| self.share_after_return(share, &waiting));
                    return Some(purse);
                }
                let spent = plus(purse.since_mark, wanted.thousandths());
                purse.trip = spent.max(plus(purse.trip, spent) / 2);
                purse.short_until = limited(mark.plus(again_after)).min(now.plus(self.return_after));
                let given = given.thousandths();
                if given > 0 {
                    let kept = if purse.period == period { purse.left } else { 0 };
                    if purse.period != period {
                        purse.undo_from(now);
                    }
                    purse.left = plus(kept, given - purse.share.map_or(0, |share| share.debt.min(given)));
                    (purse.period, purse.ends, purse.touched) = (period, limited(mark.plus(remains)), now);
                    purse.share = self.share_after_lease(purse.share, given, now);
                }
                Some(purse)
            }
        }
    }

    /// Returns the level below which a region asks home in the background: what it spends in two round trips, so that the purse is
    /// not empty before the answer comes. If a lease is too small for a round trip, every request waits, and small leases would make it
    /// worse.
    fn reorder_level(&self, purse: &StoredPurse, cost: Cost) -> u64 {
        let (largest, two_trips) = (self.largest().thousandths(), plus(purse.trip, purse.trip));
        let least = cost.thousandths().max(largest / 8);
        if two_trips > largest { least } else { least.max(two_trips.min(largest / 2)) }
    }

    /// Returns whether an answer is still expected. A mark in the future is of a clock that was set back.
    fn is_expected(&self, waiting: &PendingWord, now: Timestamp) -> bool {
        waiting.mark <= now && now.since(waiting.mark) < self.timeout
    }

    /// Returns whether home is known to be short of what a request of this cost lacks. If it lacks nothing, more is not asked for.
    fn is_short_of(&self, purse: &StoredPurse, cost: Cost, now: Timestamp) -> bool {
        let lacking = cost.thousandths().checked_sub(purse.left).filter(|lacking| *lacking > 0);
        self.is_short(purse, now) && lacking.is_none_or(|lacking| lacking > purse.left_at_home)
    }

    /// Returns whether home is known to be short: never for longer than `return_after`, whatever the clock does.
    fn is_short(&self, purse: &StoredPurse, now: Timestamp) -> bool {
        now < purse.short_until && purse.short_until.since(now) <= self.return_after
    }

    /// Returns the entry that a store must write in place of an invalid state. `None` for any other state.
    pub(in crate::algorithm) fn correction(&self, state: Option<&[u64]>, now: Timestamp) -> Option<Entry> {
        StoredPurse::parse(state?).is_none().then(|| self.entry(&self.open(state, now)))
    }

    /// Returns the entry of a purse of which nothing is taken.
    pub(in crate::algorithm) fn unchanged(&self, state: &[u64], now: Timestamp) -> Entry {
        self.entry(&self.open(Some(state), now))
    }

    fn open(&self, state: Option<&[u64]>, now: Timestamp) -> StoredPurse {
        let mut purse = state.and_then(StoredPurse::parse).unwrap_or_else(|| StoredPurse::new(now));
        if purse.ends <= now {
            purse.left = 0;
        }
        purse.share = self.open_share(state.is_some(), purse.share, now);
        purse
    }

    fn entry(&self, purse: &StoredPurse) -> Entry {
        let answered = purse.waiting.map(|waiting| waiting.mark.plus(self.patience(WAITS_FOR_ANSWER)));
        let share = purse.share.filter(|share| self.share.is_kept(share.debt));
        let share = share.map(|share| share.kept_until).unwrap_or_default();
        let raised = purse.raise.map(|raise| raise.ends).unwrap_or_default();
        let kept_until = purse.ends.max(purse.short_until).max(answered.unwrap_or_default()).max(share).max(raised);
        Entry { state: purse.pack(), kept_until: limited(kept_until) }
    }
}

/// Computes [`Purse::numbers_hash`].
fn hash_of_numbers(limit: &SpentLimit) -> [u8; 16] {
    let per = match limit {
        SpentLimit::TokenBucket(bucket) => bucket.fraction(),
        SpentLimit::FixedWindow(window) => window.window().code(),
    };
    let mut hash = Sha256::new_with_prefix(NUMBERS_OF_PURSES);
    for number in [limit.ceiling().thousandths()].into_iter().chain(per) {
        hash.update(number.to_be_bytes());
    }
    first_bytes(hash)
}

/// Returns whether a state is that of a purse.
pub fn is_purse(state: &[u64]) -> bool {
    StoredPurse::parse(state).is_some()
}

/// Returns the sum, up to the largest exact number.
fn plus(a: u64, b: u64) -> u64 {
    a.saturating_add(b).min(EXACT)
}

/// Returns the moment, or the last one that is exact.
fn limited(moment: Timestamp) -> Timestamp {
    moment.min(Timestamp(EXACT))
}
