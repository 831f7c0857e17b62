//! Finds buckets by the name of a rule or meter, and a value for each limit key.

use std::fmt;
use std::net::IpAddr;

use super::bucket_levels::Levels;
use config::Config;
use ledger::algorithm::{Algorithm, concurrency};
use ledger::bucket_key::{BucketKey, LimitTag};
use ledger::cost::{Cost, ExtraDecimals};
use ledger::money::{self, AmountFormat};
use request::attribute::Attribute;
use request::client_address::ClientAddress;
use request::matcher::QuotedText;
use request::path;
use rules::explanation::{ExplainedCharge, PickedKey, RuleCharges};
use rules::partial_evaluation::{Knowledge, Observation};
use rules::rule::{Action, LimitKey, Mode, Policy, Rule};
use rules::rule_set::CompiledLimit;
use rules::settled_price::{SettledPrice, Unit};

/// The reason why an operator's arguments identify no bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LookupError {
    pub what: String,
    pub hint: Option<String>,
}

impl From<String> for LookupError {
    fn from(what: String) -> LookupError {
        LookupError { what, hint: None }
    }
}

impl From<&str> for LookupError {
    fn from(what: &str) -> LookupError {
        what.to_owned().into()
    }
}

impl fmt::Display for LookupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for LookupError {}

/// A bucket that an operator has selected, with its limit.
#[derive(Debug)]
pub(crate) struct BucketSelection {
    pub key: BucketKey,
    /// The limit that charges the bucket. `None` if only the key of the bucket is known.
    pub limit: Option<Limit>,
    /// The values of the limit keys from the command line, as text. `None` if the bucket was found by its name.
    pub of: Option<String>,
}

#[derive(Clone, Debug)]
pub(crate) struct Limit {
    pub policy: String,
    /// The name of the limit, such as `free`. If the rule has several limits, a name such as `free.second`.
    pub name: String,
    pub mode: Mode,
    pub algorithm: Algorithm,
    pub unit: Unit,
    /// The cost of a request that does not set a cost.
    pub cost: Cost,
    pub overridden: bool,
    /// A text about the settings of the limit that come from credentials. `None` without such settings. `algorithm`
    /// has their defaults.
    pub claimed: Option<String>,
    /// The meter whose buckets this limit shares with other limits. `None` without a meter.
    pub meter: Option<String>,
    /// The tag by which a store in memory identifies the limit.
    pub tag: LimitTag,
}

impl Limit {
    /// Makes the limit of a bucket whose client is not known, with the limit's own settings.
    pub(crate) fn of(limit: &CompiledLimit) -> Option<Limit> {
        Some(Limit {
            policy: limit.policy.clone(),
            name: limit.name.clone(),
            mode: limit.mode,
            algorithm: *limit.variants.first()?,
            unit: limit.unit(),
            cost: Cost::ONE,
            overridden: false,
            claimed: limit.claimed_text(),
            meter: limit.meter.clone(),
            tag: limit.tag(0),
        })
    }
}

/// The reason why slots are neither reset nor given back.
const SLOTS_ARE_HELD: &str = "slots are given back only by the requests that hold them";

fn slots_are_held() -> LookupError {
    let hint = "`tollgate bucket show` says which gateways hold them".to_owned();
    LookupError { what: SLOTS_ARE_HELD.to_owned(), hint: Some(hint) }
}

/// Removes buckets of slots from the list, because an operator cannot change them.
///
/// # Errors
/// If all buckets of the list are buckets of slots.
pub(crate) fn changeable(mut chosen: Vec<BucketSelection>) -> Result<Vec<BucketSelection>, LookupError> {
    let had_any = !chosen.is_empty();
    chosen.retain(|chosen| chosen.limit.as_ref().is_none_or(|limit| limit.algorithm.slots().is_none()));
    if had_any && chosen.is_empty() { Err(slots_are_held()) } else { Ok(chosen) }
}

/// Checks that none of the buckets is the purse of a limit over several regions. What is spent of such a limit stands at home, not in
/// the purse.
///
/// # Errors
/// If one of them is a purse.
pub(crate) fn not_at_home(chosen: &[BucketSelection]) -> Result<(), LookupError> {
    let is_purse = |limit: &&Limit| matches!(limit.algorithm, Algorithm::Purse(_));
    let Some(limit) = chosen.iter().filter_map(|chosen| chosen.limit.as_ref()).find(is_purse) else { return Ok(()) };
    let what = format!("{} has `scope: global`: what is spent of it stands at home, not in this region", limit.name);
    Err(LookupError { what, hint: Some("give `tollgate bucket` the file with -c, and --home".to_owned()) })
}

/// Parses an amount to give back to these buckets, in the unit of their limits.
///
/// # Errors
/// If the text is not an amount above 0, or if some limits count money and others do not.
pub(crate) fn amount(text: &str, chosen: &[BucketSelection]) -> Result<Cost, LookupError> {
    amount_of("AMOUNT", text, chosen)
}

/// Parses an amount as [`amount`] does. `argument` is its name on the command line.
///
/// # Errors
/// As [`amount`].
pub(super) fn amount_of(argument: &str, text: &str, chosen: &[BucketSelection]) -> Result<Cost, LookupError> {
    let mut formats = chosen.iter().filter_map(|chosen| Some(chosen.limit.as_ref()?.unit.format()));
    let format = formats.next().unwrap_or_default();
    if formats.any(|other| other != format) {
        return Err("some of the limits count money and others do not: name one of them".into());
    }
    let (amount, must) = match format {
        AmountFormat::Number => {
            (Cost::parse(text.as_bytes(), ExtraDecimals::Refuse), "a number above 0 with at most 3 decimals")
        }
        AmountFormat::Dollars => (money::parse(text), "an amount of USD above 0 with at most 9 decimals"),
    };
    let amount = amount.filter(|amount| *amount > Cost::default());
    let after = "after the values of the limit keys";
    amount.ok_or_else(|| format!("{argument}: must be {must}, {after}; is {}", QuotedText(text.as_bytes())).into())
}

/// Checks that no stored bucket has slots. The configuration here may lack the limit, so the stored states are checked.
///
/// # Errors
/// If a bucket has slots.
pub(crate) fn check_stored(levels: &Levels, keys: &[BucketKey]) -> Result<(), LookupError> {
    let is_slots = |key: &BucketKey| levels.state(key).is_some_and(|state| concurrency::is_stored(&state));
    if keys.iter().any(is_slots) { Err(slots_are_held()) } else { Ok(()) }
}

/// Finds the buckets that requests with these values charge. `name` is the name of a rule, a limit or a meter. `values` has one
/// value for each limit key, such as `jwt:sub=acme`.
///
/// # Errors
///
/// When the rule does not exist or charges no bucket, or a value is missing, invalid or superfluous.
pub(crate) fn by_values(
    config: &Config,
    name: &str,
    values: &[String],
    known: Knowledge<'_>,
) -> Result<Vec<BucketSelection>, LookupError> {
    let mut chosen = Vec::new();
    for (policy, rule, wanted) in named(config, name)? {
        let picked = pick(config, rule, values)?;
        check_issuer(config, &picked, known.issuer)?;
        let of: Vec<String> = picked.iter().map(|picked| format!("{picked} {}", value(picked))).collect();
        let of = if of.is_empty() { "one for all clients".to_owned() } else { of.join(", ") };
        let RuleCharges { charged, unlimited, .. } = config.rules.buckets_of(rule, &picked, known);
        chosen.extend(charged.into_iter().filter(|charge| wanted.has(policy, rule, charge.name, charge.meter)).map(
            |ExplainedCharge { name, mode, meter, settled, charge, .. }| {
                BucketSelection {
                    key: charge.key,
                    limit: Some(Limit {
                        policy: policy.name.clone(),
                        name: name.to_owned(),
                        mode,
                        algorithm: charge.algorithm,
                        unit: settled.map_or(Unit::Requests, SettledPrice::unit),
                        cost: charge.cost,
                        overridden: charge.variant > 0,
                        claimed: config
                            .rules
                            .limit(charge.limit)
                            .filter(|_| charge.variant == 0)
                            .and_then(CompiledLimit::claimed_text),
                        meter: meter.map(str::to_owned),
                        tag: charge.tag,
                    }),
                    of: Some(of.clone()),
                }
            },
        ));
        if chosen.is_empty()
            && let Some(unlimited) = unlimited.first()
        {
            return Err(format!("limit {unlimited} is unlimited for {of}: it charges no bucket").into());
        }
    }
    Ok(chosen)
}

/// The limits that an operator's argument names.
#[derive(Clone, Copy, Debug)]
pub(super) enum LimitSelector<'n> {
    /// Limits with this name, or limits of a rule with this name.
    Named(&'n str),
    OfMeter(&'n str),
}

impl LimitSelector<'_> {
    fn has(self, policy: &Policy, rule: &Rule, limit: &str, meter: Option<&str>) -> bool {
        match self {
            LimitSelector::Named(name) => is_called(name, policy, rule, limit),
            LimitSelector::OfMeter(name) => meter == Some(name),
        }
    }
}

/// Returns the rules with this name. Without such a rule, returns the rules that use the meter with this name.
///
/// # Errors
/// If no rule and no meter has the name, or several rules have it.
pub(super) fn named<'c, 'n>(
    config: &'c Config,
    name: &'n str,
) -> Result<Vec<(&'c Policy, &'c Rule, LimitSelector<'n>)>, LookupError> {
    let found = find(config, name);
    if found.is_err() {
        let policies = &config.rules.source().policies;
        let rules = policies.iter().flat_map(|policy| policy.rules.iter().map(move |rule| (policy, rule)));
        let of_meter = |limit: &CompiledLimit| limit.meter.as_deref() == Some(name);
        let rules = rules.filter(|(_, rule)| config.rules.compiled(rule).iter().any(of_meter));
        let rules: Vec<_> = rules.map(|(policy, rule)| (policy, rule, LimitSelector::OfMeter(name))).collect();
        if !rules.is_empty() {
            return Ok(rules);
        }
    }
    found.map(|(policy, rule)| vec![(policy, rule, LimitSelector::Named(name))])
}

/// Checks the argument for the issuer. It is required if the configuration trusts several issuers and a limit key is a
/// claim. In any other case, it must be absent.
fn check_issuer(config: &Config, picked: &[PickedKey<'_>], issuer: Option<&str>) -> Result<(), LookupError> {
    let issuers = config.jwt.iter().flat_map(|settings| &settings.issuers);
    let names: Vec<&str> = issuers.filter_map(|issuer| issuer.name.as_deref()).collect();
    let of_claim = picked.iter().any(|picked| matches!(picked.part.source(), Attribute::Claim(_)));
    match (names.len() > 1 && of_claim, issuer) {
        (true, Some(issuer)) if names.contains(&issuer) => Ok(()),
        (true, _) => Err(format!("--issuer: must be one of {}: the file trusts several", names.join(", ")).into()),
        (false, Some(_)) => Err("--issuer: no issuer is a part of this bucket".into()),
        (false, None) => Ok(()),
    }
}

/// Describes a bucket that was found by its name in the access log. `name` is the rule, limit or meter on the command
/// line, if it is given. Overrides are left out.
///
/// # Errors
///
/// When the rule does not exist, charges no bucket, or has several limits and `name` is not the name of one.
pub(crate) fn by_key(config: &Config, name: Option<&str>, key: BucketKey) -> Result<BucketSelection, LookupError> {
    let Some(name) = name else { return Ok(BucketSelection { key, limit: None, of: None }) };
    // The limits of a meter may differ, for example in rate and burst. The first limit is shown.
    let (policy, rule, wanted) = *named(config, name)?.first().ok_or("no rule has a limit")?;
    let limits: Vec<_> = limits_of(config, policy, rule, wanted).collect();
    match &limits[..] {
        [limit] => Ok(BucketSelection { key, limit: Limit::of(limit), of: None }),
        _ => {
            let names: Vec<&str> = limits.iter().map(|limit| &*limit.name).collect();
            Err(format!("rule {} has several limits: name one of {}", rule.name, names.join(", ")).into())
        }
    }
}

/// Returns the limits of a rule that are named. A candidate (a limit on trial) has the name of the limit that it may replace,
/// but buckets of its own. The name means the limit itself.
pub(super) fn limits_of<'c, 'n>(
    config: &'c Config,
    policy: &'c Policy,
    rule: &'c Rule,
    wanted: LimitSelector<'n>,
) -> impl Iterator<Item = &'c CompiledLimit> + use<'c, 'n> {
    let limits = config.rules.compiled(rule).iter().filter(|limit| limit.mode == mode(policy, rule));
    limits.filter(move |limit| wanted.has(policy, rule, &limit.name, limit.meter.as_deref()))
}

fn mode(policy: &Policy, rule: &Rule) -> Mode {
    if policy.mode == Mode::Shadow { Mode::Shadow } else { rule.mode }
}

/// Whether an operator may call the limit by this name. Valid forms: `free`, `plan/free`, `free.second`, `plan/free.second`.
fn is_called(name: &str, policy: &Policy, rule: &Rule, limit: &str) -> bool {
    let short = name.strip_prefix(&*policy.name).and_then(|rest| rest.strip_prefix('/')).unwrap_or(name);
    short == rule.name || short == limit
}

/// Finds the rule with this name. The rule must have limits.
///
/// # Errors
/// When no rule has this name, or the rule has an `action`.
pub(crate) fn find<'c>(config: &'c Config, name: &str) -> Result<(&'c Policy, &'c Rule), LookupError> {
    let policies = &config.rules.source().policies;
    let all = policies.iter().flat_map(|policy| policy.rules.iter().map(move |rule| (policy, rule)));
    let shown = |rule: &Rule| match &rule.action {
        Action::Charge(limits) => limits.iter().map(|limit| format!("{}.{}", rule.name, limit.name)).collect(),
        Action::Allow | Action::Deny => Vec::new(),
    };
    let is_it = |(policy, rule): &(&Policy, &Rule)| {
        is_called(name, policy, rule, &rule.name)
            || shown(rule).iter().any(|shown| is_called(name, policy, rule, shown))
    };
    match all.clone().find(is_it) {
        Some((_, rule)) if !matches!(rule.action, Action::Charge(_)) => {
            Err(format!("rule {} has an `action`: it charges no bucket", rule.name).into())
        }
        Some(found) => Ok(found),
        None => {
            let limited = all.filter(|(_, rule)| matches!(rule.action, Action::Charge(_)));
            let names: Vec<String> =
                limited.map(|(policy, rule)| format!("{}/{}", policy.name, rule.name)).take(20).collect();
            let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            let what = format!("no rule is called {}", QuotedText(name.as_bytes()));
            Err(LookupError { what, hint: Some(format!("rules with limits are {names}")) })
        }
    }
}

/// Returns the limit keys with their values. A value has the form `jwt:sub=acme`.
fn pick<'c>(config: &Config, rule: &'c Rule, values: &[String]) -> Result<Vec<PickedKey<'c>>, LookupError> {
    let wants = || {
        let keys: Vec<&str> = rule.keys.iter().map(|key| &*key.text).collect();
        let keys =
            if keys.is_empty() { "nothing: all clients share one bucket".to_owned() } else { keys.join(" and ") };
        format!("rule {} counts by {keys}", rule.name)
    };
    let mut used = vec![false; values.len()];
    let mut picked = Vec::new();
    for key in in_order(&rule.keys) {
        let mut of_key = None;
        for (alternative, part) in (0u8..).zip(&key.alternatives) {
            for (text, used) in values.iter().zip(&mut used) {
                let Some(value) = text.strip_prefix(&part.to_string()).and_then(|rest| rest.strip_prefix('=')) else {
                    continue;
                };
                if std::mem::replace(used, true) || of_key.is_some() {
                    return Err(format!("{text}: each limit key takes one value; {}", wants()).into());
                }
                let value = Observation::Value(spell(config, part, value)?.into());
                of_key = Some(PickedKey { key, alternative, part, value });
            }
        }
        picked.push(of_key.ok_or_else(|| format!("{}: no value is given for {}", wants(), key.text))?);
    }
    match values.iter().zip(&used).find(|(_, used)| !**used) {
        Some((text, _)) => Err(format!("{text}: no limit key; {}", wants()).into()),
        None => Ok(picked),
    }
}

/// Returns the limit keys in the order in which a bucket's key contains them.
fn in_order(keys: &[LimitKey]) -> Vec<&LimitKey> {
    let mut keys: Vec<&LimitKey> = keys.iter().collect();
    keys.sort_by(|a, b| a.text.cmp(&b.text));
    keys
}

/// Converts a value in the same way as the value of a request.
fn spell(config: &Config, part: &Attribute, value: &str) -> Result<Vec<u8>, LookupError> {
    let name = part.to_string();
    if value.is_empty() && !matches!(part.source(), Attribute::Claim(_)) {
        return Err(format!("{name}: must have a value: a request without one is not counted by it").into());
    }
    let spelt = match part.source() {
        Attribute::Address => {
            // A network is also accepted, in the form `address/length`.
            let address = value.split('/').next().unwrap_or_default().parse::<IpAddr>();
            let address =
                address.map_err(|_| format!("{name}: must be an IP address, is {}", QuotedText(value.as_bytes())))?;
            ClientAddress::new(address, config.client_ip.ipv6_prefix).text().into_bytes()
        }
        Attribute::Host => value.to_ascii_lowercase().into_bytes(),
        Attribute::Path => match path::normalise(value.as_bytes()) {
            Ok(path) => path.into_owned(),
            Err(_) => return Err(format!("{name}: must be a path with a single reading").into()),
        },
        Attribute::PathSegment(_) => path::normalise_segment(value.as_bytes())
            .ok_or_else(|| format!("{name}: must be one segment of a path, is {}", QuotedText(value.as_bytes())))?,
        Attribute::Header(_) => value.trim().as_bytes().to_vec(),
        _ => value.as_bytes().to_vec(),
    };
    Ok(part.folding().of(spelt.into()).into_owned())
}

fn value(picked: &PickedKey<'_>) -> String {
    match &picked.value {
        Observation::Value(value) => QuotedText(value).to_string(),
        seen => seen.to_string(),
    }
}
