//! Computes a token bucket in the client, for the implementations that keep its numbers in Redis and use no script.

use base::time::{Clock, Micros};

/// How long a bucket is kept that nobody asks.
pub const KEPT: Micros = Micros(60_000_000);
pub const COST: u32 = 1;

/// The numbers of a limit.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    pub per_second: u32,
    pub burst: u32,
}

/// So wide that nothing is ever refused.
pub const WIDE: Limit = Limit { per_second: 1_000_000, burst: 1_000_000 };
/// So narrow that what is granted too much is seen.
pub const NARROW: Limit = Limit { per_second: 10, burst: 10 };

/// What came of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Granted,
    Refused,
    /// No answer: an error, or another client was always faster.
    Failed,
}

/// A bucket's hash as HMGET tells it: tokens, and the millisecond in which they were counted.
pub type StoredBucket = (Option<f64>, Option<u64>);

/// A bucket after a request.
#[derive(Clone, Copy, Debug)]
pub struct CountResult {
    pub answer: Answer,
    pub tokens: f64,
    pub since: u64,
}

pub fn count(limit: Limit, (tokens, since): StoredBucket, now: u64) -> CountResult {
    let (burst, cost) = (f64::from(limit.burst), f64::from(COST));
    let since = since.unwrap_or(now);
    let refilled = Micros(now.saturating_sub(since) * 1000).seconds() * f64::from(limit.per_second);
    let tokens = burst.min(tokens.unwrap_or(burst) + refilled);
    let (answer, tokens) = if tokens >= cost { (Answer::Granted, tokens - cost) } else { (Answer::Refused, tokens) };
    CountResult { answer, tokens, since: since.max(now) }
}

pub fn milliseconds(clock: &Clock) -> u64 {
    clock.now().0 / 1000
}

/// What a bucket is called in Redis.
pub fn names(buckets: usize) -> Vec<String> {
    (0..buckets).map(|bucket| format!("bucket:{bucket}")).collect()
}
