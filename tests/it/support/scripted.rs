//! Calls the take script on a real redis-server as a gateway does, at moments that a test chooses.

use redis::{Connection, ConnectionLike};
use tollgate::base::time::Timestamp;
use tollgate::limit::charge::Plan;
use tollgate::limit::key::BucketKey;
use tollgate::store::redis::codec::{Call, Reply, key_name};
use tollgate::store::redis::script;

use super::Redis;

const PREFIX: &str = "test";

pub struct Scripted {
    connection: Connection,
    sha: String,
}

impl Scripted {
    pub fn new(redis: &Redis) -> Scripted {
        let sha = redis.command(&["SCRIPT", "LOAD", &script::take()]);
        Scripted { connection: redis.connection(), sha }
    }

    #[track_caller]
    pub fn take(&mut self, plans: &[Plan], now: Timestamp) -> Reply {
        let call = Call::new(plans);
        let reply = self.connection.req_command(&call.command(&self.sha, PREFIX, Some(now))).unwrap();
        call.settle(&reply).unwrap_or_else(|error| panic!("{error:?} at {now:?}: {reply:?}"))
    }

    /// The value of a bucket's key, as words; `None` if the key does not exist.
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
