//! gateway.yaml, which is shipped as a manual, has every key and attribute, and its examples are valid.

use config::mappings;
use config::problem::Purpose;
use regex::Regex;
use request::attribute::SPELLINGS;

use super::docs::{checked, read};

#[test]
fn the_shipped_file_has_every_key_and_attribute() {
    let file = read("gateway.yaml");
    for key in mappings().into_iter().flat_map(|mapping| mapping.keys) {
        let written = Regex::new(&format!(r"(?m)(^|[\s{{(#`]){}:", key.name)).unwrap();
        assert!(written.is_match(&file), "gateway.yaml does not show `{}`", key.name);
    }
    for spelling in SPELLINGS {
        assert!(file.contains(spelling), "gateway.yaml does not name the attribute {spelling}");
    }
}

/// Returns the keys of the file that are in comments: the blocks of lines that begin with such a key, without the comment
/// signs. In a block, a line begins with `#  `; a remark begins with `# ` and a word.
fn examples(file: &str) -> Vec<String> {
    let key = Regex::new(r"^#[a-z_]+:").unwrap();
    let mut examples: Vec<String> = Vec::new();
    let mut in_example = false;
    for line in file.lines() {
        let begins = key.is_match(line);
        if begins && !in_example {
            examples.push(String::new());
        }
        in_example = begins || in_example && line.starts_with("#  ");
        if in_example {
            let example = examples.last_mut().unwrap();
            example.push_str(line.strip_prefix("#").unwrap_or_default());
            example.push('\n');
        }
    }
    examples
}

/// Returns the active part of the file without these keys.
fn without(file: &str, keys: &[String]) -> String {
    let mut kept = String::new();
    let mut drops = false;
    for line in file.lines() {
        if let Some((key, _)) =
            line.split_once(':').filter(|_| line.starts_with(|first: char| first.is_ascii_lowercase()))
        {
            drops = keys.iter().any(|dropped| dropped == key);
        }
        if !drops {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

#[test]
fn every_example_of_the_shipped_file_is_valid() {
    let file = read("gateway.yaml");
    let examples = examples(&file);
    assert!(examples.len() >= 20, "{examples:#?}");
    for example in examples {
        let keys = example.lines().filter(|line| line.starts_with(|first: char| first.is_ascii_lowercase()));
        let keys: Vec<_> = keys.filter_map(|line| Some(line.split_once(':')?.0.to_owned())).collect();
        let instead = keys.iter().filter_map(|key| match &**key {
            "listeners" => Some("listen".to_owned()),
            "upstreams" => Some("upstream".to_owned()),
            "policies" => Some("rules".to_owned()),
            _ => None,
        });
        let replaced: Vec<_> = instead.chain(keys.iter().cloned()).collect();
        let whole = without(&file, &replaced) + &example;
        let result = checked(Purpose::Examine, "gateway.yaml", &whole);
        assert!(result.is_ok(), "{}\nin the example:\n{example}", result.unwrap_err());
    }
}
