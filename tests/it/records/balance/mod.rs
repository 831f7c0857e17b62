//! The records balance: at random faults, the sums of all lines are what the buckets say, or differ by what a fault explains, and
//! `tollgate records check` says by how much.

mod books;
mod known_bad;
mod lines;
mod play;
mod site;

use std::sync::atomic::{AtomicU64, Ordering};

use books::LossOf;
use play::{Run, Setup, play};
use site::{Fault, StoreKind};

use crate::support::{chosen_runs, print_measured, short_or_long};

/// How many sites run at the same time.
const SITES: u64 = 3;

/// Faults after which everything must be equal.
const HARMLESS: [Fault; 5] = [Fault::Restart, Fault::Pause, Fault::Upgrade, Fault::FullDisk, Fault::Rotation];

/// The setups of the short form: each store, and each fault at least once.
fn short() -> Vec<Setup> {
    let runs: [(StoreKind, &[Fault]); 6] = [
        (StoreKind::Redis, &[Fault::FullDisk, Fault::Restart, Fault::Pause]),
        (StoreKind::Redis, &[Fault::Upgrade, Fault::Rotation, Fault::Kill]),
        (StoreKind::ImpatientRedis, &[Fault::Outage, Fault::Flush]),
        (StoreKind::Sentinels, &[Fault::Failover]),
        (StoreKind::Postgres, &[Fault::Upgrade, Fault::Pause]),
        (StoreKind::Memory, &[Fault::Upgrade, Fault::Restart]),
    ];
    (0..).zip(runs).map(|(seed, (store, faults))| Setup { seed, store, faults: faults.to_vec() }).collect()
}

/// Returns the setup of a random run: half of them must balance to the unit.
fn random(seed: u64) -> Setup {
    let mut random = fastrand::Rng::with_seed(seed);
    let (store, further): (StoreKind, &[Fault]) = match seed % 8 {
        0..4 => ([StoreKind::Redis, StoreKind::Redis, StoreKind::Postgres, StoreKind::Memory][random.usize(..4)], &[]),
        4 | 5 => (StoreKind::Redis, &[Fault::Kill, Fault::Kill, Fault::Flush]),
        6 => (StoreKind::ImpatientRedis, &[Fault::Outage, Fault::Outage, Fault::Kill]),
        _ => ([StoreKind::Sentinels, StoreKind::Postgres][random.usize(..2)], &[]),
    };
    let pool = [&HARMLESS[..], further, further].concat();
    let mut faults: Vec<Fault> = (0..random.usize(1..6)).map(|_| pool[random.usize(..pool.len())]).collect();
    match (seed % 8, store) {
        // A store that is waited for only briefly may lack an answer at any time, on a busy machine without an outage too.
        (6, _) => faults.insert(random.usize(..=faults.len()), Fault::Outage),
        (7, StoreKind::Sentinels) => faults.insert(random.usize(..=faults.len()), Fault::Failover),
        (7, _) => faults.insert(random.usize(..=faults.len()), Fault::Kill),
        _ => {}
    }
    Setup { seed, store, faults }
}

#[test]
fn records_are_what_the_buckets_say_or_differ_by_what_a_fault_explains() {
    let setups: Vec<Setup> = short_or_long(short(), chosen_runs(0..200).map(random).collect());
    let next = AtomicU64::new(0);
    let runs: Vec<Run> = std::thread::scope(|scope| {
        let lane = || {
            let mut runs = Vec::new();
            while let Some(setup) = setups.get(usize::try_from(next.fetch_add(1, Ordering::Relaxed)).unwrap()) {
                let (run, _) = play(setup, None);
                report(&run);
                runs.push(run);
            }
            runs
        };
        let lanes: Vec<_> = (0..SITES).map(|_| scope.spawn(lane)).collect();
        lanes.into_iter().flat_map(|lane| lane.join().unwrap()).collect()
    });
    for (name, is) in [
        ("nothing is lost", (|run| run.books.is_exact()) as fn(&Run) -> bool),
        ("a gateway is killed", |run| lost(run, |of| matches!(of, LossOf::Records(_)))),
        ("the store gives no answer", |run| lost(run, |of| of == LossOf::Answers)),
        ("the store forgets", |run| lost(run, |of| of == LossOf::Store)),
    ] {
        let own: Vec<_> = runs.iter().filter(|run| is(run)).collect();
        let [more, less] =
            own.iter().map(|run| run.differences()).fold([0, 0], |[a, b], [more, less]| [a + more, b + less]);
        print_measured(&format!(
            "records: {name}: {} runs, {} calls, {} recorded, {} more spent, {} less spent",
            own.len(),
            own.iter().map(|run| run.books.calls.len()).sum::<usize>(),
            own.iter().map(|run| run.recorded()).sum::<u64>() / 1000,
            more / 1000,
            less / 1000,
        ));
        assert!(!own.is_empty(), "{name}: not played");
    }
    for run in &runs {
        assert_eq!(run.findings(), [], "{:?}: {:?}\n{}", run.setup, run.books.losses, run.check.out);
        assert_eq!(run.unexplained().len(), 0, "{:?}: {:?}", run.setup, run.unexplained());
        if run.books.is_exact() {
            assert_eq!((run.check.code, run.differences()), (Some(0), [0, 0]), "{:?}: {}", run.setup, run.check.out);
        }
    }
}

fn lost(run: &Run, is: impl Fn(LossOf) -> bool) -> bool {
    run.books.losses.iter().any(|loss| is(loss.of))
}

/// Prints a line about a run, and all about one in which something is wrong.
fn report(run: &Run) {
    let (setup, findings, [more, less]) = (&run.setup, run.findings(), run.differences());
    print_measured(&format!(
        "run {}: {:?} {:?}: {} calls, {} recorded, {more} more and {less} less spent (thousandths)",
        setup.seed,
        setup.store,
        setup.faults,
        run.books.calls.len(),
        run.recorded() / 1000,
    ));
    let unexplained = run.unexplained();
    if !findings.is_empty() || !unexplained.is_empty() {
        let losses = &run.books.losses;
        print_measured(&format!("{findings:#?}, {losses:?}, {unexplained:?}\n{}\n{}", run.check.out, run.logs));
    }
}
