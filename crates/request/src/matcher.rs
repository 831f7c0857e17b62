//! Defines the conditions that `match` sets on an attribute's value.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use regex::bytes::Regex;

use super::list_file::{NetworkList, TextList};

/// The condition on an attribute's value. A missing value meets only the conditions `Present(false)` and `Not`.
#[derive(Clone, Debug)]
pub enum Expectation {
    /// The value equals one of these texts. A single text in the configuration becomes a list of one text.
    AnyOf(Vec<Text>),
    /// The value is missing, or differs from all of these texts.
    Not(Vec<Text>),
    Prefix(Vec<u8>),
    Suffix(Vec<u8>),
    /// The pattern matches somewhere in the value. Matching takes linear time for every pattern and every value.
    Regex(Regex),
    Present(bool),
    /// The client's whole address is in one of these networks.
    Cidr(Vec<IpNet>),
    /// The value is an entry of this list.
    InFile(Arc<TextList>),
    /// The client's whole address is in a network of this list.
    CidrFile(Arc<NetworkList>),
    /// The value meets all of these conditions. Used for a map of several operators.
    All(Vec<Expectation>),
}

/// A text that a value must equal. For `path`, a text that ends in `/*` means a path and all paths below it. For
/// `host`, a text that begins with `*.` means every host name with exactly one label in place of the `*`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Text {
    Exact(Vec<u8>),
    /// This path and all paths below it: `/v1` covers `/v1/a`, but not `/v10`. Stored without the final `/*`.
    Subtree(Vec<u8>),
    /// Every host name with exactly one label before this suffix. The suffix is stored with its dot, without the `*`.
    Subdomain(Vec<u8>),
}

impl Expectation {
    /// Whether the expectation compares the client's whole address with networks.
    pub fn compares_networks(&self) -> bool {
        match self {
            Expectation::Cidr(_) | Expectation::CidrFile(_) => true,
            Expectation::All(each) => each.iter().any(Expectation::compares_networks),
            _ => false,
        }
    }

    /// Returns the operators of a map as a slice. A single operator becomes a slice of one element.
    pub fn operators(&self) -> &[Expectation] {
        match self {
            Expectation::All(each) => each,
            one => std::slice::from_ref(one),
        }
    }

    /// Whether `value` meets the expectation. `None` is a missing value. `client` is the whole address of the client,
    /// to compare it with networks.
    pub fn holds(&self, value: Option<&[u8]>, client: IpAddr) -> bool {
        match self {
            Expectation::AnyOf(texts) => value.is_some_and(|value| texts.iter().any(|text| text.equals(value))),
            Expectation::Not(texts) => !value.is_some_and(|value| texts.iter().any(|text| text.equals(value))),
            Expectation::Prefix(prefix) => value.is_some_and(|value| value.starts_with(prefix)),
            Expectation::Suffix(suffix) => value.is_some_and(|value| value.ends_with(suffix)),
            Expectation::Regex(regex) => value.is_some_and(|value| regex.is_match(value)),
            Expectation::Present(present) => value.is_some() == *present,
            Expectation::Cidr(networks) => value.is_some() && networks.iter().any(|network| network.contains(&client)),
            Expectation::InFile(list) => value.is_some_and(|value| list.contains(value)),
            Expectation::CidrFile(list) => value.is_some() && list.contains(client),
            Expectation::All(expectations) => expectations.iter().all(|each| each.holds(value, client)),
        }
    }
}

impl Text {
    /// Reads a text for `path`: `/v1/*` means `/v1` and everything below it.
    pub fn for_path(text: &str) -> Text {
        match text.strip_suffix("/*") {
            Some(above) => Text::Subtree(above.as_bytes().to_vec()),
            None => Text::exact(text),
        }
    }

    /// Reads a text for `host`: `*.example.com` means any name with one label before `.example.com`.
    pub fn for_host(text: &str) -> Text {
        let text = text.to_ascii_lowercase();
        match text.strip_prefix('*').filter(|suffix| suffix.starts_with('.') && suffix.len() > 1) {
            Some(suffix) if !suffix.contains('*') => Text::Subdomain(suffix.as_bytes().to_vec()),
            _ => Text::exact(&text),
        }
    }

    pub fn exact(text: &str) -> Text {
        Text::Exact(text.as_bytes().to_vec())
    }

    pub fn equals(&self, value: &[u8]) -> bool {
        match self {
            Text::Exact(text) => text == value,
            Text::Subtree(above) => {
                value.strip_prefix(&above[..]).is_some_and(|below| matches!(below, [] | [b'/', ..]))
            }
            Text::Subdomain(suffix) => {
                value.strip_suffix(&suffix[..]).is_some_and(|label| !label.is_empty() && !label.contains(&b'.'))
            }
        }
    }
}

/// Displays the condition as reports do: `"free"`, `one of "a", "b"`, `prefix "/v1"`.
impl fmt::Display for Expectation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expectation::AnyOf(texts) => list(f, if texts.len() == 1 { "" } else { "one of " }, texts),
            Expectation::Not(texts) => list(f, if texts.len() == 1 { "not " } else { "none of " }, texts),
            Expectation::Prefix(prefix) => write!(f, "prefix {}", QuotedText(prefix)),
            Expectation::Suffix(suffix) => write!(f, "suffix {}", QuotedText(suffix)),
            Expectation::Regex(regex) => write!(f, "regex {}", QuotedText(regex.as_str().as_bytes())),
            Expectation::Present(true) => f.write_str("any value"),
            Expectation::Present(false) => f.write_str("no value"),
            Expectation::Cidr(networks) => list(f, "cidr ", networks),
            Expectation::InFile(list) => list.fmt(f),
            Expectation::CidrFile(list) => list.fmt(f),
            Expectation::All(each) => separated(f, " and ", each),
        }
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Text::Exact(text) => write!(f, "{}", QuotedText(text)),
            Text::Subtree(above) => write!(f, "{}", QuotedText(&[above, &b"/*"[..]].concat())),
            Text::Subdomain(suffix) => write!(f, "{}", QuotedText(&[b"*", &suffix[..]].concat())),
        }
    }
}

/// Displays bytes as text in quotes. Everything that is not printable is escaped.
#[derive(Clone, Copy, Debug)]
pub struct QuotedText<'a>(pub &'a [u8]);

impl fmt::Display for QuotedText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"")?;
        for chunk in self.0.utf8_chunks() {
            write!(f, "{}", chunk.valid().escape_debug())?;
            write!(f, "{}", chunk.invalid().escape_ascii())?;
        }
        f.write_str("\"")
    }
}

fn list(f: &mut fmt::Formatter<'_>, before: &str, members: &[impl fmt::Display]) -> fmt::Result {
    f.write_str(before)?;
    separated(f, ", ", members)
}

fn separated(f: &mut fmt::Formatter<'_>, separator: &str, members: &[impl fmt::Display]) -> fmt::Result {
    for (index, member) in members.iter().enumerate() {
        write!(f, "{}{member}", if index == 0 { "" } else { separator })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 1, 2, 3));

    #[track_caller]
    fn check(expectation: &Expectation, value: impl Into<Option<&'static str>>, holds: bool) {
        let value = value.into();
        assert_eq!(expectation.holds(value.map(str::as_bytes), CLIENT), holds, "{expectation:?} of {value:?}");
    }

    #[test]
    fn a_missing_value_matches_only_not_and_absence() {
        let text = || vec![Text::exact("a")];
        check(&Expectation::AnyOf(text()), None, false);
        check(&Expectation::Prefix(b"".to_vec()), None, false);
        check(&Expectation::Suffix(b"".to_vec()), None, false);
        check(&Expectation::Regex(Regex::new("").unwrap()), None, false);
        check(&Expectation::Present(true), None, false);
        check(&Expectation::Not(text()), None, true);
        check(&Expectation::Present(false), None, true);
    }

    #[test]
    fn texts_are_equal_byte_for_byte() {
        let any = Expectation::AnyOf(vec![Text::exact("free"), Text::exact("1.10")]);
        check(&any, "free", true);
        check(&any, "1.10", true);
        check(&any, "Free", false);
        check(&any, "1.1", false);
        check(&Expectation::Not(vec![Text::exact("free")]), "free", false);
    }

    #[test]
    fn a_path_pattern_matches_by_whole_segments() {
        let below = Expectation::AnyOf(vec![Text::for_path("/v1/*")]);
        for path in ["/v1", "/v1/", "/v1/x", "/v1/x/y"] {
            check(&below, path, true);
        }
        for path in ["/v1x", "/v", "/", "/v2/v1"] {
            check(&below, path, false);
        }
        check(&Expectation::AnyOf(vec![Text::for_path("/*")]), "/anything", true);
    }

    #[test]
    fn a_star_in_a_host_is_one_label() {
        let any = Expectation::AnyOf(vec![Text::for_host("*.Example.com")]);
        for host in ["a.example.com", "*.example.com"] {
            check(&any, host, true);
        }
        for host in ["example.com", ".example.com", "a.b.example.com", "aexample.com", "a.example.com."] {
            check(&any, host, false);
        }
        assert_eq!(any.to_string(), r#""*.example.com""#);
        for text in ["*", "*.", "a*.b", "*.*.b", "**.b"] {
            assert_eq!(Text::for_host(text), Text::exact(text));
        }
    }

    #[test]
    fn operators_of_one_map_must_all_hold() {
        let both = Expectation::All(vec![Expectation::Prefix(b"a".to_vec()), Expectation::Suffix(b"z".to_vec())]);
        check(&both, "abcz", true);
        check(&both, "abc", false);
    }

    #[test]
    fn a_network_contains_its_own_family_only() {
        let networks = |text: &str| Expectation::Cidr(vec![text.parse().unwrap()]);
        check(&networks("10.0.0.0/8"), "10.1.2.3", true);
        check(&networks("10.2.0.0/16"), "10.1.2.3", false);
        check(&networks("::/0"), "10.1.2.3", false);
        // A missing address is in no network.
        check(&networks("0.0.0.0/0"), None, false);
    }

    #[test]
    fn an_expectation_is_printed_for_operators() {
        let texts = |texts: &[&str]| texts.iter().map(|text| Text::for_path(text)).collect::<Vec<_>>();
        for (expectation, printed) in [
            (Expectation::AnyOf(texts(&["free"])), r#""free""#),
            (Expectation::AnyOf(texts(&["/v1/*", "b"])), r#"one of "/v1/*", "b""#),
            (Expectation::Not(texts(&["a"])), r#"not "a""#),
            (Expectation::Not(texts(&["a", "b"])), r#"none of "a", "b""#),
            (Expectation::Prefix(b"/v1\x1b\"\xff".to_vec()), r#"prefix "/v1\u{1b}\"\xff""#),
            (Expectation::Cidr(vec!["10.0.0.0/8".parse().unwrap()]), "cidr 10.0.0.0/8"),
            (
                Expectation::All(vec![Expectation::Present(true), Expectation::Regex(Regex::new("^a").unwrap())]),
                r#"any value and regex "^a""#,
            ),
        ] {
            assert_eq!(expectation.to_string(), printed);
        }
    }
}
