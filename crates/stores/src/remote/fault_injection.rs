//! Injects faults into calls for tests. Needs the feature `test-hooks`.
//!
//! The last expression of each function is the result without a fault, as in a release build.

use std::time::Duration;

use super::deny_cache::SendStamp;
use super::queue::PendingTake;
#[cfg(feature = "test-hooks")]
use base::time::Micros;
use base::time::Timestamp;
#[cfg(feature = "test-hooks")]
pub use flaw::{Combining, Flaw, Refusals, ServerClock};

/// The faults that a test injects into one store.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hooks {
    #[cfg(feature = "test-hooks")]
    pub combining: Combining,
    #[cfg(feature = "test-hooks")]
    pub refusals: Refusals,
    #[cfg(feature = "test-hooks")]
    pub server_clock: ServerClock,
    #[cfg(feature = "test-hooks")]
    pub flaw: Option<Flaw>,
    /// How long the undoing of charges is delayed.
    #[cfg(feature = "test-hooks")]
    pub undo_late: Micros,
}

impl Hooks {
    /// Returns the faults of a whole gateway: the bug that the environment variable `TOLLGATE_TEST_FLAW` names.
    pub fn of_process() -> Hooks {
        #[cfg(feature = "test-hooks")]
        if let Ok(name) = std::env::var("TOLLGATE_TEST_FLAW") {
            return Hooks { flaw: Flaw::named(&name), ..Hooks::default() };
        }
        Hooks::default()
    }

    /// Returns the maximum number of requests in one call. `most` is the value without a fault.
    pub fn requests(&self, most: usize) -> usize {
        #[cfg(feature = "test-hooks")]
        if self.combining == Combining::Off {
            return 1;
        }
        most
    }

    /// Returns the batch to send. `batch` is the value without a fault.
    pub(crate) fn gather(&self, batch: Vec<PendingTake>) -> Vec<PendingTake> {
        #[cfg(feature = "test-hooks")]
        if let Some(Flaw::SummedCosts) = self.flaw {
            return flaw::summed(batch);
        }
        batch
    }

    /// Returns how many times charges are undone, and how long to wait before that.
    pub fn undo(&self) -> (usize, Duration) {
        #[cfg(feature = "test-hooks")]
        {
            let times = match self.flaw {
                Some(Flaw::UndoneNever) => 0,
                Some(Flaw::UndoneTwice) => 2,
                _ => 1,
            };
            (times, self.undo_late.into())
        }
        #[cfg(not(feature = "test-hooks"))]
        (1, Duration::ZERO)
    }

    /// Returns the time from which the refill of an undone charge counts. `at` is the time of the charge.
    pub fn charged(&self, at: Timestamp) -> Timestamp {
        #[cfg(feature = "test-hooks")]
        if let Some(Flaw::UndoneInFull) = self.flaw {
            return at.plus(Micros(3_600_000_000));
        }
        at
    }

    /// Whether the deny cache removes the entries of buckets whose charges were undone.
    pub(crate) fn drops_undone(&self) -> bool {
        #[cfg(feature = "test-hooks")]
        if let Some(Flaw::UndoneIsKept) = self.flaw {
            return false;
        }
        true
    }

    /// Returns the stamp with which the buckets of a reply are cached. `None` if they are not cached. `sent` is the
    /// stamp of the call, and `received` returns the stamp of its reply.
    pub(crate) fn known_since(&self, sent: SendStamp, received: impl FnOnce() -> SendStamp) -> Option<SendStamp> {
        #[cfg(feature = "test-hooks")]
        match (self.refusals, self.flaw) {
            (Refusals::ByRedis, _) => return None,
            (Refusals::Local, Some(Flaw::LateBound)) => return Some(received()),
            _ => {}
        }
        let _ = received;
        Some(sent)
    }
}

/// The bugs that a test can inject. Each is a bug that another rate limiter has had.
#[cfg(feature = "test-hooks")]
mod flaw {
    use crate::remote::queue::{Attempt, PendingTake, ReplySender, Route};
    use crate::reply::TakeReply;
    use crate::reservation::Reservation;
    use base::time::{Micros, Timestamp};
    use ledger::charge::Charge;
    use ledger::cost::Cost;

    /// Whether several requests are combined into one call.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum Combining {
        #[default]
        On,
        Off,
    }

    /// The place where a request for a short bucket is refused.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum Refusals {
        /// This process refuses the request, by its deny cache.
        #[default]
        Local,
        /// Redis refuses the request.
        ByRedis,
    }

    /// The clock from which the script reads the time.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum ServerClock {
        #[default]
        Real,
        /// The server's clock, plus the value of a key in Redis.
        Movable,
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Flaw {
        /// The script uses the gateway's clock, which is ahead by this much. So the time of a bucket may go back.
        ClientTime { ahead: Micros },
        /// Every bucket is kept for a second after it was charged.
        FixedExpiry,
        /// A refused request writes the bucket, with the refill rounded up to whole tokens.
        WriteOnRefusal,
        /// A call without a reply within this time is sent again.
        Retry { after: Micros },
        /// Every call is sent twice, as if its first copy had been lost.
        Resend,
        /// The deny cache counts the refill from the arrival of the reply, not from the sending of the call.
        LateBound,
        /// Requests for the same buckets are granted or refused together, for the sum of their costs.
        SummedCosts,
        /// The gateway's clock chooses the calendar period that a request is charged to.
        ClientPeriod,
        /// Charges of a request that another bucket refused are not undone.
        UndoneNever,
        /// Charges of a request that another bucket refused are undone twice.
        UndoneTwice,
        /// Charges of a request that another bucket refused are given back in full.
        UndoneInFull,
        /// The deny cache keeps the entries of buckets whose charges were undone.
        UndoneIsKept,
        /// In every calendar period but the stored one, nothing counts as spent.
        EarlierPeriod,
        /// The amount that requests hold of a budget counts as spent, and is given back as tokens.
        HeldIsSpent,
        /// Each report of a budget charges the whole sum that its owner has settled.
        SumsAdded,
    }

    impl Flaw {
        /// Returns the bug of this name. `None` for other names.
        pub fn named(name: &str) -> Option<Flaw> {
            match name {
                "held_is_spent" => Some(Flaw::HeldIsSpent),
                "sums_added" => Some(Flaw::SumsAdded),
                _ => None,
            }
        }
    }

    /// Combines the requests that have the same buckets as the first request into one request. Each gets the answer to
    /// the combined request.
    pub(super) fn summed(batch: Vec<PendingTake>) -> Vec<PendingTake> {
        let keys = |waiting: &PendingTake| waiting.plan.charges().map(|charge| charge.key).collect::<Vec<_>>();
        let first = batch.first().map(keys).unwrap_or_default();
        let (alike, mut rest): (Vec<_>, Vec<_>) = batch.into_iter().partition(|waiting| keys(waiting) == first);
        let since = alike.first().map_or(Timestamp(0), |waiting| waiting.since);
        let mut plan = alike.first().map(|waiting| waiting.plan.clone()).unwrap_or_default();
        let add = |charge: &mut Charge, other: &Charge| {
            charge.cost = Cost::from_thousandths(charge.cost.thousandths() + other.cost.thousandths());
        };
        for waiting in alike.iter().skip(1) {
            plan.enforced.iter_mut().zip(&waiting.plan.enforced).for_each(|(charge, other)| add(charge, other));
            plan.shadow.iter_mut().zip(&waiting.plan.shadow).for_each(|(charge, other)| add(charge, other));
        }
        let (answer, result) = ReplySender::new();
        tokio::spawn(async move {
            let Ok(answer) = result.await else { return };
            for mut waiting in alike {
                // The slots are given back at once, because this flaw concerns only rates.
                let copy = |reply: &TakeReply| TakeReply {
                    settlement: reply.settlement.clone(),
                    reservation: Reservation::default(),
                    ..*reply
                };
                waiting.answer.send(answer.as_ref().map(|reply| reply.as_ref().map(copy)).map_err(|error| *error));
            }
        });
        let holds = plan.holds();
        let (attempt, route) = (Attempt::First, Route::Owner);
        rest.insert(0, PendingTake { plan, answer, caller: None, since, attempt, holds, route, timed: None });
        rest
    }
}
