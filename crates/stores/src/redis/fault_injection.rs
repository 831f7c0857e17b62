//! Injects faults into calls to Redis for tests, only with the feature `test-hooks`.
//!
//! The last lines of each function are the behaviour of a release build.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisError, Value};

use super::handshake::send;
#[cfg(feature = "test-hooks")]
use super::script;
pub use crate::remote::fault_injection::*;
use base::time::{Clock, Timestamp};
#[cfg(feature = "test-hooks")]
pub use edits::AHEAD;

impl Hooks {
    /// Returns the script that takes from buckets. `text` is the script without a fault.
    pub fn script(&self, text: String, clock: &Clock) -> String {
        #[cfg(feature = "test-hooks")]
        if let Some(flaw) = self.flaw {
            return self.timed(flaw.script(text), clock);
        }
        self.timed(text, clock)
    }

    /// Returns `text`, a script that reads the time. A test puts its changes before this text.
    pub fn timed(&self, text: String, clock: &Clock) -> String {
        #[cfg(feature = "test-hooks")]
        {
            let text = self.server_clock.script(text);
            if self.moment(clock).is_some() { script::at_chosen_moment(&text) } else { text }
        }
        #[cfg(not(feature = "test-hooks"))]
        {
            let _ = clock;
            text
        }
    }

    /// Returns the approximate time on the server's clock: `heard`, the time in the server's last reply. With a flaw, a
    /// test gets `ours`, the time on the gateway's clock.
    pub fn near(&self, heard: Timestamp, ours: impl FnOnce() -> Timestamp) -> Timestamp {
        #[cfg(feature = "test-hooks")]
        if let Some(Flaw::ClientPeriod) = self.flaw {
            return ours();
        }
        let _ = ours;
        heard
    }

    /// Returns the time that the calls pass to the script. `None` if the script uses the server's clock.
    pub fn moment(&self, clock: &Clock) -> Option<Timestamp> {
        #[cfg(feature = "test-hooks")]
        if let Some(Flaw::ClientTime { ahead }) = self.flaw {
            return Some(clock.now().plus(ahead));
        }
        clock.injected()
    }

    /// Sends a command, and returns the reply. Sends the command twice if a test requires that.
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
}

impl Hooks {
    /// Sends commands together, and returns their replies. Sends them twice if a test requires that.
    ///
    /// # Errors
    /// When the connection fails.
    pub(crate) async fn send_all(
        &self,
        connection: &mut MultiplexedConnection,
        commands: &Pipeline,
    ) -> Result<Vec<Value>, RedisError> {
        let count = commands.len();
        #[cfg(feature = "test-hooks")]
        if let Some(Flaw::Resend) = self.flaw {
            connection.send_packed_commands(commands, 0, count).await?;
        }
        connection.send_packed_commands(commands, 0, count).await
    }
}

/// The changes to the text of the script for each bug.
#[cfg(feature = "test-hooks")]
mod edits {
    use crate::remote::fault_injection::{Flaw, ServerClock};

    /// The Redis key with the number of microseconds by which a test has moved the script's clock ahead.
    pub const AHEAD: &str = "tollgate-test-ahead";

    impl ServerClock {
        pub fn script(self, text: String) -> String {
            match self {
                ServerClock::Real => text,
                ServerClock::Movable => MOVABLE.replace("AHEAD", AHEAD) + &text,
            }
        }
    }

    /// Lua text that is put before the script, and moves the script's clock.
    const MOVABLE: &str = "
local redis = (function(server)
  local function call(command, ...)
    if command ~= 'TIME' then return server.call(command, ...) end
    local time = server.call('TIME')
    return {time[1], time[2] + (server.call('GET', 'AHEAD') or 0)}
  end
  return {call = call, pcall = server.pcall}
end)(redis)
";

    /// Pairs of a piece of the script and its replacement.
    type Edits<'t> = &'t [(&'t str, &'t str)];

    const CLIENT_TIME: Edits<'static> = &[("  else\n    bucket[2] = since\n", "  -- tollgate test-hooks: a flaw\n")];

    const FIXED_EXPIRY: Edits<'static> =
        &[("call('SET', KEYS[key], stored, 'PX', left_text)", "call('SET', KEYS[key], stored, 'PX', '1000')")];

    const WRITE_ON_REFUSAL: Edits<'static> = &[
        (
            "  if granted < 0 then granted = 0 end\n",
            "  if granted < 0 then granted = 0 end
  for index = 1, granted > 0 and 0 or enforced do
    local bucket = buckets[unpack('<H', text, from + 12 * index - 12)]
    bucket.refused, bucket.changed = true, true
  end\n",
        ),
        (
            "      if bucket.changed and not is_full then\n",
            "      if bucket.refused then bucket[1] = bucket[1] - bucket[1] % (1000 * limit.unit) end
      if bucket.changed and not is_full then\n",
        ),
    ];

    const CLIENT_PERIOD: Edits<'static> = &[
        ("      local outside = now < first or now >= last\n", "      local outside, named = false, true\n"),
        ("outside = outside, shares", "named = named, shares"),
        (
            "local function open(value, limit, now)\n",
            "local function open(value, limit, now)
  if limit.named and type(value) == 'string' and #value == 24 then
    local spent, begun = struct.unpack('<I8I8', value)
    if begun < limit.first then value = false end
  end\n",
        ),
    ];

    const EARLIER_PERIOD: Edits<'static> = &[(
        "local function open(value, limit, now)\n",
        "local function open(value, limit, now)
  if limit.first and type(value) == 'string' and #value == 24 then
    local spent, begun = struct.unpack('<I8I8', value)
    if begun ~= limit.first then value = false end
  end\n",
    )];

    const HELD_IS_SPENT: Edits<'static> = &[
        (
            "    local settled, is_reset = accept_report(bucket, owner, sequence, held, from, to, known, resets, at_reset, life)
    if not settled then return false end
    local spent = bucket.spent
",
            "    local before = bucket.held
    local settled, is_reset = accept_report(bucket, owner, sequence, held, from, to, known, resets, at_reset, life)
    if not settled then return false end
    local spent = bucket.spent
    spent[1] = max(spent[1] - (before - bucket.held) * (limit.unit or 1), 0)
",
        ),
        (
            "    local room = limit.capacity - bucket.spent[1] - bucket.held * unit\n",
            "    local room = limit.capacity - bucket.spent[1]\n",
        ),
        (
            "    bucket.held, bucket.added = bucket.held + amount, bucket.added + amount\n",
            "    bucket.held, bucket.added = bucket.held + amount, bucket.added + amount
    if bucket.spent then bucket.spent[1] = bucket.spent[1] + amount * (limit.unit or 1) end\n",
        ),
    ];

    const SUMS_ADDED: Edits<'static> = &[("  return max(to - charged, 0), is_reset\n", "  return to, is_reset\n")];

    impl Flaw {
        pub fn script(self, text: String) -> String {
            let edits = match self {
                Flaw::ClientTime { .. } => CLIENT_TIME,
                Flaw::FixedExpiry => FIXED_EXPIRY,
                Flaw::WriteOnRefusal => WRITE_ON_REFUSAL,
                Flaw::ClientPeriod => CLIENT_PERIOD,
                Flaw::EarlierPeriod => EARLIER_PERIOD,
                Flaw::HeldIsSpent => HELD_IS_SPENT,
                Flaw::SumsAdded => SUMS_ADDED,
                Flaw::Retry { .. } | Flaw::Resend | Flaw::LateBound | Flaw::SummedCosts => &[],
                Flaw::UndoneNever | Flaw::UndoneTwice | Flaw::UndoneInFull | Flaw::UndoneIsKept => &[],
            };
            replace(text, edits)
        }
    }

    fn replace(mut text: String, edits: Edits<'_>) -> String {
        for (right, wrong) in edits {
            // The functions of rate.lua are in the script once for each twin that uses them.
            assert!((1..=9).contains(&text.matches(right).count()), "the script has another text now: {right}");
            text = text.replace(right, wrong);
        }
        text
    }
}

#[cfg(all(test, feature = "test-hooks"))]
mod tests {
    use super::*;
    use crate::redis::script::{give_back, take};

    /// A release runs the script's text unchanged. Test hooks only put lines in front of that text.
    #[test]
    fn a_test_runs_every_line_of_the_released_script_and_whoever_needs_no_time_of_its_own_no_other() {
        let (system, manual) = (Clock::system(), Clock::manual(Timestamp(1)));
        let movable = Hooks { server_clock: ServerClock::Movable, ..Hooks::default() };
        for text in [take(), give_back()] {
            assert_eq!(Hooks::default().script(text.clone(), &system), text);
            for (hooks, clock) in [(Hooks::default(), &manual), (movable, &system), (movable, &manual)] {
                let timed = hooks.script(text.clone(), clock);
                assert!(timed.len() > text.len() && timed.ends_with(&text), "{timed}");
            }
        }
    }
}
