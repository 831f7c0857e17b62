//! Runs the same calls against both meanings of a file: the model of the service, and the imported rules.

use std::collections::HashMap;
use std::path::Path;

use base::time::Timestamp;
use config::import::{Import, ImportedFile, Loss, import};
use config::{Config, Environment};
use ledger::algorithm::State;
use ledger::bucket_key::BucketKey;
use ledger::charge::settle;
use request::client_address::ClientAddress;
use request::door::Door;
use request::request::Request;
use request::sent_descriptor::SentDescriptor;
use rules::rule_set::Answer;
use serde_yaml::Value;

use super::service::{Entries, Service};

/// The imported rules, with the states of their buckets.
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
        let sent = SentDescriptor::new(domain, entries);
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

/// Collects the keys of a file, each with values that are in its descriptors or nearly equal to such values.
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

/// Collects the paths of a tree, as lists of keys.
fn paths(descriptors: &Value, above: &[String], found: &mut Vec<Vec<String>>) {
    for descriptor in descriptors.as_sequence().into_iter().flatten() {
        let path = [above, &[descriptor["key"].as_str().unwrap().to_owned()]].concat();
        paths(&descriptor["descriptors"], &path, found);
        found.push(path);
    }
}

/// Plays calls against both meanings of these files. Returns the remarks on what could not be converted.
#[track_caller]
pub fn play(files: &[&str]) -> Vec<String> {
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
    losses.iter().map(Loss::line).collect()
}

/// Returns the import of these files, or the problems in them.
pub fn read(files: &[&str]) -> Result<Import, Vec<String>> {
    let names: Vec<String> = (1..=files.len()).map(|number| format!("{number}.yaml")).collect();
    let files: Vec<ImportedFile<'_>> =
        names.iter().zip(files).map(|(name, text)| ImportedFile { name, bytes: text.as_bytes() }).collect();
    import(&files).map_err(|problems| problems.lines().collect())
}
