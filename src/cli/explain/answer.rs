//! Formats the gateway's answer to a request, from the rules and the levels of the buckets.

use super::home::{AskedHome, Live, PlanTrial};
use super::report::{Answer, Verdict, all, is_of_body};
use crate::gateway::bucket_levels::Levels;
use base::time::{Micros, Timestamp};
use base::waiting_time::WaitingTime;
use config::{Config, HomeFailure, Listener, RefuseWith};
use decision::order_of_answers::RulesDecision;
use decision::refusal::Refusal;
use decision::speaking_limit::{awaits_home, refusal, refusing, speaker};
use ledger::charge::{Charge, Plan, Settlement};
use ledger::outcome::{BanNotice, Outcome};
use request::attribute::{Attribute, is_nominated};
use request::door::Door;
use request::request::Request;
use rules::ambiguity::{Ambiguity, AmbiguityCheck};
use rules::explanation::{Date, Exemption, Explanation, PolicyEnd, PolicyOutcome};
use rules::rule::{OnStoreFailure, Otherwise};
use rules::rule_set::CompiledLimit;
use rules::settled_price::Unit;
use rules::without_store::{named_without_home, named_without_store};

pub(super) const BEFORE_RULES: &str = "no rule is asked, and nothing is charged";

/// A refusal, with details for the operator.
#[derive(Debug)]
pub(super) struct ExplainedRefusal {
    pub refusal: Box<Refusal>,
    pub detail: String,
}

impl ExplainedRefusal {
    pub(super) fn new(refusal: Refusal, detail: String) -> ExplainedRefusal {
        ExplainedRefusal { refusal: Box::new(refusal), detail }
    }
}

impl Answer {
    /// Makes the answer for a refusal. `rest` follows the first line.
    fn refused(refusal: &Refusal, detail: &str, rest: String) -> Answer {
        let Refusal { status, reason, retry_after, .. } = refusal;
        let first = format!("REFUSED {status} {}{detail}", reason.name());
        Answer {
            verdict: Verdict::Refused,
            code: Some(*status),
            reason: Some(reason.name()),
            retry_after: *retry_after,
            words: vec![first, rest],
        }
    }

    fn passes(words: Vec<String>) -> Answer {
        Answer { verdict: Verdict::Passes, code: None, reason: None, retry_after: None, words }
    }
}

/// Makes the answer to a request that is refused before the rules are evaluated.
pub(super) fn before_rules(ExplainedRefusal { refusal, detail }: &ExplainedRefusal) -> Answer {
    // The wait depends on the client's bucket in a running gateway.
    let refusal = Refusal { retry_after: None, ..Refusal::clone(refusal) };
    Answer::refused(&refusal, &format!(": {detail}"), BEFORE_RULES.to_owned())
}

/// Makes the answer to a request whose cost at a limit on language models would not be known.
pub(super) fn unpriced(refusal: &Refusal) -> Answer {
    let detail = ": a limit on language models applies, and the path is that of no known format";
    Answer::refused(refusal, detail, "charged nothing".to_owned())
}

/// Describes the answer to the proxy that asks this listener about the request. `None` if the proxy gets the client's
/// answer.
pub(super) fn at_door(answer: &Answer, listener: &Listener) -> Option<String> {
    let settings = listener.decide.as_ref().filter(|settings| settings.refuse_with == RefuseWith::Forbidden)?;
    let code = answer.code.filter(|code| answer.verdict == Verdict::Refused && *code != 401)?;
    settings
        .doors
        .contains(&Door::Http)
        .then(|| format!("the proxy that asks gets 403, with X-Tollgate-Status: {code}"))
}

/// Explains why a request can be read in more than one way, by the ambiguity that `check` has found.
pub(super) fn ambiguity_detail(ambiguity: Ambiguity, check: &AmbiguityCheck, request: &Request<'_>) -> String {
    match (ambiguity, check.ambiguous(request)) {
        (Ambiguity::Path, _) => "the path has no single reading, and a rule reads it".to_owned(),
        (Ambiguity::Ambiguous, Some(attribute)) => {
            let what = match (attribute, check.alias(attribute, request)) {
                (Attribute::Header(name), _) if is_nominated(request, name) => {
                    "is named in Connection, so that it is removed".to_owned()
                }
                (_, Some(alias)) if !attribute.is_ambiguous(request) => {
                    let alias = String::from_utf8_lossy(&alias);
                    let shown = attribute.to_string();
                    match shown.split_once(':') {
                        Some((_, name)) if name == alias => "is beside a `;`, which servers may read as `&`".to_owned(),
                        Some((kind, _)) => {
                            format!("is there as {kind}:{alias}, which servers may read as the same name")
                        }
                        None => "is there under another name".to_owned(),
                    }
                }
                _ => "is there more than once".to_owned(),
            };
            format!("{attribute} {what}, and the file reads it")
        }
        (Ambiguity::Ambiguous, None) => match check.different_keys(request) {
            Some((one, other)) => format!("the keys in {one} and {other} differ"),
            None => "Connection names Authorization or Cookie, so that it is removed".to_owned(),
        },
    }
}

/// Makes the answer that the rules give. `live` has the levels of the buckets, or is `None` if they were not read.
///
/// `longest_delay` is the longest delay of the request, or `None` without a bound.
pub(super) fn by_rules(
    explanation: &Explanation<'_>,
    config: &Config,
    live: Option<&Live>,
    longest_delay: Option<Micros>,
) -> Answer {
    match RulesDecision::from(explanation.answer.clone()) {
        RulesDecision::Denied { refusal, .. } => denied(&refusal, explanation),
        RulesDecision::TooLarge { refusal, plan } => too_large(&refusal, &plan, config),
        RulesDecision::Exempt => {
            let by = match &explanation.exemption {
                Exemption::By(conditions) => all(conditions),
                _ => String::new(),
            };
            Answer::passes(vec![format!("PASSES: exempt by {by}; pays nothing")])
        }
        RulesDecision::Unlimited => Answer::passes(vec!["PASSES: no limit applies".to_owned()]),
        RulesDecision::Charge(mut plan) => {
            if let Some(most) = longest_delay {
                plan.limit_delay(most);
            }
            let mut answer = match live {
                Some(live) => by_levels(&plan, config, live),
                None => without_levels(&plan, config),
            };
            answer.words.extend(without_store(&plan, config));
            answer.words.extend(without_home(&plan, config));
            answer
        }
    }
}

fn denied(refusal: &Refusal, explanation: &Explanation<'_>) -> Answer {
    let by = explanation.policies.iter().find_map(|explained| match explained.part {
        PolicyOutcome::TakesPart(PolicyEnd::Denied { by }) => {
            Some(format!("rule {by} of policy {}", explained.policy.name))
        }
        PolicyOutcome::TakesPart(PolicyEnd::Otherwise(Otherwise::Deny)) => {
            Some(format!("policy {}, none of whose rules applies", explained.policy.name))
        }
        _ => None,
    });
    let detail = format!(": by {}", by.unwrap_or_default());
    Answer::refused(refusal, &detail, "no bucket is charged".to_owned())
}

fn name<'c>(config: &'c Config, charge: &Charge) -> &'c str {
    config.rules.limit(charge.limit).map_or("", |limit| &limit.name)
}

fn unit(config: &Config, charge: &Charge) -> Unit {
    config.rules.limit(charge.limit).map_or(Unit::Requests, CompiledLimit::unit)
}

/// Displays what a request needs at a limit: its cost, or the reserved amount.
fn need(config: &Config, charge: &Charge) -> String {
    if is_unknown(config, charge) {
        return "its worst case, which depends on the body and its model".to_owned();
    }
    unit(config, charge).amount(charge.cost).to_string()
}

fn is_unknown(config: &Config, charge: &Charge) -> bool {
    is_of_body(config.rules.limit(charge.limit).and_then(CompiledLimit::settled_price), charge.cost)
}

/// Describes what is done about the request while a shared store gives no answer, as the limit that decides says.
fn without_store(plan: &Plan, config: &Config) -> Option<String> {
    if !config.store.is_shared() {
        return None;
    }
    let limits = plan.enforced.iter().filter(|charge| !charge.only_asks_for_ban());
    let limits: Vec<_> = limits.filter_map(|charge| config.rules.limit(charge.limit)).collect();
    let done = [OnStoreFailure::Deny, OnStoreFailure::Local, OnStoreFailure::Allow].into_iter().find_map(|treatment| {
        let with = limits.iter().filter(|limit| limit.on_store_failure == treatment);
        named_without_store(&with.map(|limit| &*limit.name).collect::<Vec<_>>(), treatment)
    });
    done.map(|done| format!("while the store is away: {done}"))
}

/// Describes what the limits over several regions do about the request while home gives no answer.
fn without_home(plan: &Plan, config: &Config) -> Option<String> {
    let has_share = config.home.as_ref()?.on_failure == HomeFailure::Local;
    let limits = plan.enforced.iter().filter_map(|charge| config.rules.limit(charge.limit));
    let global: Vec<&str> = limits.filter(|limit| limit.purse().is_some()).map(|limit| &*limit.name).collect();
    Some(format!("while home is away: {}", named_without_home(&global, has_share)?))
}

fn too_large(refusal: &Refusal, plan: &Plan, config: &Config) -> Answer {
    let each = plan.enforced.iter().filter(|charge| charge.is_too_large()).map(|charge| {
        let [cost, most] = [charge.cost, charge.algorithm.ceiling()].map(|amount| unit(config, charge).amount(amount));
        format!("{} needs {cost}, and holds {most} at most", name(config, charge))
    });
    let detail = format!(": {}", each.collect::<Vec<_>>().join("; "));
    let rest = "charged nothing; no Retry-After, because waiting does not help";
    Answer::refused(refusal, &detail, rest.to_owned())
}

/// Describes a limit that refuses a request only by a ban, because another proxy forwards the request.
fn no_ban(config: &Config, charge: &Charge) -> String {
    format!("no ban of {} runs", name(config, charge))
}

/// Makes the answer if the levels of the buckets were not read.
fn without_levels(plan: &Plan, config: &Config) -> Answer {
    if plan.enforced.is_empty() {
        return Answer::passes(vec!["PASSES: only shadows apply".to_owned()]);
    }
    let needs = plan.enforced.iter().map(|charge| match charge.only_asks_for_ban() {
        true => no_ban(config, charge),
        false => format!("{} holds {}", name(config, charge), need(config, charge)),
    });
    let words = vec![
        format!("PASSES if {}", needs.collect::<Vec<_>>().join(" and ")),
        "the store was not read: --live shows what the buckets hold".to_owned(),
    ];
    Answer { verdict: Verdict::Depends, ..Answer::passes(words) }
}

fn by_levels(plan: &Plan, config: &Config, live: &Live) -> Answer {
    let PlanTrial { plan, settlement, asked } = live.charge(plan, config);
    let mut answer = match settlement.is_granted() {
        true => granted(&plan, &settlement, config, &live.levels),
        false if asked == AskedHome::UnderWay => {
            let first = "PASSES if home gives enough: a lease is under way to the purse, and the request waits for it";
            let rest = format!("nothing was charged; read from {}", live.levels.from);
            Answer { verdict: Verdict::Depends, ..Answer::passes(vec![first.to_owned(), rest]) }
        }
        false => exceeded(&plan, &settlement, config, &live.levels),
    };
    answer.words.extend(match asked {
        AskedHome::No | AskedHome::UnderWay => None,
        AskedHome::Answered(from) => {
            Some(format!("the purse of this region cannot pay, so home is asked first ({from})"))
        }
        AskedHome::Away(why) => Some(format!("the purse of this region cannot pay, and home gives no answer: {why}")),
    });
    answer
}

fn granted(plan: &Plan, settlement: &Settlement, config: &Config, levels: &Levels) -> Answer {
    let left = |(charge, outcome): (&Charge, &Outcome)| {
        let (name, left) = (name(config, charge), unit(config, charge).amount(outcome.remaining));
        match is_unknown(config, charge) {
            _ if charge.only_asks_for_ban() => no_ban(config, charge),
            true => format!("{name} holds {left}, and the request needs {}", need(config, charge)),
            false => format!("{name} would pay {}, and hold {left} then", need(config, charge)),
        }
    };
    let left: Vec<String> = plan.enforced.iter().zip(&settlement.enforced).map(left).collect();
    let first = if left.is_empty() { "only shadows apply".to_owned() } else { left.join("; ") };
    let rest = format!("nothing was charged; read from {}", levels.from);
    let after = match settlement.delay {
        Micros(0) => String::new(),
        delay => format!(" after {} ms", delay.0.div_ceil(1000)),
    };
    match plan.enforced.iter().any(|charge| is_unknown(config, charge)) {
        true => Answer {
            verdict: Verdict::Depends,
            ..Answer::passes(vec![format!("PASSES{after} if the cost fits: {first}"), rest])
        },
        false => Answer::passes(vec![format!("PASSES{after}: {first}"), rest]),
    }
}

/// Describes the ban that refuses a request. `limit` bans, and `others` refuse as well.
fn banned(BanNotice { step, begins }: BanNotice, limit: &str, others: &str, wait: WaitingTime, end: &str) -> String {
    match begins {
        true => format!(" by {limit}{others}: the request would begin ban {step}, for {wait}, until {end}"),
        false => format!(" by {limit}{others}: ban {step} ends in {wait} ({end})"),
    }
}

/// Displays the value of a `Retry-After` that was sent at this time: `52`, `1071360 (12.4 days, 2026-12-12T03:12:45Z)`.
pub(super) fn retry_after_words(seconds: u64, sent: Timestamp) -> String {
    let wait = Micros(seconds.saturating_mul(1_000_000));
    match WaitingTime(wait) {
        long if long.is_long() => format!("{seconds} ({long}, {})", Date(sent.plus(wait))),
        _ => seconds.to_string(),
    }
}

fn exceeded(plan: &Plan, settlement: &Settlement, config: &Config, levels: &Levels) -> Answer {
    let Some((charge, outcome)) = speaker(plan, settlement) else { return Answer::passes(Vec::new()) };
    let refusal = refusal(&config.rules, plan, settlement, levels.at.date, config.retry_after_jitter);
    let others: Vec<&str> = refusing(plan, settlement)
        .filter(|(other, _)| other.limit != charge.limit)
        .map(|(other, _)| name(config, other))
        .collect();
    let others = if others.is_empty() { String::new() } else { format!(" (and {})", others.join(", ")) };
    let wait = outcome.retry_after.ceil_seconds();
    let retry_after = refusal.retry_after.unwrap_or_default();
    let moment = levels.at.date.plus(outcome.retry_after);
    let moment = charge.algorithm.print_end(moment).unwrap_or_else(|| Date(moment).to_string());
    // Nobody knows when a slot becomes free.
    let passes = match charge.algorithm.slots() {
        Some(_) => "passes when a request ends".to_owned(),
        None => format!("passes in {} ({moment})", WaitingTime(outcome.retry_after)),
    };
    let [cost, left] = [charge.cost, outcome.remaining].map(|amount| unit(config, charge).amount(amount));
    let detail = match awaits_home(charge, outcome) {
        true => format!(" by {}{others}: needs {cost}, and home gives no answer", name(config, charge)),
        false => format!(" by {}{others}: needs {cost}, has {left}, {passes}", name(config, charge)),
    };
    let detail = match outcome.ban {
        Some(ban) => banned(ban, name(config, charge), &others, WaitingTime(outcome.retry_after), &moment),
        None => detail,
    };
    let waits = match refusal.retry_after {
        None => "no Retry-After".to_owned(),
        Some(_) => {
            let sent = retry_after_words(retry_after, levels.at.date);
            format!("Retry-After {sent} = {wait} + spread {}", retry_after.saturating_sub(wait))
        }
    };
    let rest = format!("charged nothing; {waits}; read from {}", levels.from);
    Answer::refused(&refusal, &detail, rest)
}
