//! Formats a report as text: one line for each policy and rule, with its position in the file at the end.

use super::report::{Applies, Charge, Descriptor, Policy, Report, Route, Rule};
use request::door::Door;
use rules::rule::Mode;

/// Columns are as wide as their content, up to these widths in characters.
const WIDEST_NAME: usize = 24;
const WIDEST_LINE: usize = 108;

/// The widths of the columns of one page, and a text that depends on the door.
#[derive(Default)]
struct Columns {
    name: usize,
    key: usize,
    cost: usize,
    numbers: usize,
    /// Why limits charge nothing of which a request holds something.
    not_at_door: &'static str,
}

/// A line of the page, and the line number in the configuration file.
type Line = (String, usize);

pub(super) fn lines(report: &Report) -> Vec<String> {
    let mut page = head(report);
    let columns = Columns::of(report);
    let policies = report.policies.iter().flat_map(|policy| of_policy(policy, &columns));
    let lines: Vec<Line> = report.routes.iter().flat_map(|route| of_route(route, &columns)).chain(policies).collect();
    let lengths = lines.iter().map(|(line, _)| length(line)).filter(|length| *length <= WIDEST_LINE);
    let width = lengths.max().unwrap_or_default() + 2;
    for (line, number) in lines {
        // At least two spaces separate the columns.
        let padding = width.saturating_sub(length(&line)).max(2);
        page.push(format!("{line}{}{}:{number}", " ".repeat(padding), report.file));
    }
    page.extend(report.answer.words.iter().cloned());
    page
}

fn length(text: &str) -> usize {
    text.chars().count()
}

impl Columns {
    fn of(report: &Report) -> Columns {
        let is_take = report.subject.descriptor.as_ref().is_some_and(|sent| sent.door == Door::Json.name());
        let not_at_door = if is_take { "the call has no `hold_for`" } else { "another proxy forwards the request" };
        let mut columns = Columns { not_at_door, ..Columns::default() };
        for route in &report.routes {
            columns.name = columns.name.max(length(&route.name).min(WIDEST_NAME));
        }
        for rule in report.policies.iter().flat_map(|policy| &policy.rules) {
            columns.name = columns.name.max(length(&rule.name).min(WIDEST_NAME));
            for name in rule.unlimited.iter().chain(&rule.not_at_door).chain(&rule.no_model) {
                columns.name = columns.name.max(length(name).min(WIDEST_NAME));
                columns.key = columns.key.max(length(&keys(rule)).min(WIDEST_NAME));
            }
            for charge in &rule.charges {
                columns.name = columns.name.max(length(&charge.limit).min(WIDEST_NAME));
                columns.key = columns.key.max(length(&keys(rule)).min(WIDEST_NAME));
                columns.cost = columns.cost.max(length(&price(charge)));
                columns.numbers = columns.numbers.max(length(&numbers(charge)).min(WIDEST_NAME));
            }
        }
        columns
    }
}

fn head(report: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(request) = &report.subject.request {
        let path = match &request.path {
            Some(path) if *path != request.target => format!("{path} (sent {})", request.target),
            _ => request.target.clone(),
        };
        lines.push(format!("request  {} {} {path}", request.method, request.host));
        lines.push(format!("client   {} ({})", request.client, request.client_from));
        lines.extend(request.door.map(|door| format!("door     {door}: another proxy asks about it")));
    }
    if let Some(Descriptor { domain, entries, hold_for, .. }) = &report.subject.descriptor {
        let entries: Vec<String> = entries.iter().map(|entry| format!("{}={:?}", entry.key, entry.value)).collect();
        let domain = domain.as_ref().map_or("no domain".to_owned(), |domain| format!("domain {domain:?}"));
        let held = hold_for.as_ref().map_or_else(String::new, |time| format!(", held for {time}"));
        lines.push(format!("descriptor  {} in {domain}{held}", entries.join(", ")));
    }
    for (label, text) in [("token  ", &report.token), ("key    ", &report.key)] {
        lines.extend(text.as_ref().map(|text| format!("{label}  {text}")));
    }
    lines
}

fn of_route(route: &Route, columns: &Columns) -> Vec<Line> {
    let title = format!("route {}", route.name);
    let text = match (&route.upstream, &route.answer) {
        _ if !route.matches => format!("no: {}", route.why),
        (Some(upstream), _) => format!("matches, to upstream {upstream}"),
        (None, answer) => format!("matches, {} if no limit refuses it", answer.as_deref().unwrap_or_default()),
    };
    let first = format!("{title:<0$}  {text}", columns.name + 7);
    let changes = route.changes.iter().map(|change| format!("{:<1$}  {change}", "", columns.name + 7));
    std::iter::once(first).chain(changes).map(|line| (line, route.line)).collect()
}

fn of_policy(policy: &Policy, columns: &Columns) -> Vec<Line> {
    let title = format!("policy {}", policy.name);
    let title = match policy.note.is_empty() {
        true => title,
        // The note is aligned with the explanations of the rules.
        false => format!("{title:<0$}  {1}", columns.name + 7, policy.note),
    };
    let rules = policy.rules.iter().flat_map(|rule| of_rule(rule, columns).into_iter().map(|line| (line, rule.line)));
    std::iter::once((title, policy.line)).chain(rules).collect()
}

fn of_rule(rule: &Rule, columns: &Columns) -> Vec<String> {
    let mark = match rule.applies {
        Applies::Yes => "YES",
        Applies::No => "no ",
        Applies::NotTried => "-  ",
        Applies::Undecidable => "?  ",
    };
    let line = |name: &str, rest: &str| {
        let line = format!("  {mark}  {name:<0$}  {rest}", columns.name);
        line.trim_end().to_owned()
    };
    match (rule.applies, rule.action) {
        (Applies::Yes, Some(action)) => {
            let does = match (action, rule.mode) {
                ("deny", Mode::Shadow) => "shadow  deny: would refuse with 403, before any charge",
                ("deny", Mode::Enforce) => "deny: refuses with 403, before any charge",
                (_, Mode::Shadow) => "shadow  allow: no charge",
                (_, Mode::Enforce) => "allow: no charge in this policy",
            };
            let until = if rule.why.is_empty() { String::new() } else { format!("; {}", rule.why) };
            vec![line(&rule.name, &format!("{does}{until}"))]
        }
        (Applies::Yes, None) => {
            let indented = |text: &String| format!("       {:<1$}  {text}", "", columns.name);
            let charges = rule.charges.iter().flat_map(|charge| {
                let first = line(&charge.limit, &charged(charge, &keys(rule), columns));
                std::iter::once(first).chain(charge.claimed.iter().map(indented))
            });
            let unlimited = rule.unlimited.iter().map(|name| {
                line(name, &format!("key {:<1$}  unlimited (override): no charge", keys(rule), columns.key))
            });
            let at_door = rule.not_at_door.iter().map(|name| {
                line(name, &format!("key {:<1$}  no charge: {2}", keys(rule), columns.key, columns.not_at_door))
            });
            let no_model = rule.no_model.iter().map(|name| {
                let why = "no charge: the request asks no language model";
                line(name, &format!("key {:<1$}  {why}", keys(rule), columns.key))
            });
            // The last line is the reason of the rule, if it has one.
            let uncharged = unlimited.chain(at_door).chain(no_model);
            charges.chain(uncharged).chain((!rule.why.is_empty()).then(|| indented(&rule.why))).collect()
        }
        _ => vec![line(&rule.name, &rule.why)],
    }
}

fn keys(rule: &Rule) -> String {
    let keys: Vec<String> = rule.keys.iter().map(|key| format!("{} {}", key.attribute, key.value)).collect();
    if keys.is_empty() { "one for all clients".to_owned() } else { keys.join(", ") }
}

fn numbers(charge: &Charge) -> String {
    let ends = charge.ends.as_ref().map_or_else(String::new, |ends| format!(" until {ends}"));
    let settled = charge.settled.as_ref().map_or_else(String::new, |settled| format!("; {settled}"));
    let held = charge.held.as_ref().map_or_else(String::new, |held| format!("; {held}"));
    format!("{}{}{ends}{settled}{held}", charge.numbers, if charge.overridden { " (override)" } else { "" })
}

fn price(charge: &Charge) -> String {
    charge.cost.map_or_else(|| "not known without the body".to_owned(), |cost| cost.to_string())
}

fn charged(charge: &Charge, keys: &str, columns: &Columns) -> String {
    let level = charge.level.as_ref().map_or_else(String::new, |level| match level.left {
        Some(left) => format!("  {left} left"),
        None => "  left: not known".to_owned(),
    });
    let pays = charge.level.as_ref().is_none_or(|level| level.pays);
    let asks_home = charge.level.as_ref().is_some_and(|level| level.asks_home);
    let word = match (charge.mode, pays) {
        (Mode::Enforce, _) if asks_home => "  asks home",
        (Mode::Shadow, _) if asks_home => "  shadow: asks home",
        (Mode::Enforce, true) => "",
        (Mode::Enforce, false) => "  SHORT",
        (Mode::Shadow, true) => "  shadow",
        (Mode::Shadow, false) => "  shadow: would refuse",
    };
    let Columns { key, cost, numbers: wide, .. } = columns;
    let (price, numbers) = (price(charge), numbers(charge));
    let meter = charge.meter.as_ref().map_or_else(String::new, |meter| format!(" of meter {meter}"));
    let bucket = format!("bucket {}{meter}", charge.bucket);
    format!("key {keys:<key$}  cost {price:<cost$}  {numbers:<wide$}  {bucket}{level}{word}")
}
