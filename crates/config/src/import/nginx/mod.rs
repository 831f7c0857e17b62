//! Reads `limit_req` and `limit_conn` of nginx, and writes a gateway.yaml that limits the same requests.
//!
//! Each zone becomes a policy, because several limits of one location all count. In a policy the first rule that matches
//! decides. So the rules of a zone stand in the order in which nginx searches for a server and a location, and a place
//! without the limit has a rule that allows, if a wider place with the limit follows. Before them are rules that allow what has an
//! empty key.

mod empty_keys;
mod hosts;
mod includes;
mod places;
mod scopes;
mod syntax;
mod zones;

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;

use super::gateway_yaml::scalar;
use super::names::unique;
use super::written_rules::{WrittenCharge, WrittenPolicy, WrittenRule, write};
use super::{Import, ImportedFile, Loss, Losses, checked};
use crate::language::problem::{Problem, Problems};
use base::position::Position;
use hosts::{Hosts, hosts};
use includes::{ParsedFile, assembled};
use places::{Paths, Place};
use scopes::{Limits, Scope, Server, UsedZone};
use zones::{Zone, ZoneKind};

const HEAD: &str = "\
# Imported from the files of nginx by `tollgate import nginx`.
#
# Only limit_req and limit_conn are imported. Refusals have the status 429; those of nginx have 503, unless limit_req_status
# says otherwise.
";

const SETTINGS: &str = "\
upstream: http://127.0.0.1:9000          # where proxy_pass leads
# A proxy in front of this one is one client, unless it is named here, as with set_real_ip_from:
# client_ip: {trusted_proxies: [10.0.0.0/8]}
";

/// The longest `max_wait`, in seconds.
const LONGEST_WAIT: u64 = 3600;

/// Converts the limits in files of nginx to a gateway.yaml.
///
/// # Errors
/// All files that are not in the syntax of nginx, with the position of their first mistake. A rule that gateway.yaml does
/// not accept.
pub fn import_nginx(files: &[ImportedFile<'_>]) -> Result<Import, Problems> {
    let (mut parsed, mut problems) = (Vec::new(), Vec::new());
    for file in files {
        match std::str::from_utf8(file.bytes) {
            Ok(text) => match syntax::parse(file.name, text) {
                Ok(directives) => parsed.push(ParsedFile { name: file.name, directives }),
                Err((position, what)) => problems.push(problem(file, Some(position), what)),
            },
            Err(_) => problems.push(problem(file, None, "must be UTF-8 text")),
        }
    }
    if !problems.is_empty() {
        let file = files.first().map_or("", |file| file.name).to_owned();
        return Err(Problems { file, problems, warnings: Vec::new() });
    }
    let losses = RefCell::default();
    let roots = assembled(&parsed, &losses);
    let mut losses = losses.into_inner();
    let limits = Limits::read(&roots, &mut losses);
    undeclared(&limits, &mut losses);
    let hosts = hosts(&limits.servers, &mut losses);
    let (mut of_policies, mut of_rules) = (HashSet::new(), HashSet::new());
    let policies = limits.zones.iter().filter_map(|zone| {
        let mut rules = rules(zone, &hosts, &mut of_rules, &mut losses);
        if rules.is_empty() {
            return None;
        }
        let exempt = zone.exempt.iter().map(|condition| WrittenRule {
            name: unique(&format!("exempt-{}", zone.name), &mut of_rules),
            place: zone.place.clone(),
            conditions: vec![condition.clone()],
            is_shadow: false,
            charge: None,
        });
        rules.splice(0..0, exempt.collect::<Vec<_>>());
        let name = unique(&zone.name, &mut of_policies);
        share_buckets(&name, &mut rules, &limits.servers, &mut losses);
        Some(WrittenPolicy { name, rules })
    });
    let policies: Vec<_> = policies.collect();
    let order = |loss: &Loss| files.iter().position(|file| file.name == loss.file);
    let mut losses = losses.0;
    losses.sort_by_key(|loss| (order(loss), loss.remark.position));
    checked(Import { text: write(HEAD, SETTINGS, &policies, &losses), losses })
}

fn problem(file: &ImportedFile<'_>, position: Option<Position>, what: &str) -> Problem {
    Problem { file: Some(file.name.to_owned()), position, path: String::new(), what: what.to_owned(), hint: None }
}

/// Adds a loss for each limit whose zone is not among the files.
fn undeclared(limits: &Limits, losses: &mut Losses) {
    for scope in limits.servers.iter().flat_map(|server| &server.places).map(|place| &place.scope) {
        for used in scope.requests.iter().chain(&scope.in_flight) {
            if !limits.zones.iter().any(|zone| zone.name == used.zone) {
                let what = format!("the limit of zone {} is left out, because the zone is not imported", used.zone);
                losses.add(&scope.file, scope.position, "zone", what);
            }
        }
    }
}

/// Returns the rules of a zone.
fn rules(zone: &Zone, hosts: &[Hosts<'_>], names: &mut HashSet<String>, losses: &mut Losses) -> Vec<WrittenRule> {
    let mut rules = Vec::new();
    for hosts in hosts {
        let mut of_hosts = of_hosts(zone, hosts, losses);
        let condition = &hosts.condition;
        let has_charges = of_hosts.iter().any(|rule| rule.charge.is_some());
        let is_charged_outside = of_hosts.last().is_some_and(|last| last.conditions.is_empty());
        if let (false, Some(_), Some(server)) = (is_charged_outside, condition, hosts.servers.first()) {
            of_hosts.push(rule(zone, None, &server.rest.unlimited(), losses));
        }
        for rule in &mut of_hosts {
            rule.conditions.splice(0..0, condition.clone());
        }
        if condition.is_some() || has_charges {
            rules.extend(of_hosts);
        }
    }
    while rules.last().is_some_and(|last: &WrittenRule| last.charge.is_none()) {
        rules.pop();
    }
    for rule in &mut rules {
        let wanted = if rule.charge.is_some() { zone.name.clone() } else { format!("not-{}", zone.name) };
        rule.name = unique(&wanted, names);
    }
    rules
}

/// Returns the rules of some hosts, up to the last one that charges. Several servers with the same hosts become one, with
/// the limits of all of them: a rule does not know at which address a request came.
fn of_hosts(zone: &Zone, hosts: &Hosts<'_>, losses: &mut Losses) -> Vec<WrittenRule> {
    let mut of_servers: Vec<Vec<WrittenRule>> = Vec::with_capacity(hosts.servers.len());
    for server in &hosts.servers {
        let mut rules = of_server(zone, server, losses);
        while rules.last().is_some_and(|last| last.charge.is_none()) {
            rules.pop();
        }
        of_servers.push(rules);
    }
    let is_same = |one: &WrittenRule, other: &WrittenRule| one.conditions == other.conditions && is_alike(one, other);
    let first = of_servers.first().map_or(&[][..], Vec::as_slice);
    let differs = |rules: &Vec<WrittenRule>| {
        rules.len() != first.len() || !rules.iter().zip(first).all(|(one, other)| is_same(one, other))
    };
    if of_servers.iter().any(differs) {
        let what = format!(
            "the servers of {} differ by listen, which no rule knows: they are one here, with the limits of all, the first ones first",
            hosts.label
        );
        for Server { rest, .. } in hosts.servers.iter().skip(1) {
            losses.add(&rest.file, rest.position, "listen", what.clone());
        }
    }
    // What holds for the rest of a server must not hide the locations of another one.
    let (of_rest, of_locations): (Vec<_>, Vec<_>) =
        of_servers.into_iter().flatten().partition(|rule| rule.conditions.is_empty());
    let mut merged: Vec<WrittenRule> = Vec::with_capacity(of_locations.len() + 1);
    for rule in of_locations.into_iter().chain(of_rest.into_iter().take(1)) {
        if !merged.iter().any(|other| is_same(other, &rule)) {
            merged.push(rule);
        }
    }
    merged
}

/// Whether two rules charge alike.
fn is_alike(one: &WrittenRule, other: &WrittenRule) -> bool {
    one.charge == other.charge && one.is_shadow == other.is_shadow
}

/// Returns a rule for each place of a server, in their order.
fn of_server(zone: &Zone, server: &Server, losses: &mut Losses) -> Vec<WrittenRule> {
    // A location `/` has all the other paths.
    let has_all = |place: &Place| condition(&place.paths).is_none();
    let count = server.places.iter().position(has_all).map_or(server.places.len(), |last| last + 1);
    let mut rules: Vec<(&Paths, WrittenRule)> = Vec::with_capacity(count);
    for Place { paths, scope } in server.places.iter().take(count) {
        let rule = rule(zone, condition(paths), scope, losses);
        // What charges as the wider place just behind it needs no rule.
        while let Some((Paths::Regex { within: Some(within), .. }, last)) = rules.last()
            && *paths == Paths::Prefix(Rc::clone(within))
            && is_alike(last, &rule)
        {
            rules.pop();
        }
        rules.push((paths, rule));
    }
    let mut rules: Vec<WrittenRule> = rules.into_iter().map(|(_, rule)| rule).collect();
    // A location just before the rest needs no rule if it has the limit of the rest.
    while let [.., one, rest] = rules.as_slice()
        && is_alike(one, rest)
    {
        rules.remove(rules.len() - 2);
    }
    rules
}

/// Returns the entry of `match` that has these paths. `None`: all paths.
fn condition(paths: &Paths) -> Option<String> {
    match paths {
        Paths::All => None,
        // At the end of a text, `/*` stands for all paths below.
        Paths::Exact(path) if path.ends_with("/*") => {
            Some(format!("path: {{regex: {}}}", scalar(&format!("^{}$", regex::escape(path)))))
        }
        Paths::Exact(path) => Some(format!("path: {}", scalar(path))),
        Paths::Prefix(path) => (&**path != "/").then(|| format!("path: {{prefix: {}}}", scalar(path))),
        Paths::Regex { within: Some(within), regex } if &**within != "/" => {
            Some(format!("path: {{prefix: {}, regex: {}}}", scalar(within), scalar(regex)))
        }
        Paths::Regex { regex, .. } => Some(format!("path: {{regex: {}}}", scalar(regex))),
    }
}

fn rule(zone: &Zone, condition: Option<String>, scope: &Scope, losses: &mut Losses) -> WrittenRule {
    let used = scope.of(zone);
    let limits = |(used, _): (&UsedZone, bool)| WrittenCharge {
        keys: zone.keys.clone(),
        limits: limits(zone.kind, used, losses),
        meter: None,
    };
    WrittenRule {
        name: String::new(),
        place: format!("{}:{}", scope.file, scope.position.line),
        conditions: condition.into_iter().collect(),
        is_shadow: used.is_some_and(|(_, is_dry_run)| is_dry_run),
        charge: used.map(limits),
    }
}

/// Returns the limit that counts as nginx does.
fn limits(kind: ZoneKind, used: &UsedZone, losses: &mut Losses) -> Vec<String> {
    let (algorithm, config) = match kind {
        ZoneKind::InFlight => ("concurrency", format!("limit: {}", used.number.max(1))),
        // nginx counts the first request outside the burst.
        ZoneKind::Requests(rate) if is_bucket(kind, used) => {
            ("token_bucket", format!("{}, burst: {}", rate.written(), used.number + 1))
        }
        ZoneKind::Requests(rate) => {
            let mut queue = used.number - used.undelayed;
            let undelayed =
                if used.undelayed == 0 { String::new() } else { format!("delay_after: {}, ", used.undelayed) };
            let mut most = rate.seconds_of(queue).max(1);
            if most > LONGEST_WAIT {
                queue = rate.requests_in(LONGEST_WAIT).min(queue);
                let what = format!("lets requests wait for up to {most} s: here for up to 1h, so at most {queue} wait");
                losses.add(&used.file, used.position, "limit_req", what);
                most = LONGEST_WAIT;
            }
            ("leaky_bucket", format!("{}, {undelayed}queue: {queue}, max_wait: {most}s", rate.written()))
        }
    };
    vec![format!("algorithm: {algorithm}"), format!("algorithm_config: {{{config}}}")]
}

/// Whether a token bucket counts as the limit does: nothing is delayed, and the burst is not below the rate of a second.
fn is_bucket(kind: ZoneKind, used: &UsedZone) -> bool {
    let ZoneKind::Requests(rate) = kind else { return false };
    let second = rate.requests.div_ceil(rate.seconds);
    used.number > 0 && used.undelayed == used.number && used.number + 1 >= second
}

/// Lets the rules of a zone share its buckets, as in nginx. Rules share buckets only if they count in the same way.
fn share_buckets(zone: &str, rules: &mut [WrittenRule], servers: &[Server], losses: &mut Losses) {
    let way = |charge: &WrittenCharge| {
        let undelayed = charge.limits.iter().find_map(|line| line.split_once("delay_after: ")?.1.split_once(','));
        (charge.limits.first().cloned(), undelayed.map(|(number, _)| number.to_owned()))
    };
    let mut ways: Vec<_> = rules.iter().filter_map(|rule| rule.charge.as_ref()).map(way).collect();
    if ways.len() < 2 {
        return;
    }
    ways.sort();
    ways.dedup();
    if let (2.., Some(server)) = (ways.len(), servers.first()) {
        let what = format!("the limits of zone {zone} share one counter; those with different delays count apart");
        losses.add(&server.rest.file, server.rest.position, "limit_req", what);
    }
    for charge in rules.iter_mut().filter_map(|rule| rule.charge.as_mut()) {
        let index = ways.iter().position(|other| *other == way(charge)).unwrap_or_default();
        charge.meter = Some(if index == 0 { zone.to_owned() } else { format!("{zone}-{}", index + 1) });
    }
}
