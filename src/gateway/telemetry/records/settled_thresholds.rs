//! Keeps the buckets of which a cost has been settled that may have reached a threshold.
//!
//! A bucket tells thresholds only when it is charged. If no request of this gateway charges it soon, it is asked by a charge of
//! nothing (`enforcement/settled_thresholds`).

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::table::RecordKey;
use super::writer::RecordWriter;
use base::time::Timestamp;
use ledger::bucket_key::BucketKey;
use ledger::charge::Charge;
use ledger::cost::Cost;
use stores::Worker;

/// The most buckets that are kept, and that are asked at a time: those of which the largest share is used. Of others, the next
/// request tells.
const MOST: usize = 10_000;
const MOST_AT_ONCE: usize = 256;

/// A bucket that is to be asked.
#[derive(Clone, Debug)]
pub(crate) struct ThresholdQuestion {
    /// The worker that has settled, whose next call to the store has the cost.
    pub worker: Worker,
    /// The charge of the request or the hold, with the thresholds of the limit.
    pub charge: Charge,
    pub writer: Arc<RecordWriter>,
    /// The subject of the bucket.
    pub key: RecordKey,
    /// What was spent and held of the bucket, as far as it is known.
    pub level: Cost,
    /// When the cost was settled, by the clock of the process.
    pub settled: Timestamp,
}

impl ThresholdQuestion {
    /// Returns the share of the limit that is used, in percent.
    fn share(&self) -> u64 {
        self.level.thousandths().saturating_mul(100) / self.charge.algorithm.ceiling().thousandths().max(1)
    }
}

/// The buckets that wait to be asked.
#[derive(Debug, Default)]
pub(crate) struct SettledThresholds {
    waiting: Mutex<HashMap<BucketKey, ThresholdQuestion>>,
    /// Locked while buckets are asked, so that an exit can wait for their answers.
    pub round: tokio::sync::Mutex<()>,
}

impl SettledThresholds {
    /// Adds a bucket whose limit has thresholds. A later cost takes the place of an earlier one.
    pub(crate) fn add(&self, question: ThresholdQuestion) {
        if question.charge.algorithm.thresholds().is_empty() {
            return;
        }
        let mut waiting = self.waiting.lock();
        if waiting.len() < MOST || waiting.contains_key(&question.charge.key) {
            waiting.insert(question.charge.key, question);
        }
    }

    /// Takes the buckets whose last cost was settled at this time or before.
    pub(crate) fn take(&self, settled: Timestamp) -> Vec<ThresholdQuestion> {
        let mut waiting = self.waiting.lock();
        let mut due: Vec<ThresholdQuestion> =
            waiting.extract_if(|_, question| question.settled <= settled).map(|(_, question)| question).collect();
        drop(waiting);
        due.sort_unstable_by_key(|question| std::cmp::Reverse(question.share()));
        due.truncate(MOST_AT_ONCE);
        due
    }
}
