//! `tollgate import ratelimit`: what it prints decides each descriptor as the files it has read.
//!
//! The meaning of those files is written down here a second time, from the service's documentation and by its own data
//! structures: a table of `key_value` for each level, patterns in their order, counters by text. The same calls are played
//! against both.

use std::collections::HashMap;
use std::path::Path;

use serde_yaml::Value;
use tollgate::base::time::Timestamp;
use tollgate::config::ratelimit_import::{Import, ImportedFile, import};
use tollgate::config::{Config, Environment};
use tollgate::limit::algorithm::State;
use tollgate::limit::bucket_key::BucketKey;
use tollgate::limit::charge::settle;
use tollgate::limit::door::Door;
use tollgate::limit::request::{ClientAddress, Request};
use tollgate::limit::rule_set::Answer;
use tollgate::limit::sent_descriptor::SentDescriptor;

use crate::support::tollgate;

type Entries = Vec<(String, String)>;

/// A descriptor as the service keeps it.
#[derive(Default)]
struct Level {
    nodes: HashMap<String, Level>,
    patterns: Vec<String>,
    limit: Option<(u64, u64)>,
    shadow: bool,
    shared: bool,
}

/// The service: what it has read, and what it has counted.
#[derive(Default)]
struct Service {
    domains: HashMap<String, Level>,
    counters: HashMap<String, u64>,
}

impl Level {
    fn load(&mut self, descriptors: &Value) {
        for descriptor in descriptors.as_sequence().into_iter().flatten() {
            let text = |name: &str| descriptor[name].as_str().unwrap_or_default().to_owned();
            let flag = |name: &str| descriptor[name].as_bool().unwrap_or_default();
            let (key, value) = (text("key"), text("value"));
            let composite = if value.is_empty() { key } else { format!("{key}_{value}") };
            if composite.contains('*') {
                self.patterns.push(composite.clone());
            }
            let limit = &descriptor["rate_limit"];
            let seconds = |unit: &str| match unit.to_lowercase().as_str() {
                "second" => 1,
                "minute" => 60,
                "hour" => 3600,
                "day" => 86_400,
                "week" => 604_800,
                "month" => 2_592_000,
                "year" => 31_536_000,
                other => panic!("{other}"),
            };
            let mut level = Level { shadow: flag("shadow_mode"), shared: flag("share_threshold"), ..Level::default() };
            if limit.is_mapping() && limit["unlimited"].as_bool() != Some(true) {
                let requests = limit["requests_per_unit"].as_u64().unwrap_or_default();
                level.limit = Some((requests, seconds(limit["unit"].as_str().unwrap())));
            }
            level.load(&descriptor["descriptors"]);
            self.nodes.insert(composite, level);
        }
    }
}

/// Whether a text matches a pattern in which each `*` is any characters.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((before, rest)) => text
            .strip_prefix(before)
            .is_some_and(|text| (0..=text.len()).any(|at| text.is_char_boundary(at) && matches(rest, &text[at..]))),
    }
}

impl Service {
    fn new(files: &[&str]) -> Service {
        let mut service = Service::default();
        for file in files {
            let file: Value = serde_yaml::from_str(file).unwrap();
            service.domains.entry(file["domain"].as_str().unwrap().to_owned()).or_default().load(&file["descriptors"]);
        }
        service
    }

    /// Whether a call with this descriptor is over a limit, `now` in seconds.
    fn is_over(&mut self, domain: &str, entries: &Entries, now: u64) -> bool {
        let Some(mut level) = self.domains.get(domain) else { return false };
        let mut counter = domain.to_owned();
        for (index, (key, value)) in entries.iter().enumerate() {
            let composite = format!("{key}_{value}");
            let mut counted = value.clone();
            let found = level.nodes.get(&composite).or_else(|| {
                let pattern = level.patterns.iter().find(|pattern| matches(pattern, &composite))?;
                let node = &level.nodes[pattern];
                if node.shared {
                    counted = pattern[key.len() + 1..].to_owned();
                }
                Some(node)
            });
            let Some(node) = found.or_else(|| level.nodes.get(key)) else { return false };
            counter += &format!("|{key}_{counted}");
            if index + 1 == entries.len() {
                let Some((limit, seconds)) = node.limit else { return false };
                let count = self.counters.entry(format!("{counter}|{}", now / seconds)).or_default();
                *count += 1;
                return *count > limit && !node.shadow;
            }
            if node.nodes.is_empty() {
                return false;
            }
            level = node;
        }
        false
    }
}

/// Our rules, with the states of their buckets.
struct Rules {
    config: Config,
    states: HashMap<BucketKey, State>,
}

impl Rules {
    fn new(text: &str) -> Rules {
        let (variable, read) = (|_: &str| None, |_: &Path| Err(std::io::ErrorKind::NotFound.into()));
        let environment = Environment { variable: &variable, folder: Path::new(""), read: &read };
        let config = Config::parse("gateway.yaml", text.as_bytes(), environment);
        Rules { config: config.unwrap_or_else(|problems| panic!("{problems}\n{text}")), states: HashMap::new() }
    }

    fn is_over(&mut self, domain: &str, entries: &Entries, now: u64) -> bool {
        let entries = entries.iter().map(|(key, value)| (&**key, &**value)).collect();
        let sent = SentDescriptor::new(domain, entries).unwrap();
        let (head, ()) = http::Request::new(()).into_parts();
        let client = ClientAddress::new([0, 0, 0, 0].into(), 64);
        let request = Request::new(&head, client).with_door(Door::Rls).with_descriptor(Some(&sent));
        let now = Timestamp(now * 1_000_000);
        match self.config.rules.plan(&request, now).answer {
            Answer::Denied(_) | Answer::TooLarge(_) => true,
            Answer::Exempt => false,
            Answer::Charge(plan) => {
                let states: Vec<Option<State>> =
                    plan.charges().map(|charge| self.states.get(&charge.key).cloned()).collect();
                let (settlement, entries) = settle(&plan, &states, now);
                for (charge, entry) in plan.charges().zip(entries) {
                    if let Some(entry) = entry {
                        self.states.insert(charge.key, entry.state);
                    }
                }
                !settlement.is_granted()
            }
        }
    }
}

/// The keys of a file, each with values that its descriptors have or nearly have.
fn vocabulary(descriptors: &Value, keys: &mut Vec<(String, Vec<String>)>) {
    for descriptor in descriptors.as_sequence().into_iter().flatten() {
        let key = descriptor["key"].as_str().unwrap();
        let value = descriptor["value"].as_str().unwrap_or("any");
        let index = keys.iter().position(|(known, _)| known == key).unwrap_or_else(|| {
            keys.push((key.to_owned(), vec!["other".to_owned(), String::new()]));
            keys.len() - 1
        });
        for text in ["", "x", "/y", "b"] {
            let value = value.replace('*', text);
            if !keys[index].1.contains(&value) {
                keys[index].1.push(value);
            }
        }
        vocabulary(&descriptor["descriptors"], keys);
    }
}

/// The paths of a tree, as keys.
fn paths(descriptors: &Value, above: &[String], found: &mut Vec<Vec<String>>) {
    for descriptor in descriptors.as_sequence().into_iter().flatten() {
        let path = [above, &[descriptor["key"].as_str().unwrap().to_owned()]].concat();
        paths(&descriptor["descriptors"], &path, found);
        found.push(path);
    }
}

/// Plays calls against both meanings. Returns what could not be carried over.
#[track_caller]
fn play(files: &[&str]) -> Vec<String> {
    let Import { text, losses } = read(files).unwrap_or_else(|problems| panic!("{problems:?}"));
    let (mut service, mut rules) = (Service::new(files), Rules::new(&text));
    let (mut keys, mut shapes, mut domains) = (Vec::new(), Vec::new(), vec!["unknown".to_owned()]);
    for file in files {
        let file: Value = serde_yaml::from_str(file).unwrap();
        vocabulary(&file["descriptors"], &mut keys);
        paths(&file["descriptors"], &[], &mut shapes);
        domains.push(file["domain"].as_str().unwrap().to_owned());
    }
    let mut random = fastrand::Rng::with_seed(25);
    let (mut now, mut over, mut calls) = (1_700_000_000, 0, 0);
    for _ in 0..4000 {
        let mut shape = shapes[random.usize(..shapes.len())].clone();
        match random.u8(..10) {
            0 => shape.truncate(random.usize(..=shape.len())),
            1 => shape.push(keys[random.usize(..keys.len())].0.clone()),
            2 => shape.push("unheard".to_owned()),
            3 => shape.reverse(),
            _ => {}
        }
        let is_repeated = (1..shape.len()).any(|index| shape[..index].contains(&shape[index]));
        if is_repeated {
            continue;
        }
        let entries: Entries = shape
            .into_iter()
            .map(|key| {
                let values = keys.iter().find(|(known, _)| *known == key).map_or(&[][..], |(_, values)| values);
                let value = random.choice(values).cloned().unwrap_or_default();
                (key, value)
            })
            .collect();
        let domain = &domains[if random.u8(..20) == 0 { 0 } else { random.usize(1..domains.len()) }];
        // Often in one second, seldom in another hour.
        now += match random.u8(..200) {
            0 => 4000,
            1..=4 => 20,
            5..=12 => 1,
            _ => 0,
        };
        let found = (service.is_over(domain, &entries, now), rules.is_over(domain, &entries, now));
        assert_eq!(found.0, found.1, "{domain} {entries:?} at {now} (service, rules)\n{text}");
        (over, calls) = (over + usize::from(found.0), calls + 1);
    }
    // So that the agreement means something.
    assert!(calls > 1000 && over > 20 && over < calls - 20, "{over} of {calls}");
    losses.iter().map(tollgate::config::ratelimit_import::Loss::line).collect()
}

fn read(files: &[&str]) -> Result<Import, Vec<String>> {
    let names: Vec<String> = (1..=files.len()).map(|number| format!("{number}.yaml")).collect();
    let files: Vec<ImportedFile<'_>> =
        names.iter().zip(files).map(|(name, text)| ImportedFile { name, bytes: text.as_bytes() }).collect();
    import(&files).map_err(|problems| problems.lines().collect())
}

const TREE: &str = r#"
domain: shop
descriptors:
  # A value with limits below it only.
  - key: region
    value: north
    descriptors:
      - key: user
        rate_limit: {unit: second, requests_per_unit: 2}
      - key: user
        value: alice
        rate_limit: {unit: SECOND, requests_per_unit: 4}
  - key: tenant
    rate_limit: {unit: minute, requests_per_unit: 3}
  - key: tenant
    value: big
    rate_limit: {unit: minute, requests_per_unit: 6}
  # Listed without a limit: it has none.
  - key: tenant
    value: friend
  - key: batch
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: daily
    value: report
    rate_limit: {name: report, unit: day, requests_per_unit: 5}
    descriptors:
      - key: part
        value: first
        rate_limit: {unit: week, requests_per_unit: 7}
  - key: free
    rate_limit: {unlimited: true}
  - key: closed
    rate_limit: {unit: second, requests_per_unit: 0}
  - key: month
    rate_limit: {unit: month, requests_per_unit: 9}
  - key: yearly
    rate_limit: {unit: year}
"#;

#[test]
fn a_tree_decides_as_there() {
    assert_eq!(play(&[TREE]), [] as [&str; 0]);
}

#[test]
fn what_is_chosen_first_is_never_left_again() {
    let file = r#"
domain: shop
descriptors:
  - key: a
    value: one
    descriptors:
      - key: b
        value: one
        rate_limit: {unit: minute, requests_per_unit: 2}
      - {key: c}
  - key: a
    value: o*
    descriptors:
      - key: c
        rate_limit: {unit: minute, requests_per_unit: 4}
  - key: a
    rate_limit: {unit: minute, requests_per_unit: 5}
    descriptors:
      - key: b
        rate_limit: {unit: minute, requests_per_unit: 3}
        descriptors:
          - key: c
            rate_limit: {unit: minute, requests_per_unit: 1}
      - key: c
        rate_limit: {unit: minute, requests_per_unit: 6}
"#;
    assert_eq!(play(&[file]), [] as [&str; 0]);
}

#[test]
fn a_shadow_never_refuses_and_hides_what_is_below() {
    let file = r#"
domain: shop
descriptors:
  - key: a
    value: one
    rate_limit: {unit: minute, requests_per_unit: 2}
    shadow_mode: true
  - key: a
    value: none
    rate_limit: {unit: minute, requests_per_unit: 0}
    shadow_mode: true
  - key: a
    rate_limit: {unit: minute, requests_per_unit: 3}
  - key: b
    value: two
    descriptors:
      - {key: c, value: x, rate_limit: {unit: second, requests_per_unit: 1}, shadow_mode: true}
      - {key: c, rate_limit: {unit: second, requests_per_unit: 1}}
"#;
    assert_eq!(play(&[file]), [] as [&str; 0]);
}

#[test]
fn patterns_are_tried_in_their_order_between_values_and_the_rest() {
    let file = r#"
domain: shop
descriptors:
  - {key: end, value: foo*, rate_limit: {unit: minute, requests_per_unit: 2}}
  - {key: end, value: foox, rate_limit: {unit: minute, requests_per_unit: 4}}
  - {key: end, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: middle, value: bar*b, rate_limit: {unit: minute, requests_per_unit: 3}}
  - {key: middle, value: ba*, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: several, value: "f.o*b(r*baz", rate_limit: {unit: minute, requests_per_unit: 3}}
  - {key: begin, value: "*$x", rate_limit: {unit: minute, requests_per_unit: 3}}
  - {key: all, value: "*", rate_limit: {unit: minute, requests_per_unit: 3}}
  - {key: all, rate_limit: {unit: minute, requests_per_unit: 1}}
  - key: nested
    value: one
    descriptors:
      - {key: end, value: goo*, rate_limit: {unit: minute, requests_per_unit: 3}}
"#;
    assert_eq!(play(&[file]), [] as [&str; 0]);
}

#[test]
fn values_of_a_pattern_are_counted_together_where_the_file_says_so() {
    let file = r#"
domain: shop
descriptors:
  - {key: files, value: files/*, share_threshold: true, rate_limit: {unit: minute, requests_per_unit: 6}}
  - key: nested
    value: parent
    descriptors:
      - {key: files, value: nested/*, share_threshold: true, rate_limit: {unit: minute, requests_per_unit: 4}}
  - key: route
    value: api/*
    share_threshold: true
    descriptors:
      - {key: method, rate_limit: {unit: minute, requests_per_unit: 3}}
  - key: path
    value: path/*
    share_threshold: true
    descriptors:
      - key: file
        value: file/*
        descriptors:
          - {key: type, rate_limit: {unit: minute, requests_per_unit: 2}}
      - key: resource
        value: res*v2
        share_threshold: true
        descriptors:
          - {key: action, rate_limit: {unit: minute, requests_per_unit: 2}}
  - {key: both, value: test1, rate_limit: {unit: minute, requests_per_unit: 2}}
  - {key: both, value: test*, share_threshold: true, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: many, value: s*e*r, share_threshold: true, rate_limit: {unit: minute, requests_per_unit: 5}}
"#;
    assert_eq!(play(&[file]), [] as [&str; 0]);
}

#[test]
fn files_of_one_domain_are_one_tree_and_domains_are_apart() {
    let more = "domain: shop\ndescriptors:\n  - {key: extra, rate_limit: {unit: minute, requests_per_unit: 2}}\n";
    let other = "domain: other\ndescriptors:\n  - {key: tenant, rate_limit: {unit: minute, requests_per_unit: 1}}\n";
    assert_eq!(play(&[TREE, more]), [] as [&str; 0]);
    assert_eq!(play(&[other, TREE, "domain: empty\ndescriptors:\n"]), [] as [&str; 0]);
}

#[test]
fn keys_with_a_slash_are_not_two_keys() {
    let file = r#"
domain: shop
descriptors:
  - {key: a/b, value: one, rate_limit: {unit: minute, requests_per_unit: 2}}
  - {key: a/b, value: two}
  - {key: a/b, rate_limit: {unit: minute, requests_per_unit: 3}}
  - key: a
    descriptors:
      - {key: b, value: one}
      - {key: b, rate_limit: {unit: minute, requests_per_unit: 4}}
"#;
    assert_eq!(play(&[file]), [] as [&str; 0]);
}

#[test]
fn what_cannot_be_carried_over_is_named_with_its_place() {
    let file = r#"domain: shop
descriptors:
  - key: a
    detailed_metric: true
    rate_limit:
      name: one
      unit: minute
      requests_per_unit: 3
      replaces:
        - name: two
        - name: three
  - key: b
    value: x*
    value_to_metric: true
    quota_mode: true
    rate_limit: {unit: minute, requests_per_unit: 3}
    metadata: {name: x, 3: [y]}
    descriptors:
      - key: b
        rate_limit: {unit: minute, requests_per_unit: 3}
      - {key: domain, rate_limit: {unit: minute, requests_per_unit: 3}}
      - {key: "k*", rate_limit: {unit: minute, requests_per_unit: 3}}
      - {key: "k|l", rate_limit: {unit: minute, requests_per_unit: 3}}
"#;
    let losses = read(&[file]).unwrap().losses;
    let places: Vec<String> = losses
        .iter()
        .map(|loss| {
            let line = loss.line();
            line.splitn(3, ": ").take(2).collect::<Vec<_>>().join(" ")
        })
        .collect();
    assert_eq!(
        places,
        [
            "1.yaml:4:22 descriptors[0].detailed_metric",
            "1.yaml:10:9 descriptors[0].rate_limit.replaces",
            "1.yaml:14:22 descriptors[1].value_to_metric",
            "1.yaml:15:17 descriptors[1].quota_mode",
            "1.yaml:17:15 descriptors[1].metadata",
            "1.yaml:19:9 descriptors[1].descriptors[0]",
            "1.yaml:21:9 descriptors[1].descriptors[1]",
            "1.yaml:22:9 descriptors[1].descriptors[2]",
            "1.yaml:23:9 descriptors[1].descriptors[3]",
        ]
    );
    let text = read(&[file]).unwrap().text;
    // Each of them is in the file as well, and what is left decides as there.
    assert!(losses.iter().all(|loss| text.contains(&format!("# {}\n", loss.line()))), "{text}");
    let kept = file.split("    descriptors:\n").next().unwrap();
    assert_eq!(play(&[kept]).len(), 5);
}

#[test]
fn what_the_service_does_not_accept_is_a_problem() {
    let limit = |limit: &str| format!("domain: d\ndescriptors:\n  - {{key: a, rate_limit: {limit}}}\n");
    for (file, problem) in [
        ("descriptors: []\n".to_owned(), "1.yaml:1:1: domain: must be a name, is missing or empty"),
        ("domain: d\ndescriptors:\n  - {value: a}\n".to_owned(), "1.yaml:3:5: descriptors[0].key: must be a name"),
        (
            "domain: d\ndescriptors:\n  - {key: a, value: b}\n  - {key: a, value: b}\n".to_owned(),
            "1.yaml:4:5: descriptors[1]: `a_b` is there twice",
        ),
        (limit("{unit: fortnight}"), "1.yaml:3:33: descriptors[0].rate_limit.unit: must be one of second, minute"),
        (limit("{requests_per_unit: 1}"), "1.yaml:3:26: descriptors[0].rate_limit.unit: missing"),
        (limit("{unlimited: true, unit: day}"), "rate_limit.unit: must not be there"),
        (
            limit("{unit: day, requests_per_unit: many}"),
            "requests_per_unit: must be a whole number from 0 to 4294967295",
        ),
        (limit("{unit: day, requestsperunit: 1}"), "descriptors[0].rate_limit.requestsperunit: unknown key"),
        (limit("{name: x, unit: day, replaces: [{name: x}]}"), "replaces[0].name: must be the name of another limit"),
        (limit("{name: x, unit: day, replaces: [{name: }]}"), "replaces[0].name: must not be empty"),
        ("domain: d\ndescriptors: [a, b]\n".to_owned(), "1.yaml:2:15: descriptors[0]: must be a mapping"),
        (
            "domain: d\ndescriptors:\n  - {key: a, share_threshold: true}\n".to_owned(),
            "share_threshold: is for values with",
        ),
        ("0.25: d\n".to_owned(), "unknown key"),
        ("'''\n".to_owned(), "1.yaml:"),
    ] {
        let problems = read(&[&file]).unwrap_err();
        assert!(problems.iter().any(|line| line.contains(problem)), "{problem}: {problems:?}");
    }
    // Of all files at once, each under its own name.
    let twice = "domain: d\ndescriptors: [{key: a}]\n";
    let problems = read(&[twice, "domain: d\ndescriptors: [{key: a}, {}]\n", twice]).unwrap_err();
    let files: Vec<&str> = problems.iter().map(|line| line.split(':').next().unwrap()).collect();
    assert_eq!(files, ["2.yaml", "3.yaml"], "{problems:?}");
}

#[test]
fn the_command_prints_a_file_that_check_accepts() {
    let folder = tempfile::TempDir::new().unwrap();
    let (source, target) = (folder.path().join("shop.yaml"), folder.path().join("gateway.yaml"));
    std::fs::write(&source, format!("{TREE}    shadow_mode: false\n    metadata: {{a: b}}\n")).unwrap();
    let printed = tollgate(&["import", "ratelimit", source.to_str().unwrap()]);
    assert_eq!(printed.code, Some(0), "{}", printed.err);
    assert!(printed.err.contains("shop.yaml:39:15: descriptors[9].metadata: "), "{}", printed.err);
    assert!(printed.err.ends_with("\n1 remark\n"), "{}", printed.err);
    std::fs::write(&target, &printed.out).unwrap();
    let checked = tollgate(&["check", target.to_str().unwrap()]);
    assert_eq!((checked.code, &*checked.out), (Some(0), "ok\n"), "{}\n{}", checked.err, printed.out);
    let missing = tollgate(&["import", "ratelimit", "nowhere.yaml"]);
    assert_eq!((missing.code, missing.err.starts_with("nowhere.yaml: ")), (Some(1), true), "{}", missing.err);
}
