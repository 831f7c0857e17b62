//! Counts, logs and records the bans that begin.

use super::recording::{ChargedRequests, record_ban};
use crate::gateway::state::snapshot::Snapshot;
use base::time::Timestamp;
use config::Config;
use decision::access_log_line::LoggedText;
use ledger::charge::{Charge, LimitId, Plan, Settlement};
use ledger::outcome::{BanNotice, Outcome};
use request::attribute::Attribute;
use request::attribute_value::AttributeValue;
use request::request::Request;
use rules::rule::{LimitKey, Mode};

/// Counts each ban that has begun with this plan. `now` is the time in this process.
pub(super) fn count_bans(
    snapshot: &Snapshot,
    plan: &Plan,
    settlement: &Settlement,
    requests: ChargedRequests<'_>,
    now: impl Fn() -> Timestamp,
) {
    for (index, (charge, outcome)) in plan.enforced.iter().zip(&settlement.enforced).enumerate() {
        if let Some(BanNotice { step, begins: true }) = outcome.ban {
            count_ban(snapshot, charge, outcome, step, requests.one(), now());
            record_ban(snapshot, (index, charge), step, outcome, requests);
        }
    }
    for (charge, outcome) in plan.shadow.iter().zip(&settlement.shadow) {
        if let Some(BanNotice { step, begins: true }) = outcome.ban {
            count_ban(snapshot, charge, outcome, step, requests.one(), now());
        }
    }
}

/// Counts a ban that has begun, and logs it. At most one line a second is logged for a limit.
fn count_ban(
    snapshot: &Snapshot,
    charge: &Charge,
    outcome: &Outcome,
    step: u32,
    request: Option<&Request<'_>>,
    now: Timestamp,
) {
    let Some((limit, metrics)) = snapshot.limit(charge.limit) else { return };
    let Some(bans) = &metrics.bans else { return };
    bans.count(step);
    if let Some(bans) = bans.log.admit(now) {
        let (policy, rule) = (&*limit.policy, &*limit.name);
        let bucket = snapshot.config.hash_key.bucket(&charge.key.0);
        let (seconds, shadow) = (outcome.retry_after.ceil_seconds(), limit.mode == Mode::Shadow);
        match request.and_then(|request| values(&snapshot.config, charge.limit, request)) {
            Some(values) => {
                log::info!(policy, rule, bucket:%, values, step, seconds, shadow, bans; "ban began");
            }
            None => log::info!(policy, rule, bucket:%, step, seconds, shadow, bans; "ban began"),
        }
    }
}

/// Returns the values of the limit's keys that the access log shows as they are, such as `ip:address=203.0.113.7`. `None` if
/// the access log shows none of them.
fn values(config: &Config, limit: LimitId, request: &Request<'_>) -> Option<String> {
    let shown = &config.access_log.as_ref()?.values;
    let policies = config.rules.source().policies.iter().enumerate();
    let mut rules = policies.flat_map(|(index, policy)| policy.rules.iter().enumerate().map(move |rule| (index, rule)));
    let (_, (_, rule)) = rules.find(|(policy, (rule, _))| config.rules.charged_by(*policy, *rule).contains(&limit))?;
    let of_key = |key: &LimitKey| {
        // The first alternative that the request has is the one that is counted by.
        let mut resolved = key.alternatives.iter().map(|attribute| (attribute, attribute.resolve_for_match(request)));
        let (attribute, _) = resolved.find(|(_, value)| !matches!(value, AttributeValue::Missing))?;
        let source: &Attribute = attribute.source();
        let listed = shown.iter().find(|listed| listed.attribute == *source)?;
        match source.resolve_for_match(request) {
            AttributeValue::Single(value) => Some(format!("{}={}", listed.text, LoggedText::of(&value).text())),
            AttributeValue::Missing | AttributeValue::List(_) => None,
        }
    };
    let values: Vec<String> = rule.keys.iter().filter_map(of_key).collect();
    (!values.is_empty()).then(|| values.join(" "))
}
