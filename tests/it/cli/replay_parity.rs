//! A replay decides every request as the gateway did, from the gateway's own log and from other formats.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use base::time::{Clock, Micros, Timestamp};
use config::{Config, Environment};
use decision::access_log_line::{Kind, Line, LoggedLimit, LoggedValue, Source};
use ledger::charge::{LimitId, Plan, Settlement};
use ledger::outcome::Verdict;
use replay::counts::ShadowCount;
use replay::entry::{EntrySource, Format, ReadResult};
use replay::field_map::{FieldMap, FieldMapping};
use replay::line_reader::Lines;
use replay::merge::Merge;
use replay::result::{Cause, SimulatedResult};
use replay::simulation::Simulation;
use request::client_address::ClientAddress;
use request::identity::Claims;
use request::request::Request;
use rules::rule_set::Answer;
use serde_json::json;
use stores::memory::{Memory, Settings};

use crate::support::{Gateway, Upstream, eventually, short_or_long};

const FILE: &str = "\
upstream: http://127.0.0.1:9000
hash_key: a key of sixteen bytes or more
jwt: {algorithms: [HS256], keys: {secret: 0123456789abcdef0123456789abcdef}}
exempt: [{ip:address: 203.0.113.99}]
policies:
  - name: block
    rules:
      - {name: bad, match: {path: /bad}, action: deny}
  - name: ceiling
    rules:
      - {name: everybody, limit_keys: [], algorithm_config: {rps: 40, burst: 60}}
  - name: plan
    rules:
      - {name: gold, match: {jwt:plan: gold}, limit_keys: [jwt:sub],
         limits: {second: {rps: 8, burst: 9, shadow: {rps: 4, burst: 6}}, minute: {rate: 60/min}}}
      - {name: trial, mode: shadow, limit_keys: [\"jwt:sub|ip:address\"], algorithm_config: {rps: 2, burst: 3}}
      - name: free
        match: {jwt:plan: {not: gold}}
        limit_keys: [\"jwt:sub|ip:address\"]
        algorithm_config: {rps: 3, burst: 7, cost_source: header:x-cost, max_cost: 4}
  - name: windows
    rules:
      - name: several
        limit_keys: [ip:address]
        algorithm: fixed_window
        limits:
          epoch: {limit: 9, window: 2s}
          first: {limit: 14, window: 3s, anchor: first_request, shadow: {limit: 7}}
          # The day ends eight seconds after the first request.
          day: {limit: 40, window: day, timezone: Asia/Kathmandu, at: \"20:37\"}
  - name: sliding
    rules:
      - name: sliding
        limit_keys: [ip:address]
        limits:
          window: {algorithm: sliding_window, limit: 12, window: 2s, steps: 4}
          log: {algorithm: sliding_log, limit: 13, window: 2s, shadow: {limit: 6}}
  - name: queue
    rules:
      - name: line
        limit_keys: [ip:address]
        algorithm: leaky_bucket
        algorithm_config: {rps: 5, queue: 9, max_wait: 1s, delay_after: 4}
  - name: next
    mode: shadow
    rules:
      - {name: tight, limit_keys: [ip:address], algorithm_config: {rps: 1, burst: 2}}
";

fn config() -> Config {
    let read = |_: &Path| Err(std::io::ErrorKind::NotFound.into());
    let surroundings = Environment { variable: &|_| None, folder: Path::new(""), read: &read };
    Config::parse("gateway.yaml", FILE.as_bytes(), surroundings).unwrap_or_else(|problems| panic!("{problems}"))
}

/// One request of a client.
#[derive(Clone, Debug)]
struct SentRequest {
    at: Timestamp,
    client: IpAddr,
    sub: Option<String>,
    plan: Option<&'static str>,
    path: &'static str,
    cost: Option<String>,
}

fn sent(at: Timestamp) -> SentRequest {
    let known = fastrand::bool();
    SentRequest {
        at,
        client: IpAddr::from([203, 0, 113, [1, 2, 3, 99][fastrand::usize(..4)]]),
        sub: known.then(|| format!("user-{}", fastrand::u8(..4))),
        plan: known.then(|| ["gold", "free", "basic"][fastrand::usize(..3)]),
        path: if fastrand::u8(..20) == 0 { "/bad" } else { "/good" },
        cost: (fastrand::u8(..3) == 0).then(|| format!("{}.{:03}", fastrand::u8(..6), fastrand::u16(..1000))),
    }
}

/// The rules and the store of a gateway, and the log lines that they produce.
struct Live<'c> {
    config: &'c Config,
    memory: Arc<Memory>,
    clock: Clock,
    shadows: HashMap<LimitId, ShadowCount>,
}

impl Live<'_> {
    fn answer(&mut self, sent: &SentRequest) -> (SimulatedResult, String) {
        let mut head = http::Request::builder().uri(sent.path);
        if let Some(cost) = &sent.cost {
            head = head.header("x-cost", cost);
        }
        let (head, ()) = head.body(()).unwrap().into_parts();
        let claims = json!({"sub": sent.sub, "plan": sent.plan}).as_object().unwrap().clone();
        let claims = Claims::new(claims, None);
        let request = Request::new(&head, ClientAddress::new(sent.client, 64)).with_destination("default", "default");
        let request = Request { claims: Some(&claims), ..request };
        self.clock.set(sent.at);
        match self.config.rules.plan(&request, sent.at).answer {
            Answer::Denied(_) => (SimulatedResult::Refused, self.line(sent, Some("denied"), None)),
            Answer::Exempt => (SimulatedResult::Allowed, self.line(sent, None, None)),
            Answer::TooLarge(_) => panic!("no cost is above a burst"),
            Answer::Charge(plan) => {
                let settlement = self.memory.take(&plan).settlement;
                for (charge, outcome) in plan.shadow.iter().zip(&settlement.shadow) {
                    let ShadowCount { asked, would_refuse } = self.shadows.entry(charge.limit).or_default();
                    *asked += 1;
                    *would_refuse += u64::from(outcome.verdict.is_refusal());
                }
                let granted = settlement.is_granted();
                let reason = (!granted).then_some("token_bucket_exceeded");
                let fate = if granted { SimulatedResult::Allowed } else { SimulatedResult::Refused };
                (fate, self.line(sent, reason, Some((&plan, &settlement))))
            }
        }
    }

    fn line(&self, sent: &SentRequest, reason: Option<&'static str>, paid: Option<(&Plan, &Settlement)>) -> String {
        let names = &self.config.hash_key;
        let mut limits = Vec::new();
        if let Some((plan, settlement)) = paid {
            // A shadow is not asked about a request that is refused.
            let unasked = std::iter::repeat(&ledger::outcome::Outcome::UNASKED);
            let shadow = settlement.shadow.iter().chain(unasked);
            let outcomes = settlement.enforced.iter().chain(shadow);
            for (charge, outcome) in plan.charges().zip(outcomes) {
                let limit = self.config.rules.limit(charge.limit).unwrap();
                limits.push(LoggedLimit {
                    policy: limit.policy.clone().into(),
                    rule: limit.name.clone().into(),
                    mode: limit.mode,
                    verdict: outcome.verdict,
                    cost: charge.cost,
                    settled: None,
                    remaining: (outcome.verdict != Verdict::Unasked).then_some(outcome.remaining),
                    unit: None,
                    bucket: names.bucket(&charge.key.0),
                });
            }
        }
        let attributes = [("jwt:sub", sent.sub.as_deref()), ("jwt:plan", sent.plan)];
        let attributes = attributes.iter().filter_map(|(name, value)| Some((*name, (*value)?)));
        let spent = Micros(fastrand::u64(..900));
        let line = Line {
            time: Timestamp(sent.at.0 - spent.0),
            request_id: "id".into(),
            kind: if reason.is_some() { Kind::Refused } else { Kind::Allowed },
            code: if reason.is_some() { 429 } else { 200 },
            duration_us: spent,
            decision_us: Some(spent),
            reason: reason.map(Into::into),
            source: paid.map(|_| Source::Store),
            limits,
            attributes: attributes
                .map(|(name, value)| (name.into(), LoggedValue::Single(names.value(name, value.as_bytes()))))
                .collect(),
            ..Line::UNDECIDED
        };
        let mut text = Vec::new();
        line.write(&mut text);
        String::from_utf8(text).unwrap()
    }
}

fn application(sent: &SentRequest) -> String {
    let SentRequest { at, client, sub, plan, path, cost } = sent;
    json!({"t": at.0, "ip": client, "user": {"id": sub, "plan": plan}, "uri": path, "cost": cost}).to_string()
}

#[track_caller]
fn check(trial: &mut Simulation<'_>, format: &Format, line: &str, fate: SimulatedResult) {
    let ReadResult::Entry(entry) = format.read(line.as_bytes()) else { panic!("unreadable: {line}") };
    assert_eq!(trial.decide(&entry, None), fate, "{line}");
}

#[test]
fn a_replay_decides_every_request_as_it_was_decided() {
    let config = config();
    let map = "time=t,ip:address=ip,jwt:sub=user.id,jwt:plan=user.plan,path=uri,header:x-cost=cost";
    let map: Vec<_> = map.split(',').map(|member| FieldMapping::parse(member).unwrap()).collect();
    let mapped = Format::Mapped(Arc::new(FieldMap::new(&map).unwrap()));
    let mut refused = 0;
    let seeds = short_or_long(10, 200);
    for seed in 0..seeds {
        fastrand::seed(seed);
        let mut at = Timestamp(1_795_272_712_000_000);
        let clock = Clock::manual(at);
        let memory = Memory::new(&Settings::default(), clock.clone());
        let mut live = Live { config: &config, memory, clock, shadows: HashMap::new() };
        // One log with names of values, one without any: there the rules are those that it names.
        let trial = || Simulation::new(&config, None, &[]);
        let (mut named, mut unnamed, mut foreign) = (trial(), trial(), trial());
        for _ in 0..400 {
            at = at.plus(Micros(if fastrand::bool() { 0 } else { fastrand::u64(..60_000) }));
            let sent = sent(at);
            let (fate, line) = live.answer(&sent);
            check(&mut named, &Format::Detect, &line, fate);
            let without =
                line.split(",\"attributes\"").next().unwrap().trim_end().trim_end_matches('}').to_owned() + "}";
            check(&mut unnamed, &Format::Own, &without, fate);
            check(&mut foreign, &mapped, &application(&sent), fate);
            refused += u64::from(fate == SimulatedResult::Refused);
        }
        for trial in [&named, &unnamed, &foreign] {
            assert_eq!(trial.counts.shadows, live.shadows, "seed {seed}");
        }
        assert_eq!(by_limit(&named), by_limit(&foreign), "seed {seed}");
        assert_eq!(by_limit(&unnamed), by_limit(&foreign), "seed {seed}");
    }
    assert!((50 * seeds..350 * seeds).contains(&refused), "{refused} refused");
}

/// Returns how often each limit refused.
fn by_limit(trial: &Simulation<'_>) -> HashMap<Cause, u64> {
    let of_limit = |cause: &Cause| matches!(cause, Cause::Limit(_));
    trial.counts.causes.iter().filter(|(cause, _)| of_limit(cause)).map(|(cause, count)| (*cause, *count)).collect()
}

/// Each client is one thread with one request at a time. No bucket is near its limit when a request arrives, so the time
/// between a decision and its log line does not matter.
#[test]
fn a_replay_of_a_gateways_log_repeats_its_decisions() {
    const CLIENTS: usize = 4;
    const REQUESTS: usize = 60;
    let upstream = Upstream::start();
    let rest = "\
access_log: {to: access.jsonl}
exempt: [{header:x-plan: staff}]
policies:
  - name: block
    rules: [{name: bad, match: {path: /bad}, action: deny}]
  - name: plan
    rules:
      - name: gold
        match: {header:x-plan: gold}
        limit_keys: [header:x-user]
        limits: {hour: {rate: 30/hour}, day: {rate: 100/day}}
      - name: free
        limit_keys: [header:x-user]
        algorithm_config: {rate: 9/hour, cost_source: header:x-cost, max_cost: 3}
  - name: pace
    match: {path: /paced}
    rules: [{name: steady, limit_keys: [header:x-user], algorithm_config: {rate: 2/5s}}]
  - name: year
    rules: [{name: year, limit_keys: [header:x-user], algorithm: fixed_window, algorithm_config: {limit: 45, window: year}}]
  - name: sliding
    rules:
      - name: days
        limit_keys: [header:x-user]
        limits:
          log: {algorithm: sliding_log, limit: 44, window: 2d}
          month: {algorithm: sliding_window, limit: 44, window: 31d}
";
    let gateway = Gateway::start(&upstream, rest);
    let ask = &|client: usize| {
        let (user, mut http) = (format!("user-{client}"), gateway.client());
        let paths = ["/good", "/good", "/good", "/bad"];
        let mut refused = 0;
        for _ in 0..REQUESTS {
            let path = paths[fastrand::usize(..paths.len())];
            let plan = ["gold", "free", "staff"][fastrand::usize(..3)];
            let cost = fastrand::u8(0..5).to_string();
            let fields = [("X-User", &*user), ("X-Plan", plan), ("X-Cost", &cost)];
            refused += usize::from(http.get(path, &fields).status != 200);
        }
        // Two in five seconds: the third is five seconds early.
        let paced = (0..3).map(|_| http.get("/paced", &[("X-User", &user), ("X-Plan", "gold")]).status);
        refused + paced.filter(|status| *status != 200).count()
    };
    let refused: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..CLIENTS).map(|client| scope.spawn(move || ask(client))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    let file = gateway.file("access.jsonl");
    let whole = CLIENTS * (REQUESTS + 3);
    eventually("every line is there", || std::fs::read_to_string(&file).unwrap_or_default().lines().count() == whole);
    let config = Config::load(&gateway.file("gateway.yaml")).unwrap_or_else(|problems| panic!("{problems}"));
    let mut trial = Simulation::new(&config, None, &[]);
    let mut merge = Merge::new([(Lines::open(file.to_str().unwrap()).unwrap(), Format::Detect)]);
    while let Some(entry) = merge.advance().unwrap() {
        let fate = trial.decide(&entry, None);
        let EntrySource::Own(logged) = &entry.source else { panic!("{entry:?}") };
        assert_eq!(fate == SimulatedResult::Refused, logged.kind == Kind::Refused, "{entry:?}");
        assert_ne!(fate, SimulatedResult::Undecided, "{entry:?}");
    }
    assert_eq!(usize::try_from(trial.counts.refused).unwrap(), refused);
    assert_eq!(usize::try_from(trial.counts.allowed).unwrap(), whole - refused);
    assert!((whole / 5..whole * 4 / 5).contains(&refused), "{refused} of {whole}");
}
