//! Keeps the counts of the last hour, one point for each half minute.
//!
//! Every half minute the counters are read, and the differences are added to rings (ring buffers of points). A limit or
//! a rule that denies gets a ring at its first request. The ring is removed after an hour without requests, or when a
//! reload removes the limit or rule. The number of rings is limited. A restart begins with an empty history.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use parking_lot::Mutex;
use serde::Serialize;

use super::readings::{Histogram, LimitName, Readings};
use base::time::{Micros, Timestamp};
use rules::rule::{Mode, OnStoreFailure};
use rules::rule_set::RuleSet;

/// The interval at which the counters are read. Each interval is one point of the history.
pub(super) const INTERVAL: Micros = Micros(30_000_000);
/// The number of points in one hour.
const POINTS: usize = 120;
/// The largest number of limits that have a ring. A ring takes 8 bytes for each point.
const MAX_RINGS: usize = 1000;
/// The largest number of limits in the status document. The busiest limits are kept.
const MAX_LIMITS: usize = 200;

#[derive(Debug)]
pub(super) struct History(Mutex<HistoryState>);

#[derive(Debug)]
struct HistoryState {
    started: Timestamp,
    /// The time at which the counters were last read.
    read: Timestamp,
    before: Totals,
    points: VecDeque<Point>,
    /// The limits by policy, rule and mode, with the names that metrics use.
    limits: HashMap<LimitName, LimitHistory>,
}

/// The counts of one limit.
#[derive(Debug, Default)]
struct LimitHistory {
    allowed: u64,
    refused: u64,
    /// One point for each half minute, the newest last.
    ring: Option<VecDeque<[u32; 2]>>,
}

/// Counters of the whole gateway, since its start.
#[derive(Debug, Default)]
struct Totals {
    requests: u64,
    refused: u64,
    unlimited: u64,
    errors: u64,
    decisions: Histogram,
}

/// The counts of one interval, usually half a minute.
#[derive(Clone, Copy, Debug)]
struct Point {
    end: Timestamp,
    span: Micros,
    requests: u32,
    refused: u32,
    unlimited: u32,
    errors: u32,
    p99: Option<f64>,
}

/// The document about the last hour. The oldest point is the first, and the last point is incomplete.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct HourDocument {
    /// The time at which the interval of each point ends, in seconds since the start of the gateway.
    end: Vec<f64>,
    /// The length of the interval of each point, in seconds.
    seconds: Vec<f64>,
    requests: Vec<u32>,
    refused: Vec<u32>,
    /// The number of requests without any limit.
    unlimited: Vec<u32>,
    /// The number of responses with status 5xx, of the gateway and of the upstream.
    errors: Vec<u32>,
    /// The 99th percentile of the time of a decision in seconds, rounded up to a bound of the histogram. `None` without
    /// decisions.
    decision_p99: Vec<Option<f64>>,
    /// The allowed and refused requests of each point, by policy, rule and mode. The first point of a limit is from the
    /// time at which it got its ring.
    limits: BTreeMap<String, [Vec<u32>; 2]>,
}

impl History {
    pub(super) fn new(started: Timestamp) -> History {
        let (before, points) = (Totals::default(), VecDeque::with_capacity(POINTS));
        History(Mutex::new(HistoryState { started, read: started, before, points, limits: HashMap::new() }))
    }

    /// Adds a point with the counts since the previous point.
    pub(super) fn add(&self, now: Timestamp, rules: &RuleSet, readings: Readings<'_>) {
        let mut recorded = self.0.lock();
        let totals = Totals::of(readings);
        let point = recorded.point(now, &totals);
        if recorded.points.len() == POINTS {
            recorded.points.pop_front();
        }
        recorded.points.push_back(point);
        (recorded.read, recorded.before) = (now, totals);
        recorded.add_limits(rules, readings);
    }

    /// Makes the document about the last hour. The last point has the counts up to `now`.
    pub(super) fn document(&self, now: Timestamp, rules: &RuleSet, readings: Readings<'_>) -> HourDocument {
        let recorded = self.0.lock();
        let unfinished = recorded.point(now, &Totals::of(readings));
        let points: Vec<Point> = recorded.points.iter().copied().chain([unfinished]).collect();
        HourDocument {
            end: points.iter().map(|point| point.end.since(recorded.started).seconds()).collect(),
            seconds: points.iter().map(|point| point.span.seconds()).collect(),
            requests: points.iter().map(|point| point.requests).collect(),
            refused: points.iter().map(|point| point.refused).collect(),
            unlimited: points.iter().map(|point| point.unlimited).collect(),
            errors: points.iter().map(|point| point.errors).collect(),
            decision_p99: points.iter().map(|point| point.p99).collect(),
            limits: recorded.limits_document(rules, readings),
        }
    }
}

impl HistoryState {
    fn point(&self, now: Timestamp, totals: &Totals) -> Point {
        let since = |now: u64, before: u64| narrow(now.saturating_sub(before));
        Point {
            end: now,
            span: now.since(self.read),
            requests: since(totals.requests, self.before.requests),
            refused: since(totals.refused, self.before.refused),
            unlimited: since(totals.unlimited, self.before.unlimited),
            errors: since(totals.errors, self.before.errors),
            p99: totals.decisions.p99_since(&self.before.decisions),
        }
    }

    /// Adds a point for each limit. The last counter values of a removed limit are kept as long as its series exist. If
    /// the limit is added again, its old requests are not counted again.
    fn add_limits(&mut self, rules: &RuleSet, readings: Readings<'_>) {
        let in_force: HashSet<LimitName> = names(rules).collect();
        let counts = counts(readings);
        self.limits.retain(|name, _| counts.contains_key(name));
        let mut rings = self.limits.values().filter(|limit_history| limit_history.ring.is_some()).count();
        for (name, [allowed, refused]) in counts {
            let stays = in_force.contains(&name);
            let limit_history = self.limits.entry(name).or_default();
            let point = limit_history.since(allowed, refused);
            (limit_history.allowed, limit_history.refused) = (allowed, refused);
            if !stays {
                rings -= usize::from(limit_history.ring.take().is_some());
                continue;
            }
            if limit_history.ring.is_none() && point != [0; 2] && rings < MAX_RINGS {
                rings += 1;
                limit_history.ring = Some(VecDeque::with_capacity(POINTS));
            }
            if let Some(ring) = &mut limit_history.ring {
                if ring.len() == POINTS {
                    ring.pop_front();
                }
                ring.push_back(point);
                // The ring has no requests in the whole hour, so it makes room for another limit.
                if ring.len() == POINTS && ring.iter().all(|point| *point == [0; 2]) {
                    limit_history.ring = None;
                    rings -= 1;
                }
            }
        }
    }

    fn limits_document(&self, rules: &RuleSet, readings: Readings<'_>) -> BTreeMap<String, [Vec<u32>; 2]> {
        let counts = counts(readings);
        let mut document = Vec::new();
        for name in names(rules) {
            let Some([allowed, refused]) = counts.get(&name) else { continue };
            let limit_history = self.limits.get(&name);
            let unfinished =
                limit_history.map_or([narrow(*allowed), narrow(*refused)], |one| one.since(*allowed, *refused));
            let ring =
                limit_history.and_then(|limit_history| limit_history.ring.as_ref()).into_iter().flatten().copied();
            let points: Vec<[u32; 2]> = ring.chain([unfinished]).collect();
            let sum: u64 = points.iter().flatten().map(|count| u64::from(*count)).sum();
            if sum > 0 {
                document.push((sum, name, points));
            }
        }
        document.sort_by(|(one, ..), (other, ..)| other.cmp(one));
        document.truncate(MAX_LIMITS);
        document
            .iter()
            .map(|(_, LimitName { policy, rule, mode }, points)| {
                let (allowed, refused) = points.iter().map(|[allowed, refused]| (*allowed, *refused)).unzip();
                (format!("{policy}/{rule} {mode}"), [allowed, refused])
            })
            .collect()
    }
}

impl LimitHistory {
    /// Returns the counts since the last point. A lower count than before has started again from 0, because the limit
    /// was removed and added.
    fn since(&self, allowed: u64, refused: u64) -> [u32; 2] {
        let since = |now: u64, before: u64| narrow(now.checked_sub(before).unwrap_or(now));
        [since(allowed, self.allowed), since(refused, self.refused)]
    }
}

impl Totals {
    fn of(readings: Readings<'_>) -> Totals {
        let decisions = readings.by("rate_limiter_decisions_total", "result");
        let errors = [("code", "5"), ("origin", "")];
        let of = |result| decisions.get(result).copied().unwrap_or_default();
        Totals {
            requests: decisions.values().sum(),
            refused: of("refused"),
            unlimited: of("exempt") + of("unlimited"),
            errors: readings.with_prefixes("tollgate_http_requests_total", errors),
            decisions: readings.histogram("rate_limiter_latency_seconds"),
        }
    }
}

/// Returns the names of the current limits, and then of the rules that deny.
fn names(rules: &RuleSet) -> impl Iterator<Item = LimitName> {
    rules.limits().iter().map(LimitName::of).chain(rules.deniers().iter().map(LimitName::of_denier))
}

/// Returns the allowed and refused requests of every limit that has series.
fn counts(readings: Readings<'_>) -> HashMap<LimitName, [u64; 2]> {
    let mut counts: HashMap<LimitName, [u64; 2]> = HashMap::new();
    let mut add = |metric, which: fn(&mut [u64; 2]) -> &mut u64| {
        for (name, count) in readings.by_limit(metric) {
            *which(counts.entry(name).or_default()) = count;
        }
    };
    add("rate_limiter_allowed_total", |[allowed, _]| allowed);
    add("rate_limiter_rejected_total", |[_, refused]| refused);
    // Requests that passed without the store are in no other counter. Only enforced limits have such requests.
    for (name, actions) in readings.by_limit_and("rate_limiter_fallback_decisions_total", "action") {
        let passed = actions.get(OnStoreFailure::Allow.name()).copied().unwrap_or_default();
        let [allowed, _] = counts.entry(LimitName { mode: Mode::Enforce.name().to_owned(), ..name }).or_default();
        *allowed += passed;
    }
    counts
}

/// Converts a count to 32 bits. The count of half a minute always fits.
fn narrow(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::gateway::telemetry::metrics::registry::{Reader, Registry};
    use config::{Config, Environment};
    use std::path::Path;

    const SECOND: u64 = 1_000_000;

    fn at(second: u64) -> Timestamp {
        Timestamp(second * SECOND)
    }

    fn rules(names: &[String]) -> Config {
        let read = |_: &Path| Err(std::io::ErrorKind::NotFound.into());
        let surroundings = Environment { variable: &|_| None, folder: Path::new(""), read: &read };
        let rule = |name: &String| format!("\n  - {{name: {name}, limit_keys: [], algorithm_config: {{rate: 1/s}}}}");
        let text = format!("upstream: http://u:1\nrules:{}", names.iter().map(rule).collect::<String>());
        Config::parse("gateway.yaml", text.as_bytes(), surroundings).unwrap()
    }

    /// Sets, for each rule, the number of requests that it has allowed and refused since the start.
    fn count<'r>(registry: &'r Registry, counts: &[(&str, u64, u64)]) -> Readings<'r> {
        for (rule, allowed, refused) in counts {
            let labels = [("policy", "default"), ("rule", rule), ("mode", "enforce")];
            registry.counter("rate_limiter_allowed_total", &labels).absolute(*allowed);
            let [policy, rule, mode] = labels;
            let labels = [policy, rule, mode, ("reason", "x")];
            registry.counter("rate_limiter_rejected_total", &labels).absolute(*refused);
        }
        let sum = |which: fn(&(&str, u64, u64)) -> u64| counts.iter().map(which).sum::<u64>();
        let decisions = |result| registry.counter("rate_limiter_decisions_total", &[("result", result)]);
        decisions("allowed").absolute(sum(|one| one.1));
        decisions("refused").absolute(sum(|one| one.2));
        let labels = [("code", "502"), ("origin", "gateway")];
        registry.counter("tollgate_http_requests_total", &labels).absolute(sum(|one| one.1 / 10));
        Readings(registry)
    }

    #[test]
    fn a_point_counts_since_the_previous_one_and_the_last_is_unfinished() {
        let config = rules(&["one".into()]);
        let registry = Registry::default();
        let history = History::new(at(1000));
        history.add(at(1030), &config.rules, count(&registry, &[("one", 100, 20)]));
        history.add(at(1060), &config.rules, count(&registry, &[("one", 100, 20)]));
        let document = history.document(at(1070), &config.rules, count(&registry, &[("one", 150, 21)]));
        assert_eq!((&*document.end, &*document.seconds), (&[30.0, 60.0, 70.0][..], &[30.0, 30.0, 10.0][..]));
        assert_eq!((&*document.requests, &*document.refused), (&[120, 0, 51][..], &[20, 0, 1][..]));
        assert_eq!(document.errors, [10, 0, 5]);
        let limits = BTreeMap::from([("default/one enforce".to_owned(), [vec![100, 0, 50], vec![20, 0, 1]])]);
        assert_eq!(document.limits, limits);
    }

    #[test]
    fn what_is_let_pass_without_the_store_is_allowed() {
        let config = rules(&["one".into()]);
        let registry = Registry::default();
        let history = History::new(at(0));
        for (action, count) in [("allow", 30), ("local", 500)] {
            let labels = [("policy", "default"), ("rule", "one"), ("action", action), ("cause", "timeout")];
            registry.counter("rate_limiter_fallback_decisions_total", &labels).increment(count);
        }
        let document = history.document(at(10), &config.rules, count(&registry, &[("one", 5, 1)]));
        assert_eq!(document.limits["default/one enforce"], [vec![35], vec![1]]);
    }

    #[test]
    fn a_removed_rule_loses_its_history_and_does_not_bring_it_back() {
        let (both, one) = (rules(&["one".into(), "two".into()]), rules(&["one".into()]));
        let registry = Registry::default();
        let history = History::new(at(0));
        count(&registry, &[("one", 5, 0), ("two", 70, 0)]);
        history.add(at(30), &both.rules, Readings(&registry));
        history.add(at(60), &one.rules, Readings(&registry));
        history.add(at(90), &both.rules, count(&registry, &[("one", 6, 0), ("two", 73, 0)]));
        let document = history.document(at(95), &both.rules, count(&registry, &[("one", 6, 0), ("two", 74, 0)]));
        assert_eq!(document.limits["default/one enforce"][0], [5, 0, 1, 0]);
        assert_eq!(document.limits["default/two enforce"][0], [3, 1]);
    }

    #[test]
    fn a_rule_with_forgotten_series_takes_no_memory_and_begins_at_zero() {
        let (both, one) = (rules(&["one".into(), "two".into()]), rules(&["one".into()]));
        let (registry, history) = (Arc::new(Registry::default()), History::new(at(0)));
        let allow = |config: u32, rule: &str, count: u64| {
            let labels = [("policy", "default"), ("rule", rule), ("mode", "enforce")];
            registry.of_config(config).counter("rate_limiter_allowed_total", &labels).increment(count);
        };
        let forget = |config: u32| {
            allow(config, "one", 0);
            registry.reloaded(config);
            (0..2).for_each(|_| drop(registry.render(Reader::Scrape, String::new)));
        };
        allow(0, "one", 1);
        allow(0, "two", 70);
        history.add(at(30), &both.rules, Readings(&registry));
        forget(1);
        // The limit is added again before the counters are read, and its count is lower than before.
        allow(2, "two", 3);
        history.add(at(60), &both.rules, Readings(&registry));
        let document = history.document(at(65), &both.rules, Readings(&registry));
        assert_eq!(document.limits["default/two enforce"][0], [70, 3, 0]);
        forget(3);
        history.add(at(90), &one.rules, Readings(&registry));
        assert_eq!(history.0.lock().limits.len(), 1);
    }

    #[test]
    fn the_number_of_limits_with_a_history_is_bounded() {
        let names: Vec<String> = (0..MAX_RINGS + 200).map(|number| format!("r{number}")).collect();
        let config = rules(&names);
        let registry = Registry::default();
        let history = History::new(at(0));
        for round in 1..=200 {
            let counts: Vec<_> = names.iter().map(|name| (&**name, 500 * round, 100 * round)).collect();
            count(&registry, &counts);
            history.add(at(30 * round), &config.rules, Readings(&registry));
            if round == 200 {
                let document = history.document(at(6001), &config.rules, Readings(&registry));
                assert_eq!((document.end.len(), document.limits.len()), (POINTS + 1, MAX_LIMITS));
                assert_eq!(document.end[0], 30.0 * 81.0);
                let document = serde_json::to_vec(&document).unwrap();
                assert!((150_000..210_000).contains(&document.len()), "{} bytes", document.len());
            }
        }
        let recorded = history.0.lock();
        let rings: Vec<_> = recorded.limits.values().filter_map(|limit_history| limit_history.ring.as_ref()).collect();
        let bytes: usize = rings.iter().map(|ring| ring.capacity() * size_of::<[u32; 2]>()).sum();
        assert_eq!((rings.len(), bytes), (MAX_RINGS, 960_000));
    }

    #[test]
    fn a_limit_without_requests_for_an_hour_frees_its_memory() {
        let config = rules(&["one".into()]);
        let registry = Registry::default();
        let history = History::new(at(0));
        count(&registry, &[("one", 1, 0)]);
        for round in 1..=POINTS as u64 {
            history.add(at(30 * round), &config.rules, Readings(&registry));
        }
        let has_ring = || history.0.lock().limits.values().any(|limit_history| limit_history.ring.is_some());
        assert!(has_ring());
        history.add(at(30 * (POINTS as u64 + 1)), &config.rules, Readings(&registry));
        assert!(!has_ring());
    }
}
