//! Writes rules that were imported from the file of a proxy as a gateway.yaml.

use std::fmt::Write as _;

use super::Loss;
use super::gateway_yaml::{one_line, quoted, scalar};

/// A policy to write.
#[derive(Debug)]
pub(super) struct WrittenPolicy {
    pub name: String,
    pub rules: Vec<WrittenRule>,
}

/// A rule to write.
#[derive(Clone, Debug)]
pub(super) struct WrittenRule {
    pub name: String,
    /// Where the imported file has it, for a comment.
    pub place: String,
    /// The entries of `match`, as YAML.
    pub conditions: Vec<String>,
    pub is_shadow: bool,
    /// `None`: the requests pay nothing in this policy.
    pub charge: Option<WrittenCharge>,
}

/// What a rule charges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WrittenCharge {
    pub keys: Vec<String>,
    /// The lines of the limits, as YAML.
    pub limits: Vec<String>,
    /// The meter that several rules share.
    pub meter: Option<String>,
}

/// Writes a gateway.yaml. `head` are the comments at its start. The losses follow as comments, then `settings`, which
/// are the other keys of the file.
pub(super) fn write(head: &str, settings: &str, policies: &[WrittenPolicy], losses: &[Loss]) -> String {
    let mut text = head.to_owned();
    if !losses.is_empty() {
        text.push_str("#\n# What the imported file says beyond this:\n");
    }
    for loss in losses {
        // A write to a text cannot fail.
        let _ = writeln!(text, "# {}", one_line(&loss.line()));
    }
    text.push('\n');
    text.push_str(settings);
    if !policies.is_empty() {
        text.push_str("policies:\n");
    }
    for policy in policies {
        let _ = writeln!(text, "  - name: {}\n    rules:", quoted(&policy.name));
        policy.rules.iter().for_each(|rule| write_rule(&mut text, rule));
    }
    text
}

fn write_rule(text: &mut String, rule: &WrittenRule) {
    let WrittenRule { name, place, conditions, is_shadow, charge } = rule;
    let _ = writeln!(text, "      # {}\n      - name: {}", one_line(place), quoted(name));
    if !conditions.is_empty() {
        let _ = writeln!(text, "        match: {{{}}}", conditions.join(", "));
    }
    if *is_shadow {
        text.push_str("        mode: shadow\n");
    }
    let Some(WrittenCharge { keys, limits, meter }) = charge else {
        text.push_str("        action: allow\n");
        return;
    };
    let keys: Vec<String> = keys.iter().map(|key| scalar(key)).collect();
    let _ = writeln!(text, "        limit_keys: [{}]", keys.join(", "));
    if let Some(meter) = meter {
        let _ = writeln!(text, "        meter: {}", quoted(meter));
    }
    for line in limits {
        let _ = writeln!(text, "        {line}");
    }
    if keys.is_empty() {
        text.push_str("        expose: true\n");
    }
}
