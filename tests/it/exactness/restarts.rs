//! Gateways that are stopped and killed: amounts in Redis or in a file are not lost.

use super::history::windows::{Grant, excess};
use super::history::{ClockOffset, Sample, long_samples, micros, rules};
use crate::support::{Gateway, Redis, Upstream, now, print_measured, short_or_long};

/// The amount that a restart may add to every window.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Loss {
    Nothing,
    /// At most the whole capacity of the limit, at each restart.
    AtMostAll,
    /// The whole capacity of the limit, at each restart.
    All,
}

/// Uses up each limit, ends the gateway, and starts it again, several times.
#[track_caller]
fn limits_hold_over(fault: &str, store: &str, signal: &str, loss: Loss) {
    let upstream = Upstream::start();
    let samples = long_samples();
    let mut gateway = Gateway::start(&upstream, &format!("{store}{}", rules(&samples)));
    let start = now();
    let clock = ClockOffset::of_this_machine(start);
    let (times, mut granted) = (short_or_long(2, 20), vec![Vec::new(); samples.len()]);
    for time in 0..=times {
        let mut client = gateway.client();
        for (sample, granted) in samples.iter().zip(&mut granted) {
            for _ in 0..50 {
                let sent = micros(start);
                match client.get("/", &[(&sample.header(), "a")]).status {
                    200 => granted.push(Grant { sent, answered: micros(start) + 1, cost: 1000 }),
                    429 => break,
                    status => panic!("{fault}, {}: {status}", sample.name),
                }
            }
        }
        if time < times {
            drop(client);
            gateway.signal(signal);
            gateway.wait();
            gateway.start_again();
        }
    }
    for (Sample { name, limit }, grants) in samples.iter().zip(&granted) {
        let lost = i128::from(times) * limit.capacity();
        let bound = if loss == Loss::Nothing { 0 } else { lost };
        let excess = excess(&limit.of_responses(), grants, &clock);
        print_measured(&format!(
            "restart: {fault}, {times} times, {name}, {} granted, excess {}, bound {}",
            grants.len(),
            limit.tokens(excess),
            limit.tokens(bound)
        ));
        assert!(excess <= bound, "{fault}, {name}: {} of {}", limit.tokens(excess), limit.tokens(bound));
        // Or nothing was shown.
        let least = if loss == Loss::All { usize::try_from(times + 1).unwrap() } else { 1 };
        assert!(grants.len() >= 20 * least, "{fault}, {name}: {}", grants.len());
    }
}

#[test]
fn a_gateway_with_redis_forgets_nothing() {
    let redis = Redis::start();
    limits_hold_over("a gateway with Redis is killed", &redis.patient_store(), "KILL", Loss::Nothing);
}

#[test]
fn a_gateway_with_a_file_forgets_nothing_when_it_is_stopped() {
    let store = "store: {memory: {file: buckets.tgb}}\n";
    limits_hold_over("memory with a file, restart", store, "TERM", Loss::Nothing);
}

#[test]
fn a_gateway_with_a_file_forgets_at_most_what_it_has_not_saved_when_it_is_killed() {
    let store = "store: {memory: {file: buckets.tgb, save_every: 1s}}\n";
    limits_hold_over("memory with a file, kill", store, "KILL", Loss::AtMostAll);
}

#[test]
fn a_gateway_without_a_file_forgets_everything() {
    limits_hold_over("memory without a file, restart", "", "TERM", Loss::All);
    limits_hold_over("memory without a file, kill", "", "KILL", Loss::All);
}
