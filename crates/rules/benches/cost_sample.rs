//! Measures how long it takes to learn a cost, and to read a quantile: `cargo bench -p tollgate-rules --bench
//! cost_sample`.
//!
//! The table has a sample for each of 1000 values of an attribute, as in the gateway. The first measurement fills the
//! sample of each value.
#![expect(clippy::print_stdout, reason = "a benchmark prints what it has measured")]

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::Instant;

use ledger::cost::Cost;
use rules::cost_sample::CostSample;

const ROUNDS: u64 = 1_000_000;
const VALUES: u64 = 1000;

fn main() {
    let names: Vec<Box<[u8]>> =
        (0..VALUES).map(|number| format!("provider/model-{number}").into_bytes().into()).collect();
    let samples = names.iter().map(|name| (name.clone(), Mutex::<CostSample>::default())).collect();
    let table: RwLock<HashMap<Box<[u8]>, Mutex<CostSample>>> = RwLock::new(samples);
    // The sequence has no pattern, so that the costs of a sample are in no order.
    let cost = |round: u64| Cost::from_tokens(round.wrapping_mul(6_364_136_223_846_793_005) >> 50);
    let with = |round: u64, act: &mut dyn FnMut(&mut CostSample)| {
        let table = table.read().unwrap_or_else(PoisonError::into_inner);
        let name = usize::try_from(round % VALUES).ok().and_then(|index| names.get(index));
        if let Some(sample) = name.and_then(|name| table.get(name)) {
            act(&mut sample.lock().unwrap_or_else(PoisonError::into_inner));
        }
    };
    measure("learn", |round| with(round, &mut |sample| sample.add(cost(round))));
    measure("learn, full samples", |round| with(round, &mut |sample| sample.add(cost(round))));
    measure("read", |round| {
        with(round, &mut |sample| {
            black_box(sample.quantile(black_box(950)));
        });
    });
}

fn measure(name: &str, mut act: impl FnMut(u64)) {
    #[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
    let begin = Instant::now();
    (0..ROUNDS).for_each(&mut act);
    println!("{name}: {} ns", begin.elapsed().as_nanos() / u128::from(ROUNDS));
}
