//! Reads the routes of Kong: which requests each of them has, and in which order Kong tries them.

use std::cmp::Reverse;

use super::super::Losses;
use super::super::gateway_yaml::{quoted, scalar};
use super::values::{Kind, get, name, text, texts};
use crate::language::tree::{Node, Value};

/// A route, with the entries of `match` that say which requests it has.
#[derive(Debug)]
pub(super) struct Route {
    pub name: String,
    pub service: Option<String>,
    /// The sets of conditions, one of which must hold.
    pub alternatives: Vec<Vec<String>>,
    order: (Reverse<usize>, Reverse<usize>),
}

impl Route {
    /// Reads a route. `service` is the name of its service.
    pub(super) fn read(node: &Node, service: Option<String>, file: &str, losses: &mut Losses) -> Route {
        let mut common = Vec::new();
        let mut attributes = 0;
        let hosts = texts(node, "hosts");
        let (wild, exact): (Vec<_>, Vec<_>) = hosts.iter().partition(|host| host.contains('*'));
        attributes += usize::from(!hosts.is_empty());
        let methods = texts(node, "methods");
        if !methods.is_empty() {
            attributes += 1;
            common.push(format!("method: [{}]", methods.iter().map(|one| quoted(one)).collect::<Vec<_>>().join(", ")));
        }
        if let Some(Value::Map(headers)) = get(node, "headers").map(|headers| &headers.value) {
            attributes += usize::from(!headers.is_empty());
            for header in headers {
                let values = match &header.value.value {
                    Value::List(values) => values.iter().filter_map(text).map(scalar).collect::<Vec<_>>().join(", "),
                    _ => text(&header.value).map(scalar).unwrap_or_default(),
                };
                let key = format!("header:{}", header.key.to_ascii_lowercase());
                common.push(format!("{}: [{values}]", quoted(&key)));
            }
        }
        for key in ["snis", "sources", "destinations", "expression"] {
            if let Some(other) = get(node, key) {
                losses.add(file, other.position, key, "is not imported: rules of this route are for more requests");
            }
        }
        let mut of_hosts: Vec<Option<String>> = wild.iter().map(|host| Some(wild_host(host))).collect();
        if !exact.is_empty() {
            let exact: Vec<_> = exact.iter().map(|host| scalar(&host.to_ascii_lowercase())).collect();
            of_hosts.push(Some(format!("host: [{}]", exact.join(", "))));
        }
        let paths = texts(node, "paths");
        attributes += usize::from(!paths.is_empty());
        let mut of_paths: Vec<Option<String>> = Vec::new();
        let (regular, plain): (Vec<_>, Vec<_>) = paths.iter().partition(|path| path.starts_with('~'));
        let regular = regular.iter().map(|path| format!("^{}", path.trim_start_matches('~').trim_start_matches('^')));
        let (regular, impossible): (Vec<_>, Vec<_>) = regular.partition(|path| regex::bytes::Regex::new(path).is_ok());
        if let (Some(path), Some(list)) = (impossible.first(), get(node, "paths")) {
            let what = format!("{path} is a regular expression that is not possible here: it is left out");
            losses.add(file, list.position, "paths", what);
        }
        of_paths.extend(regular.iter().map(|path| Some(format!("path: {{regex: {}}}", scalar(path)))));
        if plain.iter().any(|path| path.as_str() == "/") {
            of_paths.push(None);
        } else if !plain.is_empty() {
            let segments = |path: &&String| scalar(&format!("{}/*", path.trim_end_matches('/')));
            of_paths.push(Some(format!("path: [{}]", plain.iter().map(segments).collect::<Vec<_>>().join(", "))));
        }
        for conditions in [&mut of_hosts, &mut of_paths] {
            if conditions.is_empty() && impossible.is_empty() {
                conditions.push(None);
            }
        }
        let alternatives = of_hosts.iter().flat_map(|host| {
            of_paths.iter().map(|path| host.iter().chain(path).chain(&common).cloned().collect::<Vec<_>>())
        });
        let longest = paths.iter().map(String::len).max().unwrap_or_default();
        Route {
            name: name(Kind::Route, node),
            service,
            alternatives: alternatives.collect(),
            order: (Reverse(attributes), Reverse(longest)),
        }
    }

    /// Sorts routes as Kong tries them: those with more conditions first, then those with longer paths.
    pub(super) fn sort(routes: &mut [Route]) {
        routes.sort_by_key(|route| route.order);
    }
}

fn wild_host(host: &str) -> String {
    match host.strip_prefix('*') {
        Some(rest) => format!("host: {{suffix: {}}}", scalar(rest)),
        None => format!("host: {{prefix: {}}}", scalar(host.trim_end_matches('*'))),
    }
}
