//! Calls the take script on a real redis-server as a gateway does, at times that a test chooses.

use base::time::Timestamp;
use ledger::bucket_key::BucketKey;
use ledger::charge::{Plan, Settlement};
use redis::{Connection, ConnectionLike, Value};
use stores::redis::codec::{Call, key_name};
use stores::redis::script;
use stores::remote::transport::Reply;

use super::Redis;

const PREFIX: &str = "test";

/// The script on a server, with the connection that calls it.
pub struct TakeScript {
    connection: Connection,
    sha: String,
}

/// A reply in which no plan was left out.
pub struct CompleteReply {
    pub now: Timestamp,
    pub healed: u64,
    pub settlements: Vec<Settlement>,
}

impl TakeScript {
    pub fn new(redis: &Redis) -> TakeScript {
        TakeScript::with(redis, &script::take())
    }

    /// Loads a script whose text was changed.
    pub fn with(redis: &Redis, script: &str) -> TakeScript {
        let script = script::at_chosen_moment(script);
        TakeScript { connection: redis.connection(), sha: redis.command(&["SCRIPT", "LOAD", &script]) }
    }

    #[track_caller]
    pub fn take(&mut self, plans: &[Plan], now: Timestamp) -> CompleteReply {
        let Reply { healed, settlements, .. } = self.reply(plans, now, now);
        let settlements = settlements.into_iter().map(|settlement| settlement.expect("it was left out")).collect();
        CompleteReply { now, healed, settlements }
    }

    /// Returns the reply to a gateway that knows the time `near` from an earlier reply.
    #[track_caller]
    pub fn reply(&mut self, plans: &[Plan], near: Timestamp, now: Timestamp) -> Reply {
        let call = Call::new(plans);
        let reply = self.raw_reply(&call, near, now);
        let decoded = call.settle(&reply).unwrap_or_else(|error| panic!("{error:?} at {now:?}: {reply:?}"));
        assert_eq!(decoded.now, now);
        decoded
    }

    /// Returns the raw reply of the server to a call.
    #[track_caller]
    pub fn raw_reply(&mut self, call: &Call<'_>, near: Timestamp, now: Timestamp) -> Value {
        self.connection.req_command(&call.command(&self.sha, PREFIX, near, Some(now))).unwrap()
    }

    /// Returns the value of a bucket's key, as words; `None` if the key does not exist.
    pub fn stored(&mut self, key: &BucketKey) -> Option<Vec<u64>> {
        let bytes: Option<Vec<u8>> = redis::cmd("GET").arg(key_name(PREFIX, key)).query(&mut self.connection).unwrap();
        let words = |bytes: Vec<u8>| bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        bytes.map(words)
    }

    /// Replaces the value of a bucket's key.
    pub fn tamper(&mut self, key: &BucketKey, command: &str, rest: &[&[u8]]) {
        let name = key_name(PREFIX, key);
        redis::cmd("DEL").arg(&name).exec(&mut self.connection).unwrap();
        let mut command = redis::cmd(command);
        command.arg(&name);
        for word in rest {
            command.arg(*word);
        }
        command.exec(&mut self.connection).unwrap();
    }
}
