//! Asks Redis for its eviction policy. A server that evicts keys grants too much, because an evicted bucket counts as
//! full.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, Value};

use super::handshake::send;
use crate::events::{Event, EventSink};
use base::interval::fixed_interval;
use base::time;

/// The interval at which the policy is asked for. An operator can change it while the server runs.
const INTERVAL: Duration = Duration::from_secs(30);
/// How long to wait for a reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(2);
/// The largest length of a policy's name, in bytes. The names in Redis have up to 15 bytes.
const LONGEST: usize = 32;

/// Reports the eviction policy of the server at intervals, until the connection ends or the user has no permission.
pub(super) async fn watch(mut connection: MultiplexedConnection, events: &EventSink) {
    loop {
        match time::timeout(REPLY_TIMEOUT, ask(&mut connection)).await {
            Ok(Ok(Some(policy))) => events.send(Event::EvictionPolicy(policy)),
            Ok(Ok(None)) => return,
            // The requests on the connection report its faults.
            Ok(Err(_)) | Err(_) => {}
        }
        time::sleep(fixed_interval("eviction_policy", INTERVAL)).await;
    }
}

/// Asks for the policy. Returns `None` if the user has no permission.
async fn ask(connection: &mut MultiplexedConnection) -> Result<Option<String>, RedisError> {
    let [mut info, mut config] = [Cmd::new(), Cmd::new()];
    info.arg("INFO").arg("memory");
    config.arg("CONFIG").arg("GET").arg("maxmemory-policy");
    for command in [info, config] {
        match send(connection, &command).await {
            Ok(reply) => {
                if let Some(policy) = policy(&reply) {
                    return Ok(Some(policy));
                }
            }
            // The user may not run this command, or the server does not know it.
            Err(error) if error.code().is_some() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Returns the policy in a reply to INFO or CONFIG GET.
fn policy(reply: &Value) -> Option<String> {
    let text = match reply {
        Value::Array(parts) => match &parts[..] {
            [_, Value::BulkString(policy)] => str::from_utf8(policy).ok(),
            _ => None,
        },
        Value::BulkString(info) => {
            let lines = str::from_utf8(info).ok().into_iter().flat_map(str::lines);
            lines.filter_map(|line| line.strip_prefix("maxmemory_policy:")).next()
        }
        Value::VerbatimString { text, .. } => text.lines().find_map(|line| line.strip_prefix("maxmemory_policy:")),
        _ => None,
    };
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte == b'-';
    text.filter(|policy| (1..=LONGEST).contains(&policy.len()) && policy.bytes().all(plain)).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    #[test]
    fn the_policy_is_found_in_either_reply() {
        let info = "# Memory\r\nused_memory:1\r\nmaxmemory_policy:allkeys-lru\r\nallocator_frag_ratio:1.0\r\n";
        assert_eq!(policy(&text(info)).unwrap(), "allkeys-lru");
        assert_eq!(policy(&Value::Array(vec![text("maxmemory-policy"), text("noeviction")])).unwrap(), "noeviction");
    }

    #[test]
    fn a_reply_without_a_policy_has_none() {
        let [long, strange] =
            ["a".repeat(33), "no\u{1b}[31m".to_owned()].map(|name| format!("maxmemory_policy:{name}"));
        for reply in [text("# Memory\r\n"), text("maxmemory_policy:"), text(&long), text(&strange), text("noeviction")]
        {
            assert_eq!(policy(&reply), None, "{reply:?}");
        }
        for reply in [Value::Nil, Value::Array(Vec::new()), Value::Array(vec![text("noeviction")])] {
            assert_eq!(policy(&reply), None, "{reply:?}");
        }
    }
}
