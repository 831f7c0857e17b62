//! Bans at a listener that decides for another proxy.

use super::{guess, limit, reason, send, upstream};
use crate::support::{Client, Gateway, Redis, Response, access_log, eventually, tollgate};

/// A listener that proxies, and one that decides.
pub(super) const LISTENERS: &str = "listeners:
  - {name: front, address: 127.0.0.1:0}
  - {name: edge, address: 127.0.0.1:0, decide: [http], clients: [127.0.0.0/8], original_request: path}";

/// Asks about a request of this user.
pub(super) fn ask(gateway: &Gateway, user: &str) -> Response {
    let fields = [("X-Forwarded-Proto", "http"), ("X-Forwarded-For", "203.0.113.7"), ("X-User", user)];
    Client::connect(gateway.listeners[1]).get("/decide/login", &fields)
}

#[test]
fn a_decision_is_refused_only_by_a_ban_if_responses_are_counted() {
    let upstream = upstream();
    let gateway = Gateway::start(&upstream, &format!("{LISTENERS}{}", limit("for: [1h]")));
    // The limit does not apply, so it is in no field and counts nothing.
    for _ in 0..10 {
        let passed = ask(&gateway, "ann");
        let fields = ["ratelimit", "ratelimit-policy", "ratelimit-limit"].map(|name| passed.field(name));
        assert_eq!((passed.status, fields), (200, [None, None, None]));
    }
    gateway.expect("rate_limiter_not_at_door_total", &[], 10.0);
    gateway.expect("rate_limiter_requests_total", &[], 0.0);
    guess(&gateway, "ann");
    assert_eq!(ask(&gateway, "ann").status, 200);
    assert_eq!(reason(&send(&gateway, "ann", 200)).as_deref(), Some("banned"));
    gateway.expect("rate_limiter_requests_total", &[], 4.0);
    let banned = ask(&gateway, "ann");
    assert_eq!((banned.status, reason(&banned).as_deref()), (429, Some("banned")));
    assert!(banned.field("ratelimit").unwrap().starts_with("\"guesses\";r=0;t=3"), "{banned:?}");
    assert_eq!(banned.json()["violated-policies"], serde_json::json!(["guesses"]));
    gateway.expect("rate_limiter_bans_total", &[], 1.0);
    gateway.expect("rate_limiter_allowed_total", &[], 3.0);
    gateway.expect("rate_limiter_rejected_total", &["reason=\"banned\""], 2.0);
}

#[test]
fn a_decision_that_a_ban_could_refuse_writes_nothing_into_the_store() {
    let (upstream, redis) = (upstream(), Redis::start());
    let config = format!("{LISTENERS}{}\n{}", limit("for: [1h]"), redis.patient_store());
    let [one, other] = [(); 2].map(|()| Gateway::start(&upstream, &config));
    for _ in 0..3 {
        assert_eq!(ask(&one, "ann").status, 200);
    }
    let is_bucket = |key: &&Vec<u8>| key.len() == "tollgate:".len() + 16;
    let bucket = || redis.keys().iter().find(is_bucket).cloned();
    assert_eq!(bucket(), None);
    guess(&one, "ann");
    let key = bucket().expect("three answers are counted");
    let length = || ::redis::cmd("STRLEN").arg(&key).query::<u64>(&mut redis.connection()).unwrap();
    let before = length();
    assert_eq!([ask(&one, "ann").status, ask(&other, "ann").status], [200; 2]);
    assert_eq!(length(), before, "the other gateway has no entry");
}

#[test]
fn the_commands_know_bans_at_doors() {
    let upstream = upstream();
    let config = format!("{LISTENERS}{}\naccess_log: {{to: access.jsonl}}", limit("for: [1h]"));
    let gateway = Gateway::start(&upstream, &config);
    let file = gateway.file("gateway.yaml").display().to_string();
    let explain = || {
        let admin = gateway.admin.to_string();
        let place = ["-c", &file, "--live", "--admin", &admin, "--listener", "edge"];
        let explained = tollgate(&[&["explain"], &place[..], &["-H", "X-User: ann", "http://a/login"]].concat());
        format!("{}{}", explained.out, explained.err)
    };
    // By its line, a request ends before the next one begins: otherwise the replay has both in flight at the same time.
    let logged = |count| eventually("the line is written", || access_log::lines(&gateway).len() == count);
    assert_eq!(ask(&gateway, "ann").status, 200);
    logged(1);
    let explained = explain();
    assert!(explained.contains("no charge: another proxy forwards the request"), "{explained}");
    assert!(explained.contains("PASSES: no ban of guesses runs"), "{explained}");
    for count in 2..5 {
        assert_eq!(send(&gateway, "ann", 401).status, 401);
        logged(count);
    }
    gateway.expect("rate_limiter_settled_total", &[], 3.0);
    assert_eq!(ask(&gateway, "ann").status, 200);
    logged(5);
    assert_eq!(reason(&send(&gateway, "ann", 200)).as_deref(), Some("banned"));
    logged(6);
    assert_eq!(ask(&gateway, "ann").status, 429);
    logged(7);
    let explained = explain();
    assert!(explained.contains("REFUSED 429 banned by guesses: ban 1 ends in "), "{explained}");
    // A replay of the log decides the same: what begins the ban is refused, and the call during the ban.
    let log = gateway.file("access.jsonl").display().to_string();
    let report = tollgate(&["replay", "-c", &file, "--json", &log]).json();
    let found = &report["files"][0];
    assert_eq!((&found["refused"], &found["bans"][0]["bans"]), (&2.into(), &1.into()), "{report}");
    // With a limit of two, the call after the third guess is refused as well, but begins nothing.
    let two = std::fs::read_to_string(&file).unwrap().replace("limit: 3,", "limit: 2,");
    std::fs::write(gateway.file("two.yaml"), two).unwrap();
    let two = gateway.file("two.yaml").display().to_string();
    let report = tollgate(&["replay", "-c", &two, "--json", &log]).json();
    let found = &report["files"][0];
    assert_eq!((&found["refused"], &found["bans"][0]["bans"]), (&4.into(), &1.into()), "{report}");
}

#[test]
fn a_decision_spends_and_begins_no_ban() {
    let upstream = upstream();
    let rules = limit("for: [1h]").replace(", count_on: [401]", "");
    let gateway = Gateway::start(&upstream, &format!("{LISTENERS}{rules}"));
    for _ in 0..3 {
        assert_eq!(ask(&gateway, "ann").status, 200);
    }
    for _ in 0..3 {
        assert_eq!(reason(&ask(&gateway, "ann")).as_deref(), Some("fixed_window_exceeded"));
    }
    gateway.expect("rate_limiter_bans_total", &[], 0.0);
    assert_eq!(reason(&send(&gateway, "ann", 200)).as_deref(), Some("banned"));
    assert_eq!(reason(&ask(&gateway, "ann")).as_deref(), Some("banned"));
}
