//! Budgets through whole gateways: clients that finish, leave or are left, while gateways are killed or replaced and the store is
//! flushed or fails over. What `tollgate bucket show` says agrees with what the upstream has counted.

mod books;
mod known_bad;
mod play;

use std::sync::atomic::{AtomicU64, Ordering};

use play::{Fault, Run, Setup, Site};

use crate::support::{print_measured, short_or_long};

/// How many sites run at the same time.
const SITES: u64 = 3;

#[test]
fn what_is_spent_agrees_with_what_the_upstream_counted_at_random_faults() {
    let runs = short_or_long(10, 400);
    let next = AtomicU64::new(0);
    let results: Vec<Run> = std::thread::scope(|scope| {
        let lane = || {
            let (mut site, mut results) = (None, Vec::new());
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= runs {
                    return results;
                }
                let setup = Setup::random(seed);
                let run = if setup.faults.contains(&Fault::Failover) {
                    // A group of servers survives one failover.
                    Site::start(Fault::Failover, None, "").play(&setup)
                } else {
                    site.get_or_insert_with(|| Site::start(Fault::Nothing, None, "")).play(&setup)
                };
                report(&run);
                results.push(run);
            }
        };
        let lanes: Vec<_> = (0..SITES).map(|_| scope.spawn(lane)).collect();
        lanes.into_iter().flat_map(|lane| lane.join().unwrap()).collect()
    });
    for fault in Fault::ALL {
        let own: Vec<_> = results.iter().filter(|run| run.setup.faults[0] == fault).collect();
        let sum = |number: fn(&Run) -> u64| own.iter().map(|run| number(run)).sum::<u64>();
        print_measured(&format!(
            "budgets of gateways: {fault:?}: {} runs, {} calls at the upstream, {} not admitted, {} to {} tokens, {} shown, {} forgotten at most",
            own.len(),
            sum(|run| run.books.entries.iter().filter(|entry| entry.sent.is_some()).count() as u64),
            sum(|run| run.books.entries.iter().filter(|entry| entry.sent.is_none()).count() as u64),
            sum(|run| run.books.spent()[0]),
            sum(|run| run.books.spent()[1]),
            sum(|run| run.after.spent),
            sum(|run| run.books.forgotten()),
        ));
        assert!(!own.is_empty(), "{fault:?} was not played");
    }
    for run in &results {
        let admitted = run.books.entries.iter().filter(|entry| entry.sent.is_some()).count();
        assert!(admitted > 5, "{:?}: {admitted}", run.setup);
        assert_eq!(run.findings(), [], "{:?}: {:?}, {:?}", run.setup, run.after, run.books.spent());
        assert!(run.books.unexplained().is_empty(), "{:?}: {:?}", run.setup, run.books.unexplained());
    }
}

/// Prints a line about a run, and all about one in which something is odd.
fn report(run: &Run) {
    let (findings, setup, [least, most]) = (run.findings(), &run.setup, run.books.spent());
    let (calls, shown, unexplained) = (run.books.entries.len(), run.after, run.books.unexplained());
    let (seed, faults, limit) = (setup.seed, &setup.faults, setup.limit.name);
    print_measured(&format!("run {seed}: {faults:?}, limit {limit}, {calls} calls, {least} to {most} used, {shown:?}"));
    if !findings.is_empty() || !unexplained.is_empty() {
        print_measured(&format!("{findings:?}, {:?}, {unexplained:?}\n{}", run.books.losses, run.logs));
    }
}
