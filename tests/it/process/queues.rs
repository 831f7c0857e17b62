//! Requests that wait in the queue of a leaky bucket while their process is replaced, restarted or killed.

use std::time::Duration;

use crate::support::{Client, Gateway, Orphan, Redis, Upstream, now};

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// One place every three seconds, so that a test can act during a wait, also on a busy machine.
const LINE: &str = "
rules: [{name: line, limit_keys: [], expose: true, algorithm: leaky_bucket, algorithm_config: {rate: 20/min, queue: 5, max_wait: 20s}}]
";

/// Sends one request that is forwarded at once, and `many` requests that wait.
fn waiting(gateway: &Gateway, many: u32) -> Vec<Client> {
    assert_eq!(gateway.client().get("/", &[]).status, 200);
    let clients = (1..=many).map(|number| {
        let mut client = gateway.client();
        client.write(GET);
        gateway.expect("rate_limiter_waiting", &[], f64::from(number));
        client
    });
    clients.collect()
}

/// Returns how long a new request waits for the requests ahead of it, in seconds, rounded up.
#[track_caller]
fn wait_behind(gateway: &Gateway) -> u64 {
    let response = gateway.client().get("/", &[]);
    assert_eq!(response.status, 200, "{response:?}");
    response.number("ratelimit-reset")
}

/// The old process answers its waiting requests, and the next process knows that their places are taken.
#[test]
fn an_upgrade_hands_over_the_queue_and_answers_all_that_wait() {
    let hands_over = |store: &str| {
        let upstream = Upstream::start();
        let mut gateway = Gateway::start(&upstream, &format!("{LINE}{store}"));
        let start = now();
        let clients = waiting(&gateway, 2);
        gateway.signal("USR2");
        let next = Orphan::of(&gateway, 1);
        let behind = wait_behind(&gateway);
        assert!(
            start.elapsed() >= Duration::from_millis(8_990),
            "the next one waited for {:?} and {behind} s",
            start.elapsed()
        );
        for mut client in clients {
            let response = client.response("GET").unwrap();
            assert_eq!((response.status, response.field("connection").as_deref()), (200, Some("close")));
        }
        assert_eq!(gateway.wait().0.code(), Some(0), "{}", gateway.errors());
        assert!(next.is_running());
        assert_eq!(upstream.count(), 4);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| hands_over(""));
        hands_over("store: {memory: {file: buckets.tgb}}\n");
    });
}

#[test]
fn a_restart_with_a_file_keeps_the_places_that_are_taken() {
    let upstream = Upstream::start();
    let slow = LINE.replace("rate: 20/min", "rate: 6/hour").replace("20s", "1h");
    let config = format!("drain: {{timeout: 200ms}}\nstore: {{memory: {{file: buckets.tgb}}}}\n{slow}");
    let mut gateway = Gateway::start(&upstream, &config);
    let clients = waiting(&gateway, 2);
    gateway.signal("TERM");
    assert_eq!(gateway.wait().0.code(), Some(0));
    drop(clients);
    gateway.start_again();
    // The three others of five.
    let places_left = |gateway: &Gateway| {
        let mut clients = Vec::new();
        for number in 1..=3 {
            let mut client = gateway.client();
            client.write(GET);
            gateway.expect("rate_limiter_waiting", &[], f64::from(number));
            clients.push(client);
        }
        gateway.client().get("/", &[]).status
    };
    assert_eq!(places_left(&gateway), 429);
    assert_eq!(upstream.count(), 1);
}

/// Requests that wait in a killed process are lost. In Redis their places stay taken, and become free at the rate.
#[test]
fn a_killed_gateway_leaves_the_places_of_its_requests_taken() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    let config = format!("{LINE}{}", redis.patient_store());
    let mut first = Gateway::start(&upstream, &config);
    let other = Gateway::start(&upstream, &config);
    let start = now();
    let mut clients = waiting(&first, 2);
    first.signal("KILL");
    first.wait();
    assert!(clients.iter_mut().all(Client::is_closed_without_response));
    let behind = wait_behind(&other);
    assert!(start.elapsed() >= Duration::from_millis(8_990), "it waited for {:?} and {behind} s", start.elapsed());
    assert_eq!(upstream.count(), 2);
    first.start_again();
    assert_eq!(first.client().get("/", &[]).status, 200);
    assert!(start.elapsed() >= Duration::from_millis(11_990), "{:?}", start.elapsed());
}
