//! The same answers from every store: what is read, that nothing is written, and a store that is away.

use std::io::Write;

use serde_json::{Value, json};

use super::{USAGE, ask, books, limits, send};
use crate::support::{Gateway, Postgres, Redis, RedisCluster, Replicas, Upstream, eventually};

/// Two limits of a user and one of everybody, which is hidden. In a cluster, their buckets are under several hash tags.
const RULES: &str = "
policies:
  - {name: ceiling, rules: [{name: everybody, limit_keys: [], algorithm_config: {rate: 1000/day}}]}
  - {name: day, rules: [{name: day, limit_keys: [header:x-user], algorithm_config: {rate: 10/day}}]}
  - {name: long, rules: [{name: long, limit_keys: [header:x-user], algorithm: sliding_log, algorithm_config: {limit: 20, window: 1h}}]}
  - {name: year, rules: [{name: year, limit_keys: [header:x-user], algorithm: fixed_window, algorithm_config: {limit: 30, window: year}}]}
  - {name: slots, rules: [{name: slots, limit_keys: [header:x-user], algorithm: concurrency, algorithm_config: {limit: 5}}]}
";

fn used(gateway: &Gateway, user: &str) -> Vec<Value> {
    let shown = limits(&ask(gateway, "", user));
    shown.iter().map(|limit| json!([limit["name"], limit["used"], limit["remaining"]])).collect()
}

#[track_caller]
fn play(gateway: &Gateway) {
    eventually("the store can be read", || ask(gateway, "", "bob").status == 200);
    let unused = json!([["day", 0, 10], ["long", 0, 20], ["year", 0, 30], ["slots", 0, 5]]);
    assert_eq!(json!(used(gateway, "bob")), unused);
    assert_eq!(send(gateway, 3, "/", "ann"), [200; 3]);
    let three = json!([["day", 3, 7], ["long", 3, 17], ["year", 3, 27], ["slots", 0, 5]]);
    // A slot is given back with the next call.
    eventually("the slots are free", || json!(used(gateway, "ann")) == three);
    assert_eq!(json!(used(gateway, "bob")), unused);
    assert_eq!(send(gateway, 9, "/", "ann"), [vec![200; 7], vec![429; 2]].concat());
    eventually("the slots are free", || {
        json!(used(gateway, "ann")) == json!([["day", 10, 0], ["long", 10, 10], ["year", 10, 20], ["slots", 0, 5]])
    });
}

#[test]
fn memory_redis_a_cluster_and_postgresql_answer_the_same() {
    let upstream = Upstream::start();
    play(&Gateway::start(&upstream, &format!("{USAGE}{RULES}")));
    let (redis, cluster, postgres) = (Redis::start(), RedisCluster::start(Replicas::None), Postgres::start());
    postgres.settings();
    for store in [redis.patient_store(), cluster.store("deny", ""), postgres.store_with(", timeout: 10s", "deny")] {
        play(&Gateway::start(&upstream, &format!("{store}{USAGE}{RULES}")));
    }
    assert!(cluster.masters.iter().filter(|master| !master.keys().is_empty()).count() > 1);
}

#[test]
fn a_thousand_questions_change_no_byte_of_a_bucket() {
    let redis = Redis::start();
    let gateway = Gateway::start(&Upstream::start(), &format!("{}{USAGE}{RULES}", redis.patient_store()));
    assert_eq!(send(&gateway, 12, "/", "ann"), [vec![200; 10], vec![429; 2]].concat());
    let stored = || -> Vec<(Vec<u8>, Option<Vec<u8>>, i64)> {
        let mut connection = redis.connection();
        let read = |key: Vec<u8>| {
            let value = redis::cmd("GET").arg(&key).query(&mut connection).unwrap();
            let expiry = redis::cmd("PEXPIRETIME").arg(&key).query(&mut connection).unwrap();
            (key, value, expiry)
        };
        redis.keys().into_iter().map(read).collect()
    };
    // What the last request held is given back.
    eventually("nothing is held", || limits(&ask(&gateway, "", "ann"))[3]["used"] == 0);
    let before = stored();
    assert!(before.len() >= 4, "{before:?}");
    let mut client = gateway.client();
    for number in 0..1000 {
        let answer = client.get(super::PATH, &[("X-User", if number % 2 == 0 { "ann" } else { "bob" })]);
        assert_eq!(answer.status, 200);
    }
    assert_eq!(stored(), before);
}

/// Wrong passwords: three, and then a ban.
#[test]
fn a_ban_is_shown_with_its_end() {
    let upstream = Upstream::answering(|request, stream| {
        let status = request.field("X-Answer").unwrap_or("200");
        let _ = write!(stream, "HTTP/1.1 {status} Some\r\nContent-Length: 2\r\n\r\nok");
    });
    let rule = "
rules:
  - name: guesses
    limit_keys: [header:x-user]
    algorithm: fixed_window
    algorithm_config: {limit: 3, window: 366d, count_on: [401]}
    ban: {for: [1h]}
";
    let (redis, postgres) = (Redis::start(), Postgres::start());
    postgres.settings();
    for store in [String::new(), redis.patient_store(), postgres.store_with(", timeout: 10s", "deny")] {
        let gateway = Gateway::start(&upstream, &format!("{store}{USAGE}{rule}"));
        eventually("the store can be read", || ask(&gateway, "", "ann").status == 200);
        for _ in 0..3 {
            assert_eq!(gateway.client().get("/", &[("X-User", "ann"), ("X-Answer", "401")]).status, 401);
        }
        eventually("all are counted", || books(&ask(&gateway, "", "ann")) == (3, 0, 0));
        assert_eq!(limits(&ask(&gateway, "", "ann"))[0]["banned_until"], Value::Null, "asking begins no ban");
        assert_eq!(send(&gateway, 1, "/", "ann"), [429]);
        let answer = ask(&gateway, "", "ann");
        let limit = &limits(&answer)[0];
        assert!(limit["banned_until"].as_str().unwrap().ends_with('Z') && limit["remaining"] == 0, "{limit}");
        let level = answer.field("ratelimit").unwrap();
        let seconds: u64 = level.strip_prefix("\"guesses\";r=0;t=").unwrap().parse().unwrap();
        assert!((3500..=3600).contains(&seconds), "{level}");
        assert_eq!(books(&ask(&gateway, "", "bob")), (0, 0, 3));
    }
}

/// A request that waits at the upstream holds 5 of a budget, in the store that all gateways share.
#[test]
fn what_another_gateway_holds_is_shown() {
    let rule = "
rules:
  - name: spend
    limit_keys: [header:x-user]
    algorithm: fixed_window
    algorithm_config: {limit: 100, window: 366d, cost_source: \"response_header:x-cost\", reserve: 5, default_cost: 3}
";
    let redis = Redis::start();
    let (upstream, finish) = Upstream::answering_when_told();
    let config = format!("{}{USAGE}{rule}", redis.patient_store());
    let [one, other] = [0, 1].map(|_| Gateway::start(&upstream, &config));
    for gateway in [&one, &other] {
        eventually("the store can be read", || ask(gateway, "", "ann").status == 200);
    }
    let mut waiting = one.client();
    waiting.write("GET /slow HTTP/1.1\r\nHost: a\r\nX-User: ann\r\n\r\n");
    for gateway in [&one, &other] {
        eventually("the request is held", || books(&ask(gateway, "", "ann")) == (0, 5, 95));
    }
    finish.send(()).unwrap();
    assert_eq!(waiting.response("GET").unwrap().status, 200);
    eventually("it is settled", || books(&ask(&other, "", "ann")) == (3, 0, 97));
}

#[test]
fn while_the_store_is_away_the_answer_is_503() {
    let mut redis = Redis::start();
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, &format!("{}{USAGE}{RULES}", redis.store("allow")));
    assert_eq!(send(&gateway, 1, "/", "ann"), [200]);
    let unread = || gateway.metric("rate_limiter_usage_unread_total", &[]);
    assert_eq!(unread(), 0.0);
    redis.kill();
    eventually("the store is away", || ask(&gateway, "", "ann").status == 503);
    assert!(unread() >= 1.0);
    let away = ask(&gateway, "", "ann");
    assert_eq!(away.field("x-tollgate-reason").as_deref(), Some("store_unavailable"));
    assert!(away.number("retry-after") >= 3 && away.field("ratelimit").is_none(), "{away:?}");
    redis.restart();
    eventually("the store is back", || ask(&gateway, "", "ann").status == 200);
    // A server that stands still is not waited for longer than `timeout`.
    redis.signal("STOP");
    assert_eq!(ask(&gateway, "", "ann").status, 503);
    redis.signal("CONT");
    eventually("it goes on", || ask(&gateway, "", "ann").status == 200);
}

/// A bucket that has already moved to the next node is read there, and one that has not moved is read at its owner.
#[test]
fn buckets_are_found_while_their_hash_slot_moves() {
    let mut cluster = RedisCluster::start(Replicas::None);
    cluster.add_master();
    let rule = "rules: [{name: all, limit_keys: [header:x-user], limits: {a: {rate: 10/day}, b: {rate: 20/day}}}]\n";
    let place = cluster.store("deny", "").replace("cluster: {", "cluster: {place: together, ");
    let gateway = Gateway::start(&Upstream::start(), &format!("{place}{USAGE}{rule}"));
    assert_eq!(send(&gateway, 4, "/", "ann"), [200; 4]);
    let from = cluster.masters.iter().position(|master| !master.keys().is_empty()).unwrap();
    let keys = cluster.masters[from].keys();
    assert_eq!(keys.len(), 2, "{keys:?}");
    let before = json!([["all.a", 4, 6], ["all.b", 4, 16]]);
    assert_eq!(json!(used(&gateway, "ann")), before);
    cluster.begin_move(&keys[0], from, 3);
    for _ in 0..5 {
        assert_eq!(json!(used(&gateway, "ann")), before);
    }
}
