//! Measures a charge in the memory store, below `max_buckets` and at this bound, where each new bucket evicts another
//! one: `cargo bench --bench eviction`. With `--load 4` it measures only that load, and also the memory of a bucket.
#![expect(clippy::print_stdout, reason = "a benchmark prints what it has measured")]

use std::sync::Arc;

use base::time::{Clock, Micros};
use clap::Parser;
use ledger::algorithm::Algorithm;
use ledger::algorithm::token_bucket::{Rate, TokenBucket};
use ledger::bucket_key::{BucketKey, LimitTag};
use ledger::charge::{Charge, ChargePurpose, LimitId, Plan};
use ledger::cost::Cost;
use smallvec::smallvec;
use stores::memory::{Memory, Settings};

type Failure = Box<dyn std::error::Error>;

/// Measures a charge in the memory store, below `max_buckets` and at this bound.
#[derive(Debug, Parser)]
struct Arguments {
    /// `max_buckets`, and how many new buckets are charged at the bound.
    #[arg(long, default_value_t = 1_000_000)]
    buckets: usize,
    /// The only load to measure; 1 is the first.
    #[arg(long)]
    load: Option<usize>,
    /// The argument that cargo passes to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

/// The limits to which new buckets are charged.
struct Load {
    name: &'static str,
    burst: u64,
    /// The number of limits that share the buckets evenly.
    limits: u64,
    /// The number of buckets, the first ones, that have their own override.
    overrides: u64,
}

const LOADS: [Load; 5] = [
    Load { name: "one limit, little spent", burst: 100, limits: 1, overrides: 0 },
    Load { name: "one limit, drained", burst: 1, limits: 1, overrides: 0 },
    Load { name: "200 limits, drained", burst: 1, limits: 200, overrides: 0 },
    Load { name: "100 000 overrides, drained", burst: 1, limits: 1, overrides: 100_000 },
    Load { name: "2000 limits, much spent", burst: 2, limits: 2000, overrides: 0 },
];

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> Result<(), Failure> {
    let Arguments { buckets, load: only, .. } = Arguments::parse();
    println!("{buckets} buckets\n\n| | below the bound | at the bound | the longest at the bound |\n|---|---|---|---|");
    let chosen = |number: usize| only.is_none_or(|only| only == number);
    for (_, load) in (1..).zip(LOADS).filter(|(number, _)| chosen(*number)) {
        let before = resident()?;
        let memory = Memory::new(&Settings { max_buckets: buckets, ..Settings::default() }, Clock::system());
        let count = u64::try_from(buckets)?;
        let (below, _, evicted) = fill(&memory, &load, 0..count)?;
        assert_eq!(evicted, 0, "below the bound");
        if only.is_some() {
            println!("{} bytes per bucket\n", resident()?.saturating_sub(before) / count);
        }
        let (at_bound, longest, evicted) = fill(&memory, &load, count..2 * count)?;
        assert_eq!((evicted, memory.buckets()), (count, buckets), "each new bucket evicts one");
        println!("| {} | {below} ns | {at_bound} ns | {longest} µs |", load.name);
    }
    Ok(())
}

/// Returns the number of bytes of memory that this process holds.
fn resident() -> Result<u64, Failure> {
    let pages = std::fs::read_to_string("/proc/self/statm")?;
    let resident = pages.split(' ').nth(1).ok_or("no second number")?;
    Ok(resident.parse::<u64>()? * 4096)
}

/// Charges a new bucket for each number. Returns the nanoseconds for each charge, the longest charge in microseconds,
/// and the number of evictions.
fn fill(memory: &Arc<Memory>, load: &Load, numbers: std::ops::Range<u64>) -> Result<(u64, u64, u64), Failure> {
    let clock = Clock::system();
    let (count, start) = (numbers.end - numbers.start, clock.now());
    let (mut longest, mut evicted, mut before) = (0, 0, start);
    for number in numbers {
        evicted += memory.take(&plan(load, number)?).evicted;
        let now = clock.now();
        longest = longest.max(now.since(before).0);
        before = now;
    }
    Ok((before.since(start).0 * 1_000 / count.max(1), longest, evicted))
}

/// Makes a plan with a charge of one token. Its bucket is full again a day later.
fn plan(load: &Load, number: u64) -> Result<Plan, Failure> {
    let rate = Rate { amount: Cost::from_tokens(load.burst), period: Micros(86_400_000_000) };
    let mut key = [0; 16];
    key.iter_mut().zip(number.to_le_bytes()).for_each(|(byte, of_number)| *byte = of_number);
    let variant = if number < load.overrides { u32::try_from(number + 1)? } else { 0 };
    let charge = Charge {
        key: BucketKey(key),
        algorithm: Algorithm::TokenBucket(TokenBucket::new(rate, load.burst).map_err(|wrong| format!("{wrong:?}"))?),
        cost: Cost::ONE,
        limit: LimitId(0),
        tag: LimitTag(u32::try_from(number % load.limits)?).of_variant(variant),
        purpose: ChargePurpose::Spend,
        variant,
    };
    Ok(Plan { enforced: smallvec![charge], shadow: smallvec![] })
}
