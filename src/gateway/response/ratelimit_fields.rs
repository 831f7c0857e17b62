//! Writes the rate-limit fields of a response: the limits of the request, and how much of each is left.
//!
//! `RateLimit-Policy` and `RateLimit` are structured fields (RFC 9651) of draft-ietf-httpapi-ratelimit-headers-11. The
//! older triples of fields (limit, remaining amount, reset) show only the most restrictive limit.

use std::borrow::Cow;

use http::HeaderValue;

use super::field_writer::{FieldWriter, UpstreamFields};
use base::time::Timestamp;
use config::HeaderFormat;
use decision::ratelimit_numbers;
use decision::ratelimit_numbers::{LevelNumbers, PolicyNumbers, Triple};
use ledger::algorithm::Algorithm;
use ledger::charge::{Charge, LimitId, Plan, Settlement};
use ledger::cost::Cost;
use ledger::outcome::Outcome;
use rules::rule::Expose;
use rules::rule_set::CompiledLimit;
use rules::settled_price::Unit;

/// The texts that show one limit to clients in the rate-limit fields. They are made once per load of the configuration.
#[derive(Debug)]
pub(crate) struct ExposedLimit {
    /// The name in quotes, for example `"free"`.
    name: String,
    /// The policy text for each set of numbers of the limit.
    policies: Vec<PolicyText>,
    unit: Unit,
}

/// One member of `RateLimit-Policy`.
#[derive(Debug)]
enum PolicyText {
    /// A fixed text, for example `"free";q=20;w=2`.
    Constant(HeaderValue),
    /// The text is made for each request, because the periods of a calendar differ or the request brings its own numbers.
    OfRequest,
}

impl ExposedLimit {
    pub(crate) fn new(limit: &CompiledLimit) -> Option<ExposedLimit> {
        // The name contains no character that must be escaped.
        let name = format!("\"{}\"", limit.name);
        let unit = limit.unit();
        let policy = |algorithm: &Algorithm| match algorithm.has_constant_quota() {
            true => PolicyText::Constant(policy_text(&name, algorithm, unit, Timestamp(0))),
            false => PolicyText::OfRequest,
        };
        let mut policies: Vec<PolicyText> = limit.variants.iter().map(policy).collect();
        if let (Some(own), Some(_)) = (policies.first_mut(), &limit.claimed) {
            *own = PolicyText::OfRequest;
        }
        (limit.expose == Expose::Yes).then_some(ExposedLimit { name, policies, unit })
    }

    fn policy(&self, charge: &Charge, outcome: Option<&Outcome>, now: Timestamp) -> Option<Cow<'_, HeaderValue>> {
        if let Some(raised) = outcome.map(|outcome| outcome.raised).filter(|raised| *raised > Cost::default()) {
            return Some(Cow::Owned(policy_text(&self.name, &charge.algorithm.raised(raised), self.unit, now)));
        }
        Some(match self.policies.get(usize::try_from(charge.variant).ok()?)? {
            PolicyText::Constant(text) => Cow::Borrowed(text),
            PolicyText::OfRequest => Cow::Owned(policy_text(&self.name, &charge.algorithm, self.unit, now)),
        })
    }
}

/// The rate-limit fields of one response.
#[derive(Debug, Default)]
pub(crate) struct RateLimitFields {
    policy: Option<HeaderValue>,
    level: Option<HeaderValue>,
    legacy: Option<Triple>,
    x_ratelimit: Option<Triple>,
    refusing: Option<Triple>,
}

impl RateLimitFields {
    /// Makes the rate-limit fields for the limits of a plan. `settlement` is `None` if the store was not asked: then no
    /// remaining amounts are shown. `now` is the time of the decision, by the clock that the decision used.
    pub(crate) fn new(
        formats: &[HeaderFormat],
        shown: &[Option<ExposedLimit>],
        plan: &Plan,
        settlement: Option<&Settlement>,
        now: Timestamp,
    ) -> RateLimitFields {
        let mut fields = RateLimitFields::default();
        let shown = |limit: LimitId| shown.get(usize::try_from(limit.0).ok()?)?.as_ref();
        let exposed = || ratelimit_numbers::exposed(plan, settlement, shown);
        let unit = |limit| shown(limit).map_or(Unit::Requests, |limit| limit.unit);
        if settlement.is_some_and(|settlement| !settlement.is_granted()) {
            let levels = exposed().filter_map(|(charge, _, outcome)| Some((charge, outcome?)));
            fields.refusing = Triple::most_restrictive(levels, plan, settlement, unit);
        }
        for format in formats {
            match format {
                HeaderFormat::RateLimit => {
                    fields.policy =
                        list(exposed().filter_map(|(charge, shown, outcome)| shown.policy(charge, outcome, now)));
                    fields.level =
                        level(exposed().filter_map(|(charge, shown, outcome)| Some((shown, charge, outcome?))));
                }
                HeaderFormat::Legacy | HeaderFormat::XRateLimit => {
                    let levels = exposed().filter_map(|(charge, _, outcome)| Some((charge, outcome?)));
                    let triple = Triple::most_restrictive(levels, plan, settlement, unit);
                    match format {
                        HeaderFormat::Legacy => fields.legacy = triple,
                        _ => fields.x_ratelimit = triple,
                    }
                }
            }
        }
        fields
    }

    /// Returns the numbers of the most restrictive limit that refuses the request, among the limits that clients may
    /// see. `None` if none of these refuses it.
    pub(crate) fn refusing(&self) -> Option<Triple> {
        self.refusing
    }

    /// Returns the fields unchanged, for a response that the gateway makes itself.
    pub(crate) fn unmerged(&self) -> MergedRateLimitFields<'_> {
        MergedRateLimitFields { fields: self, legacy: self.legacy, x_ratelimit: self.x_ratelimit }
    }

    /// Returns the fields for an upstream's response with the fields `header`. `RateLimit` and `RateLimit-Policy` are
    /// added to those that the upstream has sent. Of the older fields (limit, remaining and reset), only the stricter
    /// set is kept. A less strict set of the upstream is removed from `header`.
    pub(crate) fn merge_with(&self, header: &mut impl UpstreamFields) -> MergedRateLimitFields<'_> {
        let legacy = self.legacy.filter(|triple| replaces_upstream(*triple, header, LEGACY));
        let x_ratelimit = self.x_ratelimit.filter(|triple| replaces_upstream(*triple, header, X_RATELIMIT));
        MergedRateLimitFields { fields: self, legacy, x_ratelimit }
    }
}

/// The rate-limit fields that are written to one response. Fields are left out if the upstream has sent stricter ones.
#[derive(Debug)]
pub(crate) struct MergedRateLimitFields<'a> {
    fields: &'a RateLimitFields,
    legacy: Option<Triple>,
    x_ratelimit: Option<Triple>,
}

/// The names of the fields for limit, remaining amount, and reset.
type TripleNames = [&'static str; 3];

const LEGACY: TripleNames = ["RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"];
const X_RATELIMIT: TripleNames = ["X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"];

impl MergedRateLimitFields<'_> {
    pub(crate) fn write(&self, writer: &mut impl FieldWriter) {
        for (triple, names) in [(self.legacy, LEGACY), (self.x_ratelimit, X_RATELIMIT)] {
            let Some(Triple { limit, remaining, reset, .. }) = triple else { continue };
            for (name, number) in names.into_iter().zip([limit, remaining, reset]) {
                writer.number(name, number);
            }
        }
        if let Some(policy) = &self.fields.policy {
            writer.field("RateLimit-Policy", policy);
        }
        if let Some(level) = &self.fields.level {
            writer.field("RateLimit", level);
        }
    }
}

/// Whether the response gets our triple: the upstream has sent no triple, or a less strict one, which is then removed.
fn replaces_upstream(triple: Triple, header: &mut impl UpstreamFields, names: TripleNames) -> bool {
    // The common prefix of the names is searched first, because most responses have no such field.
    let begins =
        |name: &[u8], prefix: &[u8]| name.get(..prefix.len()).is_some_and(|it| it.eq_ignore_ascii_case(prefix));
    let of_upstream = |name: &[u8]| begins(name, b"ratelimit-") || begins(name, b"x-ratelimit-");
    let present = header.any_name(of_upstream) && names.iter().any(|name| header.first(name).is_some());
    if !present {
        return true;
    }
    let stricter = is_stricter_than(triple, header, names);
    if stricter {
        for name in names {
            header.remove(name);
        }
    }
    stricter
}

/// Whether our triple is stricter than the upstream's. `false` if the upstream's remaining amount cannot be read.
fn is_stricter_than(triple: Triple, header: &impl UpstreamFields, [limit, remaining, _]: TripleNames) -> bool {
    // Some servers write `100, 100;w=60`. The first number is the limit that applies.
    let number = |name: &str| {
        let value = std::str::from_utf8(header.first(name)?).ok()?.trim();
        let digits = value.find(|character: char| !character.is_ascii_digit()).unwrap_or(value.len());
        value.get(..digits)?.parse::<u64>().ok()
    };
    number(remaining).is_some_and(|remaining| triple.is_stricter_than(number(limit), remaining))
}

fn level<'s>(outcomes: impl Iterator<Item = (&'s ExposedLimit, &'s Charge, &'s Outcome)>) -> Option<HeaderValue> {
    let mut text = String::new();
    let mut digits = itoa::Buffer::new();
    for (shown, charge, outcome) in outcomes {
        let separator = if text.is_empty() { "" } else { ", " };
        text.reserve(shown.name.len() + 48);
        let LevelNumbers { remaining, reset } = LevelNumbers::of(&charge.algorithm, shown.unit, outcome);
        for part in [separator, &shown.name, ";r=", digits.format(remaining)] {
            text.push_str(part);
        }
        if let Some(reset) = reset {
            text.push_str(";t=");
            text.push_str(digits.format(reset));
        }
    }
    (!text.is_empty()).then(|| value(text))
}

/// Formats the policy at the time `now`, for example `"free";q=20;w=2`.
fn policy_text(name: &str, algorithm: &Algorithm, unit: Unit, now: Timestamp) -> HeaderValue {
    let PolicyNumbers { quota, window, unit } = PolicyNumbers::of(algorithm, unit, now);
    let window = window.map(|window| format!(";w={window}")).unwrap_or_default();
    let unit = unit.map(|unit| format!(";qu=\"{unit}\"")).unwrap_or_default();
    value(format!("{name};q={quota}{window}{unit}"))
}

/// Joins values to a list. A single value is returned unchanged.
fn list<'s>(mut values: impl Iterator<Item = Cow<'s, HeaderValue>>) -> Option<HeaderValue> {
    let first = values.next()?;
    let Some(second) = values.next() else { return Some(first.into_owned()) };
    let mut joined = first.as_bytes().to_vec();
    for value in std::iter::once(second).chain(values) {
        joined.extend_from_slice(b", ");
        joined.extend_from_slice(value.as_bytes());
    }
    HeaderValue::from_bytes(&joined).ok()
}

/// Makes a field value. Names and numbers contain only characters that are valid in a field value.
fn value(text: String) -> HeaderValue {
    HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static("\"\""))
}

#[cfg(test)]
mod tests {
    use super::super::field_lines::FieldLines;
    use super::*;
    use base::time::{Clock, Micros, Timestamp};
    use decision::test_rules::{bucket, head, limit, policy, request, rule_set, token_bucket};
    use ledger::bucket_key::{BucketKey, LimitTag};
    use ledger::charge::ChargePurpose;
    use ledger::outcome::Verdict;
    use proptest::prelude::*;
    use rules::rule::{Action, Limit};
    use rules::rule_set::Answer;
    use sfv::{BareItem, List, ListEntry, Parser};
    use stores::memory::{Memory, Settings};

    /// Returns the names of a list field's members. Checks that each has these parameters, with integer values.
    fn members(field: &HeaderValue, parameters: &[&str]) -> Vec<String> {
        let list = Parser::new(field.as_bytes()).parse::<List>().unwrap();
        let member = |entry: &ListEntry| {
            let ListEntry::Item(item) = entry else { panic!("{field:?} has an inner list") };
            let BareItem::String(name) = &item.bare_item else { panic!("{field:?} names no string") };
            let keys: Vec<_> = item
                .params
                .iter()
                .map(|(key, value)| {
                    assert!(matches!(value, BareItem::Integer(_)), "{field:?}");
                    key.as_str().to_owned()
                })
                .collect();
            assert_eq!(keys, parameters, "{field:?}");
            name.as_str().to_owned()
        };
        list.iter().map(member).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn fields_are_valid_structured_fields_whatever_the_names_and_numbers(
            limits in prop::collection::btree_map("[A-Za-z0-9_.-]{1,64}", (1u64..1_000_000, 1_000_000u64..100_000_000_000, 1u64..90), 1..5),
            requests in 1usize..5,
        ) {
            let policy = |(name, (amount, period, burst)): (&String, &(u64, u64, u64))| {
                let algorithm = token_bucket(Cost::from_thousandths(*amount), Micros(*period), *burst);
                policy(name, Action::Charge(vec![Limit { algorithm, ..limit(1) }]))
            };
            let rules = rule_set(limits.iter().map(policy).collect());
            let shown: Vec<_> = rules.limits().iter().map(ExposedLimit::new).collect();
            let head = head(&[]);
            let memory = Memory::new(&Settings::default(), Clock::manual(Timestamp(1 << 50)));
            for _ in 0..requests {
                let Answer::Charge(plan) = rules.plan(&request(&head), Timestamp(1 << 50)).answer else { panic!("nothing to pay") };
                let settlement = memory.take(&plan).settlement;
                let fields = RateLimitFields::new(&[HeaderFormat::RateLimit], &shown, &plan, Some(&settlement), Timestamp(0));
                let names: Vec<_> = limits.keys().cloned().collect();
                prop_assert_eq!(members(&fields.policy.unwrap(), &["q", "w"]), names.clone());
                prop_assert_eq!(members(&fields.level.unwrap(), &["r", "t"]), names);
            }
        }
    }

    #[test]
    fn a_triple_shows_only_the_most_restrictive_limit() {
        let charge = |limit, burst| Charge {
            key: BucketKey([0; 16]),
            algorithm: bucket(burst),
            cost: Cost::ONE,
            limit: LimitId(limit),
            variant: 0,
            tag: LimitTag::default(),
            purpose: ChargePurpose::Spend,
        };
        let plan = Plan { enforced: [charge(0, 100), charge(1, 10)].into_iter().collect(), ..Plan::default() };
        let outcome = |remaining| Outcome {
            verdict: Verdict::Allow,
            remaining: Cost::from_tokens(remaining),
            reset_after: Micros(2_500_000),
            ..Outcome::UNASKED
        };
        let settlement = Settlement {
            verdict: Verdict::Allow,
            delay: Micros(0),
            enforced: [outcome(60), outcome(5)].into_iter().collect(),
            shadow: Default::default(),
        };
        let shown = || {
            Some(ExposedLimit {
                name: "\"x\"".to_owned(),
                unit: Unit::Requests,
                policies: vec![PolicyText::Constant(HeaderValue::from_static("\"x\";q=1;w=1"))],
            })
        };
        let triple = |shown: &[Option<ExposedLimit>]| {
            RateLimitFields::new(&[HeaderFormat::Legacy], shown, &plan, Some(&settlement), Timestamp(0)).legacy
        };
        assert_eq!(
            triple(&[shown(), shown()]),
            Some(Triple { limit: 10, remaining: 5, reset: 3, unit: Unit::Requests })
        );
        assert_eq!(
            triple(&[shown(), None]),
            Some(Triple { limit: 100, remaining: 60, reset: 3, unit: Unit::Requests })
        );
        assert_eq!(triple(&[None, None]), None);
    }

    #[test]
    fn of_two_triples_the_stricter_stays() {
        let fields = RateLimitFields {
            policy: Some(HeaderValue::from_static("\"x\";q=10;w=1")),
            legacy: Some(Triple { limit: 10, remaining: 5, reset: 3, unit: Unit::Requests }),
            ..RateLimitFields::default()
        };
        let merged = |remaining: &str| {
            let mut lines = FieldLines::default();
            lines.add("ratelimit-limit", b"20");
            lines.add("ratelimit-remaining", remaining.as_bytes());
            fields.merge_with(&mut lines).write(&mut lines);
            String::from_utf8(lines.as_bytes().to_vec()).unwrap()
        };
        let policy = "RateLimit-Policy: \"x\";q=10;w=1\r\n";
        assert_eq!(merged("4"), format!("ratelimit-limit: 20\r\nratelimit-remaining: 4\r\n{policy}"));
        let ours = "RateLimit-Limit: 10\r\nRateLimit-Remaining: 5\r\nRateLimit-Reset: 3\r\n";
        assert_eq!(merged("15"), format!("{ours}{policy}"));
    }
}
