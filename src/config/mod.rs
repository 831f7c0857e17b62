//! WHAT IS WANTED: gateway.yaml, read into values that cannot be wrong.
//!
//! Text becomes a [`tree`] that remembers its places; the [`reader`] walks it; [`check`] makes a [`Config`] of it, or
//! reports every problem at once. This is the only room that reads YAML, and the only maker of a `Config`. Settings belong
//! to the room that they configure, when that room is to the left of this one; the gateway's stand here.

pub mod access_log;
mod api_keys;
mod check;
pub mod diff;
mod document;
mod env;
mod expires;
mod hash_key;
mod jwt;
mod limits;
pub mod lints;
mod listeners;
pub mod problem;
mod reader;
mod rule_limits;
mod rules;
mod sources;
mod store;
mod tree;
pub mod warning;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::auth::api_keys::ApiKeys;
use crate::auth::client_ip;
use crate::base::pseudonym::PseudonymKey;
use crate::base::time::Micros;
use crate::decision::retry_after::Jitter;
use crate::limit::rule_set::RuleSet;

use access_log::AccessLog;
use problem::{Problems, Report};
use reader::Field;
pub use sources::{LoadedConfig, Source, read_file};
use warning::Warnings;

/// What an editor can know of a file: JSON Schema, draft 7, which every one of them reads. It refuses no file that is
/// right; [`Config::parse`] knows more, such as what two values must be to each other, and what stands in other files.
pub const SCHEMA: &str = include_str!("schema.json");

/// A whole file, checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// At least one, in the order of the file.
    pub listeners: Vec<Listener>,
    pub admin: Option<SocketAddr>,
    pub threads: Threads,
    pub upstream: Upstream,
    pub store: crate::store::Settings,
    pub client_ip: client_ip::Settings,
    /// None: there are no tokens.
    pub jwt: Option<crate::auth::jwt::Settings>,
    /// The keys in it follow their file; all else stays as it is.
    pub api_keys: Option<Arc<ApiKeys>>,
    pub rules: RuleSet,
    pub headers: Vec<HeaderFormat>,
    pub retry_after_jitter: Jitter,
    pub bounds: Bounds,
    pub upstream_timeouts: UpstreamTimeouts,
    pub drain: Drain,
    pub log: Log,
    /// None: no request is written down.
    pub access_log: Option<AccessLog>,
    /// What buckets and clients are named with where they must not be told.
    pub hash_key: PseudonymKey,
    /// What is right but unwise.
    pub warnings: Warnings,
    /// Tells files apart: a hash of the text.
    pub hash: String,
}

/// Where requests come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    pub address: SocketAddr,
    /// Whether every connection begins by saying for whom it was opened.
    pub proxy_protocol: bool,
}

/// How many threads proxy, each with a runtime of its own, and a socket of its own on every listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// One for each core that this process may use.
    Auto,
    Exactly(usize),
}

/// Where requests go, over plain HTTP/1.1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    /// A name, or an address (IPv6 without brackets).
    pub host: String,
    pub port: u16,
}

/// A set of rate-limit fields in answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderFormat {
    /// `RateLimit-Policy` and `RateLimit`, as in draft-ietf-httpapi-ratelimit-headers-11.
    RateLimit,
    /// `RateLimit-Limit`, `-Remaining`, `-Reset`.
    Legacy,
    /// `X-RateLimit-Limit`, `-Remaining`, `-Reset`.
    XRateLimit,
}

/// What clients may send, and how long they may take: `limits`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Of a head, with its request line.
    pub header_bytes: usize,
    pub headers: usize,
    pub target_bytes: usize,
    /// From a head's first byte to its last.
    pub header_timeout: Micros,
    /// Until a head's first byte.
    pub idle_timeout: Micros,
    /// Between bytes of a body, and of an answer that the client takes.
    pub body_timeout: Micros,
    /// None: any length.
    pub body_bytes: Option<u64>,
    /// Of all listeners, at once.
    pub connections: usize,
    /// Of one client address that is no trusted proxy's; none: as many as there may be at all.
    pub connections_per_client: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpstreamTimeouts {
    pub connect: Micros,
    /// Between bytes.
    pub read: Micros,
    /// Between bytes.
    pub write: Micros,
    /// In the pool.
    pub idle: Micros,
}

/// How the process leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drain {
    /// Between `/readyz` turning 503 and the listeners closing.
    pub delay: Micros,
    /// The most that requests in flight are waited for.
    pub timeout: Micros,
}

/// Diagnostics, to standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Log {
    pub level: log::LevelFilter,
    pub format: LogFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
}

/// What a file may refer to: the environment, and other files.
#[derive(Clone, Copy)]
pub struct Environment<'s> {
    pub variable: &'s dyn Fn(&str) -> Option<String>,
    /// What paths in the file are relative to.
    pub folder: &'s Path,
    /// By a path as it stands in the file.
    pub read: &'s dyn Fn(&Path) -> io::Result<Vec<u8>>,
}

impl fmt::Debug for Environment<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Environment")
    }
}

impl Config {
    /// Reads and checks a file.
    pub fn load(path: &Path) -> Result<Config, Problems> {
        LoadedConfig::from(path).config
    }

    /// Checks a file's text. `file` is its name in reports.
    pub fn parse(file: &str, bytes: &[u8], surroundings: Environment<'_>) -> Result<Config, Problems> {
        let report = Report::default();
        let mut tree = match tree::read(bytes, &report) {
            Ok(tree) => tree,
            Err(problem) => {
                let mut problems = report.into_problems();
                problems.push(problem);
                return Err(Problems { file: file.to_owned(), problems });
            }
        };
        env::expand(&mut tree, surroundings.variable, &report);
        let checked = document::config(Field::root(&tree, &report), surroundings);
        match (report.into_problems(), checked) {
            (problems, Some(checked)) if problems.is_empty() => {
                let warnings = Warnings { file: file.to_owned(), warnings: lints::look(&checked, &tree) };
                Ok(Config { warnings, hash: short_hash(bytes), ..checked.config })
            }
            (problems, _) => Err(Problems { file: file.to_owned(), problems }),
        }
    }
}

/// Eight hexadecimal digits of SHA-256.
fn short_hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}
