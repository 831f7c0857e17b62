//! While Redis is down, each gateway grants its share of a limit. The share depends on the number of gateways.

use std::time::Duration;

use crate::support::{Client, Gateway, Redis, Upstream, eventually, free_port, now};

/// The most calls that may be under way on a connection to Redis.
const CALLS: usize = 5;

const ALIVE: &str = "rate_limiter_live_gateways";

fn ask(client: &mut Client) -> u16 {
    client.get("/", &[("X-User", "a")]).status
}

/// Returns how many requests in a row pass.
fn passing(client: &mut Client) -> usize {
    (0..100).take_while(|_| ask(client) == 200).count()
}

/// Returns a configuration with a `store` for at least this many gateways, and a limit of twelve a day.
fn text(redis: &Redis, gateways: usize) -> String {
    // A busy machine alone must not make a call late: a server that is gone is noticed at once.
    let url = format!("redis://127.0.0.1:{}", redis.port);
    let store = format!("store: {{redis: {{url: \"{url}\", timeout: 5s}}, gateways: {gateways}}}\n");
    store + "rules:\n  - {name: one, limit_keys: [header:x-user], algorithm_config: {rate: 12/day}}\n"
}

#[test]
fn gateways_share_the_remaining_tokens_when_redis_fails() {
    let (mut redis, upstream) = (Redis::start(), Upstream::start());
    let (one, two) = (Gateway::start(&upstream, &text(&redis, 2)), Gateway::start(&upstream, &text(&redis, 2)));
    let (mut first, mut second) = (one.client(), two.client());
    // Of the twelve four are spent; both gateways have seen the bucket last when eight were left, or nine.
    assert_eq!([ask(&mut first), ask(&mut first), ask(&mut first), ask(&mut second)], [200; 4]);
    redis.kill();
    for gateway in [&one, &two] {
        gateway.expect("rate_limiter_store_up", &[], 0.0);
    }
    assert_eq!([passing(&mut first), passing(&mut second)], [4, 4]);
    let refused = second.get("/", &[("X-User", "a")]);
    assert_eq!(refused.status, 429, "{refused:?}");
    assert_eq!(refused.field("X-Tollgate-Reason").unwrap(), "token_bucket_exceeded");
    assert_eq!(refused.field("RateLimit-Policy").unwrap(), "\"one\";q=12;w=86400");
    assert!(refused.field("RateLimit").unwrap().starts_with("\"one\";r=0;t="), "{refused:?}");
    // A token comes back each two hours; each gateway has every second.
    let wait = refused.number("Retry-After");
    assert!((4 * 3600 - 60..=6 * 3600).contains(&wait), "{wait}");
    let labels = ["rule=\"one\"", "action=\"local\""];
    one.expect("rate_limiter_fallback_decisions_total", &labels, 5.0);
    two.expect("rate_limiter_fallback_decisions_total", &labels, 6.0);
    assert!(two.metric("rate_limiter_latency_seconds_count", &["fallback"]) >= 6.0);
    assert!(two.metric("rate_limiter_rejected_total", &["token_bucket_exceeded"]) >= 2.0);

    // Redis is back, and empty: it decides again. What was spent here is not forgotten when it goes once more.
    redis.restart();
    for gateway in [&one, &two] {
        gateway.expect("rate_limiter_store_up", &[], 1.0);
    }
    assert_eq!(ask(&mut first), 200);
    redis.kill();
    one.expect("rate_limiter_store_up", &[], 0.0);
    assert_eq!(ask(&mut first), 429);
}

/// A share continues from the level at the time of the decision, however long the reply took.
#[test]
fn what_came_back_before_a_late_decision_is_not_granted_again() {
    const PAUSE: Duration = Duration::from_millis(800);
    const RATE: f64 = 20.0;
    let (mut redis, upstream) = (Redis::start(), Upstream::start());
    let numbers = "{rps: 20, burst: 20, cost_source: header:x-cost}";
    let rules = format!("rules:\n  - {{name: one, limit_keys: [header:x-user], algorithm_config: {numbers}}}\n");
    let gateway = Gateway::start(&upstream, &(redis.patient_store() + &rules));
    let mut client = gateway.client();
    let asked = now();
    redis.command::<()>(&["CLIENT", "PAUSE", &PAUSE.as_millis().to_string(), "ALL"]);
    // The call is sent now, and decided after the pause.
    assert_eq!(client.get("/", &[("X-User", "a"), ("X-Cost", "20")]).status, 200);
    redis.kill();
    gateway.expect("rate_limiter_store_up", &[], 0.0);
    let granted = passing(&mut client);
    let back = asked.elapsed().saturating_sub(PAUSE).as_secs_f64() * RATE;
    assert!(f64::from(u32::try_from(granted).unwrap()) <= back, "{granted} of {back}");
}

#[test]
fn gateways_count_each_other_and_notice_one_that_has_stopped() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    let start = || Gateway::before(&upstream).with(&text(&redis, 1)).short_heartbeats().start();
    let one = start();
    one.expect(ALIVE, &[], 1.0);
    let mut others: Vec<Gateway> = (0..2).map(|_| start()).collect();
    for gateway in others.iter().chain([&one]) {
        gateway.expect(ALIVE, &[], 3.0);
    }
    // Flushed scripts and an invalid list are repaired by the next heartbeat.
    redis.command::<()>(&["SCRIPT", "FLUSH"]);
    redis.command::<()>(&["SET", "tollgate:gateways", "not a list"]);
    eventually("the list is one again", || redis.command::<Vec<u8>>(&["GET", "tollgate:gateways"]).len() == 3 * 16);
    redis.command::<i64>(&["DEL", "tollgate:gateways"]);
    redis.command::<i64>(&["HSET", "tollgate:gateways", "a", "b"]);
    eventually("the list is one again", || {
        redis.command::<String>(&["TYPE", "tollgate:gateways"]) == "string"
            && redis.command::<Vec<u8>>(&["GET", "tollgate:gateways"]).len() == 3 * 16
    });
    drop(others.pop());
    let deadline = Duration::from_secs(12);
    let since = now();
    while one.metric(ALIVE, &[]) != 2.0 {
        assert!(since.elapsed() < deadline, "{}", one.metric(ALIVE, &[]));
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn the_number_of_gateways_is_never_below_that_of_the_file() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    let gateway = Gateway::start(&upstream, &text(&redis, 3));
    assert_eq!(gateway.metric(ALIVE, &[]), 3.0);
    eventually("it has sent a heartbeat", || redis.command::<Option<Vec<u8>>>(&["GET", "tollgate:gateways"]).is_some());
    assert_eq!(gateway.metric(ALIVE, &[]), 3.0);
}

#[test]
fn without_a_redis_from_the_start_a_full_share_is_granted() {
    let (mut redis, upstream) = (Redis::start(), Upstream::start());
    redis.kill();
    let gateway = Gateway::start(&upstream, &text(&redis, 3));
    assert_eq!(passing(&mut gateway.client()), 4);
}

#[test]
fn one_denying_limit_suffices_and_local_limits_are_charged_together() {
    let (mut redis, upstream) = (Redis::start(), Upstream::start());
    let policy = |name: &str, key: &str, limit: u64, then: &str| {
        let numbers = format!("{{rate: {limit}/day}}");
        let rule = format!(
            "{{name: {name}, limit_keys: [header:{key}], algorithm_config: {numbers}, on_store_failure: {then}}}"
        );
        format!("  - {{name: {name}, rules: [{rule}]}}\n")
    };
    let text = format!(
        "store: {{redis: {{url: \"redis://127.0.0.1:{}\"}}}}\npolicies:\n{}{}{}{}",
        redis.port,
        policy("wide", "x-wide", 10, "local"),
        policy("tight", "x-tight", 2, "local"),
        policy("open", "x-open", 1, "allow"),
        policy("closed", "x-closed", 10, "deny"),
    );
    let gateway = Gateway::start(&upstream, &text);
    redis.kill();
    gateway.expect("rate_limiter_store_up", &[], 0.0);
    let mut client = gateway.client();
    let mut statuses = |names: &[&str], times: usize| {
        let fields: Vec<_> = names.iter().map(|name| (*name, "a")).collect();
        (0..times).map(|_| client.get("/", &fields).status).collect::<Vec<_>>()
    };
    // Refused by one, charged to none.
    assert_eq!(statuses(&["X-Wide", "X-Tight", "X-Closed"], 5), [503; 5]);
    assert_eq!(statuses(&["X-Wide", "X-Tight", "X-Open"], 4), [200, 200, 429, 429]);
    assert_eq!(statuses(&["X-Wide"], 9), [200, 200, 200, 200, 200, 200, 200, 200, 429]);
    assert_eq!(statuses(&["X-Open"], 3), [200; 3]);
    let fallback = |rule: &str| gateway.metric("rate_limiter_fallback_decisions_total", &[&format!("rule=\"{rule}\"")]);
    assert_eq!(["wide", "tight", "open", "closed"].map(fallback), [18.0, 9.0, 7.0, 5.0]);
    let requests = |rule: &str| gateway.metric("rate_limiter_requests_total", &[&format!("rule=\"{rule}\"")]);
    assert_eq!(["wide", "tight", "open", "closed"].map(requests), [18.0, 9.0, 7.0, 5.0]);
    let allowed = |rule: &str| gateway.metric("rate_limiter_allowed_total", &[&format!("rule=\"{rule}\"")]);
    assert_eq!(["wide", "tight", "open", "closed"].map(allowed), [10.0, 2.0, 0.0, 0.0]);
}

#[test]
fn a_client_that_leaves_before_its_request_was_sent_pays_nothing() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    let text = format!("threads: 1\n{}", redis.patient_store())
        + "rules:\n  - {name: one, limit_keys: [header:x-user], algorithm_config: {rate: 100/day}}\n";
    // So that all that Redis gets is a call for one of these requests.
    let hour = Duration::from_secs(3600);
    let gateway = Gateway::before(&upstream).with(&text).interval("heartbeat", hour).start();
    let mut client = gateway.client();
    assert_eq!(ask(&mut client), 200);
    redis.signal("STOP");
    let request = "GET / HTTP/1.1\r\nHost: test\r\nX-User: a\r\n\r\n";
    // As many as can be are sent at once, each in a call, and the others after these: they stay, and pay.
    let mut stay: Vec<Client> = (0..16).map(|_| gateway.client()).collect();
    for (index, client) in stay.iter_mut().enumerate() {
        let before = redis.unread_bytes();
        client.write(request);
        if index < CALLS {
            eventually("a call is under way", || redis.unread_bytes() > before);
        }
    }
    let mut leave: Vec<Client> = (0..20).map(|_| gateway.client()).collect();
    leave.iter_mut().for_each(|client| client.write(request));
    gateway.expect("tollgate_http_connections", &[], 37.0);
    drop(leave);
    gateway.answers_without_the_store();
    redis.signal("CONT");
    for client in &mut stay {
        assert_eq!(client.response("GET").unwrap().status, 200);
    }
    gateway.expect("tollgate_http_requests_total", &["code=\"499\""], 20.0);
    let left = client.get("/", &[("X-User", "a")]).number("RateLimit-Remaining");
    assert_eq!(left, 100 - 1 - 16 - 1);
    assert_eq!(upstream.count(), 18);
}

#[test]
fn buckets_evicted_from_the_memory_of_local_are_counted() {
    // As many as the memory of `local` holds, and some more. Each request begins a bucket for each limit.
    const HELD: u32 = 1_000_000;
    const LIMITS: u32 = 250;
    const CLIENTS: u32 = 100;
    let policy = |number: u32| {
        let rule = "limit_keys: [header:x-user], algorithm_config: {rate: 2/day}";
        format!("  - {{name: p{number}, rules: [{{name: r{number}, {rule}}}]}}\n")
    };
    let policies: String = (0..LIMITS).map(policy).collect();
    let store = format!("store: {{redis: {{url: \"redis://127.0.0.1:{}\"}}}}\n", free_port());
    let gateway = Gateway::start(&Upstream::start(), &format!("{store}policies:\n{policies}"));
    gateway.expect("rate_limiter_store_up", &[], 0.0);
    let mut client = gateway.client();
    let mut ask = |clients: std::ops::Range<u32>| {
        let requests = clients.clone().map(|number| format!("GET / HTTP/1.1\r\nHost: a\r\nX-User: {number}\r\n\r\n"));
        client.write(&requests.collect::<String>());
        for _ in clients {
            assert_eq!(client.response("GET").unwrap().status, 200);
        }
    };
    let all = HELD / LIMITS;
    for round in 0..all / CLIENTS {
        ask(round * CLIENTS..(round + 1) * CLIENTS);
    }
    gateway.expect("rate_limiter_evicted_total", &[], 0.0);
    ask(all..all + CLIENTS);
    gateway.expect("rate_limiter_evicted_total", &[], f64::from(CLIENTS * LIMITS));
    let decisions = f64::from((all + CLIENTS) * LIMITS);
    gateway.expect("rate_limiter_fallback_decisions_total", &["action=\"local\""], decisions);
}
