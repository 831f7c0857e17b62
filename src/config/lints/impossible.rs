//! Finds values in a `match` that no request can have.

use std::net::IpAddr;

use ipnet::IpNet;

use super::File;
use super::location::{Finding, Location};
use crate::limit::attribute::Attribute;
use crate::limit::matcher::{Expectation, Text};
use crate::limit::path;
use crate::limit::rule::{Action, Condition, KeyPart};

/// A condition looks right and never holds, or always does behind `not`.
pub fn impossible_value(file: &File<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut look = |conditions: &[Condition], spot: &Location<'_>| {
        for (number, condition) in conditions.iter().enumerate() {
            if let Some((why, hint)) = impossible(&condition.attribute, &condition.expectation) {
                found.push(spot.pair(number).finding(why, hint));
            }
        }
    };
    for (number, conditions) in file.exempt.iter().enumerate() {
        look(conditions, &file.root.key("exempt").member(number));
    }
    for (number, policy) in file.policies.iter().enumerate() {
        look(&policy.conditions, &file.root.key("policies").member(number).key("match"));
    }
    for standing in file.rules() {
        look(&standing.rule.conditions, &standing.spot.key("match"));
    }
    found.extend(overrides(file));
    found
}

/// Overrides of addresses that are no address.
fn overrides(file: &File<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for standing in file.rules() {
        let Action::Charge(limits) = &standing.rule.action else { continue };
        let parts: Vec<_> = standing.rule.keys.iter().flat_map(|key| &key.alternatives).collect();
        let [KeyPart { attribute: Attribute::Address, .. }] = parts[..] else { continue };
        for (number, (value, _)) in limits.iter().flat_map(|limit| &limit.overrides).enumerate() {
            let length = file.config.client_ip.ipv6_prefix;
            let client = matches!(value.parse(), Ok(IpNet::V6(network)) if network.prefix_len() == length);
            if value.parse::<IpAddr>().is_err() && !client {
                let hint = "write one address; for a network write a rule with match: {ip:address: {cidr: […]}}";
                found.push(standing.spot.key("overrides").pair(number).finding("no client has this address", hint));
            }
        }
    }
    found
}

type Why = (String, String);

fn impossible(attribute: &Attribute, expectation: &Expectation) -> Option<Why> {
    match expectation {
        Expectation::AnyOf(texts) | Expectation::Not(texts) => {
            texts.iter().find_map(|text| impossible_text(attribute, text))
        }
        Expectation::Prefix(prefix) => impossible_part(attribute, prefix, Part::Prefix),
        Expectation::Suffix(suffix) => impossible_part(attribute, suffix, Part::Suffix),
        Expectation::All(all) => all.iter().find_map(|each| impossible(attribute, each)),
        Expectation::Regex(regex) if *attribute == Attribute::Path && !regex.as_str().is_ascii() => Some((
            format!("`{}` has a letter that no path has unescaped", regex.as_str().escape_debug()),
            "write it as it is compared: é is %C3%A9".to_owned(),
        )),
        Expectation::Regex(_) | Expectation::Present(_) | Expectation::Cidr(_) => None,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Whole,
    /// What stands before `/*`.
    Root,
    Prefix,
    Suffix,
}

fn impossible_text(attribute: &Attribute, text: &Text) -> Option<Why> {
    match (attribute, text) {
        (Attribute::Path, Text::Subtree(root)) if root.is_empty() => None,
        (Attribute::Path, Text::Exact(value)) if value == b"*" => None,
        (_, Text::Subtree(root)) => impossible_part(attribute, root, Part::Root),
        (_, Text::Exact(value)) => impossible_part(attribute, value, Part::Whole),
    }
}

fn impossible_part(attribute: &Attribute, value: &[u8], part: Part) -> Option<Why> {
    let below = if part == Part::Root { "/*" } else { "" };
    let text = String::from_utf8_lossy(value) + below;
    let why = |why: &str, hint: String| Some((format!("`{}` {why}", text.escape_debug()), hint));
    let has = |byte: u8| value.contains(&byte);
    match attribute {
        Attribute::Host if part != Part::Prefix && value.ends_with(b".") => {
            why("ends in a dot, and a host is compared without it", format!("write {}", text.trim_end_matches('.')))
        }
        Attribute::Host if has(b'/') => why("is no host", "write the name alone".to_owned()),
        Attribute::Host if has(b'*') => {
            let hint = text
                .strip_prefix('*')
                .map_or_else(|| "write a regex".to_owned(), |rest| format!("write {{suffix: {rest}}}"));
            why("is compared as it is written, and no host has a `*`", hint)
        }
        // An address in brackets has colons of its own.
        Attribute::Host if has(b':') && part != Part::Prefix && !value.ends_with(b"]") => {
            let name = text.rsplit_once(':').map_or("", |(name, _)| name).to_owned();
            if name.contains(':') && !name.ends_with(']') {
                return why("is no host: an IPv6 address stands in brackets", format!("write \"[{text}]\""));
            }
            why("has a port, and a host is compared without it", format!("write {name}"))
        }
        Attribute::Method if value.iter().any(u8::is_ascii_lowercase) => {
            why("is no method: they are in upper case", format!("write {}", text.to_ascii_uppercase()))
        }
        Attribute::Path if has(b'?') => {
            why("has a query, and a path is compared without it", "match query:<name>".to_owned())
        }
        Attribute::Path if part != Part::Suffix && !value.is_empty() && !value.starts_with(b"/") => {
            why("is no path: one begins with /", format!("write /{text}"))
        }
        Attribute::Path if has(b'*') => why(
            "is compared as it is written: only a whole last segment `*` stands for what is below",
            "write a prefix or a regex".to_owned(),
        ),
        Attribute::Path if matches!(part, Part::Whole | Part::Root) => match path::normalise(value) {
            Ok(normal) if *normal == *value => None,
            Ok(normal) => {
                why("is not how a path is compared", format!("write {}{below}", String::from_utf8_lossy(&normal)))
            }
            Err(_) => why("is no path that is ever compared", "such requests are answered 400".to_owned()),
        },
        Attribute::Path if !path::may_be_part(value) => why(
            "is not how a path is compared",
            "letters, digits and -._~!$&'()*+,=:@ stand as they are, all else as an escape like %C3".to_owned(),
        ),
        Attribute::Header(_) | Attribute::Cookie(_) if value.trim_ascii() != value => {
            why("has spaces around it, which are taken off what a client sends", format!("write {}", text.trim()))
        }
        Attribute::Header(_) | Attribute::Query(_) | Attribute::Cookie(_)
            if value.is_empty() && part == Part::Whole =>
        {
            why("is no value: what is empty counts as missing", "write {present: false}".to_owned())
        }
        Attribute::Route | Attribute::Upstream if part == Part::Whole && value != b"default" => {
            why(&format!("is no {attribute}: there is only `default`"), "leave it out".to_owned())
        }
        _ => None,
    }
}
