//! Changes how calls are made, for the tests that show what a mistake here would do; a plain build has nothing to choose.
//!
//! Each function ends with what a release does.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, Value};

use super::connect::send;
use super::deny_cache::SendStamp;
use super::queue::PendingTake;
use crate::base::time::{Clock, Timestamp};
#[cfg(feature = "test-hooks")]
pub use flaw::{Combining, Flaw, Refusals};

/// What a test has chosen for one store.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hooks {
    #[cfg(feature = "test-hooks")]
    pub combining: Combining,
    #[cfg(feature = "test-hooks")]
    pub refusals: Refusals,
    #[cfg(feature = "test-hooks")]
    pub flaw: Option<Flaw>,
}

impl Hooks {
    /// The script that takes.
    pub fn script(&self, text: String) -> String {
        #[cfg(feature = "test-hooks")]
        if let Some(flaw) = self.flaw {
            return flaw.script(text);
        }
        text
    }

    /// How many requests travel together at most.
    pub fn requests(&self, most: usize) -> usize {
        #[cfg(feature = "test-hooks")]
        if self.combining == Combining::Off {
            return 1;
        }
        most
    }

    /// What is about to travel.
    pub fn gather(&self, batch: Vec<PendingTake>) -> Vec<PendingTake> {
        #[cfg(feature = "test-hooks")]
        if let Some(Flaw::SummedCosts) = self.flaw {
            return flaw::summed(batch);
        }
        batch
    }

    /// The moment that the call names; none where the server's clock counts.
    pub fn moment(&self, clock: &Clock) -> Option<Timestamp> {
        #[cfg(feature = "test-hooks")]
        if let Some(Flaw::ClientTime { ahead }) = self.flaw {
            return Some(clock.now().plus(ahead));
        }
        clock.injected()
    }

    pub async fn send(&self, connection: &mut MultiplexedConnection, command: &Cmd) -> Result<Value, RedisError> {
        #[cfg(feature = "test-hooks")]
        if let Some(Flaw::Retry { after }) = self.flaw
            && let Ok(reply) = tokio::time::timeout(after.into(), send(connection, command)).await
        {
            return reply;
        }
        send(connection, command).await
    }

    /// From when the levels of a reply count, for what is refused without a call; none: they do not. `received` is the
    /// moment at which it came.
    pub fn known_since(&self, sent: SendStamp, received: impl FnOnce() -> SendStamp) -> Option<SendStamp> {
        #[cfg(feature = "test-hooks")]
        match (self.refusals, self.flaw) {
            (Refusals::Asked, _) => return None,
            (Refusals::Local, Some(Flaw::LateBound)) => return Some(received()),
            _ => {}
        }
        let _ = received;
        Some(sent)
    }
}

/// The mistakes, each of which another rate limiter has made.
#[cfg(feature = "test-hooks")]
mod flaw {
    use super::super::queue::{PendingTake, ReplySender};
    use crate::base::time::{Micros, Timestamp};
    use crate::limit::charge::Charge;
    use crate::limit::cost::Cost;

    /// Whether requests travel together.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum Combining {
        #[default]
        On,
        Off,
    }

    /// Where requests are refused that cannot be paid yet.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum Refusals {
        /// Here, as far as it is known here.
        #[default]
        Local,
        /// Redis is asked every time.
        Asked,
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Flaw {
        /// The moment is the gateway's, whose clock is ahead by this much, and a bucket's moment may go back.
        ClientTime { ahead: Micros },
        /// Every bucket is kept for a second after it was charged.
        FixedExpiry,
        /// A refused request writes the bucket, with what came back rounded up to whole tokens.
        WriteOnRefusal,
        /// A call that is not answered within this time is sent again.
        Retry { after: Micros },
        /// What is refused without a call goes by the time since the reply came, not since the call was sent.
        LateBound,
        /// Requests for the same buckets are granted or refused as one, for the sum of what they cost.
        SummedCosts,
    }

    /// Pieces of the script, and what stands there instead.
    type Edits = &'static [(&'static str, &'static str)];

    const CLIENT_TIME: Edits = &[(
        "    if now > since then\n",
        "    -- tollgate test-hooks: a flaw\n    if now <= since then since = now else\n",
    )];

    const FIXED_EXPIRY: Edits =
        &[("call('SET', KEYS[key], value, 'PX', text)", "call('SET', KEYS[key], value, 'PX', '1000')")];

    const WRITE_ON_REFUSAL: Edits = &[
        ("local healed = 0\n", "local healed, refused = 0, {}\n"),
        (
            "  if granted < 0 then granted = 0 end\n",
            "  if granted < 0 then granted = 0 end
  for index = 1, granted > 0 and 0 or enforced do
    refused[keys[index]], changed[keys[index]] = true, true
  end\n",
        ),
        (
            "    local holder = holders[key]\n",
            "    local holder, bucket = holders[key], buckets[key]
    if refused[key] then bucket[1] = bucket[1] - bucket[1] % (1000 * holder.unit) end\n",
        ),
    ];

    impl Flaw {
        pub fn script(self, mut text: String) -> String {
            let edits = match self {
                Flaw::ClientTime { .. } => CLIENT_TIME,
                Flaw::FixedExpiry => FIXED_EXPIRY,
                Flaw::WriteOnRefusal => WRITE_ON_REFUSAL,
                Flaw::Retry { .. } | Flaw::LateBound | Flaw::SummedCosts => &[],
            };
            for (right, wrong) in edits {
                assert_eq!(text.matches(right).count(), 1, "the script has another text now: {right}");
                text = text.replace(right, wrong);
            }
            text
        }
    }

    /// Those that ask the buckets of the first become one request; its answer is theirs.
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
        let (answer, answered) = ReplySender::new();
        tokio::spawn(async move {
            let Ok(answer) = answered.await else { return };
            for mut waiting in alike {
                waiting.answer.send(answer.clone());
            }
        });
        rest.insert(0, PendingTake { plan, answer, caller: None, since });
        rest
    }
}
