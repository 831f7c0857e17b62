//! Injects faults into calls, for the tests that show what a bug here would do; only with the feature `test-hooks`. What
//! a test changes in a call to Redis is in the folder of Redis.
//!
//! Each function ends with what a release build does.

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
    /// How much later charges of a refused request are undone.
    #[cfg(feature = "test-hooks")]
    pub undo_late: Micros,
}

impl Hooks {
    /// The maximum number of requests in one call.
    pub fn requests(&self, most: usize) -> usize {
        #[cfg(feature = "test-hooks")]
        if self.combining == Combining::Off {
            return 1;
        }
        most
    }

    /// The batch that is about to be sent.
    pub fn gather(&self, batch: Vec<PendingTake>) -> Vec<PendingTake> {
        #[cfg(feature = "test-hooks")]
        if let Some(Flaw::SummedCosts) = self.flaw {
            return flaw::summed(batch);
        }
        batch
    }

    /// How often the charges of a refused request are undone, and after which pause.
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

    /// The time from which on a charge that is undone has been refilled.
    pub fn charged(&self, at: Timestamp) -> Timestamp {
        #[cfg(feature = "test-hooks")]
        if let Some(Flaw::UndoneInFull) = self.flaw {
            return at.plus(Micros(3_600_000_000));
        }
        at
    }

    /// Whether the deny cache drops what a request has shown that was undone.
    pub fn drops_undone(&self) -> bool {
        #[cfg(feature = "test-hooks")]
        if let Some(Flaw::UndoneIsKept) = self.flaw {
            return false;
        }
        true
    }

    /// The stamp under which the levels of a reply enter the deny cache; `None`: they do not. `received` is the time at which
    /// the reply came.
    pub fn known_since(&self, sent: SendStamp, received: impl FnOnce() -> SendStamp) -> Option<SendStamp> {
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

/// The bugs, each of which another rate limiter has had.
#[cfg(feature = "test-hooks")]
mod flaw {
    use crate::remote::queue::{Attempt, PendingTake, ReplySender};
    use base::time::{Micros, Timestamp};
    use ledger::charge::Charge;
    use ledger::cost::Cost;

    /// Whether requests are combined into one call.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum Combining {
        #[default]
        On,
        Off,
    }

    /// Where requests that cannot be paid yet are refused.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum Refusals {
        /// In this process, as far as the deny cache knows.
        #[default]
        Local,
        /// By Redis, every time.
        ByRedis,
    }

    /// What the script takes for the server's time.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum ServerClock {
        #[default]
        Real,
        /// Ahead of the server's clock by what a key on it holds, so that a test can set it. The server still expires keys by
        /// its own.
        Movable,
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Flaw {
        /// The time is the gateway's, whose clock is ahead by this much, and a bucket's time may go back.
        ClientTime { ahead: Micros },
        /// Every bucket is kept for a second after it was charged.
        FixedExpiry,
        /// A refused request writes the bucket, with the refill rounded up to whole tokens.
        WriteOnRefusal,
        /// A call without a reply within this time is sent again.
        Retry { after: Micros },
        /// Every call is sent twice, as if the first had been lost.
        Resend,
        /// The deny cache counts from when the reply came, not from when the call was sent.
        LateBound,
        /// Requests for the same buckets are granted or refused together, for the sum of their costs.
        SummedCosts,
        /// The period of a calendar is the one that the gateway's clock is in.
        ClientPeriod,
        /// Charges of a request that another bucket refused stay.
        UndoneNever,
        /// They are given back twice.
        UndoneTwice,
        /// They are given back in full, whatever has been refilled since.
        UndoneInFull,
        /// The deny cache keeps what they have shown.
        UndoneIsKept,
        /// Any other period than the stored one begins with nothing spent, also an earlier one.
        EarlierPeriod,
    }

    /// Combines the requests for the same buckets as the first into one; its answer is sent to all of them.
    pub fn summed(batch: Vec<PendingTake>) -> Vec<PendingTake> {
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
                waiting.answer.send(answer.clone());
            }
        });
        rest.insert(0, PendingTake { plan, answer, caller: None, since, attempt: Attempt::First });
        rest
    }
}
