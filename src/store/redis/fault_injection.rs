//! Injects faults into calls, for the tests that show what a bug here would do; only with the feature `test-hooks`.
//!
//! Each function ends with what a release build does.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, Value};

use super::handshake::send;
use crate::base::time::{Clock, Timestamp};
use crate::store::remote::deny_cache::SendStamp;
use crate::store::remote::queue::PendingTake;
#[cfg(feature = "test-hooks")]
pub use flaw::{AHEAD, Combining, Flaw, Refusals, ServerClock};

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
}

impl Hooks {
    /// The text of the script.
    pub fn script(&self, text: String) -> String {
        #[cfg(feature = "test-hooks")]
        {
            let text = self.server_clock.script(text);
            match self.flaw {
                Some(flaw) => flaw.script(text),
                None => text,
            }
        }
        #[cfg(not(feature = "test-hooks"))]
        text
    }

    /// About what the server's clock shows, for which the call names the periods of calendars.
    pub fn near(&self, heard: Timestamp, ours: Timestamp) -> Timestamp {
        #[cfg(feature = "test-hooks")]
        if let Some(Flaw::ClientPeriod) = self.flaw {
            return ours;
        }
        let _ = ours;
        heard
    }

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

    /// The time that the call passes to the script; `None` where the server's clock is used.
    pub fn moment(&self, clock: &Clock) -> Option<Timestamp> {
        #[cfg(feature = "test-hooks")]
        if let Some(Flaw::ClientTime { ahead }) = self.flaw {
            return Some(clock.now().plus(ahead));
        }
        clock.injected()
    }

    /// Sends a command, twice if a test wants that.
    ///
    /// # Errors
    /// When the connection fails, or the server answers with an error.
    pub async fn send(&self, connection: &mut MultiplexedConnection, command: &Cmd) -> Result<Value, RedisError> {
        #[cfg(feature = "test-hooks")]
        if let Some(Flaw::Retry { after }) = self.flaw
            && let Ok(reply) = tokio::time::timeout(after.into(), send(connection, command)).await
        {
            return reply;
        }
        send(connection, command).await
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
    use crate::base::time::{Micros, Timestamp};
    use crate::limit::charge::Charge;
    use crate::limit::cost::Cost;
    use crate::store::remote::queue::{Attempt, PendingTake, ReplySender};

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

    /// The key whose value a movable clock is ahead, in microseconds.
    pub const AHEAD: &str = "tollgate-test-ahead";

    /// What the script takes for the server's time.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum ServerClock {
        #[default]
        Real,
        /// Ahead of the server's clock by what [`AHEAD`] holds, so that a test can set it. The server still expires keys
        /// by its own.
        Movable,
    }

    impl ServerClock {
        pub fn script(self, text: String) -> String {
            match self {
                ServerClock::Real => text,
                ServerClock::Movable => {
                    let moved = format!("time[2] + (redis.call('GET', '{AHEAD}') or 0)");
                    replace(text, &[("time[1] * 1000000 + time[2]", &format!("time[1] * 1000000 + {moved}"))])
                }
            }
        }
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
        /// The deny cache counts from when the reply came, not from when the call was sent.
        LateBound,
        /// Requests for the same buckets are granted or refused together, for the sum of their costs.
        SummedCosts,
        /// The period of a calendar is the one that the gateway's clock is in.
        ClientPeriod,
        /// Any other period than the stored one begins with nothing spent, also an earlier one.
        EarlierPeriod,
    }

    /// Pieces of the script, and their replacements.
    type Edits<'t> = &'t [(&'t str, &'t str)];

    const CLIENT_TIME: Edits<'static> = &[(
        "    if now > since then\n",
        "    -- tollgate test-hooks: a flaw\n    if now <= since then since = now else\n",
    )];

    const FIXED_EXPIRY: Edits<'static> =
        &[("call('SET', KEYS[key], value, 'PX', text)", "call('SET', KEYS[key], value, 'PX', '1000')")];

    const WRITE_ON_REFUSAL: Edits<'static> = &[
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

    const CLIENT_PERIOD: Edits<'static> = &[
        ("    limit.outside = now < limit.first or now >= limit.last\n", "    limit.named = true\n"),
        (
            "  local value = pcall('GET', KEYS[key])\n",
            "  local value = pcall('GET', KEYS[key])
  if limit.named and type(value) == 'string' and #value == 24 then
    local spent, begun = struct.unpack('<I8I8', value)
    if begun < limit.first then value = false end
  end\n",
        ),
    ];

    const EARLIER_PERIOD: Edits<'static> = &[(
        "  local value = pcall('GET', KEYS[key])\n",
        "  local value = pcall('GET', KEYS[key])
  if limit.first and type(value) == 'string' and #value == 24 then
    local spent, begun = struct.unpack('<I8I8', value)
    if begun ~= limit.first then value = false end
  end\n",
    )];

    impl Flaw {
        pub fn script(self, text: String) -> String {
            let edits = match self {
                Flaw::ClientTime { .. } => CLIENT_TIME,
                Flaw::FixedExpiry => FIXED_EXPIRY,
                Flaw::WriteOnRefusal => WRITE_ON_REFUSAL,
                Flaw::ClientPeriod => CLIENT_PERIOD,
                Flaw::EarlierPeriod => EARLIER_PERIOD,
                Flaw::Retry { .. } | Flaw::LateBound | Flaw::SummedCosts => &[],
            };
            replace(text, edits)
        }
    }

    fn replace(mut text: String, edits: Edits<'_>) -> String {
        for (right, wrong) in edits {
            assert_eq!(text.matches(right).count(), 1, "the script has another text now: {right}");
            text = text.replace(right, wrong);
        }
        text
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
