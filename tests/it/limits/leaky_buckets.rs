//! Requests wait in the queue of a leaky bucket until they are forwarded, end to end.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Client, Gateway, Redis, Upstream, eventually, now, print_measured, short_or_long};

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// Returns one rule for all requests, with these numbers of a leaky bucket.
fn rules(numbers: &str) -> String {
    format!(
        "rules: [{{name: line, limit_keys: [], expose: true, algorithm: leaky_bucket, algorithm_config: {{{numbers}}}}}]"
    )
}

/// Starts an upstream that records when requests arrive.
fn recording() -> (Upstream, Arc<Mutex<Vec<Instant>>>) {
    let arrivals: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let recorded = Arc::clone(&arrivals);
    let upstream = Upstream::answering(move |_, stream| {
        recorded.lock().unwrap().push(now());
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    });
    (upstream, arrivals)
}

/// Sends two requests: one is forwarded at once, and this one waits in the queue.
fn waiting(gateway: &Gateway, request: &str) -> Client {
    assert_eq!(gateway.client().get("/first", &[]).status, 200);
    let mut client = gateway.client();
    client.write(request);
    gateway.expect("rate_limiter_waiting", &[], 1.0);
    client
}

/// The upstream gets requests of two gateways on one Redis at the rate of the bucket. No request is forwarded too early.
#[test]
fn the_upstream_gets_requests_at_the_rate() {
    let (upstream, arrivals) = recording();
    let redis = Redis::start();
    let config = format!("{}{}", redis.patient_store(), rules("rps: 20, queue: 9, max_wait: 10s, delay_after: 1"));
    let gateways = [(); 2].map(|()| Gateway::start(&upstream, &config));
    let start = now();
    let clients: Vec<_> = (0..16)
        .map(|number| {
            let mut client = gateways[number % 2].client();
            thread::spawn(move || client.get("/", &[]))
        })
        .collect();
    let responses: Vec<_> = clients.into_iter().map(|client| client.join().unwrap()).collect();
    let (granted, refused): (Vec<_>, Vec<_>) = responses.iter().partition(|response| response.status == 200);
    assert!(granted.len() >= 11, "{} granted", granted.len());
    for response in &refused {
        let reason = response.field("x-tollgate-reason");
        assert_eq!((response.status, reason.as_deref()), (429, Some("leaky_bucket_exceeded")));
    }
    let mut arrivals = arrivals.lock().unwrap().clone();
    arrivals.sort_unstable();
    assert_eq!(arrivals.len(), granted.len());
    for (number, arrival) in arrivals.iter().enumerate() {
        // The clocks of two processes on one machine are the same; a thousandth is allowed for how they are read.
        let moment = Duration::from_millis(50) * u32::try_from(number.saturating_sub(1)).unwrap();
        assert!(
            arrival.duration_since(start) + Duration::from_millis(1) >= moment,
            "{number}: {arrivals:?} from {start:?}"
        );
    }
}

#[test]
fn clients_see_places_and_their_wait() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, &rules("rate: 20/min, queue: 1, max_wait: 5s, delay_after: 2"));
    let mut client = gateway.client();
    let first = client.get("/", &[]);
    assert_eq!(first.field("ratelimit-policy").as_deref(), Some("\"line\";q=4;w=12"));
    assert_eq!(first.field("ratelimit").as_deref(), Some("\"line\";r=3;t=0"));
    assert_eq!([first.number("ratelimit-limit"), first.number("ratelimit-reset")], [4, 0]);
    for _ in 0..2 {
        assert_eq!(client.get("/", &[]).status, 200);
    }
    let start = now();
    let delayed = client.get("/", &[]);
    let wait = delayed.number("ratelimit-reset");
    assert!(delayed.status == 200 && (1..=3).contains(&wait), "{delayed:?}");
    // It is rounded up.
    assert!(start.elapsed() > Duration::from_secs(wait - 1), "{delayed:?} after {:?}", start.elapsed());
}

#[test]
fn a_client_that_leaves_has_spent_its_place() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, &rules("rate: 1/min, queue: 4, max_wait: 10m"));
    let requests = [
        GET.to_owned(),
        // Of which the body is not complete, and which has not been read.
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc".to_owned(),
        // With others that were sent ahead.
        format!("{GET}{GET}{GET}"),
    ];
    for (number, request) in (1..).zip(&requests) {
        let mut client = if number == 1 {
            waiting(&gateway, request)
        } else {
            let mut client = gateway.client();
            client.write(request);
            client
        };
        gateway.expect("rate_limiter_waiting", &[], 1.0);
        // The second one closes its side, the others leave.
        if number == 2 {
            client.finish()
        } else {
            drop(std::mem::replace(&mut client, gateway.client()))
        }
        gateway.expect("rate_limiter_left_waiting_total", &[], f64::from(number));
        gateway.expect("rate_limiter_waiting", &[], 0.0);
    }
    assert_eq!(upstream.count(), 1);
    // Of four places in the queue three are taken by clients that left.
    let mut last = gateway.client();
    last.write(GET);
    gateway.expect("rate_limiter_waiting", &[], 1.0);
    let refused = gateway.client().get("/", &[]);
    assert_eq!((refused.status, refused.field("ratelimit").unwrap().contains(";r=0;")), (429, true), "{refused:?}");
    gateway.expect("tollgate_http_requests_total", &["code=\"499\""], 3.0);
    assert_eq!(gateway.metric("rate_limiter_waited_seconds_count", &[]), 0.0);
}

#[test]
fn a_body_is_not_read_while_its_request_waits() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, &rules("rate: 20/min, queue: 1, max_wait: 5s"));
    let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n";
    let start = now();
    let mut client = waiting(&gateway, head);
    // It is the upstream that says so, and it has not got the head yet.
    assert!(!client.receives_within(Duration::from_millis(200)));
    client.write("abc");
    assert_eq!(client.response("POST").unwrap().status, 200);
    assert!(start.elapsed() >= Duration::from_millis(2_990), "{:?}", start.elapsed());
    assert_eq!(upstream.last().body, b"abc");
    // The connection is kept, and what is sent ahead is answered in its order.
    client.write("GET /2 HTTP/1.1\r\nHost: a\r\n\r\nGET /3 HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.response("GET").unwrap().status, 200);
    assert_eq!(client.response("GET").unwrap().status, 200);
    assert_eq!(upstream.last().line, "GET /3 HTTP/1.1");
}

#[test]
fn a_drain_waits_for_delayed_requests_until_its_timeout() {
    let upstream = Upstream::start();
    let mut gateway = Gateway::start(&upstream, &rules("rate: 20/min, queue: 5, max_wait: 20s"));
    let mut client = waiting(&gateway, GET);
    gateway.signal("TERM");
    let response = client.response("GET").unwrap();
    assert_eq!((response.status, response.field("connection").as_deref()), (200, Some("close")));
    assert_eq!(gateway.wait().0.code(), Some(0));

    let numbers = rules("rate: 1/hour, queue: 5, max_wait: 1h");
    let mut gateway = Gateway::start(&upstream, &format!("drain: {{timeout: 300ms}}\n{numbers}"));
    let mut client = waiting(&gateway, GET);
    gateway.signal("TERM");
    assert_eq!(gateway.wait().0.code(), Some(0));
    assert!(client.is_closed_without_response());
    assert_eq!(upstream.count(), 3);
}

#[test]
fn a_request_that_waits_keeps_the_configuration_it_began_with() {
    let (before, after) = (Upstream::start(), Upstream::start());
    let gateway = Gateway::start(&before, &rules("rate: 20/min, queue: 5, max_wait: 20s"));
    let mut client = waiting(&gateway, GET);
    gateway.reload(&after, "rules: []");
    assert_eq!(client.response("GET").unwrap().status, 200);
    assert_eq!((before.count(), after.count()), (2, 0));
    assert_eq!(client.get("/", &[]).status, 200);
    assert_eq!(after.count(), 1);
}

#[test]
fn a_call_of_grpc_is_not_delayed_beyond_its_timeout() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, &rules("rate: 1/min, queue: 5, max_wait: 10m"));
    assert_eq!(gateway.client().get("/", &[]).status, 200);
    let call = |timeout| {
        gateway.client().send("POST", "/", &[("Content-Type", "application/grpc"), ("grpc-timeout", timeout)], "")
    };
    let refused = call("30S");
    assert_eq!((refused.status, refused.field("grpc-status").as_deref()), (200, Some("8")), "{refused:?}");
    assert_eq!(refused.field("ratelimit").as_deref().map(|level| level.contains(";r=5;")), Some(true), "{refused:?}");
    // For others the field means nothing.
    let mut client = gateway.client();
    client.write("GET / HTTP/1.1\r\nHost: a\r\ngrpc-timeout: 1S\r\n\r\n");
    gateway.expect("rate_limiter_waiting", &[], 1.0);
}

#[test]
fn a_shadow_delays_nobody_and_the_longest_of_several_waits_holds() {
    let upstream = Upstream::start();
    let shadow = rules("rps: 1000, queue: 1000, max_wait: 5s, shadow: {rate: 1/hour, queue: 1, max_wait: 1h}");
    let gateway = Gateway::start(&upstream, &shadow);
    for _ in 0..4 {
        assert_eq!(gateway.client().get("/", &[]).status, 200);
    }
    gateway.expect("rate_limiter_rejected_total", &["leaky_bucket_exceeded", "shadow"], 2.0);

    let policy = |name: &str, numbers: &str| {
        format!("  - {{name: {name}, rules: [{{name: {name}, limit_keys: [], expose: true, {numbers}}}]}}\n")
    };
    let several = format!(
        "policies:\n{}{}{}",
        policy("fast", "algorithm: leaky_bucket, algorithm_config: {rps: 1000, queue: 9, max_wait: 5s}"),
        policy("slow", "algorithm: leaky_bucket, algorithm_config: {rps: 1, queue: 9, max_wait: 5s}"),
        policy("few", "algorithm_config: {rate: 2/day}"),
    );
    let gateway = Gateway::start(&upstream, &several);
    let mut client = gateway.client();
    // The second one's moment is a second after the first was decided.
    let start = now();
    assert_eq!([client.get("/", &[]).status, client.get("/", &[]).status], [200; 2]);
    assert!(start.elapsed() >= Duration::from_millis(990), "{:?}", start.elapsed());
    // What another limit refuses takes no place, and does not wait.
    let refused = client.get("/", &[]);
    assert_eq!((refused.status, refused.field("x-tollgate-reason").as_deref()), (429, Some("token_bucket_exceeded")));
    assert_eq!(gateway.metric("rate_limiter_allowed_total", &["rule=\"slow\""]), 2.0);
}

#[test]
fn a_share_of_the_schedule_is_kept_while_the_store_is_away() {
    let upstream = Upstream::start();
    let store = "store: {redis: {url: 'redis://127.0.0.1:1'}, gateways: 2}\non_store_failure: local\n";
    let gateway = Gateway::start(&upstream, &format!("{store}{}", rules("rps: 4, queue: 7, max_wait: 5s")));
    let start = now();
    let clients: Vec<_> = (0..8)
        .map(|_| {
            let mut client = gateway.client();
            thread::spawn(move || client.get("/", &[]).status)
        })
        .collect();
    let granted = clients.into_iter().map(|client| client.join().unwrap()).filter(|status| *status == 200).count();
    // Half of eight places, half a second apart.
    assert!(granted >= 4, "{granted}");
    assert!(
        start.elapsed() >= Duration::from_millis(500) * (u32::try_from(granted).unwrap() - 1),
        "{granted} in {:?}",
        start.elapsed()
    );
}

#[test]
fn the_access_log_has_the_wait() {
    let upstream = Upstream::start();
    let log = "access_log: {to: access.log, when: [allowed, refused, error]}\n";
    let gateway = Gateway::start(&upstream, &format!("{log}{}", rules("rate: 20/min, queue: 2, max_wait: 5s")));
    let mut client = gateway.client();
    client.get("/", &[]);
    client.get("/", &[]);
    let mut lines = Vec::new();
    eventually("both lines are written", || {
        let text = std::fs::read_to_string(gateway.file("access.log")).unwrap_or_default();
        lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()).collect();
        lines.len() == 2
    });
    assert!(lines[0].get("waited_us").is_none(), "{}", lines[0]);
    let number = |name: &str| lines[1][name].as_u64().unwrap();
    assert!(
        number("waited_us") > 100_000 && number("decision_us") + number("waited_us") <= number("duration_us"),
        "{}",
        lines[1]
    );
}

/// With small heads on HTTP/1.1 without TLS, ten thousand waiting requests take 200 MB more than as many idle connections.
#[test]
fn requests_that_wait_take_little_memory() {
    // As many as a machine has connections for whose open-file limit is 20000.
    let many = short_or_long(500_u32, 9_500);
    rlimit::increase_nofile_limit(u64::from(many) + 500).unwrap();
    let upstream = Upstream::start();
    let bounds = format!("limits: {{connections: {}, idle_timeout: 5m}}\n", many + 100);
    // Each waits for a moment of its own within half an hour.
    let line = rules(&format!("rate: {}/hour, queue: {many}, max_wait: 1h", 2 * many));
    let gateway = Gateway::start(&upstream, &format!("{bounds}{line}"));
    let mut clients: Vec<Client> = (0..many).map(|_| gateway.client()).collect();
    gateway.expect("tollgate_http_connections", &[], f64::from(many));
    let idle = gateway.resident_bytes();
    for client in &mut clients {
        client.write("GET / HTTP/1.1\r\nHost: example.org\r\nAccept: */*\r\nUser-Agent: curl/8.0\r\n\r\n");
    }
    let waiting = || gateway.metric("rate_limiter_waiting", &[]);
    eventually("nearly all wait", || waiting() > 0.95 * f64::from(many));
    let grown = gateway.resident_bytes().saturating_sub(idle);
    let each = grown / u64::from(many);
    print_measured(&format!("{many} requests that wait: {each} bytes each, more than an idle connection"));
    // What the first ones take for all is spread over few in the short form.
    let fixed = short_or_long(4 << 20, 0);
    assert!(grown < 20_000 * u64::from(many) + fixed, "{grown} bytes for {many}");
}
