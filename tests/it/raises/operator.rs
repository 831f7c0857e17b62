//! An operator raises limits in memory, Redis, a cluster and PostgreSQL.

use std::time::Duration;

use serde_json::json;

use super::{RULES, passing, send};
use crate::support::bucket_command::{bucket, document, says};
use crate::support::mint::epoch;
use crate::support::sentinel::{SentinelGroup, SentinelSetup};
use crate::support::{Gateway, Postgres, Redis, RedisCluster, Replicas, Upstream, eventually};
use base::rfc3339::format_seconds;
use base::time::Timestamp;

/// Returns the date and time in this many seconds.
fn in_seconds(seconds: u64) -> String {
    format_seconds(Timestamp((epoch() + seconds) * 1_000_000))
}

/// Plays raises of all algorithms. `other` shares the store; `None` for buckets in memory.
fn play(one: &Gateway, other: Option<&Gateway>) {
    let other = other.unwrap_or(one);
    let (ann, next_year) = ("header:x-user=ann", in_seconds(300 * 86_400));
    assert_eq!(passing(one, "/month", "ann"), 5);
    let raise = ["raise", "month", ann, "+3", "--until", &next_year, "--id", "t1", "--reason", "a spike"];
    says(one, &raise, 0, "  3 left of 8, had 0 of 5\n    raised by 3 until ");
    std::thread::sleep(Duration::from_millis(1_050));
    let granted = send(other, "/month", "ann");
    assert_eq!(granted.status, 200, "{granted:?}");
    assert_eq!((granted.number("ratelimit-limit"), granted.number("ratelimit-remaining")), (8, 2));
    assert!(granted.field("ratelimit-policy").unwrap().starts_with("\"month\";q=8;w="), "{granted:?}");
    assert!(granted.field("ratelimit").unwrap().starts_with("\"month\";r=2;"), "{granted:?}");
    assert_eq!(passing(one, "/month", "ann"), 2);
    // Another client has the number in the file.
    assert_eq!(send(one, "/month", "bob").number("ratelimit-limit"), 5);
    // The same raise is made once.
    says(other, &raise, 0, "  it has this raise already: 0 left of 8\n");
    let other_numbers = ["raise", "month", ann, "+4", "--until", &next_year, "--id", "t1"];
    says(one, &other_numbers, 1, "--id: a raise of this bucket with this id is +3 until ");
    says(one, &["show", "month", ann], 0, "  0 left of 8, full in ");
    let shown = document(one, &["show", "month", ann])["buckets"][0].clone();
    assert_eq!((&shown["quota"], &shown["spent"], &shown["left"]), (&json!(8), &json!(8), &json!(0)), "{shown}");
    assert_eq!((&shown["raises"][0]["amount"], shown["raises"].as_array().unwrap().len()), (&json!(3), 1), "{shown}");
    let usage = one.client().get("/.well-known/ratelimit?path=/month", &[("X-User", "ann")]).json();
    let limit = &usage["limits"][0];
    assert_eq!((&limit["limit"], &limit["used"], &limit["remaining"]), (&json!(8), &json!(8), &json!(0)), "{usage}");
    // A grant and a reset keep the raise, and so does the end of what was spent.
    says(one, &["grant", "month", ann, "2"], 0, "  gave back 2: 2 left of 8, had 0");
    eventually("the grant is seen", || send(one, "/month", "ann").status == 200);
    says(one, &["reset", "month", ann], 0, "full from now on");
    eventually("the reset is seen", || send(one, "/month", "ann").status == 200);
    assert_eq!(passing(one, "/month", "ann"), 7);
    // Until the end of the period.
    says(one, &["raise", "month", ann, "+1", "--until", "period-end", "--id", "t2"], 0, "  1 left of 9, had 0 of 8\n");
    eventually("the raise is in force", || send(one, "/month", "ann").status == 200);
    for (path, rule) in [("/rate", "rate"), ("/log", "log"), ("/slide", "slide")] {
        // Of a bucket that is full, and not stored.
        let raised = document(one, &["raise", rule, ann, "+2", "--until", &next_year, "--id", "x"]);
        assert_eq!((&raised["act"], &raised["buckets"][0]["left"]), (&json!("raise"), &json!(7)), "{raised}");
        assert_eq!(passing(one, path, "ann"), 7, "{path}");
    }
    // A raise ends by itself, and what was spent stays spent.
    assert_eq!(passing(one, "/rate", "eve"), 5);
    let soon = in_seconds(4);
    says(one, &["raise", "rate", "header:x-user=eve", "+2", "--until", &soon, "--id", "x"], 0, "  2 left of 7, ");
    eventually("the raise is in force", || send(one, "/rate", "eve").status == 200);
    assert_eq!(passing(one, "/rate", "eve"), 1);
    eventually("the raise ends", || {
        let shown = document(one, &["show", "rate", "header:x-user=eve"])["buckets"][0].clone();
        shown["raises"].is_null() && shown["burst"] == 5 && shown["left"] == 0
    });
    assert_eq!(passing(one, "/rate", "eve"), 0);
}

#[test]
fn an_operator_raises_in_memory() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, RULES);
    play(&gateway, None);
    gateway.expect_logged("bucket was raised by an operator");
}

#[test]
fn an_operator_raises_in_redis() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let gateways = [(); 2].map(|()| Gateway::start(&upstream, &format!("{}\n{RULES}", redis.patient_store())));
    play(&gateways[0], Some(&gateways[1]));
    let raise = ["raise", "month", "header:x-user=secret-user", "+2", "--until", "period-end", "--id", "t7"];
    let logged = bucket(&gateways[0], &[&raise[..], &["--reason", "moved to pro"]].concat()).err;
    let parts = [
        " INFO bucket raised by an operator user=",
        " limit=month id=t7 amount=2 until=",
        " before=5 after=7 reason=\"moved to pro\" store=",
    ];
    assert!(parts.iter().all(|part| logged.contains(part)) && !logged.contains("secret"), "{logged}");
}

#[test]
fn an_operator_raises_in_a_cluster() {
    let (upstream, cluster) = (Upstream::start(), RedisCluster::start(Replicas::None));
    let gateways = [(); 2].map(|()| Gateway::start(&upstream, &(cluster.store("deny", "") + RULES)));
    play(&gateways[0], Some(&gateways[1]));
}

#[test]
fn an_operator_raises_by_sentinel() {
    let (upstream, group) = (Upstream::start(), SentinelGroup::with(&SentinelSetup::default()));
    let store = format!("store: {{redis: {{{}, timeout: 10s}}}}\non_store_failure: deny\n", group.section(""));
    let gateways = [(); 2].map(|()| Gateway::start(&upstream, &format!("{store}{RULES}")));
    play(&gateways[0], Some(&gateways[1]));
}

#[test]
fn an_operator_raises_in_postgresql() {
    let (upstream, postgres) = (Upstream::start(), Postgres::start());
    postgres.settings();
    let store = postgres.store_with(", timeout: 10s", "deny") + "\n";
    let gateways = [(); 2].map(|()| Gateway::start(&upstream, &format!("{store}{RULES}")));
    play(&gateways[0], Some(&gateways[1]));
}
