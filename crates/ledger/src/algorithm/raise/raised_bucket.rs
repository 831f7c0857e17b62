//! Computes charges to buckets whose state may begin with raises, under a limit of any algorithm: adds the raises that run to
//! the burst or limit, and passes the plain state to the algorithm.

use super::annotations::Annotations;
use super::{MOST_RAISES, Raise, RaiseError, split, with_prefix};
use crate::algorithm::ban::BanPeriod;
use crate::algorithm::budget::{Budget, SpentLimit};
use crate::algorithm::concurrency::{self, Holder};
use crate::algorithm::lease::{HomeAnswer, HomeRaise, Purse, PurseAct, PurseReply, RegionId, Word};
use crate::algorithm::step::{BanBeginning, ChargeResult, EXACT, Entry, Period, State, Step};
use crate::algorithm::{Algorithm, fixed_window, sliding_log, sliding_window};
use crate::cost::Cost;
use crate::holds::report::{Owner, Report, TimedHoldStatus};
use base::time::{Micros, Timestamp};

/// A state with raises or a mark, taken apart at one moment. Any state under a limit with thresholds.
struct Opened<'s> {
    /// The limit, with the raises that run.
    limit: Algorithm,
    kept: Annotations,
    plain: Option<&'s [u64]>,
}

impl<'s> Opened<'s> {
    /// Takes a state apart. `None` for a plain state under a limit without thresholds.
    fn at(limit: &Algorithm, state: Option<&'s [u64]>, now: Timestamp) -> Option<Opened<'s>> {
        match state.and_then(split) {
            Some(split) => {
                let kept = Annotations::at(&split, now);
                Some(Opened { limit: limit.raised(kept.sum()), kept, plain: split.plain })
            }
            None if limit.thresholds().is_empty() => None,
            None => Some(Opened { limit: *limit, kept: Annotations::default(), plain: state }),
        }
    }

    /// Returns how long a request of this cost must wait. `wait` is that under all raises that run. Those that end before do not
    /// count. `file` is the limit without raises.
    fn wait(&self, file: &Algorithm, mut wait: Micros, cost: Cost, now: Timestamp) -> Micros {
        let mut kept = self.kept.clone();
        loop {
            let running = kept.raises.len();
            kept.raises.retain(|raise| raise.end > now.plus(wait));
            if kept.raises.len() == running {
                return wait;
            }
            match file.raised(kept.sum()).plain_step(self.plain, cost, now).charge {
                ChargeResult::Short { wait: longer } => wait = wait.max(longer),
                // Only as long as a raise runs does the cost fit at all.
                _ => return wait,
            }
        }
    }

    /// Returns what is kept beside a new plain entry, with the thresholds that it reaches.
    fn join_told(&self, entry: Entry) -> Entry {
        self.kept.tell(&self.limit, &entry.state).join(entry)
    }
}

impl Algorithm {
    /// Computes the result of charging `cost` at `now` to the bucket with this state. `None` is the state of a full bucket
    /// without raises.
    pub fn step(&self, state: Option<&[u64]>, cost: Cost, now: Timestamp) -> Step {
        let Some(opened) = Opened::at(self, state, now) else {
            return self.plain_step(state, cost, now);
        };
        let Step { untouched, charge } = opened.limit.plain_step(opened.plain, cost, now);
        let charge = match charge {
            ChargeResult::Fits { level, entry, delay } => {
                ChargeResult::Fits { level, entry: opened.join_told(entry), delay }
            }
            ChargeResult::Short { wait } => ChargeResult::Short { wait: opened.wait(self, wait, cost, now) },
            ChargeResult::Banned { wait, step, begins: Some(BanBeginning { entry, otherwise }) } => {
                let is_settling = opened.limit.settling_budget().is_some();
                let entry = if is_settling { opened.join_told(entry) } else { opened.kept.join(entry) };
                ChargeResult::Banned { wait, step, begins: Some(BanBeginning { entry, otherwise }) }
            }
            refusal => refusal,
        };
        Step { untouched, charge }
    }

    /// Returns the sum of the raises that run at `now`. Those of a purse are at home, as last heard.
    pub fn raised_by(&self, state: Option<&[u64]>, now: Timestamp) -> Cost {
        match (self, state.and_then(split)) {
            (Algorithm::Purse(_), _) => Purse::raise(state, now).map_or(Cost::default(), |(amount, _)| amount),
            (Algorithm::LeakyBucket(_), _) | (_, None) => Cost::default(),
            (_, Some(split)) => Annotations::at(&split, now).sum(),
        }
    }

    /// Returns the raises that run at `now`, in the order in which they were made. A purse has none of its own.
    pub fn raises(&self, state: Option<&[u64]>, now: Timestamp) -> Vec<Raise> {
        let kept = state.and_then(split).map(|split| Annotations::at(&split, now)).unwrap_or_default();
        kept.raises.into_vec()
    }

    /// Returns the limit with a burst or limit that is larger by this amount, up to the largest number that is exact. A
    /// number of 0 stays 0, because nothing fits it. A leaky bucket stays as it is.
    #[must_use]
    pub fn raised(&self, by: Cost) -> Algorithm {
        if by == Cost::default() || self.ceiling() == Cost::default() {
            return *self;
        }
        match self {
            Algorithm::TokenBucket(bucket) => Algorithm::TokenBucket(bucket.raised(by)),
            Algorithm::FixedWindow(window) => Algorithm::FixedWindow(window.raised(by)),
            Algorithm::SlidingLog(log) => Algorithm::SlidingLog(log.raised(by)),
            Algorithm::SlidingWindow(window) => Algorithm::SlidingWindow(window.raised(by)),
            Algorithm::LeakyBucket(_) => *self,
            Algorithm::Concurrency(slots) => Algorithm::Concurrency(slots.raised(by)),
            Algorithm::Budget(budget) => Algorithm::Budget(budget.raised(by)),
            Algorithm::Purse(purse) => Algorithm::Purse(purse.raised(by)),
            Algorithm::Home(home) => Algorithm::Home(home.with(|limit| limit.raised(by))),
        }
    }

    /// Returns the entry of a bucket that gets a raise at `now`. `None` if it has this raise already.
    ///
    /// # Errors
    /// When the bucket cannot get the raise.
    pub fn set_raise(&self, state: Option<&[u64]>, raise: Raise, now: Timestamp) -> Result<Option<Entry>, RaiseError> {
        let split = state.and_then(split);
        // A store that runs scripts finds an excerpt invalid too.
        let is_whole = |plain: &[u64]| self.kind().give_back(plain, Cost::default()).is_some();
        let plain = split.map_or(state, |split| split.plain).map(|plain| if is_whole(plain) { plain } else { &[] });
        let mut annotations = split.map(|split| Annotations::at(&split, now)).unwrap_or_default();
        let running = &annotations.raises;
        if matches!(self, Algorithm::LeakyBucket(_)) {
            return Err(RaiseError::LeakyBucket);
        }
        if raise.end <= now {
            return Err(RaiseError::Ended);
        }
        match running.iter().find(|known| known.id == raise.id) {
            Some(known) if *known == raise => return Ok(None),
            Some(known) => return Err(RaiseError::OtherNumbers(*known)),
            None if running.len() >= MOST_RAISES => return Err(RaiseError::TooMany),
            None => {}
        }
        let largest = self.largest_ceiling().less(self.ceiling().plus(annotations.sum()));
        if raise.amount > largest {
            return Err(RaiseError::TooLarge { largest });
        }
        let kept = plain.map(|plain| self.unchanged(plain, now));
        let kept = kept.unwrap_or(Entry { state: State::new(), kept_until: now });
        annotations.raises.push(raise);
        Ok(Some(annotations.join(kept)))
    }

    /// Returns the largest burst or limit that a raise may lead to.
    fn largest_ceiling(&self) -> Cost {
        let of_bucket = |unit: u64| Cost::from_thousandths(EXACT / unit.max(1));
        let of_spent = |limit: &SpentLimit| match limit {
            SpentLimit::TokenBucket(bucket) => of_bucket(bucket.unit()),
            SpentLimit::FixedWindow(_) => Cost::from_tokens(fixed_window::MAX_LIMIT),
        };
        match self {
            Algorithm::TokenBucket(bucket) => of_bucket(bucket.unit()),
            Algorithm::FixedWindow(_) => Cost::from_tokens(fixed_window::MAX_LIMIT),
            Algorithm::SlidingLog(_) => Cost::from_tokens(sliding_log::MAX_LIMIT),
            Algorithm::SlidingWindow(_) => Cost::from_tokens(sliding_window::MAX_LIMIT),
            Algorithm::LeakyBucket(bucket) => bucket.places(),
            Algorithm::Concurrency(_) => Cost::from_tokens(concurrency::MAX_LIMIT),
            Algorithm::Budget(budget) => of_spent(budget.limit()),
            // Nothing raises a purse.
            Algorithm::Purse(purse) => purse.limit().ceiling(),
            Algorithm::Home(home) => of_spent(home.limit()),
        }
    }

    /// Returns the entry of a bucket of which nothing is taken, with its plain state as it is at `now`.
    fn unchanged(&self, plain: &[u64], now: Timestamp) -> Entry {
        let nothing = Cost::default();
        let stepped = |limit: Algorithm| match limit.plain_step(Some(plain), nothing, now).charge {
            ChargeResult::Fits { entry, .. } => entry,
            // A cost of nothing fits the largest limit.
            _ => Entry { state: State::from_slice(plain), kept_until: now },
        };
        // What is spent stays as it is stored: another rule of the meter, or a number from a credential, may refill the bucket more
        // slowly than `self`.
        let stored = |entry: Entry| match self.kind().give_back(plain, nothing) {
            Some(state) => Entry { state, ..entry },
            None => entry,
        };
        match self {
            Algorithm::TokenBucket(bucket) => stored(bucket.overdraw(Some(plain), nothing, now)),
            Algorithm::FixedWindow(window) => stored(window.overdraw(Some(plain), nothing, now)),
            Algorithm::SlidingLog(_) | Algorithm::SlidingWindow(_) | Algorithm::LeakyBucket(_) => {
                stepped(self.raised(Cost::from_thousandths(EXACT)))
            }
            Algorithm::Concurrency(slots) => slots.unchanged(plain, now),
            Algorithm::Budget(budget) => budget.unchanged(plain, now),
            Algorithm::Purse(purse) => purse.unchanged(plain, now),
            Algorithm::Home(home) => home.unchanged(plain, now),
        }
    }

    /// Returns the period of a fixed window that contains `now`. `None` if no period runs, as for other algorithms.
    pub fn period(&self, state: Option<&[u64]>, now: Timestamp) -> Option<Period> {
        self.plain_period(plain(state), now)
    }

    /// Returns the amount that is spent at `now`, rounded up to a thousandth. After a limit was lowered, this amount
    /// can exceed [`Algorithm::ceiling`].
    pub fn spent(&self, state: Option<&[u64]>, now: Timestamp) -> Cost {
        match Opened::at(self, state, now) {
            None => self.plain_spent(state, now),
            Some(Opened { limit, plain, .. }) => limit.plain_spent(plain, now),
        }
    }

    /// Returns what requests in flight hold of a budget. Zero for other limits.
    pub fn held(&self, state: Option<&[u64]>, now: Timestamp) -> Cost {
        match self {
            Algorithm::Budget(budget) => budget.held(plain(state), now),
            _ => Cost::default(),
        }
    }

    /// Returns the entry that a store must write at `now` in place of the state. Almost always `None`. A budget also tells the
    /// thresholds that settled costs have reached.
    pub fn correction(&self, state: Option<&[u64]>, now: Timestamp) -> Option<Entry> {
        let Some(opened) = Opened::at(self, state, now) else {
            return self.plain_correction(state, now);
        };
        let corrected = opened.limit.plain_correction(opened.plain, now);
        let Some(budget) = opened.limit.settling_budget() else {
            return corrected.map(|entry| opened.kept.join(entry));
        };
        let present = |plain| corrected.clone().unwrap_or_else(|| budget.unchanged(plain, now));
        let told = opened.plain.map(present).map(|entry| (opened.kept.tell(&opened.limit, &entry.state), entry));
        let told = told.filter(|(told, _)| corrected.is_some() || *told != opened.kept);
        told.map(|(told, entry)| told.join(entry))
    }

    /// Returns whether a state from a store's reply still shows at `moment` how much the bucket holds. An excerpt of a
    /// large state shows this only for a limited time.
    pub fn tells_until(&self, state: &[u64], moment: Timestamp) -> bool {
        super::plain(state).is_none_or(|plain| self.plain_tells_until(plain, moment))
    }

    /// Returns the part of a state that is worth caching. It never shows more than the bucket holds.
    pub fn excerpt(&self, state: State) -> State {
        match split(&state) {
            None => self.plain_excerpt(state),
            Some(split) => match split.plain {
                None => state,
                Some(plain) => with_prefix(super::prefix(&state), self.plain_excerpt(State::from_slice(plain))),
            },
        }
    }

    /// Returns the ban that runs at `now`.
    pub fn running_ban(&self, state: Option<&[u64]>, now: Timestamp) -> Option<BanPeriod> {
        self.plain_running_ban(plain(state), now)
    }

    /// Returns the ban that runs at `now`, or else the last ban, until it is forgotten.
    pub fn last_ban(&self, state: Option<&[u64]>, now: Timestamp) -> Option<BanPeriod> {
        self.plain_last_ban(plain(state), now)
    }

    /// Returns the entry of a bucket that an operator bans for `length` from `now`. `None` for a limit without bans.
    pub fn set_ban(&self, state: Option<&[u64]>, length: Micros, now: Timestamp) -> Option<Entry> {
        self.changed(state, now, |limit, plain| limit.plain_set_ban(plain, length, now))
    }

    /// Returns the owners that hold something of a bucket at `now`.
    pub fn holders(&self, state: Option<&[u64]>, now: Timestamp) -> Vec<Holder> {
        self.plain_holders(plain(state), now)
    }

    /// Accepts an owner's report about a bucket. Returns the entry that the store must write even if all plans are
    /// refused. `None` if the report changes nothing, see [`concurrency::Concurrency::accept`].
    pub fn accept(&self, state: Option<&[u64]>, report: Report, now: Timestamp) -> Option<Entry> {
        self.changed(state, now, |limit, plain| limit.plain_accept(plain, report, now))
    }

    /// Returns the entry of a bucket without this owner. `None` for a limit of which requests hold nothing, or a bucket
    /// without a state.
    pub fn without_owner(&self, state: Option<&[u64]>, owner: Owner, now: Timestamp) -> Option<Entry> {
        self.changed(state, now, |limit, plain| limit.plain_without_owner(plain, owner, now))
    }

    /// Returns whether this timed hold has settled what it held of the bucket.
    pub fn has_settled(&self, state: Option<&[u64]>, owner: Owner, now: Timestamp) -> bool {
        self.timed_hold(state, owner, now) == TimedHoldStatus::Settled
    }

    /// Returns what has become of a timed hold of the bucket.
    pub fn timed_hold(&self, state: Option<&[u64]>, owner: Owner, now: Timestamp) -> TimedHoldStatus {
        self.plain_timed_hold(plain(state), owner, now)
    }

    /// Charges a cost that a request has settled, as [`Budget::settle`] does. `None` for a limit that is no budget.
    pub fn settle(&self, state: Option<&[u64]>, cost: Cost, now: Timestamp) -> Option<Entry> {
        self.changed(state, now, |limit, plain| Some(limit.budget()?.settle(plain, cost, now)))
    }

    /// Forgets what is spent and charges a cost, as [`Budget::reset`] does. `None` for a limit that is no budget.
    pub fn reset(&self, state: Option<&[u64]>, cost: Cost, now: Timestamp) -> Option<Entry> {
        self.changed(state, now, |limit, plain| Some(limit.budget()?.reset(plain, cost, now)))
    }

    /// Returns whether the bucket is a purse or a home of a limit that holds over several regions.
    pub fn is_leased(&self) -> bool {
        matches!(self, Algorithm::Purse(_) | Algorithm::Home(_))
    }

    /// Lets a home hear a word of a region, as [`Home::hear`](super::super::lease::Home::hear) does. The answer has the raises that run.
    /// `None` for any other limit.
    pub fn hear(
        &self,
        state: Option<&[u64]>,
        region: RegionId,
        word: &Word,
        now: Timestamp,
    ) -> Option<(Option<Entry>, HomeAnswer)> {
        let mut heard = None;
        let entry = self.changed(state, now, |limit, plain| {
            let Algorithm::Home(home) = limit else { return None };
            let (entry, answer) = home.hear(plain, region, word, now);
            heard = Some(answer);
            entry
        });
        let mut answer = heard?;
        if let HomeAnswer::Answer { raise, .. } = &mut answer
            && let Some(first_end) = self.raises(state, now).iter().map(|raise| raise.end).min()
        {
            *raise = HomeRaise { amount: self.raised_by(state, now), remains: first_end.since(now) };
        }
        Some((entry.or_else(|| self.correction(state, now)), answer))
    }

    /// Changes a purse by an act, as [`Purse::act`](super::super::lease::Purse::act) does. `None` for any other limit.
    pub fn act(&self, state: Option<&[u64]>, act: PurseAct, now: Timestamp) -> Option<(Option<Entry>, PurseReply)> {
        let Algorithm::Purse(purse) = self else { return None };
        let (entry, reply) = purse.act(state, act, now);
        Some((entry.or_else(|| self.correction(state, now)), reply))
    }

    /// Returns the state of a budget of which these owners hold something. `None` for a limit that is no budget.
    pub fn with_holders(&self, kept: Option<&[u64]>, holders: &[Holder], now: Timestamp) -> Option<State> {
        let opened = Opened::at(self, kept, now);
        match (self.budget()?, opened) {
            (budget, None) => Some(budget.state(kept, holders, now)),
            (budget, Some(Opened { kept, plain, .. })) => Some(kept.joined(budget.state(plain, holders, now))),
        }
    }

    /// Returns the first entry of a share of the limit, made from the state `seen` of the whole limit. `None`: the
    /// share begins full, and the caller can charge the spent amount to it. A share has no raises, so in it as much less is spent.
    pub fn begin_with(&self, seen: &[u64], now: Timestamp) -> Option<Entry> {
        let entry = self.plain_begin_with(super::plain(seen)?, now)?;
        let raised = self.raised_by(Some(seen), now);
        if raised == Cost::default() {
            return Some(entry);
        }
        let state = self.kind().give_back(&entry.state, raised)?;
        Some(Entry { state, ..entry })
    }

    /// Computes a new entry from the plain state, under the raised limit. The raises stay.
    fn changed(
        &self,
        state: Option<&[u64]>,
        now: Timestamp,
        change: impl FnOnce(&Algorithm, Option<&[u64]>) -> Option<Entry>,
    ) -> Option<Entry> {
        match Opened::at(self, state, now) {
            None => change(self, state),
            Some(Opened { limit, kept, plain }) => change(&limit, plain).map(|entry| kept.join(entry)),
        }
    }

    fn budget(&self) -> Option<&Budget> {
        match self {
            Algorithm::Budget(budget) => Some(budget),
            _ => None,
        }
    }
}

fn plain(state: Option<&[u64]>) -> Option<&[u64]> {
    state.and_then(super::plain)
}
