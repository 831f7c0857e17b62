//! A judge of whole gateways, of all that has passed in each period over all regions, and mistakes of the keeper of leases that it finds.

use std::time::{Duration, Instant};

use super::{ask, on_redis, store};
use crate::support::{Answers, Gateway, Redis, Relay, Upstream, now, print_measured};

const LIMIT: usize = 40;
const PERIOD: Duration = Duration::from_secs(4);
/// The way of an answer from home to a region.
const FAR: Duration = Duration::from_millis(300);
/// When the regions lease before the end of a period.
const BEFORE_END: Duration = Duration::from_millis(900);
const RULES: &str = "check: {allow: [unverified_key]}\nrules:\n  - name: short\n    scope: global\n    lease: {share: 50%}\n    \
                     limit_keys: [header:x-user]\n    algorithm: fixed_window\n    algorithm_config: {limit: 40, window: 4s}\n";

/// A moment on the clock of home, with that of the test.
#[derive(Clone, Copy)]
struct HomeClock {
    since_epoch: Duration,
    at: Instant,
}

impl HomeClock {
    fn read(home: &Redis) -> HomeClock {
        let time: Vec<u64> = home.command(&["TIME"]);
        HomeClock { since_epoch: Duration::from_secs(time[0]) + Duration::from_micros(time[1]), at: now() }
    }

    /// Returns the number of the period at a moment, and how much of it has passed.
    fn period(self, at: Instant) -> (u64, Duration) {
        let time = self.since_epoch + at.duration_since(self.at);
        let (number, nanos) = (time.as_nanos() / PERIOD.as_nanos(), time.as_nanos() % PERIOD.as_nanos());
        (u64::try_from(number).unwrap(), Duration::from_nanos(u64::try_from(nanos).unwrap()))
    }

    fn wait_for(self, place: Duration) {
        let (_, passed) = self.period(now());
        let wait = if passed <= place { place - passed } else { PERIOD + place - passed };
        std::thread::sleep(wait);
    }
}

/// Lets two regions lease shortly before the end of a period, with hardly a request, and spend all they can in the next one. Returns how
/// many requests have passed in that period for sure.
fn passed_in_a_period(mistake: Option<&str>) -> usize {
    let (upstream, home) = (Upstream::start(), Redis::start());
    let clock = HomeClock::read(&home);
    let regions = ["eu", "us"].map(|name| {
        let (redis, relay) = (Redis::start(), Relay::start(home.port));
        let text = store(&redis, name, &on_redis(relay.port))
            .replace("    timeout: 2s\n", "    timeout: 2s\n    return_after: 2s\n");
        let gateway = Gateway::before(&upstream).with(&(text + RULES));
        let gateway =
            mistake.into_iter().fold(gateway, |gateway, name| gateway.variable("TOLLGATE_TEST_FLAW", name)).start();
        gateway.expect_logged("home is up");
        // Home knows the scripts.
        assert_eq!(ask(&mut gateway.client(), "another").status, 200);
        relay.set(Answers::Late(FAR));
        (redis, relay, gateway)
    });
    clock.wait_for(PERIOD - BEFORE_END);
    let (period, _) = clock.period(now());
    let spending = regions.iter().map(|(_, _, gateway)| gateway.client());
    let spent: Vec<Vec<(Instant, Instant)>> = std::thread::scope(|scope| {
        let spend = |mut client: crate::support::Client| {
            scope.spawn(move || {
                assert_eq!(ask(&mut client, "a").status, 200);
                clock.wait_for(Duration::from_millis(5));
                let mut passed = Vec::new();
                while clock.period(now()).0 == period + 1 {
                    let sent = now();
                    match ask(&mut client, "a").status {
                        200 => passed.push((sent, now())),
                        _ => std::thread::sleep(Duration::from_millis(10)),
                    }
                }
                passed
            })
        };
        let spending: Vec<_> = spending.map(spend).collect();
        spending.into_iter().map(|spent| spent.join().unwrap()).collect()
    });
    let is_within = |(sent, received): &&(Instant, Instant)| {
        clock.period(*sent).0 == period + 1 && clock.period(*received).0 == period + 1
    };
    spent.iter().flatten().filter(is_within).count()
}

#[test]
fn the_judge_of_periods_finds_mistakes_of_the_keeper_and_none_without_them() {
    let mistakes = [None, Some("credit_first"), Some("endless_purse"), Some("ends_from_answer")];
    let passed = std::thread::scope(|scope| {
        let playing = mistakes.map(|mistake| scope.spawn(move || passed_in_a_period(mistake)));
        playing.map(|playing| playing.join().unwrap())
    });
    print_measured(&format!("passed in a period of {LIMIT}: {mistakes:?} {passed:?}"));
    let [right, wrong @ ..] = passed;
    assert!((LIMIT / 2..=LIMIT).contains(&right), "{right}");
    for (mistake, passed) in mistakes.iter().skip(1).zip(wrong) {
        assert!(passed > LIMIT, "{mistake:?}: {passed}");
    }
}
