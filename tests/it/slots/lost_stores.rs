//! A store that stands still, loses its data, or is replaced: what requests hold is counted again within two seconds, and
//! until then at most as much as was held is admitted beyond the limit.

use std::time::{Duration, Instant};

use super::upstream::SlowUpstream;
use super::{begin, get, hold, slots};
use crate::support::sentinel::{SentinelGroup, SentinelSetup};
use crate::support::{Client, Gateway, Redis, eventually, now, print_measured};

/// The time within which each gateway has reported again what it holds.
const REPORTED: Duration = Duration::from_secs(2);

/// How late a busy machine may be.
const LATE: Duration = Duration::from_millis(1500);

/// The number of slots of the user.
const LIMIT: usize = 3;

/// Two gateways on one store, each in front of an upstream of its own. Requests at the first one hold all slots of the
/// user.
struct Scene {
    upstreams: [SlowUpstream; 2],
    gateways: [Gateway; 2],
    held: Vec<Client>,
}

/// Returns the store section for this server, whose calls fail after 300 ms. Requests without a decision are refused.
fn store(redis: &Redis) -> String {
    redis.store("deny").replace("\"}}", "\", timeout: 300ms}}")
}

impl Scene {
    fn on(store: &str) -> Scene {
        let upstreams = [(); 2].map(|()| SlowUpstream::start());
        let config = format!("{store}{}", slots(LIMIT));
        let gateways = upstreams.each_ref().map(|slow| Gateway::start(&slow.upstream, &config));
        let held = (1..=LIMIT).map(|running| hold(&gateways[0], &upstreams[0], running)).collect();
        eventually("all slots are held", || get(&gateways[1], "/", "ann").status == 429);
        Scene { upstreams, gateways, held }
    }

    /// Lets the store stand still for this time. Meanwhile no request gets a decision.
    fn pause(&self, redis: &Redis, time: Duration) {
        redis.signal("STOP");
        let start = now();
        while start.elapsed() < time {
            assert_eq!(get(&self.gateways[1], "/", "ann").status, 503);
            std::thread::sleep(Duration::from_millis(20));
        }
        redis.signal("CONT");
    }

    /// Sends requests to the second gateway, one after the other, until one is refused because all slots are held. Returns
    /// the admitted ones, which run until [`SlowUpstream::finish`]. While the store gives no decision, `back` is set to now.
    fn admitted(&self, back: &mut Instant) -> Vec<Client> {
        let mut admitted = Vec::new();
        loop {
            let mut client = begin(&self.gateways[1], "/hold", "ann");
            let mut is_refused = false;
            eventually("the request runs, or is refused", || {
                is_refused = client.receives_within(Duration::from_millis(5));
                is_refused || self.upstreams[1].has_running(admitted.len() + 1)
            });
            match is_refused.then(|| client.response("GET").unwrap().status) {
                None => admitted.push(client),
                Some(429) => return admitted,
                Some(503) => *back = now(),
                Some(other) => panic!("{other}"),
            }
        }
    }

    /// The store has been back since `back`, and has no report that is older. Returns how many requests were admitted beyond
    /// the limit.
    #[track_caller]
    fn expect_reports(mut self, what: &str, mut back: Instant) -> usize {
        let mut beyond = self.admitted(&mut back);
        let count = beyond.len();
        assert!(count <= LIMIT, "{count} beyond the limit after {what}");
        // Those end, so all slots that are held are those of the first gateway.
        self.upstreams[1].finish(count);
        beyond.iter_mut().for_each(|client| assert_eq!(client.response("GET").unwrap().status, 200));
        self.gateways[1].expect("rate_limiter_in_flight", &[], 0.0);
        eventually("what is held is counted", || get(&self.gateways[1], "/", "ann").status == 429);
        let took = back.elapsed();
        print_measured(&format!("{what}: {count} beyond {LIMIT} slots, counted again after {took:?}"));
        assert!(took < REPORTED + LATE, "{took:?} after {what}");
        self.expect_exact();
        count
    }

    /// Ends one request after the other. Both gateways count exactly those that still run.
    #[track_caller]
    fn expect_exact(&mut self) {
        for left in 0..LIMIT {
            self.upstreams[0].finish(1);
            for gateway in &self.gateways {
                let free = format!("\"in-flight\";r={left}");
                eventually("the slot is free", || {
                    let seen = get(gateway, "/", "ann");
                    (seen.status, seen.field("ratelimit")) == (200, Some(free.clone()))
                });
            }
        }
        self.held.iter_mut().for_each(|client| assert_eq!(client.response("GET").unwrap().status, 200));
        self.gateways.iter().for_each(|gateway| gateway.expect("rate_limiter_in_flight", &[], 0.0));
    }
}

#[test]
fn a_store_that_stands_still_for_less_than_its_timeout_only_delays() {
    let redis = Redis::start();
    let mut scene = Scene::on(&redis.patient_store());
    redis.signal("STOP");
    let mut waiting = begin(&scene.gateways[1], "/", "ann");
    assert!(!waiting.receives_within(Duration::from_secs(1)));
    // A slot ends meanwhile.
    scene.upstreams[0].finish(1);
    let ended = scene.held.iter_mut().position(|client| client.receives_within(Duration::from_secs(1))).unwrap();
    assert_eq!(scene.held.remove(ended).response("GET").unwrap().status, 200);
    redis.signal("CONT");
    let back = now();
    // Its call was sent before that of the slot's end.
    assert_eq!(waiting.response("GET").unwrap().status, 429);
    eventually("the slot is free", || get(&scene.gateways[1], "/", "ann").status == 200);
    let took = back.elapsed();
    print_measured(&format!("a pause below the timeout: the slot is free after {took:?}"));
    assert!(took < REPORTED + LATE, "{took:?}");
    scene.held.push(hold(&scene.gateways[0], &scene.upstreams[0], LIMIT));
    scene.expect_exact();
    assert_eq!(scene.upstreams[0].most(), LIMIT);
}

#[test]
fn a_store_that_stands_still_for_longer_than_its_timeout_admits_nothing_beyond() {
    let redis = Redis::start();
    let scene = Scene::on(&store(&redis));
    scene.pause(&redis, Duration::from_secs(1));
    assert_eq!(scene.expect_reports("a pause of the store of 1 s", now()), 0);
}

#[test]
fn a_store_that_stands_still_for_longer_than_holds_last_hears_again_what_is_held() {
    let redis = Redis::start();
    let scene = Scene::on(&store(&redis));
    scene.pause(&redis, Duration::from_secs(8));
    scene.expect_reports("a pause of the store of 8 s", now());
}

#[test]
fn a_store_that_is_flushed_hears_again_what_is_held() {
    let redis = Redis::start();
    let scene = Scene::on(&store(&redis));
    redis.command::<()>(&["FLUSHALL"]);
    scene.expect_reports("FLUSHALL", now());
}

#[test]
fn a_store_that_is_restarted_without_its_data_hears_again_what_is_held() {
    let mut redis = Redis::start();
    let scene = Scene::on(&store(&redis));
    redis.kill();
    eventually("requests are refused", || get(&scene.gateways[1], "/", "ann").status == 503);
    redis.restart();
    scene.expect_reports("a restart of the store", now());
}

/// The successor lacks everything, as if the master had not replicated it.
#[test]
fn the_successor_of_a_lost_master_hears_again_what_is_held() {
    let mut group = SentinelGroup::with(&SentinelSetup::default());
    let scene = Scene::on(&group.store("deny").replace("}}}", "}, timeout: 300ms}}"));
    group.servers[0].kill();
    eventually("the sentinels replace the master", || group.servers[1].role().starts_with("master"));
    group.servers[1].command::<()>(&["FLUSHALL"]);
    scene.expect_reports("a failover", now());
}
