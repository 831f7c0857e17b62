//! Compares a text of a `match` with other expectations of the same attribute. `true` is always certain, and `false`
//! may mean that the answer is unknown.

use ipnet::IpNet;

use request::matcher::{Expectation, Text};

/// Whether every value that matches `inner` also matches `outer`.
pub(super) fn covers(outer: &Text, inner: &Text) -> bool {
    match inner {
        Text::Exact(value) => outer.equals(value),
        // A subtree that contains the root of another subtree contains the whole other subtree.
        Text::Subtree(root) => matches!(outer, Text::Subtree(_)) && outer.equals(root),
        Text::Subdomain(_) => outer == inner,
    }
}

/// Whether no value matches both of these texts.
pub(super) fn apart(one: &Text, other: &Text) -> bool {
    one != other && !one.equals(root(other)) && !other.equals(root(one))
}

/// Returns the shortest value that matches a text. For `*.example.com`, returns `.example.com`, the end of every
/// matching host.
pub(super) fn root(text: &Text) -> &[u8] {
    match text {
        Text::Exact(value) | Text::Subtree(value) | Text::Subdomain(value) => value,
    }
}

/// Whether every value that matches `text` meets the expectation.
pub(super) fn within(text: &Text, expected: &Expectation) -> bool {
    match (expected, text) {
        (Expectation::AnyOf(texts), _) => texts.iter().any(|outer| covers(outer, text)),
        (Expectation::Not(texts), _) => texts.iter().all(|other| apart(other, text)),
        (Expectation::Prefix(prefix), Text::Exact(_) | Text::Subtree(_)) => root(text).starts_with(prefix),
        (Expectation::Prefix(prefix), Text::Subdomain(_)) => prefix.is_empty(),
        (Expectation::Suffix(suffix), Text::Subdomain(any)) => any.ends_with(suffix),
        (Expectation::Regex(_), Text::Subdomain(_)) => false,
        (Expectation::Suffix(suffix), Text::Exact(value)) => value.ends_with(suffix),
        (Expectation::Regex(regex), Text::Exact(value)) => regex.is_match(value),
        (Expectation::Suffix(_) | Expectation::Regex(_), Text::Subtree(_)) => false,
        (Expectation::Present(present), _) => *present,
        (Expectation::Cidr(networks), _) => {
            client(text).is_some_and(|client| networks.iter().any(|network| network.contains(&client)))
        }
        // The content of a file may change, so nothing about it is certain.
        (Expectation::InFile(_) | Expectation::CidrFile(_), _) => false,
        (Expectation::All(all), _) => all.iter().all(|each| within(text, each)),
    }
}

/// Whether no value that matches `text` meets the expectation.
pub(super) fn outside(text: &Text, expected: &Expectation) -> bool {
    match (expected, text) {
        (Expectation::AnyOf(texts), _) => texts.iter().all(|other| apart(other, text)),
        (Expectation::Not(texts), _) => texts.iter().any(|outer| covers(outer, text)),
        (Expectation::Prefix(prefix), Text::Exact(value)) => !value.starts_with(prefix),
        (Expectation::Prefix(prefix), Text::Subtree(root)) => {
            let below = prefix.strip_prefix(&root[..]).is_some_and(|rest| rest.starts_with(b"/"));
            !root.starts_with(prefix) && !below
        }
        (Expectation::Suffix(suffix), Text::Exact(value)) => !value.ends_with(suffix),
        (Expectation::Suffix(suffix), Text::Subdomain(any)) => !any.ends_with(suffix) && !suffix.ends_with(any),
        (Expectation::Prefix(_) | Expectation::Regex(_), Text::Subdomain(_)) => false,
        (Expectation::Regex(regex), Text::Exact(value)) => !regex.is_match(value),
        (Expectation::Suffix(_) | Expectation::Regex(_), Text::Subtree(_)) => false,
        (Expectation::Present(present), _) => !present,
        (Expectation::Cidr(networks), _) => {
            client(text).is_some_and(|client| networks.iter().all(|network| are_apart(network, &client)))
        }
        (Expectation::InFile(_) | Expectation::CidrFile(_), _) => false,
        (Expectation::All(all), _) => all.iter().any(|each| outside(text, each)),
    }
}

/// Whether two networks have no address in common.
pub(super) fn are_apart(one: &IpNet, other: &IpNet) -> bool {
    !one.contains(other) && !other.contains(one)
}

/// Returns the addresses that a text of `ip:address` stands for: one address, or an IPv6 client's whole prefix.
fn client(text: &Text) -> Option<IpNet> {
    let text = std::str::from_utf8(root(text)).ok()?;
    text.parse().ok().or_else(|| Some(IpNet::from(text.parse::<std::net::IpAddr>().ok()?)))
}
