//! Reads Kong's plugins `rate-limiting` and `rate-limiting-advanced`: what they limit, and by what they count.

use std::collections::HashSet;

use super::super::Losses;
use super::super::names::unique;
use super::super::written_rules::WrittenCharge;
use super::values::{get, members, text, text_of};
use crate::language::tree::{Node, Value};
use base::position::Position;

/// A plugin that limits, with the entities to which it is bound.
#[derive(Clone, Debug)]
pub(super) struct LimitPlugin {
    pub position: Position,
    pub kind: PluginKind,
    pub consumer: Option<String>,
    pub route: Option<String>,
    pub service: Option<String>,
    pub charge: WrittenCharge,
}

/// The kind of a plugin that limits. Kong runs one plugin of each kind for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PluginKind {
    /// The plugin `rate-limiting`.
    Simple,
    /// The plugin `rate-limiting-advanced`.
    Advanced,
}

/// The store that the plugins use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PluginStore {
    pub host: String,
    pub port: String,
    pub is_fault_tolerant: bool,
}

/// The windows of `rate-limiting`, from the shortest.
const WINDOWS: [(&str, &str); 6] =
    [("second", "1s"), ("minute", "1m"), ("hour", "1h"), ("day", "day"), ("month", "month"), ("year", "year")];

const DAY: u64 = 86_400;

/// The remark about a limit whose number or window is not possible here.
const NO_LIMIT: &str =
    "is not imported: the number must be whole and above 0, and the window at most 31 days, fixed 366";

/// Keys of `config` that have no effect here, or are read elsewhere.
const READ: [&str; 18] = [
    "second",
    "minute",
    "hour",
    "day",
    "month",
    "year",
    "limit",
    "window_size",
    "window_type",
    "limit_by",
    "identifier",
    "header_name",
    "policy",
    "strategy",
    "fault_tolerant",
    "redis",
    "redis_host",
    "redis_port",
];

/// Values of `config` that are the defaults of both programs.
const SAME: [(&str, &str); 5] = [
    ("redis_ssl", "false"),
    ("error_code", "429"),
    ("hide_client_headers", "false"),
    ("error_message", "API rate limit exceeded"),
    ("redis_database", "0"),
];

/// Values of `config.redis` that say nothing beyond the defaults.
const SAME_REDIS: [(&str, &str); 4] =
    [("database", "0"), ("ssl", "false"), ("ssl_verify", "false"), ("connection_is_proxied", "false")];

/// Reads what a plugin charges. `has_keys` says whether requests have API keys. `None` after adding a loss.
pub(super) fn charge(plugin: &Node, has_keys: bool, file: &str, losses: &mut Losses) -> Option<WrittenCharge> {
    let config = get(plugin, "config")?;
    let by = text_of(config, "limit_by").or(text_of(config, "identifier")).unwrap_or("consumer");
    let keys = match by {
        "consumer" | "credential" if has_keys => vec!["key:id|ip:address".to_owned()],
        "consumer" | "credential" | "ip" => vec!["ip:address".to_owned()],
        "service" => Vec::new(),
        "header" if get(config, "header_name").is_some() => {
            let name = text_of(config, "header_name").unwrap_or_default();
            vec![format!("header:{}|ip:address", name.to_ascii_lowercase())]
        }
        other => {
            let what = format!("is {other}, which is not imported: the plugin is left out");
            losses.add(file, config.position, "config.limit_by", what);
            return None;
        }
    };
    let limits = match text_of(plugin, "name") {
        Some("rate-limiting-advanced") => advanced(config, file, losses),
        _ => windows(config, file, losses),
    };
    if limits.is_empty() {
        losses.add(file, config.position, "config", "has no limit that can be imported: the plugin is left out");
        return None;
    }
    other_keys(config, file, losses);
    Some(WrittenCharge { keys, limits, meter: None })
}

fn windows(config: &Node, file: &str, losses: &mut Losses) -> Vec<String> {
    let mut limits = Vec::new();
    for (name, window) in WINDOWS {
        let Some(number) = get(config, name) else { continue };
        match whole(number) {
            Some(limit) => {
                limits.push((name.to_owned(), format!("algorithm: fixed_window, limit: {limit}, window: {window}")));
            }
            None => losses.add(file, number.position, &format!("config.{name}"), NO_LIMIT),
        }
    }
    lines(limits)
}

fn advanced(config: &Node, file: &str, losses: &mut Losses) -> Vec<String> {
    let (algorithm, longest) = match text_of(config, "window_type") {
        Some("fixed") => ("fixed_window", 366 * DAY),
        _ => ("sliding_window", 31 * DAY),
    };
    let (mut limits, mut names) = (Vec::new(), HashSet::new());
    for (number, window) in members(config, "limit").iter().zip(members(config, "window_size")) {
        match (whole(number), whole(window).filter(|seconds| *seconds <= longest)) {
            (Some(limit), Some(seconds)) => {
                let name = unique(&format!("{seconds}s"), &mut names);
                limits.push((name, format!("algorithm: {algorithm}, limit: {limit}, window: {seconds}s")));
            }
            _ => losses.add(file, number.position, "config.limit", NO_LIMIT),
        }
    }
    lines(limits)
}

/// Returns the lines of one or several limits.
fn lines(limits: Vec<(String, String)>) -> Vec<String> {
    match limits.as_slice() {
        [(_, limit)] => {
            let (algorithm, config) = limit.split_once(", ").unwrap_or((limit, ""));
            vec![algorithm.to_owned(), format!("algorithm_config: {{{config}}}")]
        }
        [] => Vec::new(),
        several => {
            let each = several.iter().map(|(name, limit)| format!("  \"{name}\": {{{limit}}}"));
            std::iter::once("limits:".to_owned()).chain(each).collect()
        }
    }
}

fn whole(node: &Node) -> Option<u64> {
    text(node)?.parse().ok().filter(|number| *number > 0)
}

/// Adds a loss for each setting that is not imported.
fn other_keys(config: &Node, file: &str, losses: &mut Losses) {
    let Value::Map(entries) = &config.value else { return };
    for entry in entries {
        let found = text(&entry.value).unwrap_or("a mapping or list");
        let is_same = SAME.contains(&(entry.key.as_str(), found)) || found == "null";
        if !is_same && !READ.contains(&entry.key.as_str()) {
            losses.add(file, entry.key_position, &format!("config.{}", entry.key), "is not imported");
        }
    }
}

/// Returns the Redis of a plugin. `None` if it counts elsewhere. Adds a loss for each setting of the place where it counts
/// that is not imported.
pub(super) fn store(plugin: &Node, file: &str, losses: &mut Losses) -> Option<PluginStore> {
    let config = get(plugin, "config")?;
    let (key, place) = ["policy", "strategy"].into_iter().find_map(|key| Some((key, get(config, key)?)))?;
    match text(place) {
        Some("local") => return None,
        Some("redis") => {}
        other => {
            let what = format!("is {}, which is not imported: set `store`", other.unwrap_or("no text"));
            losses.add(file, place.position, &format!("config.{key}"), what);
            return None;
        }
    }
    let redis = get(config, "redis");
    if let Some(Value::Map(entries)) = redis.map(|redis| &redis.value) {
        for entry in entries {
            let found = text(&entry.value).unwrap_or("a mapping or list");
            let is_same = found == "null" || SAME_REDIS.contains(&(entry.key.as_str(), found));
            if !is_same && !["host", "port"].contains(&entry.key.as_str()) {
                let path = format!("config.redis.{}", entry.key);
                losses.add(file, entry.key_position, &path, "is not imported: see `store.redis`");
            }
        }
    }
    let host = redis.and_then(|redis| text_of(redis, "host")).or(text_of(config, "redis_host"));
    let port = redis.and_then(|redis| text_of(redis, "port")).or(text_of(config, "redis_port")).unwrap_or("6379");
    let is_fault_tolerant = text_of(config, "fault_tolerant") != Some("false");
    let is_host = |char: char| char.is_ascii_alphanumeric() || "._-".contains(char);
    let is_valid =
        |host: &&str| !host.is_empty() && host.chars().all(is_host) && port.parse().is_ok_and(|port: u16| port > 0);
    let Some(host) = host.filter(is_valid) else {
        let what = "has no host and port that can be imported: set `store`";
        losses.add(file, redis.unwrap_or(config).position, "config.redis", what);
        return None;
    };
    Some(PluginStore { host: host.to_owned(), port: port.to_owned(), is_fault_tolerant })
}
