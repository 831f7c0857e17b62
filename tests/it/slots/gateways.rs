//! Slots that two gateways share in one Redis or one PostgreSQL.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::upstream::SlowUpstream;
use super::{begin, get, slots};
use crate::support::{Gateway, Postgres, Redis, eventually, print_measured, short_or_long, tollgate};

#[test]
fn two_gateways_on_one_redis_share_the_slots_of_a_user() {
    let redis = Redis::start();
    share_slots(&redis.patient_store());
}

#[test]
fn two_gateways_on_one_postgresql_share_the_slots_of_a_user() {
    let postgres = Postgres::start();
    postgres.settings();
    share_slots(&postgres.store_with(", timeout: 10s", "deny"));
}

fn share_slots(store: &str) {
    let slow = SlowUpstream::start();
    let config = format!("{store}{}", slots(3));
    let [one, two] = [(); 2].map(|()| Gateway::start(&slow.upstream, &config));
    let mut running = [begin(&one, "/hold", "ann"), begin(&two, "/hold", "ann"), begin(&one, "/hold", "ann")];
    slow.expect_running(3);
    assert_eq!([&one, &two].map(|gateway| get(gateway, "/", "ann").status), [429, 429]);
    assert_eq!(get(&two, "/", "bob").status, 200);
    slow.finish(1);
    eventually("a slot is free at both", || [&one, &two].iter().all(|gateway| get(gateway, "/", "ann").status == 200));
    slow.finish(2);
    for client in &mut running {
        assert_eq!(client.response("GET").unwrap().status, 200);
    }
}

/// What `allow` and `local` let pass is held as soon as the store answers again, also above the limit.
#[test]
fn what_passes_without_the_store_is_held_when_it_is_back() {
    for on_store_failure in ["allow", "local"] {
        let (slow, mut redis) = (SlowUpstream::start(), Redis::start());
        let store = redis.store(on_store_failure).replace("}}\n", "}, gateways: 2}\n");
        let config = format!("{store}{}", slots(2));
        let [one, two] = [(); 2].map(|()| Gateway::start(&slow.upstream, &config));
        redis.kill();
        let _first = begin(&one, "/hold", "ann");
        slow.expect_running(1);
        let mut second = begin(&one, "/hold", "ann");
        match on_store_failure {
            // The share of one of two gateways is one slot.
            "local" => assert_eq!(second.response("GET").unwrap().status, 429),
            _ => slow.expect_running(2),
        }
        redis.restart();
        // One slot of two is held, which leaves one for this request, or both are.
        let status = if on_store_failure == "local" { 200 } else { 429 };
        eventually("the other gateway knows what is held", || {
            let seen = get(&two, "/", "ann");
            (seen.status, seen.field("ratelimit").as_deref()) == (status, Some("\"in-flight\";r=0"))
        });
        slow.finish(2);
        eventually("both slots are free again", || {
            get(&two, "/", "ann").field("ratelimit").as_deref() == Some("\"in-flight\";r=1")
        });
    }
}

/// The upstream counts itself what runs at the same time.
#[test]
fn sixty_four_callers_at_two_gateways_on_one_redis_never_have_more_than_ten_slots() {
    let redis = Redis::start();
    call_all_the_time(&redis.patient_store());
}

#[test]
fn sixty_four_callers_at_two_gateways_on_one_postgresql_never_have_more_than_ten_slots() {
    let postgres = Postgres::start();
    postgres.settings();
    call_all_the_time(&postgres.store_with(", timeout: 10s", "deny"));
}

fn call_all_the_time(store: &str) {
    let slow = SlowUpstream::working(Duration::from_millis(4));
    let config = format!("{store}{}", slots(10));
    let gateways = [(); 2].map(|()| Gateway::start(&slow.upstream, &config));
    let (granted, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    slow.finish(1_000_000);
    std::thread::scope(|scope| {
        for caller in 0..64 {
            let (gateway, granted, refused, slow) = (&gateways[caller % 2], &granted, &refused, &slow);
            scope.spawn(move || {
                let mut client = gateway.client();
                let least = short_or_long(40, 1_000);
                // On a busy machine it takes longer until ten requests run at the same time.
                for nth in 0..20 * least {
                    if nth >= least && slow.most() >= 10 {
                        break;
                    }
                    let count = match client.get("/hold", &[("X-User", "ann")]).status {
                        200 => granted,
                        429 => refused,
                        other => panic!("{other}"),
                    };
                    count.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    });
    let [granted, refused] = [granted, refused].map(AtomicUsize::into_inner);
    assert!(slow.most() == 10 && granted > 100 && refused > 100, "{} at most, {granted}, {refused}", slow.most());
    assert_eq!(granted, slow.upstream.count());
    print_measured(&format!("{granted} granted, {refused} refused, {} at once at most", slow.most()));
}

/// The recipe of priorities: `free` leaves three of eight slots to `paid`, over both gateways.
#[test]
fn a_flood_of_one_plan_never_costs_another_its_share() {
    let (slow, redis) = (SlowUpstream::start(), Redis::start());
    let pool = |name: &str, limit: usize, conditions: &str| {
        format!(
            "  - {{name: {name}, {conditions}limit_keys: [], expose: true, algorithm: concurrency, algorithm_config: {{limit: {limit}}}, meter: pool}}\n"
        )
    };
    let rules = format!("rules:\n{}{}", pool("paid", 8, "match: {header:x-plan: paid}, "), pool("free", 5, ""));
    let log = "access_log: {to: access.jsonl, when: [refused], values: [\"header:x-plan\"]}";
    let config = format!("{}{log}\n{rules}", redis.patient_store());
    let gateways = [(); 2].map(|()| Gateway::start(&slow.upstream, &config));
    let hold = |gateway: &Gateway, plan: &str| {
        let mut client = gateway.client();
        client.write(&format!("GET /hold HTTP/1.1\r\nHost: a\r\nX-Plan: {plan}\r\n\r\n"));
        client
    };
    let mut flood: Vec<_> = (0..40).map(|index| hold(&gateways[index % 2], "free")).collect();
    slow.expect_running(5);
    for (index, gateway) in [0, 1, 0].iter().map(|index| &gateways[*index]).enumerate() {
        flood.push(hold(gateway, "paid"));
        slow.expect_running(6 + index);
    }
    for (plan, status) in [("paid", 429), ("free", 429)] {
        let refused = gateways[1].client().get("/", &[("X-Plan", plan)]);
        let violated = refused.json()["violated-policies"].clone();
        assert_eq!((refused.status, violated), (status, serde_json::json!([plan])));
        let id = refused.field("x-request-id").unwrap();
        let (file, log) = (gateways[1].file("gateway.yaml"), gateways[1].file("access.jsonl"));
        let page = || tollgate(&["explain", "--id", &id, "--log", log.to_str().unwrap(), file.to_str().unwrap()]).out;
        eventually("explain names the rule", || {
            let page = page();
            page.contains("429 concurrency_exceeded") && page.contains(&format!("default/{plan}"))
        });
    }
    slow.finish(8);
    eventually("all slots are free", || {
        let free = gateways[0].client().get("/", &[("X-Plan", "paid")]);
        free.field("ratelimit").as_deref() == Some("\"paid\";r=7")
    });
    assert_eq!(slow.most(), 8);
}
