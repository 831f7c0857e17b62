//! Reports the result of a replay. All names are resolved, and the lists are sorted.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::Serialize;

use super::bucket::{Bucket, BucketId};
use super::counts::ShadowCount;
use super::merge::ReadCounts;
use super::open_question::OpenQuestion;
use super::result::Cause;
use super::simulation::Simulation;
use super::timeline::Timeline;
use base::time::{Micros, Timestamp};
use config::log_listing::LogListing;
use ledger::charge::LimitId;
use request::attribute::Attribute;

/// The largest number of buckets that are listed.
const MOST_NAMED: usize = 10;

/// The result of a replay of all logs.
#[derive(Clone, Debug)]
pub struct Report {
    pub read: ReadCounts,
    pub took: Micros,
    /// The times of the first and of the last request. `None` if there was no request.
    pub span: Option<(Timestamp, Timestamp)>,
    pub requests: u64,
    pub ours: OwnLog,
    /// The outcome of the replay under each file.
    pub outcomes: Vec<Outcome>,
    pub timeline: Timeline,
}

/// Whether the gateway's own log was among the logs, and whether that log contains allowed requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OwnLog {
    #[default]
    None,
    /// The gateway's own log was among the logs, but it contains no allowed request.
    WithoutAllowed,
    All,
}

/// The outcome of the replay under one file.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Outcome {
    pub allowed: u64,
    pub refused: u64,
    pub undecided: u64,
    /// The same count as [`Counts::refused_anyway`](super::counts::Counts::refused_anyway). The share of refused
    /// requests excludes it.
    pub refused_anyway: u64,
    /// The causes of refusals, each with its number of requests. The most frequent cause is the first.
    pub by: Vec<Refuser>,
    pub shadows: Vec<Shadow>,
    /// The questions that the logs leave open, each with its number of lines.
    pub undecidable: Vec<Undecidable>,
    /// The attributes that the logs lack and that would answer the questions in `undecidable`.
    pub lacking: Vec<String>,
    /// Those of `lacking` that a request may have had no value of.
    #[serde(skip)]
    pub may_be_absent: Vec<String>,
    /// How the gateway's own log must list the attributes in `lacking`, as far as it can have them.
    #[serde(skip)]
    pub to_log: LogListing,
    /// The attributes that counted as missing because lines have no value for them, each with its number of lines.
    pub missing: Vec<MissingAttribute>,
    /// The policies whose outcome was taken from the gateway's own log, each with its number of lines.
    pub as_logged: Vec<PolicyAsLogged>,
    /// Whether a rule counts by a claim although the file trusts several issuers. No log records the issuer, so equal
    /// claims of two issuers share a bucket in the replay.
    pub several_issuers: bool,
    /// The budgets that do not count some requests, because the lines do not tell the cost of these requests.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOut>,
    /// The limits that banned clients, each with the number of its bans. Limits in shadow mode are included.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub bans: Vec<Bans>,
    /// The number of buckets that refused at least one request, over all limits.
    pub refused_keys: u64,
    /// The number of buckets that refused requests, but none under the former file. `None` without a former file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub newly_refused_keys: Option<u64>,
    /// The buckets with the most refusals. If two files are compared, these are the buckets with the most new refusals.
    pub top: Vec<Top>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Refuser {
    /// The name of the cause: a rule such as `plan/free`, or a description.
    pub name: String,
    pub refused: u64,
    /// The number of buckets that refused requests for this cause. `None` for a cause without buckets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keys: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub newly_refused_keys: Option<u64>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Shadow {
    pub name: String,
    pub asked: u64,
    pub would_refuse: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct LeftOut {
    pub name: String,
    pub lines: u64,
}

/// The bans of one limit.
#[derive(Clone, Debug, Serialize)]
pub struct Bans {
    pub name: String,
    pub bans: u64,
    /// The number of buckets that were banned at least once.
    pub keys: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct Undecidable {
    /// The part of the rules that is left open: a rule such as `plan/free`, a policy, or `exempt`.
    pub name: String,
    pub lines: u64,
    pub attributes: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct MissingAttribute {
    pub attribute: String,
    pub lines: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct PolicyAsLogged {
    pub policy: String,
    pub lines: u64,
    /// The attributes that the lines lack, and with which the policy's `match` and keys would be applied.
    pub lacking: Vec<String>,
    /// How the gateway's own log must list these attributes, as far as it can have them.
    #[serde(skip)]
    pub to_log: LogListing,
}

#[derive(Clone, Debug, Serialize)]
pub struct Top {
    /// The name of the client, made of values or pseudonyms in the log. Without such a name, the pseudonym of the
    /// bucket.
    pub name: String,
    pub limit: String,
    pub asked: u64,
    pub refused: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub newly: Option<u64>,
}

/// Whether the outcome of a file is compared with the outcome of a former file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    Nothing,
    Another,
}

impl Simulation<'_> {
    pub fn outcome(&self, comparison: Comparison) -> Outcome {
        let counts = &self.counts;
        let compared = |count: u64| (comparison == Comparison::Another).then_some(count);
        let refusing = || self.buckets.iter().map(|(_, bucket)| bucket).filter(|bucket| bucket.refused > 0);
        let count = |chosen: &dyn Fn(&&Bucket) -> bool| refusing().filter(chosen).count() as u64;
        let mut by: Vec<(Cause, u64)> = counts.causes.iter().map(|(cause, count)| (*cause, *count)).collect();
        by.sort_unstable_by_key(|(cause, count)| (Reverse(*count), *cause));
        let refuser = |(cause, refused)| {
            let keys = |new: bool| match cause {
                Cause::Limit(limit) => {
                    Some(count(&|bucket| bucket.limit == limit && (!new || bucket.refused_before == 0)))
                }
                _ => None,
            };
            let newly_refused_keys = if comparison == Comparison::Another { keys(true) } else { None };
            Refuser { name: self.cause(cause), refused, keys: keys(false), newly_refused_keys }
        };
        let mut shadows: Vec<_> = counts.shadows.iter().collect();
        shadows.sort_unstable_by_key(|(limit, _)| **limit);
        let mut left_out: Vec<_> = counts.left_out.iter().collect();
        left_out.sort_unstable_by_key(|(limit, _)| **limit);
        let mut open: Vec<_> = counts.open.iter().collect();
        open.sort_unstable_by_key(|(question, _)| **question);
        let mut missing: Vec<_> = counts.missing.iter().map(|(name, lines)| (name.to_string(), *lines)).collect();
        missing.sort_unstable();
        let mut as_logged: Vec<_> = counts.as_logged.iter().collect();
        as_logged.sort_unstable_by_key(|(policy, _)| **policy);
        Outcome {
            allowed: counts.allowed,
            refused: counts.refused,
            undecided: counts.undecided,
            refused_anyway: counts.refused_anyway,
            by: by.into_iter().map(refuser).collect(),
            shadows: shadows
                .into_iter()
                .map(|(limit, ShadowCount { asked, would_refuse })| Shadow {
                    name: self.limit(*limit),
                    asked: *asked,
                    would_refuse: *would_refuse,
                })
                .collect(),
            undecidable: open
                .into_iter()
                .map(|(question, count)| Undecidable {
                    name: self.question(*question),
                    lines: count.lines,
                    attributes: count.attributes.iter().map(ToString::to_string).collect(),
                })
                .collect(),
            lacking: counts.lacking.iter().map(ToString::to_string).collect(),
            may_be_absent: {
                let possible = counts.lacking.iter().filter(|attribute| !attribute.is_never_missing());
                possible.map(ToString::to_string).collect()
            },
            to_log: LogListing::of(&self.config.rules, &counts.lacking),
            missing: missing.into_iter().map(|(attribute, lines)| MissingAttribute { attribute, lines }).collect(),
            as_logged: as_logged
                .into_iter()
                .map(|(policy, count)| PolicyAsLogged {
                    policy: self.policy(*policy),
                    lines: count.lines,
                    lacking: count.lacking.iter().map(ToString::to_string).collect(),
                    to_log: LogListing::of(&self.config.rules, &count.lacking),
                })
                .collect(),
            several_issuers: self.mixes_issuers(),
            left_out: left_out
                .into_iter()
                .map(|(limit, lines)| LeftOut { name: self.limit(*limit), lines: *lines })
                .collect(),
            bans: self.bans(),
            refused_keys: count(&|_| true),
            newly_refused_keys: compared(count(&|bucket| bucket.refused_before == 0)),
            top: self.top(comparison),
        }
    }

    /// Returns the limits that banned clients, in the order of the file.
    fn bans(&self) -> Vec<Bans> {
        let mut limits: BTreeMap<LimitId, (u64, u64)> = BTreeMap::new();
        for (_, bucket) in self.buckets.iter().filter(|(_, bucket)| bucket.bans > 0) {
            let (bans, keys) = limits.entry(bucket.limit).or_default();
            *bans += bucket.bans;
            *keys += 1;
        }
        let named = |(limit, (bans, keys))| Bans { name: self.limit(limit), bans, keys };
        limits.into_iter().map(named).collect()
    }

    fn mixes_issuers(&self) -> bool {
        let several = self.config.jwt.as_ref().is_some_and(|jwt| jwt.issuers.len() > 1);
        let mut rules = self.config.rules.source().policies.iter().flat_map(|policy| &policy.rules);
        let claim = |part: &Attribute| matches!(part.source(), Attribute::Claim(_));
        several && rules.any(|rule| rule.keys.iter().flat_map(|key| &key.alternatives).any(claim))
    }

    fn top(&self, comparison: Comparison) -> Vec<Top> {
        let rank = |bucket: &Bucket| match comparison {
            Comparison::Nothing => bucket.refused,
            Comparison::Another => bucket.newly_refused,
        };
        let mut buckets: Vec<_> = self.buckets.iter().filter(|(_, bucket)| rank(bucket) > 0).collect();
        // Buckets of equal rank are ordered by their ids, so that the order is the same in every run.
        let order = |(id, bucket): &(&BucketId, &Bucket)| (Reverse(rank(bucket)), **id);
        if buckets.len() > MOST_NAMED {
            buckets.select_nth_unstable_by_key(MOST_NAMED - 1, order);
            buckets.truncate(MOST_NAMED);
        }
        buckets.sort_unstable_by_key(order);
        let top = |(id, bucket): (&BucketId, &Bucket)| Top {
            name: self.name(id, bucket),
            limit: self.limit(bucket.limit),
            asked: bucket.asked,
            refused: bucket.refused,
            newly: (comparison == Comparison::Another).then_some(bucket.newly_refused),
        };
        buckets.into_iter().map(top).collect()
    }

    fn name(&self, id: &BucketId, bucket: &Bucket) -> String {
        match (id, &bucket.client) {
            (_, Some(client)) => client.clone(),
            (BucketId::Picked(_), None) if !self.config.hash_key.is_known() => "(hash_key is not known)".to_owned(),
            (BucketId::Picked(key), None) => self.config.hash_key.bucket(&key.0).to_string(),
            (BucketId::Logged(_, name), None) => name.to_string(),
        }
    }

    fn cause(&self, cause: Cause) -> String {
        match cause {
            Cause::Limit(limit) => self.limit(limit),
            Cause::Deny { policy, rule: Some(rule) } => format!("{} (deny)", self.rule(policy, rule)),
            Cause::Deny { policy, rule: None } => format!("{}, otherwise deny", self.policy(policy)),
            Cause::DenyInLog => "denied, says the log".to_owned(),
            Cause::Ambiguous => "unclear request (400)".to_owned(),
            Cause::NoRoute => "no route (404)".to_owned(),
        }
    }

    fn question(&self, question: OpenQuestion) -> String {
        match question {
            OpenQuestion::Rules { policy, rule: Some(rule) } => self.rule(policy, rule),
            OpenQuestion::Rules { policy, rule: None } => self.policy(policy),
            OpenQuestion::Exemption => "exempt".to_owned(),
        }
    }

    fn limit(&self, limit: LimitId) -> String {
        self.config.rules.limit(limit).map_or_else(String::new, |limit| format!("{}/{}", limit.policy, limit.name))
    }

    fn policy(&self, policy: usize) -> String {
        self.config.rules.source().policies.get(policy).map_or_else(String::new, |policy| policy.name.clone())
    }

    fn rule(&self, policy: usize, rule: usize) -> String {
        let rules = self.config.rules.source().policies.get(policy).map(|policy| &policy.rules);
        let rule = rules.and_then(|rules| rules.get(rule)).map_or("", |rule| &rule.name);
        format!("{}/{rule}", self.policy(policy))
    }
}

impl Outcome {
    /// Returns the number of refused requests, and the number of refused and allowed requests together. The requests in
    /// `refused_anyway` are in neither number.
    pub fn decided(&self) -> (u64, u64) {
        let refused = self.refused - self.refused_anyway;
        (refused, self.allowed + refused)
    }

    /// Whether more than `share` millionths of the requests counted by [`Outcome::decided`] were refused.
    pub fn refuses_above(&self, share: u64) -> bool {
        let (refused, decided) = self.decided();
        u128::from(refused) * 1_000_000 > u128::from(decided) * u128::from(share)
    }
}
