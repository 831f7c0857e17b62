//! A rule with `expires` applies until that time, and has no effect afterwards.

use std::path::Path;

use base::time::{Clock, Timestamp};
use config::{Config, Environment};
use proptest::prelude::*;
use request::client_address::ClientAddress;
use request::request::Request;
use rules::denier::DenierId;
use rules::rule_set::Answer;

use crate::support::{Gateway, Upstream, eventually};

/// Formats microseconds since the epoch as a time of RFC 3339.
fn written(moment: u64) -> String {
    format!("{:.6}", jiff::Timestamp::from_microsecond(moment.try_into().unwrap()).unwrap())
}

/// A random rule: its match, its action, and the second at which it expires.
type RuleText = (&'static str, &'static str, Option<u64>);

/// Returns a policy of these rules, and a second policy that charges after it.
fn ruled(rules: &[RuleText], otherwise: &str) -> Config {
    let rule = |(number, (matched, action, until)): (usize, &RuleText)| {
        let expires = until.map_or(String::new(), |until| format!(", expires: {}", written(until * 1_000_000)));
        format!("      - {{name: r{number}, match: {{{matched}}}, action: {action}{expires}}}\n")
    };
    let rules: String = rules.iter().enumerate().map(rule).collect();
    let file = format!(
        "upstream: http://a\npolicies:\n  - name: p\n    otherwise: {otherwise}\n    rules:\n{rules}      \
         - {{name: last, limit_keys: [header:x-user], algorithm_config: {{rps: 1, burst: 1}}}}\n"
    );
    let (variable, read) = (|_: &str| None, |_: &Path| Err(std::io::ErrorKind::NotFound.into()));
    let surroundings = Environment { variable: &variable, folder: Path::new(""), read: &read };
    Config::parse("gateway.yaml", file.as_bytes(), surroundings).unwrap()
}

fn answer(config: &Config, fields: &[(&str, &str)], at: u64) -> String {
    let head = fields.iter().fold(http::Request::builder(), |head, (name, value)| head.header(*name, *value));
    let (head, ()) = head.body(()).unwrap().into_parts();
    let client = ClientAddress::new("203.0.113.7".parse().unwrap(), 64);
    let request = Request::new(&head, client).with_destination("default", "default");
    let ruling = config.rules.plan(&request, Timestamp(at));
    // The index of a rule that denies is another one when rules before it are left out.
    let denier = |id: DenierId| config.rules.denier(id).map(|denier| (denier.rule.is_some(), denier.mode)).unwrap();
    let answer = match ruling.answer {
        Answer::Denied(by) => format!("denied by {:?}", denier(by)),
        other => format!("{other:?}"),
    };
    let shadows: Vec<_> = ruling.shadow_denials.into_iter().map(denier).collect();
    format!("{answer} {:?} {shadows:?}", ruling.unmatched)
}

proptest! {
    #[test]
    fn at_any_moment_a_file_answers_as_one_without_its_expired_rules(
        rules in prop::collection::vec(
            (
                prop::sample::select(vec!["", "header:x-plan: gold", "header:x-user: {present: true}", "ip:address: 203.0.113.7"]),
                prop::sample::select(vec!["allow", "deny", "allow, mode: shadow", "deny, mode: shadow"]),
                prop::option::of(0u64..6),
            ),
            0..5,
        ),
        otherwise in prop::sample::select(vec!["allow", "deny"]),
        at in (0u64..13).prop_map(|half| half * 500_000),
        (plan, user) in any::<(bool, bool)>(),
    ) {
        let fields: Vec<_> = [("x-plan", "gold", plan), ("x-user", "ann", user)]
            .into_iter().filter(|(.., there)| *there).map(|(name, value, _)| (name, value)).collect();
        let in_force: Vec<_> = rules.iter().filter(|(.., until)| until.is_none_or(|until| at < until * 1_000_000))
            .map(|(matched, action, _)| (*matched, *action, None)).collect();
        let found = answer(&ruled(&rules, otherwise), &fields, at);
        prop_assert_eq!(&found, &answer(&ruled(&in_force, otherwise), &fields, at));
        prop_assert_eq!(&found, &answer(&ruled(&rules, otherwise), &fields, at));
    }
}

#[test]
fn a_deny_with_an_end_refuses_until_then_and_lets_pass_from_then_on() {
    let upstream = Upstream::start();
    let start = Clock::system().wall();
    let until = Timestamp(start.0 + 6_000_000);
    let gateway = Gateway::start(
        &upstream,
        &format!(
            "rules:\n  - {{name: gone, action: deny, expires: {}}}\n  - {{name: here, action: allow, expires: {}}}\n",
            written(until.0),
            written(until.0 + 3_600_000_000),
        ),
    );
    let mut client = gateway.client();
    let mut last_refused = None;
    eventually("the rule is over", || {
        let sent = Clock::system().wall();
        let status = client.get("/", &[]).status;
        if status == 403 {
            last_refused = Some(sent);
        }
        status == 200
    });
    let answered = Clock::system().wall();
    assert!(last_refused.is_some_and(|sent| sent < until), "refused at {last_refused:?}, until {until:?}");
    assert!(until <= answered, "passed at {answered:?}, until {until:?}");
}
