//! A model of envoyproxy/ratelimit, written from the service's documentation. Its data structures resemble those of the
//! service: a table of `key_value` for each level, patterns in their order, and counters by text.

use std::collections::HashMap;

use serde_yaml::Value;

/// The entries of a descriptor, in order.
pub type Entries = Vec<(String, String)>;

/// A descriptor, in the form in which the service keeps it.
#[derive(Default)]
struct Level {
    nodes: HashMap<String, Level>,
    patterns: Vec<String>,
    limit: Option<(u64, u64)>,
    shadow: bool,
    shared: bool,
}

/// The model of the service: the files that it has read, and its counters.
#[derive(Default)]
pub struct Service {
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

/// Whether a text matches a pattern. Each `*` in the pattern stands for any characters.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((before, rest)) => text
            .strip_prefix(before)
            .is_some_and(|text| (0..=text.len()).any(|at| text.is_char_boundary(at) && matches(rest, &text[at..]))),
    }
}

impl Service {
    pub fn new(files: &[&str]) -> Service {
        let mut service = Service::default();
        for file in files {
            let file: Value = serde_yaml::from_str(file).unwrap();
            service.domains.entry(file["domain"].as_str().unwrap().to_owned()).or_default().load(&file["descriptors"]);
        }
        service
    }

    /// Counts a call with this descriptor, and returns whether it is over a limit. `now` is in seconds.
    pub fn is_over(&mut self, domain: &str, entries: &Entries, now: u64) -> bool {
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
