//! Computes charges to a budget: a token bucket or a fixed window that knows more than what is spent. Requests can hold
//! an amount of it while they run, and spend their true cost when they end. The bucket can also have a ban
//! ([`super::ban`]).
//!
//! A bucket of which requests hold something has two numbers, the spent and the held amount. The spent amount comes
//! back as in a token bucket or window. The held amount is the sum of the owners' reports, as for slots
//! ([`concurrency`](super::concurrency)). A request is admitted if the spent amount, the held amount and its own
//! reservation fit.
//!
//! An owner settles a cost with its next report, which contains the sum of all settled costs
//! ([`SettledSums`](crate::holds::SettledSums)) and how much the owner still holds. A report that is lost, late or
//! doubled charges nothing twice. A settled cost is spent even if it exceeds what the bucket has left. Then the bucket
//! refuses until this debt is refilled or the period ends.
//!
//! A budget with resets can also forget what was spent, for example after a right password. An owner's report has the number
//! of its resets so far ([`Resets`](crate::holds::Resets)). So a lost, late or doubled report resets the bucket once. A ban and
//! its step stay.
//!
//! The state begins with the three words of the token bucket or window. The words of the ban follow if the limit has
//! bans, and then the entries of the owners. A state without entries is an excerpt, in which held amounts count as free.
//!
//! Invariant: every number stays below 2^53, so that the same steps are exact in a store that counts in doubles.

mod owners;
mod spent_limit;
mod stored_state;

use std::borrow::Cow;

use super::ban::{self, Ban, BanPeriod, BanState};
use super::fixed_window::{FixedWindow, Window};
use super::owner_entries::{EndedHold, EntryKind, NewSettlements, OwnerEntries};
use super::step::{
    BanBeginning, ChargeResult, EXACT, Entry, Level, Numbers, Period, Quota, RequestNumbers, State, Step,
};
use super::token_bucket::TokenBucket;
use super::{Algorithm, AlgorithmKind};
use crate::cost::Cost;
use crate::holds::report::Report;
use base::time::{Micros, Timestamp};
pub use spent_limit::SpentLimit;
pub(super) use stored_state::without_ended;
pub use stored_state::{EVERYTHING, give_back, kind_of, state_of_any};

/// The time after which a client should try again if only held amounts refuse it. It is fixed, because the end of
/// other requests is not known.
pub const WAIT: Micros = Micros(1_000_000);

/// The number of words of a state that say what is spent.
const SPENT_WORDS: usize = 3;

/// The words for "nothing is spent", valid for a token bucket and for a window whose period has ended.
const NOTHING_SPENT: [u64; SPENT_WORDS] = [0, 1, 2];

/// The smallest amount that must be free to admit a request that reserves nothing.
const LEAST: Cost = Cost::from_thousandths(1);

/// The settings of one budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Budget {
    limit: SpentLimit,
    /// Whether requests hold an amount, and settle their cost when they end. Otherwise they spend their cost at once.
    settles: bool,
    /// Whether the end of a request can also forget what was spent.
    resets: bool,
    ban: Option<Ban>,
}

/// A state, read at one moment.
struct Opened<'s> {
    /// The words that say what is spent, with what timed holds held that have ended. `None` if nothing is spent, and empty if
    /// invalid.
    spent: Option<Cow<'s, [u64]>>,
    ban: BanState,
    entries: OwnerEntries,
}

impl Budget {
    /// Makes a budget whose requests hold an amount while they run, and settle their cost when they end.
    pub const fn settling(limit: SpentLimit) -> Budget {
        Budget { limit, settles: true, resets: false, ban: None }
    }

    /// Makes a settling budget whose spent amount is that of a token bucket.
    pub const fn of_token_bucket(bucket: TokenBucket) -> Budget {
        Budget::settling(SpentLimit::TokenBucket(bucket))
    }

    /// Makes a settling budget whose spent amount is that of a fixed window.
    pub const fn of_fixed_window(window: FixedWindow) -> Budget {
        Budget::settling(SpentLimit::FixedWindow(window))
    }

    /// Makes a limit with bans whose requests spend their cost at once.
    pub const fn banning(limit: SpentLimit, ban: Ban) -> Budget {
        Budget { limit, settles: false, resets: false, ban: Some(ban) }
    }

    /// Returns the settling budget for requests whose end can also forget what was spent.
    #[must_use]
    pub const fn with_resets(self) -> Budget {
        Budget { resets: self.settles, ..self }
    }

    /// Returns the budget with these bans.
    #[must_use]
    pub const fn with_ban(self, ban: Ban) -> Budget {
        Budget { ban: Some(ban), ..self }
    }

    /// Returns the budget for a request that must begin no ban.
    #[must_use]
    pub fn beginning_no_ban(self) -> Budget {
        Budget { ban: self.ban.map(Ban::beginning_none), ..self }
    }

    /// Returns the limit of what is spent.
    pub fn limit(&self) -> &SpentLimit {
        &self.limit
    }

    /// Returns whether requests hold an amount, and settle their cost when they end.
    pub fn settles(&self) -> bool {
        self.settles
    }

    /// Returns whether the end of a request can also forget what was spent.
    pub fn resets(&self) -> bool {
        self.resets
    }

    /// Returns the settings of the bans. `None` for a budget without bans.
    pub fn ban(&self) -> Option<Ban> {
        self.ban
    }

    pub(super) fn kind(&self) -> AlgorithmKind {
        match (&self.limit, self.settles, self.ban.is_some()) {
            (SpentLimit::TokenBucket(_), true, false) if self.resets => AlgorithmKind::TokenBudgetWithResets,
            (SpentLimit::FixedWindow(_), true, false) if self.resets => AlgorithmKind::WindowBudgetWithResets,
            (SpentLimit::TokenBucket(_), true, true) if self.resets => AlgorithmKind::TokenBudgetWithResetsAndBan,
            (SpentLimit::FixedWindow(_), true, true) if self.resets => AlgorithmKind::WindowBudgetWithResetsAndBan,
            (SpentLimit::TokenBucket(_), true, false) => AlgorithmKind::TokenBudget,
            (SpentLimit::FixedWindow(_), true, false) => AlgorithmKind::WindowBudget,
            (SpentLimit::TokenBucket(_), true, true) => AlgorithmKind::TokenBudgetWithBan,
            (SpentLimit::FixedWindow(_), true, true) => AlgorithmKind::WindowBudgetWithBan,
            (SpentLimit::TokenBucket(_), false, _) => AlgorithmKind::TokenBucketWithBan,
            (SpentLimit::FixedWindow(_), false, _) => AlgorithmKind::FixedWindowWithBan,
        }
    }

    /// Accepts a report: charges what its owner has settled since the last report, and stores what the owner holds. If the
    /// owner has reset the bucket, what was spent before is forgotten first.
    /// Returns the entry, which must be stored even if all plans are refused. `None` if the report is not newer than
    /// the owner's last report, or if the bucket has too many owners. Then the plans of the call fail.
    pub fn accept(&self, state: Option<&[u64]>, report: Report, now: Timestamp) -> Option<Entry> {
        let Opened { spent, mut ban, mut entries } = self.open(state, now);
        let spent = spent.as_deref();
        let NewSettlements { is_reset, spent: settled } = entries.accept(report)?;
        let settled = Cost::from_thousandths(settled);
        if is_reset {
            ban.forget_spent();
        }
        if settled > Cost::default() {
            ban.spend(now);
        }
        let charge = if is_reset { SpentLimit::overwrite } else { SpentLimit::overdraw };
        Some(self.joined(charge(&self.limit, spent, settled, now), &ban, &entries))
    }

    /// Computes the result of a request: of holding `cost` for the owner of the last accepted report, or of spending
    /// it if the budget does not settle. `state` is the result of [`Budget::accept`] or of a later step in the same
    /// call. A request that reserves nothing is refused if nothing is left.
    pub fn step(&self, state: Option<&[u64]>, cost: Cost, now: Timestamp) -> Step {
        let Opened { spent, mut ban, mut entries } = self.open(state, now);
        let spent = spent.as_deref();
        let held = Cost::from_thousandths(entries.sum);
        if let Some(BanPeriod { end, step }) = ban.running(now) {
            let charge = ChargeResult::Banned { wait: end.since(now), step, begins: None };
            return Step { untouched: beside(self.limit.level(spent, now), held), charge };
        }
        let needed = if self.settles { cost.max(LEAST) } else { cost };
        let alone = self.limit.step(spent, needed, now);
        let charge = match alone.charge {
            ChargeResult::Fits { level, entry, .. } if !self.settles => {
                if cost > Cost::default() {
                    ban.spend(now);
                }
                ChargeResult::Fits { level, entry: self.joined(entry, &ban, &entries), delay: Micros(0) }
            }
            ChargeResult::Fits { .. } if !self.fits(spent, needed.plus(held), now) => ChargeResult::Held,
            ChargeResult::Fits { .. } if !entries.charge(cost.thousandths()) => ChargeResult::Held,
            ChargeResult::Fits { .. } => {
                let entry = self.joined(self.limit.overdraw(spent, Cost::default(), now), &ban, &entries);
                ChargeResult::Fits { level: beside(alone.untouched, held.plus(cost)), entry, delay: Micros(0) }
            }
            refusal => self.begin_ban(spent, &ban, &entries, now, refusal),
        };
        Step { untouched: beside(alone.untouched, held), charge }
    }

    /// Returns the result of a request that does not fit beside what is spent: the refusal, or the beginning of a ban.
    fn begin_ban(
        &self,
        spent: Option<&[u64]>,
        ban: &BanState,
        entries: &OwnerEntries,
        now: Timestamp,
        refusal: ChargeResult,
    ) -> ChargeResult {
        let Some(settings) = self.ban.filter(|_| ban.may_begin()) else { return refusal };
        let begun = ban.begun(&settings, now);
        let Some(BanPeriod { end, step }) = begun.running(now) else { return refusal };
        let entry = self.joined(self.limit.overdraw(spent, Cost::default(), now), &begun, entries);
        let otherwise = match refusal {
            ChargeResult::Short { wait } => Some(wait),
            _ => None,
        };
        ChargeResult::Banned { wait: end.since(now), step, begins: Some(BanBeginning { entry, otherwise }) }
    }

    /// Charges an already spent cost to a bucket, even if the bucket cannot pay it. The bucket then refuses until the debt is
    /// refilled or the period ends.
    pub fn settle(&self, state: Option<&[u64]>, cost: Cost, now: Timestamp) -> Entry {
        let Opened { spent, mut ban, entries } = self.open(state, now);
        let spent = spent.as_deref();
        if cost > Cost::default() {
            ban.spend(now);
        }
        self.joined(self.limit.overdraw(spent, cost, now), &ban, &entries)
    }

    /// Forgets what is spent of a bucket, and charges `cost` to it as [`Budget::settle`] does. A ban and its step stay.
    pub fn reset(&self, state: Option<&[u64]>, cost: Cost, now: Timestamp) -> Entry {
        let Opened { spent, mut ban, entries } = self.open(state, now);
        let spent = spent.as_deref();
        ban.forget_spent();
        if cost > Cost::default() {
            ban.spend(now);
        }
        self.joined(self.limit.overwrite(spent, cost, now), &ban, &entries)
    }

    /// Returns the entry of a bucket that an operator bans for `length` from `now`. `None` for a budget without bans.
    pub fn set_ban(&self, state: Option<&[u64]>, length: Micros, now: Timestamp) -> Option<Entry> {
        self.ban?;
        let Opened { spent, ban, entries } = self.open(state, now);
        let spent = spent.as_deref();
        let entry = self.limit.overdraw(spent, Cost::default(), now);
        Some(self.joined(entry, &ban.set(length, now), &entries))
    }

    /// Returns the entry of a bucket of which nothing is taken.
    pub(super) fn unchanged(&self, state: &[u64], now: Timestamp) -> Entry {
        let Opened { spent, ban, entries } = self.open(Some(state), now);
        let spent = spent.as_deref();
        self.joined(self.limit.overdraw(spent, Cost::default(), now), &ban, &entries)
    }

    /// Returns the ban that runs at `now`, or else the last ban, until it is forgotten.
    pub fn last_ban(&self, state: Option<&[u64]>, now: Timestamp) -> Option<BanPeriod> {
        self.ban?;
        self.open(state, now).ban.last()
    }

    /// Returns the ban that runs at `now`.
    pub fn running_ban(&self, state: Option<&[u64]>, now: Timestamp) -> Option<BanPeriod> {
        self.ban?;
        self.open(state, now).ban.running(now)
    }

    /// Returns the amount that is spent at `now`, without what is held.
    pub fn spent(&self, state: Option<&[u64]>, now: Timestamp) -> Cost {
        self.limit.spent(self.open(state, now).spent.as_deref(), now)
    }

    /// Returns the amount that all owners together hold at `now`.
    pub fn held(&self, state: Option<&[u64]>, now: Timestamp) -> Cost {
        Cost::from_thousandths(self.open(state, now).entries.sum)
    }

    /// Returns the entry that a store must write at `now` in place of the state. `None` if the state needs no
    /// correction.
    pub fn correction(&self, state: Option<&[u64]>, now: Timestamp) -> Option<Entry> {
        let Opened { spent, ban, entries } = self.open(state, now);
        let spent = spent.as_deref();
        let is_corrected = self.limit.is_corrected(spent, now) || entries.is_corrected || ban.is_corrected;
        is_corrected.then(|| self.joined(self.limit.overdraw(spent, Cost::default(), now), &ban, &entries))
    }

    /// Returns the part of a state without the owners' entries. In this part, held amounts count as free.
    pub fn excerpt(&self, state: &[u64]) -> State {
        State::from_slice(state.get(..self.words()).unwrap_or(state))
    }

    /// Returns the limit's quota at `now`.
    pub fn quota(&self, now: Timestamp) -> Quota {
        self.limit.quota(now)
    }

    /// Returns the largest reservation that an untouched bucket admits.
    pub fn ceiling(&self) -> Cost {
        self.limit.ceiling()
    }

    /// Returns the budget with a burst or limit that is larger by this amount.
    pub(super) fn raised(&self, by: Cost) -> Budget {
        Budget { limit: self.limit.raised(by), ..*self }
    }

    /// Returns how a fixed window defines its periods; `None` for a token bucket.
    pub fn window(&self) -> Option<Window> {
        self.limit.window()
    }

    /// Returns the period of a fixed window that contains `now`. `None` if no period runs, and for a token bucket.
    pub fn period(&self, state: Option<&[u64]>, now: Timestamp) -> Option<Period> {
        self.limit.period(self.open(state, now).spent.as_deref(), now)
    }

    /// Returns the budget for a request with its own rate and size. `least` is the smallest cost of a request.
    pub fn for_request(&self, numbers: RequestNumbers, least: Cost) -> Budget {
        Budget { limit: self.limit.for_request(numbers, least), ..*self }
    }

    /// Returns the budget with the fastest refill that any of its requests can have.
    pub fn at_fastest(&self) -> Budget {
        Budget { limit: self.limit.at_fastest(), ..*self }
    }

    /// Returns this budget for a bucket that `other` may charge too.
    #[must_use]
    pub fn alongside(self, other: &Budget) -> Budget {
        Budget { limit: self.limit.alongside(&other.limit), ..self }
    }

    /// Returns the name of a setting that must be equal if both budgets charge one bucket, but differs in `other`.
    pub fn conflict(&self, other: &Budget) -> Option<&'static str> {
        self.limit.conflict(&other.limit).or((self.ban != other.ban).then_some("ban"))
    }

    /// Returns one of `of` equal shares of this budget, without bans, and the cost to charge to the share.
    pub(super) fn share(&self, cost: Cost, of: u64) -> (Algorithm, Cost) {
        let (limit, cost) = self.limit.share(cost, of);
        let share = match limit {
            limit if self.settles => Algorithm::Budget(Budget { limit, ban: None, ..*self }),
            SpentLimit::TokenBucket(bucket) => Algorithm::TokenBucket(bucket),
            SpentLimit::FixedWindow(window) => Algorithm::FixedWindow(window),
        };
        (share, cost)
    }

    /// Returns the settings of this budget as integers for its Lua twin, for a call at about the time `near`.
    pub fn numbers(&self, near: Timestamp) -> Numbers {
        let mut numbers = self.limit.numbers(near);
        if let Some(ban) = self.ban {
            ban.add_numbers(&mut numbers);
        }
        numbers
    }

    fn entry_kind(&self) -> EntryKind {
        if self.resets { EntryKind::BudgetWithResets } else { EntryKind::Budget }
    }

    /// Returns the number of words of a state before the owners' entries.
    fn words(&self) -> usize {
        if self.ban.is_some() { SPENT_WORDS + ban::WORDS } else { SPENT_WORDS }
    }

    fn open<'s>(&self, state: Option<&'s [u64]>, now: Timestamp) -> Opened<'s> {
        let none = || OwnerEntries::of(self.entry_kind(), [].into_iter().collect(), now);
        let at = |ban: BanState| self.ban.map_or(ban, |settings| ban.at(&settings, now));
        let no_ban = || at(BanState::default());
        let Some(state) = state else { return Opened { spent: None, ban: no_ban(), entries: none() } };
        let (spent, rest) = state.split_at(state.len().min(SPENT_WORDS));
        let (words, rest) = rest.split_at(rest.len().min(self.words() - SPENT_WORDS));
        let ban = match self.ban {
            Some(_) => BanState::parse(words).map(at),
            None => Some(BanState::default()),
        };
        let entries = match rest {
            [] => Some(none()),
            _ if !self.settles => None,
            rest => OwnerEntries::parse(self.entry_kind(), rest).map(|entries| entries.at(now)),
        };
        match (ban, entries) {
            (Some(ban), Some(entries)) if self.limit.is_valid(spent) => {
                let spend = |spent: Cow<'s, [u64]>, ended: &EndedHold| {
                    Cow::Owned(self.limit.overdraw_at(&spent, ended.held, ended.end, now).state.into_vec())
                };
                let spent = entries.ended.iter().fold(Cow::Borrowed(spent), spend);
                Opened { spent: Some(spent), ban, entries }
            }
            // An invalid state counts as a bucket of which everything is spent.
            _ => Opened { spent: Some(Cow::Borrowed(&[])), ban: no_ban(), entries: none() },
        }
    }

    fn fits(&self, spent: Option<&[u64]>, cost: Cost, now: Timestamp) -> bool {
        matches!(self.limit.step(spent, cost, now).charge, ChargeResult::Fits { .. })
    }

    /// Returns the entry with this ban and these owners. `spent` is the part that says what is spent.
    fn joined(&self, spent: Entry, ban: &BanState, entries: &OwnerEntries) -> Entry {
        // What timed holds hold is spent at their ends, unless they settle.
        let with_held = |(end, held)| self.limit.overdraw(Some(&spent.state), held, end).kept_until;
        let with_held = entries.timed_holds().map_or(spent.kept_until, with_held);
        let mut kept_until = spent.kept_until.max(with_held).min(Timestamp(EXACT));
        let Entry { mut state, .. } = spent;
        if self.ban.is_some() {
            ban.pack_into(&mut state);
            kept_until = kept_until.max(ban.kept_until());
        }
        if !entries.is_empty() {
            entries.pack_into(&mut state);
            kept_until = kept_until.max(entries.kept_until());
        }
        Entry { state, kept_until }
    }
}

impl Algorithm {
    /// Returns whether the end of a request can also forget what was spent.
    pub(super) fn resets(&self) -> bool {
        self.kind().has_resets()
    }
}

/// Returns the level less the held amount.
fn beside(level: Level, held: Cost) -> Level {
    Level { remaining: level.remaining.less(held), ..level }
}

#[cfg(test)]
mod tests;
