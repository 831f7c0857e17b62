//! Tests the fields of responses and the bodies of refusals of fixed windows, end to end.

use std::path::Path;
use std::sync::Arc;

use base::time::{Clock, Timestamp};
use config::{Config, Environment};
use decision::ratelimit_numbers::{LevelNumbers, PolicyNumbers};
use decision::refusal::Refusal;
use decision::speaking_limit::refusal;
use request::client_address::ClientAddress;
use request::request::Request;
use rules::rule_set::Answer;
use rules::settled_price::Unit;
use stores::memory::{Memory, Settings};

use crate::support::{Gateway, Upstream};

/// A token bucket and a window of a month, charged together.
const RULES: &str = "
rules:
  - name: plan
    limit_keys: [header:x-user]
    limits:
      second: {rps: 1000, burst: 1000}
      month: {algorithm: fixed_window, limit: 2, window: month, timezone: Asia/Kathmandu}";

#[test]
fn a_month_is_granted_once_and_tells_when_it_ends() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, RULES);
    let mut client = gateway.client();
    let user: &[_] = &[("X-User", "a")];
    let granted = client.get("/", user);
    let policy = granted.field("ratelimit-policy").unwrap().to_owned();
    let days = policy.split_once("\"plan.month\";q=2;w=").unwrap().1.parse::<u64>().unwrap() / 86_400;
    assert!((28..=31).contains(&days), "{policy}");
    assert!(granted.field("ratelimit").unwrap().contains("\"plan.month\";r=1;t="), "{granted:?}");
    assert_eq!(client.get("/", user).status, 200);
    let refused = client.get("/", user);
    assert_eq!((refused.status, refused.field("x-tollgate-reason").as_deref()), (429, Some("fixed_window_exceeded")));
    let wait = refused.number("ratelimit-reset");
    let retry_after = refused.number("retry-after");
    assert!((wait..wait + 62).contains(&retry_after), "{refused:?}");
    let body: serde_json::Value = serde_json::from_str(&refused.body).unwrap();
    let resets_at = body["resets_at"].as_str().unwrap();
    assert!(resets_at.ends_with("-01T00:00:00+05:45"), "{body}");
    assert_eq!(body["violated-policies"], serde_json::json!(["plan.month"]));
    // Somebody else has a month of their own.
    assert_eq!(client.get("/", &[("X-User", "b")]).status, 200);
}

#[test]
fn an_override_and_a_shadow_have_other_limits_in_the_same_window() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        "
rules:
  - name: plan
    limit_keys: [header:x-user]
    algorithm: fixed_window
    algorithm_config: {limit: 2, window: year, shadow: {limit: 1}}
    overrides: {acme: {limit: 3}}",
    );
    let mut client = gateway.client();
    let mut codes = |user: &str| (0..4).map(|_| client.get("/", &[("X-User", user)]).status).collect::<Vec<_>>();
    assert_eq!(codes("a"), [200, 200, 429, 429]);
    assert_eq!(codes("acme"), [200, 200, 200, 429]);
    let refused = gateway.metric("rate_limiter_rejected_total", &["fixed_window_exceeded", "shadow"]);
    assert!(refused >= 1.0, "{refused}");
}

/// The decisions of a configuration about one user's requests, in memory, at times that the test chooses.
struct InMemory {
    config: Config,
    clock: Clock,
    memory: Arc<Memory>,
}

impl InMemory {
    fn new(rules: &str) -> InMemory {
        let read = |_: &Path| Err(std::io::ErrorKind::NotFound.into());
        let surroundings = Environment { variable: &|_| None, folder: Path::new(""), read: &read };
        let text = format!("upstream: http://127.0.0.1:9000\n{rules}");
        let config = Config::parse("gateway.yaml", text.as_bytes(), surroundings).unwrap();
        let clock = Clock::manual(Timestamp(0));
        InMemory { memory: Memory::new(&Settings::default(), clock.clone()), config, clock }
    }

    /// Returns `w`, `r` and `t`, and the refusal if there is one.
    fn ask(&self, moment: &str) -> ([u64; 3], Option<Refusal>) {
        self.clock.set(moment_of(moment));
        let (head, ()) = http::Request::builder().uri("/").body(()).unwrap().into_parts();
        let client = ClientAddress::new("192.0.2.1".parse().unwrap(), 64);
        let request = Request::new(&head, client).with_destination("default", "default");
        let Answer::Charge(plan) = self.config.rules.plan(&request, moment_of(moment)).answer else { panic!("free") };
        let reply = self.memory.take(&plan);
        let policy = PolicyNumbers::of(&plan.enforced[0].algorithm, Unit::Requests, reply.now);
        let level = LevelNumbers::of(&plan.enforced[0].algorithm, Unit::Requests, &reply.settlement.enforced[0]);
        let jitter = self.config.retry_after_jitter;
        let refused = !reply.settlement.is_granted();
        let refusal = refused.then(|| refusal(&self.config.rules, &plan, &reply.settlement, reply.now, jitter));
        ([policy.window.unwrap(), level.remaining, level.reset.unwrap()], refusal)
    }
}

fn moment_of(text: &str) -> Timestamp {
    let moment: jiff::Timestamp = text.parse().unwrap();
    Timestamp(u64::try_from(moment.as_microsecond()).unwrap())
}

/// In Berlin, October 2026 has 31 days and one hour. It ends at 23:00 UTC.
#[test]
fn a_month_in_berlin_tells_its_own_length_and_end_in_the_last_hour_of_october() {
    let month = "{limit: 10000, window: month, timezone: Europe/Berlin, fixed_cost: 5000}";
    let gateway = InMemory::new(&format!(
        "rules: [{{name: plan, limit_keys: [ip:address], algorithm: fixed_window, algorithm_config: {month}}}]"
    ));
    let october = (31 * 24 + 1) * 3600;
    assert_eq!(gateway.ask("2026-10-31T22:00:00Z"), ([october, 5000, 3600], None));
    assert_eq!(gateway.ask("2026-10-31T22:30:00.25Z"), ([october, 0, 1800], None));
    let (numbers, refusal) = gateway.ask("2026-10-31T22:59:58.5Z");
    let refusal = refusal.unwrap();
    assert_eq!((numbers, refusal.resets_at.as_deref()), ([october, 0, 2], Some("2026-11-01T00:00:00+01:00")));
    // However short the wait is, clients are spread over `max_period`.
    assert!((2..=62).contains(&refusal.retry_after.unwrap()), "{refusal:?}");
    let november = 30 * 24 * 3600;
    assert_eq!(gateway.ask("2026-10-31T23:00:00Z"), ([november, 5000, november], None));
    assert_eq!(gateway.ask("2026-11-30T22:59:59.5Z"), ([november, 0, 1], None));
    let (_, refusal) = gateway.ask("2026-11-30T22:59:59.75Z");
    assert_eq!(refusal.unwrap().resets_at.as_deref(), Some("2026-12-01T00:00:00+01:00"));
}

/// Months that begin in the gap of a clock change, and months that begin in summer time.
#[test]
fn the_end_has_the_offset_of_the_zone_at_that_moment() {
    for (zone, now, resets_at) in [
        ("Europe/Berlin", "2026-06-30T21:59:59Z", "2026-07-01T00:00:00+02:00"),
        ("Asia/Kathmandu", "2026-06-30T18:14:59Z", "2026-07-01T00:00:00+05:45"),
        ("America/Havana", "2026-10-31T12:00:00Z", "2026-11-01T00:00:00-04:00"),
        ("UTC", "2026-12-31T23:00:00Z", "2027-01-01T00:00:00Z"),
    ] {
        let month = format!("{{limit: 1, window: month, timezone: {zone}}}");
        let gateway = InMemory::new(&format!(
            "rules: [{{name: plan, limit_keys: [], algorithm: fixed_window, algorithm_config: {month}}}]"
        ));
        assert_eq!(gateway.ask(now).1, None);
        assert_eq!(gateway.ask(now).1.unwrap().resets_at.as_deref(), Some(resets_at));
    }
}

/// The memory store counts by a clock that does not change when the machine's clock is set. But a process that reads the
/// buckets of another process may find that the clock was set back.
#[test]
fn a_clock_that_is_set_back_reopens_no_period_and_one_that_is_set_forward_begins_the_next() {
    let gateway = InMemory::new(
        "rules: [{name: plan, limit_keys: [], algorithm: fixed_window, algorithm_config: {limit: 1, window: day}}]",
    );
    let granted = |moment: &str| gateway.ask(moment).1.is_none();
    assert!(granted("2026-06-02T00:30:00Z"));
    assert!(!granted("2026-06-01T23:45:00Z"), "yesterday is over");
    assert!(!granted("2026-06-02T23:59:59Z"));
    assert!(granted("2026-06-03T00:00:00Z"));
    // A day ahead is not believed: what was spent counts today.
    assert!(granted("2026-06-05T00:00:00Z"));
    assert!(!granted("2026-06-03T12:00:00Z"));
    assert!(granted("2026-06-04T00:00:00Z"));
}
