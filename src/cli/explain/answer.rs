//! Says what the gateway would answer, from what the rules say and, where they were looked at, what the buckets hold.

use super::asked::Misformed;
use super::identity::Refused;
use super::report::{Answer, Verdict, all};
use crate::cli::bucket_backend::Levels;
use crate::config::Config;
use crate::gateway::{Reason, retry_after};
use crate::limit::ambiguity::Ambiguity;
use crate::limit::attribute::Attribute;
use crate::limit::charge::{Charge, Plan, settle};
use crate::limit::cost::Cost;
use crate::limit::explanation::{Date, Ended, Exemption, Explanation, Part};
use crate::limit::outcome::Outcome;
use crate::limit::rule::{Otherwise, RefusalStatus};
use crate::limit::rule_set;
use crate::limit::rule_set::CompiledLimit;

const BEFORE: &str = "no rule is asked, and nothing is charged";

impl Answer {
    /// One that no limit has a part in.
    fn refused(code: u16, reason: Reason, why: &str, rest: &str) -> Answer {
        let first = format!("REFUSED {code} {}: {why}", reason.name());
        let words = vec![first, rest.to_owned()];
        Answer { verdict: Verdict::Refused, code: Some(code), reason: Some(reason.name()), retry_after: None, words }
    }

    fn passes(words: Vec<String>) -> Answer {
        Answer { verdict: Verdict::Passes, code: None, reason: None, retry_after: None, words }
    }
}

pub fn of_head(misformed: &Misformed) -> Answer {
    Answer::refused(misformed.code, Reason::BadRequest, misformed.detail, BEFORE)
}

pub fn of_reading(unclear: Ambiguity, ambiguous: Option<&Attribute>) -> Answer {
    match (unclear, ambiguous) {
        (Ambiguity::Path, _) => {
            Answer::refused(400, Reason::BadRequest, "the path has no single reading, and a rule reads `path`", BEFORE)
        }
        (Ambiguity::Ambiguous, Some(attribute)) => {
            let why = format!(
                "the request repeats {attribute}, spells its name in another way, or names it in Connection, and the file reads it"
            );
            Answer::refused(400, Reason::AmbiguousRequest, &why, BEFORE)
        }
        (Ambiguity::Ambiguous, None) => {
            let why = "Connection names Authorization or Cookie, and so has it taken off";
            Answer::refused(400, Reason::AmbiguousRequest, why, BEFORE)
        }
    }
}

pub fn of_credentials(refused: &Refused) -> Answer {
    Answer::refused(refused.code, refused.reason, &refused.detail, BEFORE)
}

/// What the rules come to.
pub fn of_rules(explanation: &Explanation<'_>, config: &Config, levels: Option<&Levels>) -> Answer {
    match &explanation.answer {
        rule_set::Answer::Denied => denied(explanation),
        rule_set::Answer::Exempt => {
            let by = match &explanation.exemption {
                Exemption::By(conditions) => all(conditions),
                _ => String::new(),
            };
            Answer::passes(vec![format!("PASSES: exempt by {by}; pays nothing")])
        }
        rule_set::Answer::TooLarge(plan) => too_large(plan, config),
        rule_set::Answer::Charge(plan) if plan.is_empty() => {
            Answer::passes(vec!["PASSES: no limit applies".to_owned()])
        }
        rule_set::Answer::Charge(plan) => match levels {
            Some(levels) => settled(plan, config, levels),
            None => unknown(plan, config),
        },
    }
}

fn denied(explanation: &Explanation<'_>) -> Answer {
    let by = explanation.policies.iter().find_map(|explained| match explained.part {
        Part::Takes(Ended::Denied { by }) => Some(format!("rule {by} of policy {}", explained.policy.name)),
        Part::Takes(Ended::Otherwise(Otherwise::Deny)) => {
            Some(format!("policy {}, none of whose rules applies", explained.policy.name))
        }
        _ => None,
    });
    let why = format!("by {}", by.unwrap_or_default());
    Answer::refused(403, Reason::Denied, &why, "no bucket is charged")
}

fn name<'c>(config: &'c Config, charge: &Charge) -> &'c str {
    config.rules.limit(charge.limit).map_or("", |limit| &limit.name)
}

fn too_large(plan: &Plan, config: &Config) -> Answer {
    let too_large = plan.enforced.iter().filter(|charge| charge.cost > charge.algorithm.ceiling());
    let each: Vec<String> = too_large
        .map(|charge| {
            let Charge { cost, algorithm, .. } = charge;
            format!("{} is asked for {cost}, and holds {} at most", name(config, charge), algorithm.ceiling())
        })
        .collect();
    let rest = "charged nothing; no Retry-After, because waiting does not help";
    Answer::refused(429, Reason::CostTooLarge, &each.join("; "), rest)
}

/// Nobody has looked.
fn unknown(plan: &Plan, config: &Config) -> Answer {
    let Some((first, rest)) = plan.enforced.split_first() else {
        return Answer::passes(vec!["PASSES: only shadows are asked to pay".to_owned()]);
    };
    let needs = |charge: &Charge| format!("{} holds {}", name(config, charge), charge.cost);
    let needs: Vec<String> = std::iter::once(first).chain(rest).map(needs).collect();
    let words = vec![
        format!("PASSES if {}", needs.join(" and ")),
        "no store was looked at: --live shows what the buckets hold".to_owned(),
    ];
    Answer { verdict: Verdict::Depends, ..Answer::passes(words) }
}

fn settled(plan: &Plan, config: &Config, levels: &Levels) -> Answer {
    let states: Vec<_> = plan.charges().map(|charge| levels.state(&charge.key)).collect();
    let (settlement, _) = settle(plan, &states, levels.now);
    let asked = plan.enforced.iter().zip(&settlement.enforced);
    if settlement.is_granted() {
        let left = |(charge, outcome): (&Charge, &Outcome)| {
            format!("{} would pay {}, and hold {} then", name(config, charge), charge.cost, outcome.remaining)
        };
        let left: Vec<String> = asked.map(left).collect();
        let first = if left.is_empty() { "only shadows are asked to pay".to_owned() } else { left.join("; ") };
        let rest = format!("asking has charged nothing; read from {}", levels.from);
        return Answer::passes(vec![format!("PASSES: {first}"), rest]);
    }
    let refusing: Vec<_> = asked.filter(|(_, outcome)| outcome.verdict.is_refusal()).collect();
    // The limit with the longest wait speaks for all; of equal ones the first.
    let worst = refusing
        .iter()
        .copied()
        .reduce(|worst, next| if next.1.retry_after > worst.1.retry_after { next } else { worst });
    let Some((charge, outcome)) = worst else { return Answer::passes(Vec::new()) };
    let shared =
        |limit: Option<&CompiledLimit>| limit.is_some_and(|limit| limit.refusal == RefusalStatus::ReducedCapacity);
    let code = if refusing.iter().all(|(charge, _)| shared(config.rules.limit(charge.limit))) { 503 } else { 429 };
    let reason = Reason::exceeded(&charge.algorithm).name();
    let wait = outcome.retry_after;
    let told = retry_after(charge.key.spread(), wait, config.retry_after_jitter);
    let others: Vec<&str> = refusing
        .iter()
        .filter(|(other, _)| other.limit != charge.limit)
        .map(|(other, _)| name(config, other))
        .collect();
    let others = if others.is_empty() { String::new() } else { format!(" (and {})", others.join(", ")) };
    let (cost, has): (Cost, Cost) = (charge.cost, outcome.remaining);
    let words = vec![
        format!(
            "REFUSED {code} {reason} by {}{others}: needs {cost}, has {has}, passes in {}s ({})",
            name(config, charge),
            wait.ceil_seconds(),
            Date(levels.now.plus(wait)),
        ),
        format!(
            "charged nothing; Retry-After {told} = {} + spread {}; read from {}",
            wait.ceil_seconds(),
            told.saturating_sub(wait.ceil_seconds()),
            levels.from,
        ),
    ];
    Answer { verdict: Verdict::Refused, code: Some(code), reason: Some(reason), retry_after: Some(told), words }
}
