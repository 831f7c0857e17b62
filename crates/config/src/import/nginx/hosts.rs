//! Finds out which servers of nginx have which hosts, and in which order nginx compares them.

use std::cmp::Reverse;

use super::super::Losses;
use super::super::gateway_yaml::scalar;
use super::scopes::Server;

/// Some hosts, with the servers that answer requests to them. Several servers differ by the address at which they listen.
#[derive(Debug)]
pub(super) struct Hosts<'s> {
    /// The hosts as an entry of `match`. `None`: all other hosts.
    pub condition: Option<String>,
    /// The hosts, for messages.
    pub label: String,
    pub servers: Vec<&'s Server>,
}

/// How nginx compares a name of a server, in the order in which it does so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Comparison {
    Exact,
    Suffix,
    Prefix,
    /// The server is the default one at an address.
    Others,
}

/// A name, with the indices of its servers.
struct Name {
    comparison: Comparison,
    text: String,
    servers: Vec<usize>,
}

/// Returns the hosts of all servers, in the order in which nginx compares them.
pub(super) fn hosts<'s>(servers: &'s [Server], losses: &mut Losses) -> Vec<Hosts<'s>> {
    let mut names: Vec<Name> = Vec::new();
    for (index, server) in servers.iter().enumerate() {
        // One server has all hosts.
        let of_server = if servers.len() == 1 { &[] } else { server.names.as_slice() };
        for name in of_server {
            for (comparison, text) in compared(name, server, losses) {
                add(&mut names, comparison, text, index, servers);
            }
        }
    }
    for index in (0..servers.len()).filter(|index| is_default(*index, servers)) {
        match names.iter_mut().find(|name| name.comparison == Comparison::Others) {
            Some(others) => others.servers.push(index),
            None => names.push(Name { comparison: Comparison::Others, text: String::new(), servers: vec![index] }),
        }
    }
    for (index, server) in servers.iter().enumerate() {
        if server.has_limits() && !names.iter().any(|name| name.servers.contains(&index)) {
            let what = "no host leads to this server here: its limits are left out";
            losses.add(&server.rest.file, server.rest.position, "server", what);
        }
    }
    names.sort_by_key(|name| {
        (name.comparison, Reverse(if name.comparison == Comparison::Exact { 0 } else { name.text.len() }))
    });
    let mut found: Vec<(Name, Vec<String>)> = Vec::new();
    for name in names {
        // Exact names of the same servers are one list.
        let is_like = |other: &Name| other.comparison == Comparison::Exact && other.servers == name.servers;
        match found.last_mut().filter(|_| name.comparison == Comparison::Exact) {
            Some((last, texts)) if is_like(last) => texts.push(name.text),
            _ => found.push((Name { text: String::new(), ..name }, vec![name.text])),
        }
    }
    let written = |(name, texts): (Name, Vec<String>)| {
        let (label, scalars) = (texts.join(", "), texts.iter().map(|text| scalar(text)).collect::<Vec<_>>().join(", "));
        let (condition, label) = match name.comparison {
            Comparison::Exact => (Some(format!("host: [{scalars}]")), label),
            Comparison::Suffix => (Some(format!("host: {{suffix: {scalars}}}")), format!("*{label}")),
            Comparison::Prefix => (Some(format!("host: {{prefix: {scalars}}}")), format!("{label}*")),
            Comparison::Others => (None, "other hosts".to_owned()),
        };
        let servers = name.servers.iter().filter_map(|index| servers.get(*index)).collect();
        Hosts { condition, label, servers }
    };
    found.into_iter().map(written).collect()
}

/// Returns how nginx compares a name of a server. Empty for a name that no request has, or after adding a loss.
fn compared(name: &str, server: &Server, losses: &mut Losses) -> Vec<(Comparison, String)> {
    if name.starts_with('~') {
        let what = format!("{name} is left out: a host is no regular expression here");
        losses.add(&server.rest.file, server.rest.position, "server_name", what);
        return Vec::new();
    }
    match (name.strip_prefix('*'), name.strip_suffix('*'), name.strip_prefix('.')) {
        _ if name.is_empty() || name == "_" => Vec::new(),
        (Some(rest), ..) => vec![(Comparison::Suffix, rest.to_owned())],
        (_, Some(rest), _) => vec![(Comparison::Prefix, rest.to_owned())],
        (.., Some(rest)) => vec![(Comparison::Exact, rest.to_owned()), (Comparison::Suffix, name.to_owned())],
        _ => vec![(Comparison::Exact, name.to_owned())],
    }
}

/// Adds a name of a server. nginx ignores a name that another server has at the same address.
fn add(names: &mut Vec<Name>, comparison: Comparison, text: String, index: usize, servers: &[Server]) {
    let listens = |index: usize| servers.get(index).into_iter().flat_map(|server| &server.listens);
    let Some(known) = names.iter_mut().find(|name| name.comparison == comparison && name.text == text) else {
        names.push(Name { comparison, text, servers: vec![index] });
        return;
    };
    let is_taken = |address: &str| known.servers.iter().any(|other| listens(*other).any(|(taken, _)| taken == address));
    if !known.servers.contains(&index) && !listens(index).all(|(address, _)| is_taken(address)) {
        known.servers.push(index);
    }
}

/// Whether a server answers requests to hosts that no server names, at any of its addresses.
fn is_default(index: usize, servers: &[Server]) -> bool {
    let default_at = |address: &str| {
        let named = servers.iter().position(|server| server.listens.iter().any(|(one, is)| *is && one == address));
        named.or_else(|| servers.iter().position(|server| server.listens.iter().any(|(one, _)| one == address)))
    };
    let Some(server) = servers.get(index) else { return false };
    server.listens.iter().any(|(address, _)| default_at(address) == Some(index))
}
