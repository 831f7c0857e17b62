//! Raises that are refused, with a message.

use super::{RULES, passing};
use crate::support::bucket_command::{bucket, says};
use crate::support::mint::epoch;
use crate::support::{Gateway, Postgres, Redis, Upstream, eventually};

const ANN: &str = "header:x-user=ann";

fn refusals(gateway: &Gateway) {
    let tomorrow = "2200-01-01T00:00:00Z";
    let refused = |rule: &str, amount: &str, until: &str, code: i32, part: &str| {
        says(gateway, &["raise", rule, ANN, amount, "--until", until, "--id", "t1"], code, part);
    };
    refused("queue", "+1", tomorrow, 1, "queue is a leaky_bucket, which has no burst and no limit to raise");
    refused("rate", "+1", "period-end", 1, "--until: period-end is for a fixed_window, and rate is a token_bucket");
    refused("two", "+1", tomorrow, 1, "two has several limits: name one of two.hour, two.day");
    refused("two.day", "+1", tomorrow, 0, "51 left of 51");
    refused("month", "+1", "2020-01-01T00:00:00Z", 1, "--until: must be in the future, is 2020-01-01T00:00:00Z");
    refused("month", "+1", "tomorrow", 2, "--until: must be period-end, or a date and time like 2026-12-01T00:00:00Z");
    refused("month", "+1", "2300-01-01T00:00:00Z", 2, "before 2255");
    refused("month", "5", tomorrow, 2, "+N: must be a + and an amount, after the values of the limit keys; is \"5\"");
    refused("month", "+0", tomorrow, 1, "+N: must be a number above 0 with at most 3 decimals");
    refused("month", "+1.2345", tomorrow, 1, "+N: must be a number above 0 with at most 3 decimals");
    refused("month", "+9007199254741", tomorrow, 1, "+N: must be at most 9007199254735, so that month stays exact");
    refused("log", "+9996", tomorrow, 1, "+N: must be at most 9995, so that log stays exact");
    refused("nothing", "+1", tomorrow, 1, "no rule is called \"nothing\"");
    says(gateway, &["raise", "month", ANN, "+1", "--until", tomorrow, "--id", ""], 2, "--id: must be 1 to 128 bytes");
    for id in 0..16 {
        says(gateway, &["raise", "rate", ANN, "+1", "--until", tomorrow, "--id", &id.to_string()], 0, " left of ");
    }
    let next = ["raise", "rate", ANN, "+1", "--until", tomorrow, "--id", "16"];
    says(gateway, &next, 1, "16 raises of this bucket run, which is the most that it can have");
    assert_eq!(bucket(gateway, &["show", "rate", ANN]).out.matches("raised by 1 until 2200-01-01").count(), 16);
    assert_eq!(passing(gateway, "/rate", "ann"), 20);
}

#[test]
fn impossible_raises_are_refused_in_memory() {
    let upstream = Upstream::start();
    refusals(&Gateway::start(&upstream, RULES));
}

/// A gateway that cannot read raises would find such a bucket invalid, and empty it.
#[test]
fn no_bucket_is_raised_while_an_older_gateway_runs_on_redis() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let gateway = Gateway::start(&upstream, &format!("{}\n{RULES}", redis.patient_store()));
    eventually("the store decides", || {
        gateway.client().get("/month", &[("X-User", "bob")]).field("ratelimit").is_some()
    });
    refusals(&gateway);
    let raise = ["raise", "month", ANN, "+1", "--until", "period-end", "--id", "t1"];
    let now = epoch() * 1_000_000;
    let older = [&b"an older"[..], &now.to_le_bytes()].concat();
    let list: Vec<u8> = redis::cmd("GET").arg("tollgate:gateways").query(&mut redis.connection()).unwrap();
    let list = [list, older].concat();
    redis::cmd("SET").arg("tollgate:gateways").arg(list).exec(&mut redis.connection()).unwrap();
    says(&gateway, &raise, 1, "1 of the running gateways cannot read raises, and would empty the bucket");
    // It has ended, and its last heartbeat counts no more.
    eventually("the older gateway is forgotten", || bucket(&gateway, &raise).code == Some(0));
}

#[test]
fn no_bucket_is_raised_while_an_older_gateway_runs_on_postgresql() {
    let (upstream, postgres) = (Upstream::start(), Postgres::start());
    postgres.settings();
    let store = postgres.store_with(", timeout: 10s", "deny") + "\n";
    let gateway = Gateway::start(&upstream, &format!("{store}{RULES}"));
    eventually("the store decides", || {
        gateway.client().get("/month", &[("X-User", "bob")]).field("ratelimit").is_some()
    });
    refusals(&gateway);
    let raise = ["raise", "month", ANN, "+1", "--until", "period-end", "--id", "t1"];
    postgres.sql(
        "INSERT INTO tollgate_bucket_gateway (name, host, configuration, seen) \
         VALUES ('\\x0102030405060708', 'old', '1', (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)",
    );
    says(&gateway, &raise, 1, "1 of the running gateways cannot read raises, and would empty the bucket");
    eventually("the older gateway is forgotten", || bucket(&gateway, &raise).code == Some(0));
}
