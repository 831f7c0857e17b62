//! Budgets while gateways are killed, connections end, the server is flushed or fails over: what is spent agrees with what the
//! requests have really cost.

mod books;
mod gateways;
mod known_bad;
mod play;

use std::sync::atomic::{AtomicU64, Ordering};

use play::{Fault, Pair, Setup};

use crate::support::{print_measured, short_or_long};

/// How many pairs of servers run at the same time.
const PAIRS: u64 = 8;

#[test]
fn what_is_spent_agrees_with_what_was_used_at_random_faults() {
    let runs = short_or_long(24, 400);
    let next = AtomicU64::new(0);
    let results: Vec<_> = std::thread::scope(|scope| {
        let lane = || {
            let mut pair = Pair::start();
            let mut results = Vec::new();
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= runs {
                    return results;
                }
                results.push(pair.play(&Setup::random(seed)));
            }
        };
        let lanes: Vec<_> = (0..PAIRS).map(|_| scope.spawn(lane)).collect();
        lanes.into_iter().flat_map(|lane| lane.join().unwrap()).collect()
    });
    for fault in Fault::ALL {
        let own: Vec<_> = results.iter().filter(|result| result.setup.fault == fault).collect();
        let sum = |number: fn(&play::Run) -> u64| own.iter().map(|result| number(result)).sum::<u64>();
        print_measured(&format!(
            "budgets: {fault:?}: {} runs, {} requests admitted, {} refused, {} tokens used, {} forgotten at most",
            own.len(),
            sum(|played| played.books.settled.len() as u64),
            sum(|played| played.books.refused),
            sum(|played| played.books.used()),
            sum(|played| played.books.used() - played.books.certain()),
        ));
        assert!(!own.is_empty(), "{fault:?} was not played");
    }
    for result in &results {
        assert!(result.books.settled.len() > 20, "{:?}: {}", result.setup, result.books.settled.len());
        assert_eq!(result.findings(), [], "{:?}: {:?}", result.setup, result.after);
    }
}
