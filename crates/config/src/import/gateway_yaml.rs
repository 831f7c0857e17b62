//! Writes imported rules as a gateway.yaml.

use std::fmt::Write as _;

use super::Loss;
use super::shapes::{ImportedAction, ImportedPolicy, ImportedRule, ValueCondition};
use super::tree::NodeMode;

const HEAD: &str = "\
# Imported from the files of envoyproxy/ratelimit by `tollgate import ratelimit`.
#
# Each descriptor is decided as there. Of a call with several descriptors, all are charged together, or none if a limit
# refuses one of them; and a call that is refused spends nothing, also if it is of several hits.
";

const REST: &str = "\
# Port 8081 is that of the service which this replaces. Name the proxies that may ask.
listeners:
  - {name: ratelimit, address: 127.0.0.1:8081, decide: [rls], clients: [127.0.0.0/8]}
# Without a store, buckets are in the memory of this process. To share them:
# store: {redis: {url: redis://127.0.0.1:6379}}
";

/// Writes the imported policies as the text of a gateway.yaml. The losses become comments at the start of the text.
pub(super) fn write(policies: &[ImportedPolicy], losses: &[Loss]) -> String {
    let mut text = HEAD.to_owned();
    if !losses.is_empty() {
        text.push_str("#\n# What those files say beyond this:\n");
    }
    for loss in losses {
        let _ = writeln!(text, "# {}", one_line(&loss.line()));
    }
    text.push('\n');
    text.push_str(REST);
    let policies: Vec<_> = policies.iter().filter(|policy| !policy.rules.is_empty()).collect();
    if !policies.is_empty() {
        text.push_str("policies:\n");
    }
    for policy in policies {
        let _ = writeln!(text, "  - name: {}", quoted(&policy.name));
        let _ = writeln!(text, "    match: {{\"descriptor:domain\": {}}}", scalar(&policy.domain));
        text.push_str("    rules:\n");
        policy.rules.iter().for_each(|rule| write_rule(&mut text, rule));
    }
    text
}

fn write_rule(text: &mut String, rule: &ImportedRule) {
    let ImportedRule { name, shape, values, counted, action, mode, file, line, .. } = rule;
    let _ = writeln!(text, "      # {}:{line}", one_line(file));
    let _ = writeln!(text, "      - name: {}", quoted(name));
    let mut conditions = vec![format!("\"descriptor:entries\": {}", scalar(shape))];
    conditions.extend(values.iter().map(|(key, condition)| {
        let expectation = match condition {
            ValueCondition::Text(value) => scalar(value),
            ValueCondition::Prefix(prefix) => format!("{{prefix: {}}}", scalar(prefix)),
            ValueCondition::Suffix(suffix) => format!("{{suffix: {}}}", scalar(suffix)),
            ValueCondition::Regex(regex) => format!("{{regex: {}}}", scalar(regex)),
            ValueCondition::Present => "{present: true}".to_owned(),
        };
        format!("{}: {expectation}", quoted(&format!("descriptor:{key}")))
    }));
    let _ = writeln!(text, "        match: {{{}}}", conditions.join(", "));
    if *mode == NodeMode::Shadow {
        text.push_str("        mode: shadow\n");
    }
    match action {
        ImportedAction::Allow => text.push_str("        action: allow\n"),
        ImportedAction::Deny => text.push_str("        action: deny\n"),
        ImportedAction::Charge { limit, window } => {
            let keys: Vec<String> = counted.iter().map(|key| scalar(&format!("descriptor:{key}"))).collect();
            let _ = writeln!(text, "        limit_keys: [{}]", keys.join(", "));
            text.push_str("        algorithm: fixed_window\n");
            let _ = writeln!(text, "        algorithm_config: {{limit: {limit}, window: {window}}}");
            if keys.is_empty() {
                text.push_str("        expose: true\n");
            }
        }
    }
}

/// Returns the text for a comment, which must stay on one line. A file name may have line breaks.
pub(super) fn one_line(text: &str) -> String {
    text.chars().map(|char| if char.is_control() { ' ' } else { char }).collect()
}

/// Writes a text as a scalar. Its dollar signs are escaped, so that they do not refer to variables.
pub(super) fn scalar(text: &str) -> String {
    quoted(&text.replace('$', "$$"))
}

/// Writes a text in double quotes.
pub(super) fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for char in text.chars() {
        let _ = match char {
            '"' | '\\' => write!(quoted, "\\{char}"),
            ' '..='~' => write!(quoted, "{char}"),
            _ if char.is_alphanumeric() => write!(quoted, "{char}"),
            _ => write!(quoted, "\\U{:08X}", u32::from(char)),
        };
    }
    quoted.push('"');
    quoted
}
