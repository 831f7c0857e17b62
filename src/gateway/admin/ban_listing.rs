//! Formats a list of banned buckets, as text and as JSON.

use serde_json::{Value, json};

use super::bucket_report::bucket_name;
use base::time::Micros;
use base::waiting_time::WaitingTime;
use config::Config;
use ledger::algorithm::Algorithm;
use ledger::algorithm::ban::BanPeriod;
use ledger::bucket_key::BucketKey;
use rules::explanation::Date;
use rules::rule_set::CompiledLimit;
use stores::{BanList, MOST_LISTED};

/// The banned buckets of a limit, with the place from which they were read.
pub(crate) struct BanListing<'c> {
    pub config: &'c Config,
    pub limit: &'c CompiledLimit,
    pub list: BanList,
    pub from: String,
    /// Returns the subject of a bucket, if it is known.
    pub subject: &'c dyn Fn(&BucketKey) -> Option<String>,
}

/// A banned bucket: its name in the access log, its step, and its end as text and in seconds.
struct BannedBucket {
    bucket: String,
    step: u32,
    until: String,
    seconds: u64,
    subject: Option<String>,
}

impl BanListing<'_> {
    /// Returns the bans that run, beginning with the one that ends last.
    fn bans(&self) -> Vec<BannedBucket> {
        let at = self.list.at;
        let now = self.limit.variants.first().map_or(at.now, |algorithm: &Algorithm| at.of(algorithm));
        let running = self.list.bans().filter(|(_, ban)| ban.end > now);
        let banned = running.map(|(key, BanPeriod { end, step })| {
            let wait = end.since(now);
            let bucket = bucket_name(&self.config.hash_key, &key);
            let (until, subject) = (Date(at.date.plus(wait)).to_string(), (self.subject)(&key));
            BannedBucket { bucket, step, until, seconds: wait.ceil_seconds(), subject }
        });
        banned.collect()
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        let bans = self.bans();
        let (policy, name) = (&self.limit.policy, &self.limit.name);
        let mut lines = vec![match (bans.len(), self.list.is_cut) {
            (0, _) => format!("no bucket of {policy}/{name} is banned"),
            (1, _) => format!("1 bucket of {policy}/{name} is banned"),
            (count, false) => format!("{count} buckets of {policy}/{name} are banned"),
            (_, true) => {
                format!("more than {MOST_LISTED} buckets of {policy}/{name} are banned; those whose bans end last are")
            }
        }];
        lines.extend(bans.iter().map(|BannedBucket { bucket, step, until, seconds, subject }| {
            let wait = WaitingTime(Micros(seconds.saturating_mul(1_000_000)));
            let of = subject.as_deref().map_or_else(String::new, |subject| format!("  {subject}"));
            format!("  bucket {bucket}{of}  banned until {until}, in {wait}, by ban {step}")
        }));
        lines.push(format!("read from {}: {} buckets of all limits", self.from, self.list.visited));
        lines
    }

    pub(crate) fn document(&self) -> Value {
        let bans = self.bans();
        let buckets: Vec<Value> = bans
            .iter()
            .map(|BannedBucket { bucket, step, until, subject, .. }| {
                json!({"bucket": bucket, "ban_step": step, "banned_until": until, "subject": subject})
            })
            .collect();
        json!({
            "act": "list",
            "read_from": self.from,
            "policy": self.limit.policy,
            "limit": self.limit.name,
            "visited": self.list.visited,
            "complete": !self.list.is_cut,
            "buckets": buckets,
        })
    }
}
