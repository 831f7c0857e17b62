//! The door `json`: what a service holds, and settles later.

use std::time::Duration;

use serde_json::{Value, json};

use super::json_door::{JSON, config, start, take};
use crate::support::{Client, Gateway, Orphan, Postgres, Redis, RedisCluster, Replicas, Response, eventually};

pub const RULES: &str = r#"
hash_key: 0123456789abcdef
policies:
  - name: jobs
    match: {descriptor:kind: job}
    rules:
      - name: running
        limit_keys: ["descriptor:tenant"]
        algorithm: concurrency
        algorithm_config: {limit: 3}
  - name: pages
    match: {descriptor:kind: job}
    rules:
      - name: month
        limit_keys: ["descriptor:tenant"]
        algorithm: fixed_window
        algorithm_config: {limit: 100, window: 366d, cost_source: "response_header:x-pages", reserve: 20}
  - name: starts
    match: {descriptor:kind: job}
    rules: [{name: starts, limit_keys: ["descriptor:tenant"], algorithm_config: {rps: 0.001, burst: 100000}}]
"#;

pub fn job(tenant: &str, cost: u64, hold_for: &str) -> Value {
    json!({"entries": {"kind": "job", "tenant": tenant}, "cost": cost, "hold_for": hold_for})
}

pub fn settle(client: &mut Client, body: &Value) -> Response {
    client.send("POST", "/settle", &[JSON], &body.to_string())
}

/// Takes, and returns the id of the hold.
#[track_caller]
pub fn hold(client: &mut Client, tenant: &str, hold_for: &str) -> String {
    let taken = take(client, &job(tenant, 1, hold_for));
    assert_eq!(taken.status, 200, "{taken:?}");
    taken.json()["hold_id"].as_str().unwrap_or_else(|| panic!("{taken:?}")).to_owned()
}

/// Returns how much is used and held of each limit, after a take of a second. The take is settled with nothing.
#[track_caller]
fn levels(client: &mut Client, tenant: &str) -> Vec<(u64, u64)> {
    let taken = take(client, &job(tenant, 1, "1s"));
    let limits = taken.json()["limits"].clone();
    if taken.status == 200 {
        let settled = settle(client, &json!({"hold_id": taken.json()["hold_id"], "cost": 0}));
        assert_eq!(settled.status, 200, "{settled:?}");
    }
    let level = |limit: &Value| (limit["used"].as_u64().unwrap(), limit["held"].as_u64().unwrap());
    limits.as_array().unwrap().iter().map(level).collect()
}

pub fn stores() -> (Redis, Postgres) {
    let postgres = Postgres::start();
    // Creates the tables.
    postgres.settings();
    (Redis::start(), postgres)
}

#[test]
fn what_a_service_holds_it_settles_once_at_any_gateway_also_after_a_restart() {
    let (redis, postgres) = stores();
    for store in [redis.patient_store(), postgres.store_with(", timeout: 5s", "deny")] {
        let rules = format!("{RULES}{store}");
        let (one, other) = (start(&rules), start(&rules));
        let mut client = one.client();
        let ids: Vec<String> = (0..3).map(|_| hold(&mut client, "acme", "1h")).collect();
        // A slot and 20 pages of each are held, and the starts are spent.
        let full = take(&mut client, &job("acme", 1, "1h"));
        assert_eq!((full.status, full.json()["hold_id"].clone()), (429, Value::Null), "{full:?}");
        assert_eq!(full.field("x-tollgate-reason").as_deref(), Some("concurrency_exceeded"));
        assert_eq!(take(&mut other.client(), &job("acme", 1, "1h")).status, 429);
        // The other gateway settles, and the first one after a restart.
        let settled = settle(&mut other.client(), &json!({"hold_id": ids[0], "cost": 7}));
        assert_eq!((settled.status, settled.json()), (200, json!({"settled": true})), "{settled:?}");
        drop(client);
        drop(one);
        let again = start(&rules);
        let mut client = again.client();
        assert_eq!(settle(&mut client, &json!({"hold_id": ids[1], "cost": {"month": 30}})).status, 200);
        // Each settles once: a repeated call is answered as the first, and changes nothing.
        for gateway in [&again, &other] {
            for (id, cost) in [(&ids[0], json!(7)), (&ids[0], json!(99)), (&ids[1], json!({"month": 30}))] {
                let repeated = settle(&mut gateway.client(), &json!({"hold_id": id, "cost": cost}));
                assert_eq!((repeated.status, repeated.json()), (200, json!({"settled": true})));
            }
        }
        // The third still holds its slot and its pages, beside those of the take that asks.
        assert_eq!(levels(&mut client, "acme")[..2], [(2, 0), (37, 40)]);
        // Without a cost, it is `default_cost`, which is 1.
        assert_eq!(settle(&mut client, &json!({"hold_id": ids[2]})).status, 200);
        assert_eq!(levels(&mut client, "acme")[..2], [(1, 0), (38, 20)]);
        again.expect("tollgate_settled_holds_total", &["=\"settled\""], 4.0);
        again.expect("tollgate_settled_holds_total", &["repeated"], 3.0);
    }
}

#[test]
fn a_hold_that_is_not_settled_ends_and_its_reservation_is_spent() {
    let (redis, postgres) = stores();
    for store in [String::new(), redis.patient_store(), postgres.store_with(", timeout: 5s", "deny")] {
        let gateway = start(&format!("{RULES}{store}"));
        let mut client = gateway.client();
        let forgotten = hold(&mut client, "acme", "1s");
        assert_eq!(levels(&mut client, "acme")[..2], [(2, 0), (0, 40)]);
        eventually("the hold ends", || levels(&mut gateway.client(), "acme").starts_with(&[(1, 0), (20, 20)]));
        let late = settle(&mut client, &json!({"hold_id": forgotten, "cost": 1}));
        assert_eq!((late.status, late.json()["detail"].as_str().unwrap().contains("hold_id")), (404, true));
        assert_eq!(levels(&mut client, "acme")[..2], [(1, 0), (20, 20)]);
        gateway.expect("tollgate_settled_holds_total", &["ended"], 1.0);
    }
}

#[test]
fn what_is_held_and_refused_takes_nothing() {
    let (redis, postgres) = stores();
    for store in [String::new(), redis.patient_store(), postgres.store_with(", timeout: 5s", "deny")] {
        let gateway = start(&format!("{RULES}{store}"));
        let mut client = gateway.client();
        let id = hold(&mut client, "acme", "1m");
        // Three slots are not free beside the one that is held, and four never.
        for (cost, reason) in [(3, "concurrency_exceeded"), (4, "cost_too_large")] {
            let refused = take(&mut client, &job("acme", cost, "1m"));
            assert_eq!(refused.field("x-tollgate-reason").as_deref(), Some(reason), "{refused:?}");
        }
        assert_eq!(levels(&mut client, "acme")[..2], [(2, 0), (0, 40)]);
        // A cost above the reservation is spent too.
        assert_eq!(settle(&mut client, &json!({"hold_id": id, "cost": 90})).status, 200);
        let refused = take(&mut client, &job("acme", 1, "1m"));
        assert_eq!(refused.field("x-tollgate-reason").as_deref(), Some("fixed_window_exceeded"), "{refused:?}");
        // Without `hold_for`, these limits do not apply.
        let plain = json!({"entries": {"kind": "job", "tenant": "acme"}});
        let taken = take(&mut client, &plain);
        assert_eq!((taken.status, taken.json()["limits"].as_array().unwrap().len()), (200, 1), "{taken:?}");
        assert_eq!(taken.json()["hold_id"], Value::Null);
    }
}

#[test]
fn a_repeated_id_has_the_same_hold() {
    let gateway = start(RULES);
    let mut client = gateway.client();
    let mut call = job("acme", 1, "1m");
    call["id"] = json!("one");
    let (first, again) = (take(&mut client, &call), take(&mut client, &call));
    assert_eq!((first.status, &first.body), (200, &again.body));
    assert_eq!(levels(&mut client, "acme")[..2], [(2, 0), (0, 40)]);
    call["hold_for"] = json!("2m");
    assert_eq!(take(&mut client, &call).status, 400);
}

#[test]
fn calls_that_cannot_be_held_or_settled_say_why() {
    let gateway = start(RULES);
    let mut client = gateway.client();
    let id = hold(&mut client, "acme", "1m");
    let mut changed = id.clone();
    changed.replace_range(20..21, if &id[20..21] == "A" { "B" } else { "A" });
    for (body, status, detail) in [
        (json!({"hold_id": id, "cost": {"month": 1, "week": 1}}), 400, "has \"week\""),
        (json!({"hold_id": id, "cost": -1}), 400, "`cost` must be a number"),
        (json!({"hold_id": changed}), 404, "`hold_id` must be"),
        (json!({"hold_id": "x"}), 404, "`hold_id` must be"),
        (json!({}), 400, "missing field `hold_id`"),
    ] {
        let answer = settle(&mut client, &body);
        let found = answer.json()["detail"].as_str().unwrap().to_owned();
        assert!(answer.status == status && found.contains(detail), "{body}: {answer:?}");
    }
    assert_eq!(client.send("GET", "/settle", &[JSON], "").status, 405);
    // A take of which nothing is held has an id too.
    let free = take(&mut client, &json!({"entries": {"kind": "other"}, "hold_for": "1m"}));
    assert_eq!(settle(&mut client, &json!({"hold_id": free.json()["hold_id"]})).status, 200);
    // Ids need a secret key, and another key reads none.
    let other = start(&RULES.replace("0123456789abcdef", "fedcba9876543210"));
    assert_eq!(settle(&mut other.client(), &json!({"hold_id": id})).status, 404);
    let public = start(&RULES.replace("hash_key: 0123456789abcdef\n", ""));
    let refused = take(&mut public.client(), &job("acme", 1, "1m"));
    assert!(refused.status == 400 && refused.json()["detail"].as_str().unwrap().contains("`hash_key`"), "{refused:?}");
}

#[test]
fn without_the_store_nothing_is_held_whatever_its_limits_say() {
    let redis = Redis::start();
    let store = redis.patient_store().replace("deny", "allow").replace("timeout: 10s", "timeout: 300ms");
    let gateway = start(&format!("{RULES}{store}"));
    let mut client = gateway.client();
    let id = hold(&mut client, "acme", "1m");
    redis.signal("STOP");
    let refused = take(&mut client, &job("acme", 1, "1m"));
    assert_eq!((refused.status, refused.field("x-tollgate-reason").as_deref()), (503, Some("store_unavailable")));
    let failed = settle(&mut client, &json!({"hold_id": id, "cost": 3}));
    assert_eq!((failed.status, failed.number("retry-after") > 0), (503, true), "{failed:?}");
    redis.signal("CONT");
    // The call that had no answer may have settled. Repeated, it settles once.
    eventually("the store answers", || settle(&mut gateway.client(), &json!({"hold_id": id, "cost": 3})).status == 200);
    // The take without an answer may hold something until its end.
    eventually("only the settled cost is spent", || {
        let levels = levels(&mut gateway.client(), "acme");
        levels.len() == 3 && levels[1].0 == 3
    });
    assert!(gateway.metric("tollgate_settled_holds_total", &["failed"]) >= 1.0);
}

#[test]
fn two_gateways_and_their_services_never_hold_more_than_the_limit() {
    const LIMIT: usize = 8;
    let redis = Redis::start();
    let limit = format!("algorithm: concurrency, algorithm_config: {{limit: {LIMIT}}}");
    let rule = format!("rules: [{{name: all, limit_keys: [\"descriptor:tenant\"], {limit}}}]");
    let rules = format!("hash_key: 0123456789abcdef\n{rule}\n{}", redis.patient_store());
    let gateways = [start(&rules), start(&rules)];
    let held = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let callers: Vec<_> = (0..16)
        .map(|caller: usize| {
            let (mut own, mut other) = (gateways[caller % 2].client(), gateways[(caller + 1) % 2].client());
            let held = std::sync::Arc::clone(&held);
            std::thread::spawn(move || {
                let mut granted = 0;
                for _ in 0..20 {
                    let taken = take(&mut own, &json!({"entries": {"tenant": "acme"}, "hold_for": "1m"}));
                    assert!(matches!(taken.status, 200 | 429), "{taken:?}");
                    if taken.status == 200 {
                        let now = held.fetch_add(1, std::sync::atomic::Ordering::SeqCst) + 1;
                        assert!(now <= LIMIT, "{now} are held");
                        std::thread::sleep(Duration::from_millis(2));
                        held.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                        assert_eq!(settle(&mut other, &json!({"hold_id": taken.json()["hold_id"]})).status, 200);
                        granted += 1;
                    }
                }
                granted
            })
        })
        .collect();
    let granted: usize = callers.into_iter().map(|caller| caller.join().unwrap()).sum();
    assert!(granted > LIMIT, "{granted}");
    let all = json!({"entries": {"tenant": "acme"}, "cost": LIMIT, "hold_for": "1m"});
    assert_eq!(take(&mut gateways[0].client(), &all).status, 200, "every slot is free again");
}

#[test]
fn what_is_settled_is_recorded_for_its_subject_once() {
    let redis = Redis::start();
    let rules = RULES.replace("algorithm: fixed_window", "meter: pages\n        algorithm: fixed_window");
    let records = "records: {to: records.jsonl, every: 1d, meters: [pages], subject: [\"descriptor:tenant\"]}\n";
    let file = format!("{rules}{records}{}", redis.patient_store());
    let (one, mut other) = (start(&file), start(&file));
    let mut client = one.client();
    let [acme, zoo] = ["acme", "zoo"].map(|tenant| hold(&mut client, tenant, "1h"));
    for (id, cost) in [(&acme, 7), (&acme, 7), (&zoo, 0), (&acme, 99)] {
        assert_eq!(settle(&mut other.client(), &json!({"hold_id": id, "cost": cost})).status, 200);
    }
    other.signal("TERM");
    other.wait();
    let text = std::fs::read_to_string(other.file("records.jsonl")).unwrap();
    let data = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["data"].take());
    let mut found: Vec<Value> =
        data.map(|data| json!([data["subject"], data["meter"], data["quantity"], data["requests"]])).collect();
    found.sort_by_key(Value::to_string);
    // What costs nothing is no use.
    assert_eq!(found, [json!(["acme", "pages", 7, 1])]);
}

/// The slots and the pages of a tenant are often under two hash tags.
#[test]
fn in_a_cluster_a_take_holds_all_or_nothing() {
    let cluster = RedisCluster::start(Replicas::None);
    let rules = format!("{RULES}{}", cluster.store("deny", ""));
    let (one, other) = (start(&rules), start(&rules));
    for tenant in ["a", "b", "c", "d"] {
        let mut client = one.client();
        let ids: Vec<String> = (0..3).map(|_| hold(&mut client, tenant, "1h")).collect();
        let full = take(&mut other.client(), &job(tenant, 1, "1h"));
        assert_eq!(full.field("x-tollgate-reason").as_deref(), Some("concurrency_exceeded"), "{full:?}");
        for id in &ids {
            for _ in 0..2 {
                assert_eq!(settle(&mut other.client(), &json!({"hold_id": id, "cost": 10})).status, 200);
            }
        }
        // What the refused take held for a moment is given back.
        eventually("nothing is held", || levels(&mut other.client(), tenant).starts_with(&[(1, 0), (30, 20)]));
    }
}

#[test]
fn an_upgrade_hands_over_what_is_held() {
    let redis = Redis::start();
    for store in [String::new(), redis.patient_store()] {
        let mut gateway = start(&format!("{RULES}{store}"));
        let id = hold(&mut gateway.client(), "acme", "1h");
        gateway.signal("USR2");
        let _second = Orphan::of(&gateway, 1);
        gateway.wait();
        let mut client = gateway.client();
        assert_eq!(levels(&mut client, "acme")[..2], [(2, 0), (0, 40)]);
        assert_eq!(settle(&mut client, &json!({"hold_id": id, "cost": 4})).status, 200);
        assert_eq!(settle(&mut client, &json!({"hold_id": id, "cost": 4})).status, 200);
        assert_eq!(levels(&mut client, "acme")[..2], [(1, 0), (4, 20)]);
    }
}

/// A hold in memory is written with its bucket, so a restart with a file keeps it.
#[test]
fn a_hold_in_memory_outlives_a_restart_with_a_file() {
    let mut gateway: Gateway = start(&format!("{RULES}store: {{memory: {{file: buckets.tgb}}}}\n"));
    let id = hold(&mut gateway.client(), "acme", "1h");
    gateway.signal("TERM");
    gateway.wait();
    gateway.start_again();
    let mut client = gateway.client();
    assert_eq!(levels(&mut client, "acme")[..2], [(2, 0), (0, 40)]);
    assert_eq!(settle(&mut client, &json!({"hold_id": id, "cost": 4})).status, 200);
    assert_eq!(levels(&mut client, "acme")[..2], [(1, 0), (4, 20)]);
}

#[test]
fn a_shadow_neither_shortens_nor_refuses_a_hold() {
    let pool = "algorithm: concurrency, algorithm_config: {limit: 1, max_hold: 1s}";
    let rule = format!("{{name: pool, limit_keys: [], {pool}}}");
    let shadow = format!("  - {{name: candidate, mode: shadow, match: {{descriptor:kind: job}}, rules: [{rule}]}}\n");
    let gateway = start(&format!("{RULES}{shadow}"));
    let mut client = gateway.client();
    let id = hold(&mut client, "acme", "1m");
    std::thread::sleep(Duration::from_millis(1200));
    assert_eq!(settle(&mut client, &json!({"hold_id": id, "cost": 3})).status, 200);
    assert_eq!(levels(&mut client, "acme")[..2], [(1, 0), (3, 20)]);
    gateway.expect("rate_limiter_not_at_door_total", &["shadow"], 2.0);
}

#[test]
fn a_cost_at_a_limit_of_money_is_in_usd() {
    let rules = r#"
hash_key: 0123456789abcdef
prices: {file: prices.csv, default: refuse}
rules:
  - name: spend
    limit_keys: ["descriptor:tenant"]
    expose: true
    limits:
      usd: {algorithm: fixed_window, limit: 10.00, window: 366d, cost_source: llm_cost, reserve: 0.50}
      pages: {algorithm: fixed_window, limit: 100, window: 366d, cost_source: "response_header:x-pages", reserve: 1}
"#;
    let prices = "model,input,output\nm-*,1,10\n";
    let gateway = Gateway::deciding().with(&config("", rules)).file("prices.csv", prices).start();
    let mut client = gateway.client();
    let ask = json!({"entries": {"tenant": "acme"}, "hold_for": "1m"});
    let mut settled = |cost: &Value| {
        let id = take(&mut client, &ask).json()["hold_id"].clone();
        settle(&mut client, &json!({"hold_id": id, "cost": cost}))
    };
    for cost in [json!({"spend.usd": 0.25}), json!({"spend.usd": 0.000001, "spend.pages": 2}), json!(1)] {
        let settled = settled(&cost);
        assert_eq!(settled.status, 200, "{settled:?}");
    }
    let refused = settled(&json!({"spend.pages": 0.0001}));
    assert!(refused.status == 400 && refused.body.contains("three decimals"), "{refused:?}");
    let used: Vec<Value> = take(&mut client, &ask).json()["limits"]
        .as_array()
        .unwrap()
        .iter()
        .map(|limit| limit["used"].clone())
        .collect();
    // Where nothing is said, it is `default_cost`, which is 1 page.
    assert_eq!(used, [json!("1.250001"), json!(4)]);
}

#[test]
fn a_hold_is_settled_after_a_reload_without_one_of_its_limits() {
    let gateway = start(RULES);
    let mut client = gateway.client();
    let id = hold(&mut client, "acme", "1h");
    let (before, rest) = RULES.split_once("  - name: pages").unwrap();
    let (_, after) = rest.split_once("  - name: starts").unwrap();
    gateway.reload_text(&config("", &format!("{before}  - name: starts{after}")));
    let settled = settle(&mut gateway.client(), &json!({"hold_id": id, "cost": {"month": 3}}));
    assert_eq!(settled.status, 200, "{settled:?}");
    assert_eq!(levels(&mut gateway.client(), "acme")[0], (1, 0));
}

/// An older gateway would find the states of held buckets invalid, and empty the buckets.
#[test]
fn nothing_is_held_while_an_older_gateway_shares_the_store() {
    let redis = Redis::start();
    let gateway = start(&format!("{RULES}{}", redis.patient_store()));
    let mut client = gateway.client();
    let id = hold(&mut client, "acme", "1m");
    let now = u64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_micros()).unwrap();
    let list: Vec<u8> = redis::cmd("GET").arg("tollgate:gateways").query(&mut redis.connection()).unwrap();
    let list = [&list[..], b"an older", &now.to_le_bytes()].concat();
    redis::cmd("SET").arg("tollgate:gateways").arg(list).exec(&mut redis.connection()).unwrap();
    let held = || {
        let mut client = gateway.client();
        let taken = take(&mut client, &job("zoo", 1, "1m"));
        settle(&mut client, &json!({"hold_id": taken.json()["hold_id"], "cost": 0}));
        taken.status
    };
    eventually("a heartbeat shows it", || held() == 503);
    assert!(gateway.metric("rate_limiter_fallback_decisions_total", &["older_gateway"]) >= 1.0);
    // What is not held is decided, and what is held is settled.
    assert_eq!(take(&mut client, &json!({"entries": {"kind": "job", "tenant": "acme"}})).status, 200);
    assert_eq!(settle(&mut client, &json!({"hold_id": id, "cost": 3})).status, 200);
    eventually("it is forgotten", || held() == 200);
}
