//! Finds values in conditions and overrides that no request can have.

use std::collections::HashSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::constraints::Constraints;
use super::file::File;
use super::location::Finding;
use crate::config::Config;
use base::http_method;
use request::attribute::Attribute;
use request::door::Door;
use request::matcher::{Expectation, Text};
use request::path;
use rules::rule::{Action, Override};

/// Finds conditions with a value that no request can have, and conditions whose operators exclude each other.
pub(super) fn impossible_value(file: &File<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (condition, location) in file.conditions() {
        let fault = impossible(&condition.attribute, &condition.expectation, file.config);
        let contradiction = || {
            let is_one = condition.expectation.operators().len() > 1 && Constraints::contradicts_itself(condition);
            is_one.then(|| Fault::new("its operators exclude each other: it never holds", "leave one of them out"))
        };
        if let Some(Fault { why, hint }) = fault.or_else(contradiction) {
            found.push(location.finding(why, hint));
        }
    }
    found.extend(overrides(file));
    found
}

/// Finds overrides by `ip:address` whose value is not an address, and overrides by a segment that no path has.
fn overrides(file: &File<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for located in file.rules() {
        let Action::Charge(limits) = &located.rule.action else { continue };
        let mut seen = HashSet::new();
        for Override { part, value, index, .. } in limits.iter().flat_map(|limit| &limit.overrides) {
            // An override for several limits is examined once. Of the overrides in a file, only the first fault is
            // reported.
            let is_in_file = *index == Override::IN_FILE;
            if seen.contains(index) || (!is_in_file && !seen.insert(*index)) {
                continue;
            }
            let location = || match is_in_file {
                true => located.location.key("overrides_file"),
                false => located.location.key("overrides").pair(*index),
            };
            let before = found.len();
            if let Attribute::PathSegment(_) = &**part {
                let fault = impossible_part(part, value.as_bytes(), Part::Whole, file.config);
                found.extend(fault.map(|Fault { why, hint }| location().finding(why, hint)));
            }
            let length = file.config.client_ip.ipv6_prefix;
            let client = matches!(value.parse(), Ok(IpNet::V6(network)) if network.prefix_len() == length);
            if *part.source() == Attribute::Address && value.parse::<IpAddr>().is_err() && !client {
                let hint = "write one address; for a network write a rule with match: {ip:address: {cidr: […]}}";
                let other = value.split_once('=').map(|(name, _)| name.trim());
                let (what, hint) = match other.filter(|name| Attribute::parse(name).is_ok()) {
                    Some(name) => {
                        let what =
                            format!("`{}` is no limit key here, and no client has this address", name.escape_debug());
                        (what, "add it to limit_keys, or write an address")
                    }
                    None if is_in_file => (format!("no client has the address `{}`", value.escape_debug()), hint),
                    None => ("no client has this address".to_owned(), hint),
                };
                found.push(location().finding(what, hint));
            }
            if is_in_file && found.len() > before {
                seen.insert(*index);
            }
        }
    }
    found
}

/// Why no request can have a value, and a hint.
struct Fault {
    /// Completes a sentence that begins with the value.
    why: String,
    hint: String,
}

/// A value, or the part of a value that an operator names.
struct Fragment<'v> {
    value: &'v [u8],
    part: Part,
    /// The text as it is written in the file.
    text: String,
    file: &'v Config,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Whole,
    /// The path before `/*`.
    Root,
    Prefix,
    Suffix,
}

type Check = fn(&Fragment<'_>) -> Option<Fault>;

const HOST: [Check; 5] = [
    |host| {
        (host.part == Part::Whole && host.value.is_empty())
            .then(|| Fault::new("is no host, and every request has one", "leave `host` out"))
    },
    |host| {
        (host.part != Part::Prefix && host.value.ends_with(b".")).then(|| {
            let hint = format!("write {}", host.text.trim_end_matches('.'));
            Fault::new("ends in a dot, and a host is compared without it", hint)
        })
    },
    |host| host.has(b'/').then(|| Fault::new("is no host", "write the name alone")),
    |host| {
        host.has(b'*').then(|| {
            let hint = match host.text.strip_prefix('*') {
                Some("") => "leave `host` out: without it the rule is for every host".to_owned(),
                Some(rest) => format!("write {{suffix: {rest}}}"),
                None => "write a regex".to_owned(),
            };
            Fault::new("is compared as it is written, and no host has a `*`", hint)
        })
    },
    |host| {
        // The colons of an IPv6 address in brackets do not begin a port.
        (host.has(b':') && host.part != Part::Prefix && !host.value.ends_with(b"]")).then(|| {
            let name = host.text.rsplit_once(':').map_or("", |(name, _)| name);
            if name.contains(':') && !name.ends_with(']') {
                let hint = format!("write \"[{}]\"", host.text);
                return Fault::new("is no host: an IPv6 address is in brackets", hint);
            }
            Fault::new("has a port, and a host is compared without it", format!("write {name}"))
        })
    },
];

const METHOD: [Check; 3] = [
    |method| {
        (method.part == Part::Whole && http_method::is_never_forwarded(method.value))
            .then(|| Fault::new("is answered 405 before any rule", "leave it out"))
    },
    |method| {
        let upper = method.text.to_ascii_uppercase();
        let known = method.part != Part::Whole || http_method::is_registered(upper.as_bytes());
        (known && method.is_lower_case() && !method.is_of_an_extra_method())
            .then(|| Fault::new("is no method: they are in upper case", format!("write {upper}")))
    },
    |method| {
        let arrives = http_method::is_registered(method.value) || method.is_of_an_extra_method();
        (method.part == Part::Whole && !arrives).then(|| {
            let why = "is answered 400 before any rule: it is neither registered nor in limits.extra_methods";
            Fault::new(why, format!("name {} in limits.extra_methods", method.text))
        })
    },
];

const PATH: [Check; 4] = [
    |path| path.has(b'?').then(|| Fault::new("has a query, and a path is compared without it", "match query:<name>")),
    |path| {
        (path.part != Part::Suffix && !path.value.is_empty() && !path.value.starts_with(b"/"))
            .then(|| Fault::new("is no path: one begins with /", format!("write /{}", path.text)))
    },
    |path| {
        path.has(b'*').then(|| {
            let why = "is compared as it is written: only a whole last segment `*` stands for what is below";
            let hint = match (path.part, path.text.strip_suffix('*')) {
                (Part::Prefix, Some(prefix)) if prefix.ends_with('/') && !prefix.contains('*') => {
                    format!("write {{prefix: {prefix}}}, or the text {prefix}*")
                }
                (Part::Prefix | Part::Suffix, _) => "write a regex".to_owned(),
                (Part::Whole | Part::Root, _) => "write a prefix or a regex".to_owned(),
            };
            Fault::new(why, hint)
        })
    },
    |path| match path.part {
        Part::Whole | Part::Root => match path::normalise(path.value) {
            Ok(normal) if *normal == *path.value => None,
            Ok(normal) => {
                let hint = format!("write {}{}", String::from_utf8_lossy(&normal), path.part.below());
                Some(Fault::new("is not how a path is compared", hint))
            }
            Err(_) => Some(Fault::new("is no path that is ever compared", "such requests are answered 400")),
        },
        Part::Prefix | Part::Suffix => (!path::may_be_part(path.value)).then(|| {
            let hint = "letters, digits and -._~!$&'()*+,=:@ are written as they are, all else as an escape like %C3";
            Fault::new("is not how a path is compared", hint)
        }),
    },
];

const SEGMENT: [Check; 3] = [
    EMPTY,
    |segment| {
        segment.has(b'/').then(|| {
            let why = "is more than a segment, which is what is between two slashes";
            Fault::new(why, "match path, or name one segment")
        })
    },
    |segment| match segment.part {
        Part::Whole | Part::Root => match path::normalise_segment(segment.value) {
            Some(normal) if normal == segment.value => None,
            Some(normal) => {
                let hint = format!("write {}", String::from_utf8_lossy(&normal));
                Some(Fault::new("is not how a segment is compared", hint))
            }
            None => {
                Some(Fault::new("is no segment that is ever compared", "such requests are answered 400, or lack it"))
            }
        },
        Part::Prefix | Part::Suffix => (!path::may_be_part(segment.value)).then(|| {
            let hint = "letters, digits and -._~!$&'()*+,=:@ are written as they are, all else as an escape like %C3";
            Fault::new("is not how a segment is compared", hint)
        }),
    },
];

const PADDED: Check = |value| {
    (value.value.trim_ascii() != value.value).then(|| {
        let hint = format!("write {}", value.text.trim());
        Fault::new("has spaces around it, which are taken off what a client sends", hint)
    })
};

const EMPTY: Check = |value| {
    (value.value.is_empty() && value.part == Part::Whole)
        .then(|| Fault::new("is no value: what is empty counts as missing", "write {present: false}"))
};

const WORD: Check = |word| {
    if word.value.is_empty() && word.part == Part::Whole {
        return Some(Fault::new("is no word: an empty claim has none", "write {present: false}"));
    }
    word.has(b' ').then(|| {
        let words: Vec<&str> = word.text.split_whitespace().collect();
        let hint = format!("write [{}] for any of these words", words.join(", "));
        Fault::new("has a space, at which the claim is split into words", hint)
    })
};

/// Returns the checks for values of an attribute. Only the first fault of a value is reported.
fn checks(attribute: &Attribute) -> &'static [Check] {
    match attribute {
        Attribute::Host => &HOST,
        Attribute::Method => &METHOD,
        Attribute::Path => &PATH,
        Attribute::PathSegment(_) => &SEGMENT,
        Attribute::Header(_) | Attribute::Cookie(_) => &[PADDED, EMPTY],
        Attribute::Query(_) => &[EMPTY],
        Attribute::Words(_) => &[WORD],
        Attribute::Route => {
            &[|route| unknown_name(route, "route", route.file.routes.routes().iter().map(|route| &*route.name))]
        }
        Attribute::Scheme => &[|scheme| {
            let is_scheme = matches!(scheme.value, b"http" | b"https") || scheme.part != Part::Whole;
            (!is_scheme).then(|| Fault::new("is neither http nor https", "write http or https"))
        }],
        Attribute::Upstream => &[|upstream| {
            unknown_name(upstream, "upstream", upstream.file.upstreams.iter().map(|upstream| &*upstream.name))
        }],
        Attribute::Listener => &[|listener| {
            unknown_name(listener, "listener", listener.file.listeners.iter().map(|listener| &*listener.name))
        }],
        Attribute::Door => &[|door| {
            let is_door = Door::ALL.iter().any(|known| known.name().as_bytes() == door.value);
            (door.part == Part::Whole && !is_door).then(|| {
                let names = Door::ALL.map(Door::name).join(", ");
                Fault::new(format!("is no door: there are {names}"), "leave it out")
            })
        }],
        Attribute::Claim(_)
        | Attribute::RequestJson(_)
        | Attribute::JsonAmount(_)
        | Attribute::RequestForm(_)
        | Attribute::Model
        | Attribute::Descriptor(_)
        | Attribute::ClaimedAmount(_)
        | Attribute::KeyId
        | Attribute::KeyPlan
        | Attribute::Address => &[],
        Attribute::KeyColumn(_) | Attribute::TlsServerName | Attribute::TlsClient(_) => &[EMPTY],
        // The checks expect these values with the capitals of requests, not in lower case.
        Attribute::Folded(folding, source)
            if folding.is_lower()
                && matches!(
                    **source,
                    Attribute::Method
                        | Attribute::Path
                        | Attribute::PathSegment(_)
                        | Attribute::Route
                        | Attribute::Upstream
                        | Attribute::Listener
                ) =>
        {
            &[]
        }
        Attribute::Folded(_, source) => checks(source),
    }
}

fn unknown_name<'n>(value: &Fragment<'_>, attribute: &str, names: impl Iterator<Item = &'n str>) -> Option<Fault> {
    let names: Vec<&str> = names.collect();
    let is_known = names.iter().any(|name| name.as_bytes() == value.value);
    (value.part == Part::Whole && !is_known).then(|| {
        let known = match names.as_slice() {
            [only] => format!("there is only `{only}`"),
            _ => format!("there are {}", names.join(", ")),
        };
        Fault::new(format!("is no {attribute}: {known}"), "leave it out")
    })
}

impl Fault {
    fn new(why: impl Into<String>, hint: impl Into<String>) -> Fault {
        Fault { why: why.into(), hint: hint.into() }
    }
}

impl Fragment<'_> {
    fn is_lower_case(&self) -> bool {
        self.value.iter().any(u8::is_ascii_lowercase)
    }

    /// Whether the fragment is a method of `limits.extra_methods`, or the start or the end of such a method.
    fn is_of_an_extra_method(&self) -> bool {
        self.file.extra_methods.iter().map(String::as_bytes).any(|extra| match self.part {
            Part::Whole => extra == self.value,
            Part::Root | Part::Prefix => extra.starts_with(self.value),
            Part::Suffix => extra.ends_with(self.value),
        })
    }

    fn has(&self, byte: u8) -> bool {
        self.value.contains(&byte)
    }
}

impl Part {
    /// Returns the text that follows the part in the file.
    fn below(self) -> &'static str {
        if self == Part::Root { "/*" } else { "" }
    }
}

fn impossible(attribute: &Attribute, expectation: &Expectation, file: &Config) -> Option<Fault> {
    match expectation {
        Expectation::AnyOf(texts) | Expectation::Not(texts) => {
            texts.iter().find_map(|text| impossible_text(attribute, text, file))
        }
        Expectation::Prefix(prefix) => impossible_part(attribute, prefix, Part::Prefix, file),
        Expectation::Suffix(suffix) => impossible_part(attribute, suffix, Part::Suffix, file),
        Expectation::All(all) => all.iter().find_map(|each| impossible(attribute, each, file)),
        Expectation::Regex(regex)
            if matches!(attribute.source(), Attribute::Path | Attribute::PathSegment(_))
                && !regex.as_str().is_ascii() =>
        {
            Some(Fault::new(
                format!("`{}` has a letter that no path has unescaped", regex.as_str().escape_debug()),
                "write it as it is compared: é is %C3%A9",
            ))
        }
        Expectation::Regex(_)
        | Expectation::Present(_)
        | Expectation::Cidr(_)
        | Expectation::InFile(_)
        | Expectation::CidrFile(_) => None,
    }
}

fn impossible_text(attribute: &Attribute, text: &Text, file: &Config) -> Option<Fault> {
    match (attribute.source(), text) {
        (Attribute::Path, Text::Subtree(root)) if root.is_empty() => None,
        (Attribute::Path, Text::Exact(value)) if value == b"*" => None,
        (_, Text::Subtree(root)) => impossible_part(attribute, root, Part::Root, file),
        (_, Text::Subdomain(suffix)) => impossible_part(attribute, suffix, Part::Suffix, file),
        (_, Text::Exact(value)) => impossible_part(attribute, value, Part::Whole, file),
    }
}

fn impossible_part(attribute: &Attribute, value: &[u8], part: Part, file: &Config) -> Option<Fault> {
    let text = String::from_utf8_lossy(value).into_owned() + part.below();
    let fragment = Fragment { value, part, text, file };
    let fault = checks(attribute).iter().find_map(|check| check(&fragment))?;
    Some(Fault { why: format!("`{}` {}", fragment.text.escape_debug(), fault.why), ..fault })
}
