//! The key of a bucket with slots is kept for ten minutes after each report, without a new expiry at each report.

use base::time::Timestamp;
use ledger::bucket_key::BucketKey;
use ledger::charge::Plan;
use ledger::cost::Cost;
use ledger::holds::{self, BucketReport, LIFE, Owner, SettledSums};
use redis::{Connection, ConnectionLike};
use stores::redis::{codec, script};
use stores::remote::transport::ReportResult;

use crate::support::Redis;
use crate::support::slots::slot;

const MINUTE: u64 = 60_000_000;

/// The released script on a server whose own clock counts.
struct Script {
    connection: Connection,
    sha: String,
    sequence: u64,
}

impl Script {
    /// Reports that an owner holds one slot of each bucket, and lets it ask for one more of the first bucket or not.
    /// Returns how many reports were accepted.
    fn report(&mut self, buckets: &[BucketKey], asks: bool) -> usize {
        self.sequence += 1;
        let mut plan = Plan::default();
        plan.enforce(slot(buckets[0], 10_000));
        let limit = plan.enforced[0].algorithm;
        let report = |bucket: &BucketKey| BucketReport {
            bucket: *bucket,
            limit,
            held: Cost::ONE,
            asked: Cost::default(),
            settled: SettledSums::default(),
        };
        let reports = buckets.iter().map(report).collect();
        let said = holds::Call { owner: Owner(7), sequence: self.sequence, life: LIFE, reports };
        let call = codec::Call::with_reports(Some(&said), asks.then_some(&plan));
        let reply = self.connection.req_command(&call.command(&self.sha, "test", Timestamp(0), None)).unwrap();
        let results = call.settle(&reply).unwrap().reports.into_iter();
        results.filter(|result| *result == ReportResult::Accepted).count()
    }

    fn command<T: redis::FromRedisValue>(&mut self, name: &str, key: &BucketKey, rest: Option<&[u8]>) -> T {
        redis::cmd(name).arg(codec::key_name("test", key)).arg(rest).query(&mut self.connection).unwrap()
    }

    fn value(&mut self, key: &BucketKey) -> Vec<u64> {
        let value: Vec<u8> = self.command("GET", key, None);
        value.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
    }

    fn moment(&mut self, key: &BucketKey) -> u64 {
        self.value(key)[1]
    }

    /// The server's time at which it drops the key, in milliseconds.
    fn expiry(&mut self, key: &BucketKey) -> u64 {
        self.command("PEXPIRETIME", key, None)
    }

    fn expire_at(&mut self, key: &BucketKey, milliseconds: u64) {
        self.command::<()>("PEXPIREAT", key, Some(milliseconds.to_string().as_bytes()));
    }
}

/// When the key of a bucket with this moment should be dropped: ten minutes after the end of its minute.
fn kept_until(moment: u64) -> u64 {
    ((moment / MINUTE + 11) * MINUTE) / 1000
}

#[test]
fn a_report_keeps_its_bucket_for_ten_minutes_and_writes_a_new_expiry_once_a_minute() {
    let redis = Redis::start();
    let sha = redis.command(&["SCRIPT", "LOAD", &script::take()]);
    let mut script = Script { connection: redis.connection(), sha, sequence: 0 };
    let buckets = [1, 2, 3].map(|number| BucketKey([number; 16]));
    for asks in [false, true, false, false] {
        assert_eq!(script.report(&buckets, asks), 3);
        for key in &buckets {
            let (moment, expiry) = (script.moment(key), script.expiry(key));
            assert!((kept_until(moment)..=kept_until(moment) + 2).contains(&expiry), "{moment}: {expiry}");
            // A minute passes since the last report, as the server sees it.
            let mut value = script.value(key);
            value[1] -= MINUTE;
            let bytes: Vec<u8> = value.iter().flat_map(|word| word.to_le_bytes()).collect();
            script.command::<()>("SET", key, Some(&bytes));
            script.expire_at(key, kept_until(value[1]));
        }
    }
    // In the same minute a report leaves the expiry as it is.
    for asks in [false, true] {
        loop {
            script.report(&buckets, asks);
            let marked = kept_until(script.moment(&buckets[0])) + 7_000;
            buckets.iter().for_each(|key| script.expire_at(key, marked));
            assert_eq!(script.report(&buckets, asks), 3);
            if kept_until(script.moment(&buckets[0])) + 7_000 == marked {
                assert_eq!(buckets.map(|key| script.expiry(&key)), [marked; 3]);
                break;
            }
        }
    }
}
