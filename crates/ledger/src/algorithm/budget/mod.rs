//! Computes charges to a budget: a token bucket or a fixed window that knows more than what is spent. Requests can hold
//! an amount of it while they run, and spend their true cost when they end. The bucket can also have a ban
//! ([`super::ban`]).
//!
//! A bucket of which requests hold something has two numbers, the spent and the held amount. The spent amount comes
//! back as in a token bucket or window. The held amount is the sum of the owners' reports, as for slots
//! ([`concurrency`](super::concurrency)). A request is admitted if the spent amount, the held amount and its own
//! reservation fit.
//!
//! An owner settles a cost with its next report, which says the sum of all settled costs
//! ([`SettledSums`](crate::holds::SettledSums)) and how much the owner still holds. A report that is lost, late or
//! doubled charges nothing twice. A settled cost is spent even if it exceeds what the bucket has left. Then the bucket
//! refuses until this debt is refilled or the period ends.
//!
//! The state begins with the three words of the token bucket or window. The words of the ban follow if the limit has
//! bans, and then the entries of the owners. A state without entries is an excerpt, in which held amounts count as free.
//!
//! Invariant: every number stays below 2^53, so that the same steps are exact in a store that counts in doubles.

mod spent_limit;

use super::ban::{self, Ban, BanPeriod, BanState};
use super::fixed_window::{self, FixedWindow, Window};
use super::owner_entries::{EntryKind, Holder, OwnerEntries};
use super::step::{
    BanBeginning, ChargeResult, EXACT, Entry, Level, Numbers, Period, Quota, RequestNumbers, State, Step,
};
use super::token_bucket::{self, TokenBucket};
use super::{Algorithm, AlgorithmKind};
use crate::cost::Cost;
use crate::holds::report::Report;
use base::time::{Micros, Timestamp};
pub use spent_limit::SpentLimit;

/// The time after which a client should try again if only held amounts refuse it. It is fixed, because the end of
/// other requests is not known.
pub const WAIT: Micros = Micros(1_000_000);

/// The number of words of a state that say what is spent.
const SPENT_WORDS: usize = 3;

/// The words of a bucket of which nothing is spent, as a token bucket and as a window whose period has ended.
const NOTHING_SPENT: [u64; SPENT_WORDS] = [0, 1, 2];

/// The smallest amount that must be free to admit a request that reserves nothing.
const LEAST: Cost = Cost::from_thousandths(1);

/// The settings of one budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Budget {
    limit: SpentLimit,
    /// Whether requests hold an amount, and settle their cost when they end. Otherwise they spend their cost at once.
    settles: bool,
    ban: Option<Ban>,
}

/// A state, read at one moment.
struct Opened<'s> {
    /// The words that say what is spent. `None` if nothing is spent, and empty if invalid.
    spent: Option<&'s [u64]>,
    ban: BanState,
    entries: OwnerEntries,
}

impl Budget {
    /// Makes a budget whose requests hold an amount while they run, and settle their cost when they end.
    pub const fn settling(limit: SpentLimit) -> Budget {
        Budget { limit, settles: true, ban: None }
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
        Budget { limit, settles: false, ban: Some(ban) }
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

    /// Returns the settings of the bans. `None` for a budget without bans.
    pub fn ban(&self) -> Option<Ban> {
        self.ban
    }

    pub(super) fn kind(&self) -> AlgorithmKind {
        match (&self.limit, self.settles, self.ban.is_some()) {
            (SpentLimit::TokenBucket(_), true, false) => AlgorithmKind::TokenBudget,
            (SpentLimit::FixedWindow(_), true, false) => AlgorithmKind::WindowBudget,
            (SpentLimit::TokenBucket(_), true, true) => AlgorithmKind::TokenBudgetWithBan,
            (SpentLimit::FixedWindow(_), true, true) => AlgorithmKind::WindowBudgetWithBan,
            (SpentLimit::TokenBucket(_), false, _) => AlgorithmKind::TokenBucketWithBan,
            (SpentLimit::FixedWindow(_), false, _) => AlgorithmKind::FixedWindowWithBan,
        }
    }

    /// Accepts a report: charges what its owner has settled since the last report, and stores what the owner holds.
    /// Returns the entry, which must be stored even if all plans are refused. `None` if the report is not newer than
    /// the owner's last report, or if the bucket has too many owners. Then the plans of the call fail.
    pub fn accept(&self, state: Option<&[u64]>, report: Report, now: Timestamp) -> Option<Entry> {
        let Opened { spent, mut ban, mut entries } = self.open(state, now);
        let settled = Cost::from_thousandths(entries.accept(report)?);
        if settled > Cost::default() {
            ban.spend(now);
        }
        Some(self.joined(self.limit.overdraw(spent, settled, now), &ban, &entries))
    }

    /// Computes the result of a request: of holding `cost` for the owner of the last accepted report, or of spending
    /// it if the budget does not settle. `state` is the result of [`Budget::accept`] or of a later step in the same
    /// call. A request that reserves nothing is refused if nothing is left.
    pub fn step(&self, state: Option<&[u64]>, cost: Cost, now: Timestamp) -> Step {
        let Opened { spent, mut ban, mut entries } = self.open(state, now);
        let held = Cost::from_thousandths(entries.sum);
        if let Some(BanPeriod { end, step }) = ban.running(now) {
            let charge = ChargeResult::Banned { wait: end.since(now), step, begins: None };
            return Step { untouched: beside(self.limit.level(spent, now), held), charge };
        }
        if self.settles && cost == Cost::default() && self.ban.is_some_and(|ban| ban.begins_none()) {
            // Only a ban refuses such a request.
            let level = beside(self.limit.level(spent, now), held);
            let entry = self.joined(self.limit.overdraw(spent, Cost::default(), now), &ban, &entries);
            return Step { untouched: level, charge: ChargeResult::Fits { level, entry, delay: Micros(0) } };
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

    /// Returns the result of a request for which what is spent leaves no room: the refusal, or the beginning of a ban.
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

    /// Returns the state of a bucket of which these owners hold something. `kept` is the state without what they hold.
    pub fn state(&self, kept: Option<&[u64]>, holders: &[Holder], now: Timestamp) -> State {
        let Opened { spent, ban, .. } = self.open(kept, now);
        let entries = OwnerEntries::of_holders(EntryKind::Budget, holders, now);
        self.joined(self.limit.overdraw(spent, Cost::default(), now), &ban, &entries).state
    }

    /// Charges a cost that was spent already to a bucket without owners, even if the bucket cannot pay it. The bucket
    /// then refuses until the debt is refilled or the period ends.
    pub fn settle(&self, state: Option<&[u64]>, cost: Cost, now: Timestamp) -> Entry {
        let Opened { spent, mut ban, .. } = self.open(state, now);
        if cost > Cost::default() {
            ban.spend(now);
        }
        joined(self.limit.overdraw(spent, cost, now), self.ban.map(|own| (own, ban)), None)
    }

    /// Returns the entry of a bucket whose ban an operator sets at `now`: it lasts for `length` from now. `None` for a
    /// budget without bans.
    pub fn set_ban(&self, state: Option<&[u64]>, length: Micros, now: Timestamp) -> Option<Entry> {
        self.ban?;
        let Opened { spent, ban, entries } = self.open(state, now);
        let entry = self.limit.overdraw(spent, Cost::default(), now);
        Some(self.joined(entry, &ban.set(length, now), &entries))
    }

    /// Returns the ban of a bucket: the one that runs at `now`, or the last one, until it is forgotten.
    pub fn last_ban(&self, state: Option<&[u64]>, now: Timestamp) -> Option<BanPeriod> {
        let settings = self.ban?;
        self.open(state, now).ban.last(&settings, now)
    }

    /// Returns the ban of a bucket that runs at `now`.
    pub fn running_ban(&self, state: Option<&[u64]>, now: Timestamp) -> Option<BanPeriod> {
        self.ban?;
        self.open(state, now).ban.running(now)
    }

    /// Returns the amount that is spent at `now`, without what is held.
    pub fn spent(&self, state: Option<&[u64]>, now: Timestamp) -> Cost {
        self.limit.spent(self.open(state, now).spent, now)
    }

    /// Returns the amount that all owners together hold at `now`.
    pub fn held(&self, state: Option<&[u64]>, now: Timestamp) -> Cost {
        Cost::from_thousandths(self.open(state, now).entries.sum)
    }

    /// Returns the owners that hold something at `now`, beginning with the owner of the last accepted report.
    pub fn holders(&self, state: Option<&[u64]>, now: Timestamp) -> Vec<Holder> {
        self.open(state, now).entries.holders().collect()
    }

    /// Returns the entry that a store must write at `now` in place of the state. `None` if the state needs no
    /// correction.
    pub fn correction(&self, state: Option<&[u64]>, now: Timestamp) -> Option<Entry> {
        let Opened { spent, ban, entries } = self.open(state, now);
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

    /// Returns how a fixed window defines its periods; `None` for a token bucket.
    pub fn window(&self) -> Option<Window> {
        self.limit.window()
    }

    /// Returns the period of a fixed window that contains `now`. `None` if no period runs, and for a token bucket.
    pub fn period(&self, state: Option<&[u64]>, now: Timestamp) -> Option<Period> {
        self.limit.period(self.open(state, now).spent, now)
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
            limit if self.settles => Algorithm::Budget(Budget::settling(limit)),
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

    /// Returns the number of words of a state before the owners' entries.
    fn words(&self) -> usize {
        if self.ban.is_some() { SPENT_WORDS + ban::WORDS } else { SPENT_WORDS }
    }

    fn open<'s>(&self, state: Option<&'s [u64]>, now: Timestamp) -> Opened<'s> {
        let none = || OwnerEntries::of(EntryKind::Budget, [].into_iter().collect(), now);
        let Some(state) = state else { return Opened { spent: None, ban: BanState::default(), entries: none() } };
        let (spent, rest) = state.split_at(state.len().min(SPENT_WORDS));
        let (words, rest) = rest.split_at(rest.len().min(self.words() - SPENT_WORDS));
        let ban = match self.ban {
            Some(_) => BanState::parse(words).map(|ban| ban.at(now)),
            None => Some(BanState::default()),
        };
        let entries = match rest {
            [] => Some(none()),
            _ if !self.settles => None,
            rest => OwnerEntries::parse(EntryKind::Budget, rest).map(|entries| entries.at(now)),
        };
        match (ban, entries) {
            (Some(ban), Some(entries)) if self.limit.is_valid(spent) => Opened { spent: Some(spent), ban, entries },
            // An invalid state counts as a bucket of which everything is spent.
            _ => Opened { spent: Some(&[]), ban: BanState::default(), entries: none() },
        }
    }

    fn fits(&self, spent: Option<&[u64]>, cost: Cost, now: Timestamp) -> bool {
        matches!(self.limit.step(spent, cost, now).charge, ChargeResult::Fits { .. })
    }

    fn joined(&self, spent: Entry, ban: &BanState, entries: &OwnerEntries) -> Entry {
        joined(spent, self.ban.map(|own| (own, *ban)), Some(entries))
    }
}

/// Gives back up to `amount` of what was spent. `spent` does so for the token bucket or window. [`EVERYTHING`] also
/// ends a ban, and forgets its step. Returns the new state, or `None` for an invalid state.
pub fn give_back(
    kind: AlgorithmKind,
    state: &[u64],
    amount: Cost,
    spent: fn(&[u64], Cost) -> Option<State>,
) -> Option<State> {
    let (words, rest) = state.split_at_checked(SPENT_WORDS)?;
    let (ban, entries) = rest.split_at_checked(if kind.has_ban() { ban::WORDS } else { 0 })?;
    let mut state = spent(words, amount)?;
    if kind.has_ban() {
        let ban = BanState::parse(ban)?;
        if amount < EVERYTHING { ban.pack_into(&mut state) } else { BanState::default().pack_into(&mut state) }
    }
    state.extend_from_slice(entries);
    let is_whole = |entries| OwnerEntries::parse(EntryKind::Budget, entries).is_some_and(|entries| entries.is_whole());
    (entries.is_empty() || kind.is_held() && is_whole(entries)).then_some(state)
}

/// The amount with which [`give_back`] makes a bucket as it was before its first request, but for what is held.
pub const EVERYTHING: Cost = Cost::from_thousandths(EXACT);

/// Returns a kind of budget that can have this state, for a caller that knows only the key of the bucket. `None` for
/// the state of another algorithm, or of a budget without owners.
pub fn kind_of(state: &[u64]) -> Option<AlgorithmKind> {
    let (spent, rest) = state.split_at_checked(SPENT_WORDS)?;
    let has_entries = |entries: &[u64]| OwnerEntries::is_stored(EntryKind::Budget, entries);
    let after_ban = rest.split_at_checked(ban::WORDS).filter(|(ban, _)| BanState::parse(ban).is_some());
    let has_ban = match after_ban {
        _ if has_entries(rest) => false,
        Some((_, entries)) if has_entries(entries) => true,
        _ => return None,
    };
    match (fixed_window::is_valid(spent), token_bucket::valid(spent).is_some()) {
        (true, _) if has_ban => Some(AlgorithmKind::WindowBudgetWithBan),
        (true, _) => Some(AlgorithmKind::WindowBudget),
        (_, true) if has_ban => Some(AlgorithmKind::TokenBudgetWithBan),
        (_, true) => Some(AlgorithmKind::TokenBudget),
        _ => None,
    }
}

/// Returns a state as [`Budget::state`] does, for a caller that knows only the key of the bucket.
pub fn state_of_any(kept: Option<&[u64]>, holders: &[Holder], now: Timestamp) -> State {
    let mut state = State::from_slice(kept.unwrap_or(&NOTHING_SPENT));
    OwnerEntries::of_holders(EntryKind::Budget, holders, now).pack_into(&mut state);
    state
}

/// Returns the entry with this ban and these owners. `spent` is the part that says what is spent.
fn joined(spent: Entry, ban: Option<(Ban, BanState)>, entries: Option<&OwnerEntries>) -> Entry {
    let Entry { mut state, kept_until } = spent;
    let mut kept_until = kept_until.min(Timestamp(EXACT));
    if let Some((settings, ban)) = ban {
        ban.pack_into(&mut state);
        kept_until = kept_until.max(ban.kept_until(&settings));
    }
    if let Some(entries) = entries.filter(|entries| !entries.is_empty()) {
        entries.pack_into(&mut state);
        kept_until = kept_until.max(entries.kept_until());
    }
    Entry { state, kept_until }
}

/// Returns the level of a bucket of which `held` is held.
fn beside(level: Level, held: Cost) -> Level {
    Level { remaining: level.remaining.less(held), ..level }
}

#[cfg(test)]
mod tests;
