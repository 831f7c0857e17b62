//! Reads `policies`, `rules` and `exempt`.

use std::collections::HashSet;
use std::net::IpAddr;

use super::expires::expires;
use super::reader::{Field, Section, all, nearest};
use super::rule_limits;
use super::rule_limits::Shared;
use crate::base::position::Position;
use crate::limit::attribute::{Attribute, NotAnAttribute, SPELLINGS};
use crate::limit::matcher::{Expectation, Text};
use crate::limit::request::ClientAddress;
use crate::limit::rule::{
    Action, Condition, Expose, Fold, KeyPart, Limit, LimitKey, Mode, OnStoreFailure, Otherwise, Policy, RefusalStatus,
    Rule, RuleSource,
};

/// What the rest of the file says to the rules.
#[derive(Clone, Copy, Debug)]
pub struct RuleDefaults {
    /// Addresses in rules are written as clients are told apart.
    pub ipv6_prefix: u8,
    /// What holds for a rule that does not say.
    pub on_store_failure: OnStoreFailure,
    /// Whether tokens, and keys, are verified at all.
    pub jwt: bool,
    pub api_keys: bool,
}

/// What reading one rule has to know of the others.
struct Rules {
    given: RuleDefaults,
    policy_names: HashSet<String>,
    /// Of rules and, as they are shown, of their limits.
    rule_names: HashSet<String>,
}

pub fn source(file: &Section<'_>, given: RuleDefaults) -> Option<RuleSource> {
    let mut rules = Rules { given, policy_names: HashSet::new(), rule_names: HashSet::new() };
    let exempt = match file.get("exempt") {
        None => Some(Vec::new()),
        Some(field) => field.list().and_then(|sets| all(sets, |set| rules.exemption(&set))),
    };
    let (short, long) = (file.get("rules"), file.get("policies"));
    let policies = match (short, long) {
        (None, None) => Some(Vec::new()),
        (Some(short), Some(long)) => {
            file.unwanted("policies", "must not stand beside `rules`, which is short for one policy");
            // Both are looked at all the same.
            rules.rules(short, false);
            long.list().and_then(|members| all(members, |member| rules.policy(member)));
            None
        }
        (Some(field), None) => {
            let place = field.place();
            let members = rules.rules(field, false);
            members.map(|rules| {
                vec![Policy {
                    name: "default".to_owned(),
                    conditions: Vec::new(),
                    mode: Mode::Enforce,
                    otherwise: Otherwise::Allow,
                    rules,
                    place,
                }]
            })
        }
        (None, Some(field)) => field.list().and_then(|members| all(members, |member| rules.policy(member))),
    };
    Some(RuleSource { policies: policies?, exempt: exempt? })
}

/// What comes near, where the name behind the colon is whatever stands there.
pub fn meant(text: &str, spellings: &[&str]) -> Option<String> {
    let name = text.split_once(':').map_or("", |(_, name)| name);
    let there = |spelling: &&&str| !name.is_empty() || !spelling.contains('<');
    let spelt = |spelling: &&str| spelling.replace("<name>", name).replace("<claim>", name);
    let spellings: Vec<String> = spellings.iter().filter(there).map(spelt).collect();
    nearest(text, &spellings.iter().map(String::as_str).collect::<Vec<_>>())
}

/// What to do while the store gives no answer: for the whole file, or for one rule.
pub fn on_store_failure(field: &Field<'_>) -> Option<OnStoreFailure> {
    field.choice(&OnStoreFailure::ALL.map(|choice| (choice.name(), choice)))
}

/// Reports a name that would not be shown the same everywhere. `field` is where to report it.
pub fn check_name(field: &Field<'_>, name: &str) -> bool {
    let valid = (1..=64).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-'));
    if !valid {
        field.wrong(
            format_args!("a name must be 1 to 64 of letters, digits, `_`, `.` and `-`, is `{}`", name.escape_debug()),
            None,
        );
    }
    valid
}

fn name(section: &Section<'_>, taken: &mut HashSet<String>) -> Option<String> {
    let field = section.need("name")?;
    let name = field.written()?;
    if !check_name(&field, name) {
        return None;
    }
    if !taken.insert(name.to_owned()) {
        field.wrong(format_args!("must be unique, `{name}` is taken"), None);
        return None;
    }
    Some(name.to_owned())
}

impl Rules {
    fn policy(&mut self, field: Field<'_>) -> Option<Policy> {
        let place = field.place();
        let section = field.section()?;
        let name = name(&section, &mut self.policy_names);
        let conditions = self.matches(&section);
        let mode = mode(&section);
        let otherwise = match section.get("otherwise") {
            Some(field) => field.choice(&[("allow", Otherwise::Allow), ("deny", Otherwise::Deny)]),
            None => Some(Otherwise::Allow),
        };
        let shadow = mode == Some(Mode::Shadow);
        let rules = section.need("rules").and_then(|field| self.rules(field, shadow));
        section.close();
        let (name, conditions, mode) = (name?, conditions?, mode?);
        Some(Policy { name, conditions, mode, otherwise: otherwise?, rules: rules?, place })
    }

    /// `shadow` is whether their policy is one.
    fn rules(&mut self, field: Field<'_>, shadow: bool) -> Option<Vec<Rule>> {
        let members = field.list()?;
        all(members, |member| self.rule(member, shadow))
    }

    fn rule(&mut self, field: Field<'_>, shadow: bool) -> Option<Rule> {
        let whole = field.clone();
        let section = field.section()?;
        let name = name(&section, &mut self.rule_names);
        let conditions = self.matches(&section);
        let mode = mode(&section);
        let action = match section.get("action") {
            Some(field) => {
                for key in
                    ["algorithm", "algorithm_config", "limits", "overrides", "expose", "status", "on_store_failure"]
                {
                    section.get(key);
                    section.unwanted(key, "must not stand beside `action`, which charges nothing");
                }
                let action = field.choice(&[("allow", Otherwise::Allow), ("deny", Otherwise::Deny)]);
                let action = action.map(|action| match action {
                    Otherwise::Allow => Action::Allow,
                    Otherwise::Deny => Action::Deny,
                });
                let keys = section.get("limit_keys").map_or(Some(Vec::new()), |field| self.limit_keys(&field));
                action.zip(keys)
            }
            None => self.charges(&section),
        };
        let until = expires(&section);
        section.close();
        let ((action, keys), place) = (action?, whole.place());
        let rule = Rule { name: name?, conditions: conditions?, keys, mode: mode?, action, until: until?, place };
        self.check_shown(&whole, rule, shadow)
    }

    /// Reads what a rule charges, and its limit keys.
    fn charges(&mut self, section: &Section<'_>) -> Option<(Action, Vec<LimitKey>)> {
        let keys = section.need("limit_keys").and_then(|field| self.limit_keys(&field));
        let expose = match section.get("expose") {
            Some(field) => field.boolean().map(|expose| if expose { Expose::Yes } else { Expose::No }),
            // The level of one bucket for everybody would show other people's traffic.
            None if keys.as_ref().is_some_and(Vec::is_empty) => Some(Expose::No),
            None => Some(Expose::Yes),
        };
        let refusal = match section.get("status") {
            Some(field) => {
                field.choice(&[("429", RefusalStatus::QuotaExceeded), ("503", RefusalStatus::ReducedCapacity)])
            }
            None => Some(RefusalStatus::QuotaExceeded),
        };
        let on_store_failure = match section.get("on_store_failure") {
            Some(field) => on_store_failure(&field),
            None => Some(self.given.on_store_failure),
        };
        // Wrong ones are reported already; the numbers are looked at all the same.
        let shared = Shared {
            expose: expose.unwrap_or(Expose::Yes),
            refusal: refusal.unwrap_or(RefusalStatus::QuotaExceeded),
            on_store_failure: on_store_failure.unwrap_or(OnStoreFailure::Local),
        };
        let limits = rule_limits::limits(section, shared);
        let (keys, limits) = (keys?, limits?);
        if section.has("overrides") && keys.len() != 1 {
            section.unwanted(
                "overrides",
                format_args!("must stand beside exactly one limit key, there are {}", keys.len()),
            );
            return None;
        }
        let limits: Vec<Limit> = limits.into_iter().map(|limit| self.spell_overrides(limit, &keys)).collect();
        for limit in &limits {
            let mut seen = HashSet::new();
            if let Some((twice, _)) = limit.overrides.iter().find(|(value, _)| !seen.insert(value)) {
                section.unwanted("overrides", format_args!("`{twice}` is there twice, in two spellings"));
                return None;
            }
        }
        expose.and(refusal).and(on_store_failure).map(|_| (Action::Charge(limits), keys))
    }

    /// The values of overrides, as their limit key's values will be written.
    fn spell_overrides(&self, limit: Limit, keys: &[LimitKey]) -> Limit {
        let parts: Vec<&KeyPart> = keys.iter().flat_map(|key| &key.alternatives).collect();
        let spell = |value: String| match parts[..] {
            [KeyPart { attribute: Attribute::Address, .. }] => match value.parse() {
                Ok(address) => ClientAddress::new(address, self.given.ipv6_prefix).text(),
                Err(_) => value,
            },
            [KeyPart { attribute: Attribute::Host, .. } | KeyPart { fold: Fold::Lower, .. }] => {
                value.to_ascii_lowercase()
            }
            _ => value,
        };
        let overrides = limit.overrides.into_iter().map(|(value, numbers)| (spell(value), numbers)).collect();
        Limit { overrides, ..limit }
    }

    /// Several limits are shown as `rule.limit`: that must not be another rule's name.
    fn check_shown(&mut self, field: &Field<'_>, rule: Rule, shadow: bool) -> Option<Rule> {
        let Action::Charge(limits) = &rule.action else { return Some(rule) };
        for limit in limits.iter().filter(|limit| !limit.name.is_empty()) {
            let shown = format!("{}.{}", rule.name, limit.name);
            if !self.rule_names.insert(shown.clone()) {
                field.wrong(format_args!("a limit is shown as `{shown}`, which must be unique"), None);
                return None;
            }
        }
        let candidate = |limit: &Limit| limit.candidate.is_some();
        if (shadow || rule.mode == Mode::Shadow) && limits.iter().any(candidate) {
            field.wrong("`shadow` beside a limit's numbers must not stand under `mode: shadow`", None);
            return None;
        }
        Some(rule)
    }

    /// Without a condition it would exempt everybody.
    fn exemption(&self, field: &Field<'_>) -> Option<Vec<Condition>> {
        if field.is_map() && field.is_empty() {
            field.must("have at least one condition");
            return None;
        }
        self.conditions(field)
    }

    fn matches(&self, section: &Section<'_>) -> Option<Vec<Condition>> {
        section.get("match").map_or(Some(Vec::new()), |field| self.conditions(&field))
    }

    fn conditions(&self, field: &Field<'_>) -> Option<Vec<Condition>> {
        let read = |(name, place, field): (&str, Position, Field<'_>)| {
            let attribute = self.given.attribute(&field.clone().at(place), name);
            let expectation = self.expectation(&field, attribute.as_ref());
            Some(Condition { attribute: attribute?, expectation: expectation? })
        };
        let conditions: Vec<_> = field.pairs()?.into_iter().map(read).collect();
        conditions.into_iter().collect()
    }

    fn expectation(&self, field: &Field<'_>, attribute: Option<&Attribute>) -> Option<Expectation> {
        if !field.is_map() {
            return self.texts(field, attribute).map(Expectation::AnyOf);
        }
        let section = field.clone().section()?;
        let bytes = |field: Field<'_>| {
            let written = field.written()?;
            let host = attribute == Some(&Attribute::Host);
            Some(if host { written.to_ascii_lowercase() } else { written.to_owned() }.into_bytes())
        };
        let operators = [
            section
                .get("in")
                .map(|field| field.list().and_then(|_| self.texts(&field, attribute)).map(Expectation::AnyOf)),
            section.get("not").map(|field| self.texts(&field, attribute).map(Expectation::Not)),
            section.get("prefix").map(|field| bytes(field).map(Expectation::Prefix)),
            section.get("suffix").map(|field| bytes(field).map(Expectation::Suffix)),
            section.get("regex").map(|field| regex(&field)),
            section.get("present").map(|field| field.boolean().map(Expectation::Present)),
            section.get("cidr").map(|field| {
                if attribute.is_some_and(|attribute| *attribute != Attribute::Address) {
                    field.wrong("`cidr` is for ip:address only", None);
                    return None;
                }
                all(field.one_or_list()?, |member| member.network()).map(Expectation::Cidr)
            }),
        ];
        section.close();
        let mut operators: Vec<_> = operators.into_iter().flatten().collect::<Option<_>>()?;
        match operators.len() {
            // An operator that is none has been reported.
            0 if field.is_empty() => {
                field.must("name at least one of in, not, prefix, suffix, regex, present and cidr");
                None
            }
            0 | 1 => operators.pop(),
            _ => Some(Expectation::All(operators)),
        }
    }

    fn texts(&self, field: &Field<'_>, attribute: Option<&Attribute>) -> Option<Vec<Text>> {
        let members = field.one_or_list()?;
        if members.is_empty() {
            field.must("have at least one value");
            return None;
        }
        all(members, |member| self.text(&member, attribute))
    }

    /// A text as its attribute's values are written.
    fn text(&self, field: &Field<'_>, attribute: Option<&Attribute>) -> Option<Text> {
        let written = field.written()?;
        match attribute {
            Some(Attribute::Path) => Some(Text::for_path(written)),
            Some(Attribute::Host) => Some(Text::exact(&written.to_ascii_lowercase())),
            Some(Attribute::Address) => match written.parse::<IpAddr>() {
                Ok(address) => Some(Text::exact(&ClientAddress::new(address, self.given.ipv6_prefix).to_string())),
                Err(_) => {
                    field.wrong(
                        format_args!("must be an IP address, is {written}"),
                        Some("for a network write {cidr: [10.0.0.0/8]}".to_owned()),
                    );
                    None
                }
            },
            _ => Some(Text::exact(written)),
        }
    }
}

fn mode(section: &Section<'_>) -> Option<Mode> {
    match section.get("mode") {
        Some(field) => field.choice(&[("enforce", Mode::Enforce), ("shadow", Mode::Shadow)]),
        None => Some(Mode::Enforce),
    }
}

fn regex(field: &Field<'_>) -> Option<Expectation> {
    match regex::bytes::Regex::new(field.written()?) {
        Ok(regex) => Some(Expectation::Regex(regex)),
        Err(error) => {
            let why = error.to_string();
            let why = why.lines().last().unwrap_or_default().trim_start_matches("error: ");
            field.must(format_args!("be a regular expression ({why})"));
            None
        }
    }
}

impl Rules {
    fn limit_keys(&self, field: &Field<'_>) -> Option<Vec<LimitKey>> {
        let keys = all(field.list()?, |member| self.limit_key(&member))?;
        let mut seen = HashSet::new();
        for (member, key) in field.list()?.iter().zip(&keys) {
            if !seen.insert(&key.text) {
                member.wrong(format_args!("`{}` is listed twice", key.text), None);
                return None;
            }
        }
        Some(keys)
    }

    /// `jwt:sub|ip:address`, `lower(query:username)`.
    fn limit_key(&self, field: &Field<'_>) -> Option<LimitKey> {
        let written = field.text()?;
        let part = |text: &str| {
            let text = text.trim();
            let (text, fold) = match text.strip_prefix("lower(").and_then(|text| text.strip_suffix(')')) {
                Some(inner) => (inner.trim(), Fold::Lower),
                None => (text, Fold::Exact),
            };
            self.given.attribute(field, text).map(|attribute| KeyPart { attribute, fold })
        };
        let alternatives = written.split('|').map(part).collect::<Option<Vec<_>>>()?;
        if alternatives.len() > usize::from(u8::MAX) {
            field.must("list at most 255 alternatives");
            return None;
        }
        let print = |part: &KeyPart| match part.fold {
            Fold::Exact => part.attribute.to_string(),
            Fold::Lower => format!("lower({})", part.attribute),
        };
        let text = alternatives.iter().map(print).collect::<Vec<_>>().join("|");
        Some(LimitKey { text, alternatives })
    }
}

impl RuleDefaults {
    /// The attribute of this name.
    pub fn attribute(&self, field: &Field<'_>, text: &str) -> Option<Attribute> {
        let why = match Attribute::parse(text) {
            Ok(attribute) => return self.sourced(field, attribute),
            Err(why) => why,
        };
        let text = text.escape_debug();
        match why {
            NotAnAttribute::Unknown => {
                let hint = meant(&text.to_string(), SPELLINGS);
                let hint = hint.unwrap_or_else(|| format!("attributes are {}", SPELLINGS.join(", ")));
                field.wrong(format_args!("`{text}` is not an attribute"), Some(hint));
            }
            NotAnAttribute::NameMissing => {
                field.wrong(format_args!("`{text}` must have a name behind the colon"), None)
            }
            NotAnAttribute::BadHeaderName => {
                field.wrong(format_args!("`{text}` must name a header that can exist"), None)
            }
        }
        None
    }

    /// An attribute that comes from a credential is one only where the file says how that is verified.
    fn sourced(&self, field: &Field<'_>, attribute: Attribute) -> Option<Attribute> {
        let (kind, source, there) = match &attribute {
            Attribute::Claim(_) => ("jwt:", "jwt", self.jwt),
            Attribute::KeyId | Attribute::KeyPlan => ("key:", "api_keys", self.api_keys),
            _ => return Some(attribute),
        };
        if !there {
            field.wrong(format_args!("`{attribute}`: a `{kind}` attribute needs `{source}`, which is missing"), None);
            return None;
        }
        Some(attribute)
    }
}
