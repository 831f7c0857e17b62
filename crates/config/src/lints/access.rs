//! Finds settings that let strangers read metrics, or recognise clients in the access log.

use super::file::File;
use super::location::Finding;
use crate::log_listing::{LogListing, read_by};
use decision::access_log_line::Kind;
use request::attribute::Attribute;

/// Finds an admin listener that other hosts can reach. The admin listener requires no password.
pub(super) fn public_admin(file: &File<'_>) -> Vec<Finding> {
    let Some(admin) = file.config.admin.filter(|admin| !admin.ip().to_canonical().is_loopback()) else {
        return Vec::new();
    };
    let what = format!("is {admin}: every host that can reach that address can read metrics without a password");
    let hint = "listen on 127.0.0.1, or on an address that only monitoring can reach, and say that it is meant";
    vec![file.root.key("admin").finding(what, hint)]
}

/// Finds an access log whose pseudonyms are made without a secret key. Anyone can find out what they stand for.
pub(super) fn guessable_names(file: &File<'_>) -> Vec<Finding> {
    if file.config.access_log.is_none() || !file.config.hash_key.is_public() {
        return Vec::new();
    }
    let what =
        "names buckets and clients without a secret: a reader can try every address, and find out whose line it is";
    vec![file.root.key("access_log").finding(what, "set hash_key, for instance to \"${TOLLGATE_HASH_KEY}\"")]
}

/// Finds an access log that has claims in the clear, and names the first of them.
pub(super) fn clear_claim(file: &File<'_>) -> Vec<Finding> {
    let log = file.config.access_log.iter();
    let mut values = log.flat_map(|log| log.values.iter().enumerate());
    let Some((index, claim)) = values.find(|(_, listed)| matches!(listed.attribute, Attribute::Claim(_))) else {
        return Vec::new();
    };
    let what = format!("{} is in the log as it is: every reader of the log learns whose request a line is", claim.text);
    let hint = "list the claim in `attributes`, as a pseudonym, or allow `clear_claim` if such names are no secret";
    vec![file.root.key("access_log").key("values").member(index).finding(what, hint)]
}

/// Finds an access log of allowed requests, which a replay can use, that lacks attributes that rules read. A claim that only
/// `clear(…)` could tell may be left out.
pub(super) fn unlogged_attribute(file: &File<'_>) -> Vec<Finding> {
    let Some(log) = file.config.access_log.as_ref().filter(|log| log.when.contains(&Kind::Allowed)) else {
        return Vec::new();
    };
    let rules = &file.config.rules;
    let is_logged = |name: &str| log.attributes.iter().chain(&log.values).any(|listed| listed.text == name);
    let mut lacking = LogListing::of(rules, read_by(rules));
    lacking.attributes.retain(|name| !is_logged(name));
    lacking.values.retain(|name| !is_logged(name) && !name.starts_with("clear("));
    if lacking.is_empty() {
        return Vec::new();
    }
    let names: Vec<&str> = lacking.attributes.iter().chain(&lacking.values).map(String::as_str).collect();
    let what = format!(
        "lacks {}, which rules read: `tollgate replay` cannot tell what other rules would do with these requests",
        names.join(", ")
    );
    vec![file.root.key("access_log").finding(what, format!("add {lacking}"))]
}
