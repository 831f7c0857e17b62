//! Thresholds under load: three gateways on one store, many callers, and between them grants, resets, raises and upgrades. Each
//! threshold has exactly one line.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::read;
use crate::support::bucket_command::{bucket, document};
use crate::support::{Gateway, Orphan, Redis, Upstream, chosen_runs, eventually, print_measured, short_or_long};

const LIMIT: u64 = 40;
/// What a raise adds. Its amounts are above all that were reported before.
const RAISE: u64 = 40;
const CALLERS: usize = 9;

const RULES: &str = "
rules:
  - {name: pro, limit_keys: [header:x-user], algorithm: fixed_window, algorithm_config: {limit: 40, window: 366d}, meter: api}
records: {to: records.jsonl, every: 1d, meters: [api], subject: [header:x-user], thresholds: [80%, 100%]}
";

/// What an operator does during a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Grant,
    Reset,
    Raise,
    Upgrade,
}

struct Site {
    /// The first gateway is the one that is upgraded.
    gateways: [Gateway; 3],
    next: Option<Orphan>,
    handovers: usize,
}

/// The callers of one subject. They ask until they have been refused everywhere after the last act.
#[derive(Default)]
struct Load {
    granted: AtomicU64,
    refused: AtomicU64,
    is_over: AtomicBool,
    broken: Mutex<Vec<String>>,
}

impl Load {
    fn call(&self, address: SocketAddr, user: &str) {
        while !self.is_over.load(Ordering::Relaxed) {
            match ask(address, user) {
                answer if answer.starts_with("HTTP/1.1 200") => _ = self.granted.fetch_add(1, Ordering::Relaxed),
                answer if answer.starts_with("HTTP/1.1 429") => {
                    self.refused.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(10));
                }
                answer => self.broken.lock().unwrap().push(answer),
            }
        }
    }

    /// Waits until nothing is left: each caller is refused again and again.
    fn await_refusals(&self) {
        let before = self.refused.load(Ordering::Relaxed);
        let enough = before + 10 * CALLERS as u64;
        eventually("all callers are refused", || self.refused.load(Ordering::Relaxed) > enough);
    }
}

fn ask(address: SocketAddr, user: &str) -> String {
    let head = format!("GET / HTTP/1.1\r\nHost: a\r\nX-User: {user}\r\nConnection: close\r\n\r\n");
    let mut answer = String::new();
    let done = TcpStream::connect(address).and_then(|mut stream| {
        stream.write_all(head.as_bytes())?;
        stream.read_to_string(&mut answer)
    });
    done.map_or_else(|error| error.to_string(), |_| answer)
}

impl Site {
    fn start(upstream: &Upstream, redis: &Redis) -> Site {
        let config = format!("{}\n{RULES}", redis.patient_store());
        let site = Site { gateways: [(); 3].map(|()| Gateway::start(upstream, &config)), next: None, handovers: 0 };
        site.are_known();
        site
    }

    /// Waits until all gateways know of each other: none tells a threshold before.
    fn are_known(&self) {
        for gateway in &self.gateways {
            eventually("all gateways are known", || gateway.metric("rate_limiter_live_gateways", &[]) == 3.0);
        }
    }

    fn upgrade(&mut self) {
        match &self.next {
            Some(next) => next.signal("USR2"),
            None => self.gateways[0].signal("USR2"),
        }
        self.handovers += 1;
        let next = Orphan::of(&self.gateways[0], self.handovers);
        match &self.next {
            Some(previous) => eventually("the previous process ends", || !previous.is_running()),
            None => assert!(self.gateways[0].wait().0.success(), "{}", self.gateways[0].errors()),
        }
        self.next = Some(next);
    }

    fn act(&mut self, act: Act, user: &str) {
        let key = format!("header:x-user={user}");
        let raise = format!("+{RAISE}");
        let words: &[&str] = match act {
            Act::Upgrade => return self.upgrade(),
            Act::Grant => &["grant", "pro", &key, "15"],
            Act::Reset => &["reset", "pro", &key],
            Act::Raise => &["raise", "pro", &key, &raise, "--until", "period-end", "--id", "more"],
        };
        let output = bucket(&self.gateways[1], words);
        assert_eq!(output.code, Some(0), "{act:?}: {output:?}");
    }

    /// Returns how often each amount was reported of a subject.
    fn told(&self, user: &str) -> BTreeMap<u64, u64> {
        let mut told = BTreeMap::new();
        for line in self.gateways.iter().flat_map(|gateway| read(&gateway.file("records.jsonl"))) {
            if line["type"] == "tollgate.threshold" && line["data"]["subject"] == user {
                *told.entry(line["data"]["quantity"].as_u64().unwrap()).or_default() += 1;
            }
        }
        told
    }

    /// Plays one subject. Half of the runs spend all before the first act; in the others the first act comes in between.
    fn play(&mut self, seed: u64) {
        let mut random = fastrand::Rng::with_seed(seed);
        let user = format!("user-{seed}");
        let mut acts = vec![Act::Raise, Act::Grant, Act::Reset];
        if seed.is_multiple_of(5) {
            acts.push(Act::Upgrade);
        }
        random.shuffle(&mut acts);
        acts.truncate(random.usize(2..=acts.len()));
        let is_spent_first = seed.is_multiple_of(2);
        let is_raised = acts.contains(&Act::Raise);
        let limit = if is_raised { LIMIT + RAISE } else { LIMIT };
        let key = format!("header:x-user={user}");
        let (load, addresses) = (Load::default(), self.gateways.each_ref().map(|gateway| gateway.http));
        std::thread::scope(|scope| {
            for caller in 0..CALLERS {
                let (load, address, user) = (&load, addresses[caller % 3], &user);
                scope.spawn(move || load.call(address, user));
            }
            let end = EndOfCalls(&load);
            if is_spent_first {
                load.await_refusals();
            } else {
                let first = random.u64(5..LIMIT - 5);
                eventually("some are granted", || load.granted.load(Ordering::Relaxed) >= first);
            }
            for act in &acts {
                self.act(*act, &user);
                std::thread::sleep(Duration::from_millis(random.u64(0..60)));
            }
            // A process that has just started tells nothing until it knows the others. Their next charges tell it.
            self.are_known();
            // A gateway that knows the bucket as empty hears of a reset up to a second later.
            let spent = || document(&self.gateways[1], &["show", "pro", &key])["buckets"][0]["spent"].clone();
            eventually("all is spent", || spent() == limit);
            load.await_refusals();
            assert_eq!(spent(), limit, "{acts:?}");
            drop(end);
        });
        let broken = load.broken.into_inner().unwrap();
        assert!(broken.is_empty(), "{broken:?}");
        // Of the amounts of the earlier limit, those that were reached before the raise have a line.
        let must: Vec<u64> = [is_spent_first || !is_raised, is_raised]
            .into_iter()
            .zip([LIMIT, LIMIT + RAISE])
            .filter(|(is_reached, _)| *is_reached)
            .flat_map(|(_, limit)| [limit * 4 / 5, limit])
            .collect();
        eventually("the thresholds are reported", || must.iter().all(|amount| self.told(&user).contains_key(amount)));
        let granted = load.granted.load(Ordering::Relaxed);
        print_measured(&format!("thresholds {seed}: {acts:?}, {granted} granted, {:?}", self.told(&user)));
        self.are_right(seed, &user);
    }

    /// Checks that no amount is reported twice, and no other amount is reported.
    fn are_right(&self, seed: u64, user: &str) {
        let told = self.told(user);
        let known = [LIMIT, LIMIT + RAISE].map(|limit| [limit * 4 / 5, limit]).concat();
        let is_right = told.iter().all(|(amount, times)| *times == 1 && known.contains(amount));
        assert!(is_right, "{seed}: {told:?}");
    }
}

/// Ends the calls, also if the test fails.
struct EndOfCalls<'l>(&'l Load);

impl Drop for EndOfCalls<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

#[test]
fn each_threshold_has_one_line_over_three_gateways_whatever_an_operator_does() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let mut site = Site::start(&upstream, &redis);
    let runs = short_or_long(0..5, chosen_runs(0..100));
    runs.clone().for_each(|seed| site.play(seed));
    // Also after all is over.
    runs.for_each(|seed| site.are_right(seed, &format!("user-{seed}")));
}
