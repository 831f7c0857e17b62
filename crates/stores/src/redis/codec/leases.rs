//! Encodes acts of leases as one call of the script, and decodes the reply.

use redis::{Cmd, Value};

use super::{EXACT, add, add_amount, add_limit, integer, key_name, state};
use crate::error::StoreError;
use crate::lease_acts::{ActResult, ActResults, BucketAct};
use base::time::Timestamp;
use ledger::algorithm::Algorithm;

/// One call of the script `leases.lua`.
#[derive(Debug)]
pub struct LeaseCall<'a> {
    acts: &'a [BucketAct],
}

impl<'a> LeaseCall<'a> {
    /// Makes a call. Acts on one bucket are done in their order.
    pub fn new(acts: &'a [BucketAct]) -> LeaseCall<'a> {
        LeaseCall { acts }
    }

    /// Returns the Redis command of the call. `sha` names the script that the server has loaded, and `near` is roughly the time on the
    /// server's clock. `now` is the time that a test chooses for the script. It is ignored without the feature `test-hooks`.
    pub fn command(&self, sha: &str, prefix: &str, near: Timestamp, now: Option<Timestamp>) -> Cmd {
        let mut limits: Vec<Algorithm> = Vec::new();
        let mut text = Vec::new();
        for BucketAct { limit, act, .. } in self.acts {
            let index = limits.iter().position(|other| other == limit).unwrap_or_else(|| {
                limits.push(*limit);
                limits.len() - 1
            });
            let numbers = act.numbers();
            // Lua counts from 1.
            add(&mut text, [index + 1, 8 * numbers.len()]);
            numbers.into_iter().for_each(|number| add_amount(&mut text, number));
        }
        let mut head = Vec::with_capacity(2 + 58 * limits.len() + text.len());
        add(&mut head, [limits.len()]);
        for limit in &limits {
            add_limit(&mut head, limit, near);
        }
        head.append(&mut text);
        let mut command = Cmd::new();
        command.arg("EVALSHA").arg(sha).arg(self.acts.len());
        for BucketAct { key, .. } in self.acts {
            command.arg(&key_name(prefix, key)[..]);
        }
        command.arg(head);
        if cfg!(feature = "test-hooks")
            && let Some(now) = now
        {
            command.arg(now.0);
        }
        command
    }

    /// Decodes the reply of the script.
    ///
    /// # Errors
    ///
    /// [`StoreError::UnexpectedReply`] for a reply that the script cannot have given to this call.
    pub fn results(&self, reply: &Value) -> Result<ActResults, StoreError> {
        let Value::Array(parts) = reply else { return Err(StoreError::UnexpectedReply) };
        let [now, healed, replies @ ..] = &parts[..] else { return Err(StoreError::UnexpectedReply) };
        let (now, healed) = (integer(now)?, integer(healed)?);
        let acts = self.acts.len();
        if replies.len() != acts || now > EXACT || healed > acts as u64 {
            return Err(StoreError::UnexpectedReply);
        }
        let result = |(reply, BucketAct { act, .. }): (&Value, &BucketAct)| match reply {
            Value::Int(-1) => Ok(ActResult::OutsidePeriod),
            Value::Int(-2) => Ok(ActResult::OutOfMemory),
            reply => {
                let numbers = state(reply)?.filter(|numbers| numbers.iter().all(|number| *number <= EXACT));
                let reply = numbers.and_then(|numbers| act.parse_reply(&numbers));
                reply.map(ActResult::Done).ok_or(StoreError::UnexpectedReply)
            }
        };
        let results = replies.iter().zip(self.acts).map(result).collect::<Result<_, _>>()?;
        Ok(ActResults { now: Timestamp(now), healed, results })
    }
}
