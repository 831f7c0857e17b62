//! Lists the buckets with the most recent refusals, by their names in logs, with a command that shows each bucket.

use std::net::SocketAddr;

use serde::Serialize;

use crate::gateway::state::GatewayState;
use crate::gateway::state::snapshot::Snapshot;
use crate::gateway::telemetry::top_refused::{RefusedBucket, Top};
use base::reachable::reachable;
use base::time::{Micros, Timestamp};

const MAX_ROWS: usize = 10;

#[derive(Debug, Serialize)]
pub(super) struct TopRefusedDocument {
    /// The number of seconds over which refusals were counted.
    seconds: f64,
    buckets: Vec<RefusedRow>,
    /// The number of refusals since the start that are missing from the tables, because a table was being read.
    skipped: u64,
}

#[derive(Debug, Serialize)]
struct RefusedRow {
    bucket: String,
    policy: String,
    rule: String,
    /// The lower bound of the number of refusals; `at_most` is the upper bound.
    at_least: u64,
    at_most: u64,
    /// The number of seconds until the bucket's ban ends. `None` if no ban runs, as far as this gateway has seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    banned_for: Option<u64>,
    /// The command that shows the bucket, for a shell on this machine.
    command: String,
}

/// Returns the command that shows a bucket. The command asks this gateway, so it needs neither gateway.yaml nor a
/// secret.
pub(super) fn command(admin: Option<SocketAddr>, limit: &str, bucket: &str) -> String {
    let admin = admin.map_or_else(String::new, |admin| format!(" --admin {}", reachable(admin)));
    format!("tollgate bucket show{admin} {} --hash {bucket}", quoted(limit))
}

impl TopRefusedDocument {
    pub(super) fn of(
        gateway: &GatewayState,
        admin: Option<SocketAddr>,
        snapshot: &Snapshot,
        now: Timestamp,
        uptime: Micros,
    ) -> TopRefusedDocument {
        let Top { span, buckets } = gateway.top_refused.top(MAX_ROWS, now, snapshot.number);
        let row = |one: &RefusedBucket| {
            let (limit, _) = snapshot.limit(one.limit_version.limit)?;
            let bucket = snapshot.config.hash_key.bucket(&one.key.0).to_string();
            let name = format!("{}/{}", limit.policy, limit.name);
            Some(RefusedRow {
                command: command(admin, &name, &bucket),
                bucket,
                policy: limit.policy.clone(),
                rule: limit.name.clone(),
                at_least: one.at_least,
                at_most: one.at_most,
                banned_for: Some(one.ban_ends.since(now).ceil_seconds()).filter(|seconds| *seconds > 0),
            })
        };
        TopRefusedDocument {
            seconds: span.min(uptime).seconds(),
            buckets: buckets.iter().filter_map(row).collect(),
            skipped: gateway.top_refused.skipped(),
        }
    }
}

/// Quotes one word for a shell.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-:@%+=".contains(c);
    match !word.is_empty() && !word.starts_with('-') && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_quoted_word_is_that_word_to_a_shell() {
        for word in ["plan/free", "a b", "it's", "$HOME", "`id`", "a;b", "", "\"", "é", "-x", "a\\'b"] {
            let output = Command::new("sh").arg("-c").arg(format!("printf %s {}", quoted(word))).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), word);
        }
        assert_eq!(quoted("plan/free.second"), "plan/free.second");
    }
}
