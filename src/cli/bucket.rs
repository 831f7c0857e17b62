//! `tollgate bucket show|reset`: shows the level of a client's bucket, or resets it to full.

use std::net::SocketAddr;

use serde_json::json;

use super::bucket_backend::{Backend, Bucket, Levels};
use super::bucket_lookup;
use super::bucket_lookup::BucketSelection;
use super::config_file::ConfigFile;
use super::failure::{Failure, with_hint};
use super::output;
use super::output::Page;
use crate::base::time::{Clock, Micros};
use crate::config::Config;
use crate::limit::bucket_key::BucketKey;
use crate::limit::explanation::Date;
use crate::limit::partial::Knowledge;
use crate::limit::rule::Mode;

const EXAMPLE: &str = "\
Example: show what a client has left under the rule `free`, reset it, and show a bucket by its name in the access log.

  tollgate bucket show free jwt:sub=acme
  tollgate bucket reset free jwt:sub=acme
  tollgate bucket show free --hash 0c2a66c5";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub struct Arguments {
    #[command(subcommand)]
    act: Act,
}

#[derive(Debug, clap::Subcommand)]
enum Act {
    /// Show the level; change nothing
    Show(Which),
    /// Reset it to full, and show what it held
    Reset(Which),
}

#[derive(Debug, clap::Args)]
struct Which {
    #[command(flatten)]
    file: ConfigFile,
    /// The rule: `free`, `plan/free`, or `free.second` for one of several limits
    #[arg(value_name = "RULE", required_unless_present = "hash")]
    rule: Option<String>,
    /// A value for each limit key of the rule
    #[arg(value_name = "KEY=VALUE", conflicts_with = "hash")]
    keys: Vec<String>,
    /// The bucket's name in the access log, or at least its first 8 digits
    #[arg(long, value_name = "NAME", value_parser = name)]
    hash: Option<String>,
    /// The issuer of the tokens, where the file trusts several
    #[arg(long, value_name = "ISSUER")]
    issuer: Option<String>,
    /// The admin listener to query for buckets in memory, instead of the one in the file
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<SocketAddr>,
    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,
}

fn name(text: &str) -> Result<String, String> {
    let text = text.to_ascii_lowercase();
    let fits = (8..=16).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if fits { Ok(text) } else { Err("must be 8 to 16 hexadecimal digits".to_owned()) }
}

/// Shows or resets buckets.
///
/// # Errors
/// When the file has problems, an argument names no bucket, or the store does not answer.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let (Act::Show(which) | Act::Reset(which)) = &arguments.act;
    let path = &which.file.config;
    let config = Config::load(path)?;
    let backend = Backend::of(&config, path, which.admin)?;
    let known = Knowledge {
        client: None,
        issuer: which.issuer.as_deref(),
        at: Clock::system().wall(),
        names: &config.hash_key,
    };
    let chosen = match (&which.rule, &which.hash) {
        (Some(rule), None) => bucket_lookup::by_values(&config, rule, &which.keys, known)?,
        (rule, Some(begin)) => {
            let key = found(&backend, &config, begin)?.ok_or_else(|| {
                let hint = "a full bucket is not stored; and names depend on `hash_key` in the file";
                with_hint(format!("no bucket in {backend} is called {begin}"), hint)
            })?;
            vec![bucket_lookup::by_key(&config, rule.as_deref(), key)?]
        }
        (None, None) => return Err("a RULE or --hash must be given".into()),
    };
    let keys: Vec<BucketKey> = chosen.iter().map(|chosen| chosen.key).collect();
    let levels = match arguments.act {
        Act::Show(_) => backend.read(&keys)?,
        Act::Reset(_) => backend.reset(&keys)?,
    };
    let mut page = Page::default();
    if which.json {
        page.pretty_json(&document(&arguments.act, &config, &chosen, &levels))?;
        return output::print(&page);
    }
    for chosen in &chosen {
        page.lines(describe(&arguments.act, &config, chosen, &levels));
    }
    let from = &levels.from;
    page.line(match (&arguments.act, config.store.is_shared()) {
        (Act::Show(_), _) => format!("read from {from}"),
        (Act::Reset(_), false) => format!("full from now on, in {from}"),
        (Act::Reset(_), true) => {
            format!("full from now on, in {from}; a gateway that has just refused by it reads it again within a second")
        }
    });
    output::print(&page)
}

/// The only bucket whose name starts with `begin`; `None` when no bucket does, because full buckets are not stored.
///
/// # Errors
/// When several buckets have such a name, or the store does not answer.
pub fn found(backend: &Backend, config: &Config, begin: &str) -> Result<Option<BucketKey>, Failure> {
    const PROGRESS_STEP: u64 = 100_000;
    let watched = output::is_watched();
    let mut next = PROGRESS_STEP;
    let mut progress = |seen: u64| {
        if watched && seen >= next {
            output::print_progress(format_args!("{seen} buckets read"));
            next = seen + PROGRESS_STEP;
        }
    };
    let keys = backend.find(begin, &config.hash_key, &mut progress)?;
    if watched && next > PROGRESS_STEP {
        output::end_progress();
    }
    match &keys[..] {
        [key] => Ok(Some(*key)),
        [] => Ok(None),
        several => {
            let names: Vec<String> = several.iter().map(|key| config.hash_key.bucket(&key.0).to_string()).collect();
            Err(format!("{begin} begins the names of {} buckets: {}", names.len(), names.join(", ")).into())
        }
    }
}

fn describe(act: &Act, config: &Config, chosen: &BucketSelection, levels: &Levels) -> Vec<String> {
    let name = config.hash_key.bucket(&chosen.key.0);
    let Some(limit) = &chosen.limit else {
        let kept = if levels.state(&chosen.key).is_some() { "something is spent" } else { "full" };
        return vec![match act {
            Act::Show(_) => format!("bucket {name}  {kept}; name the RULE to see how much is left"),
            Act::Reset(_) => format!("bucket {name}  was: {kept}"),
        }];
    };
    let Bucket { untouched, wait } = levels.bucket(&chosen.key, &limit.algorithm, limit.cost);
    let most = limit.algorithm.ceiling();
    let shadow = if limit.mode == Mode::Shadow { "  shadow" } else { "" };
    let overridden = if limit.overridden { " (override)" } else { "" };
    let claimed = limit.claimed.as_deref().map_or_else(String::new, |claimed| format!("; {claimed}"));
    let of = chosen.of.as_deref().map_or_else(String::new, |of| format!("  {of}"));
    let head =
        format!("{}/{}{shadow}{of}  {}{overridden}{claimed}  bucket {name}", limit.policy, limit.name, limit.algorithm);
    let left = untouched.remaining;
    let level = match act {
        Act::Reset(_) => format!("held {left} of {most}"),
        Act::Show(_) => {
            let full = match untouched.reset_after {
                Micros(0) => "full".to_owned(),
                after => {
                    let moment = levels.now.plus(after);
                    let printed = limit.algorithm.print_end(moment).unwrap_or_else(|| Date(moment).to_string());
                    format!("full in {}s ({printed})", after.ceil_seconds())
                }
            };
            let pays = match wait {
                Some(Micros(0)) => String::new(),
                Some(wait) => format!("; a request of {} passes in {}s", limit.cost, wait.ceil_seconds()),
                None => format!("; a request of {} never passes", limit.cost),
            };
            format!("{left} left of {most}, {full}{pays}")
        }
    };
    vec![head, format!("  {level}")]
}

fn document(act: &Act, config: &Config, chosen: &[BucketSelection], levels: &Levels) -> serde_json::Value {
    let bucket = |chosen: &BucketSelection| {
        let name = config.hash_key.bucket(&chosen.key.0).to_string();
        let Some(limit) = &chosen.limit else {
            return json!({"bucket": name, "kept": levels.state(&chosen.key).is_some()});
        };
        let Bucket { untouched, wait } = levels.bucket(&chosen.key, &limit.algorithm, limit.cost);
        json!({
            "policy": limit.policy,
            "limit": limit.name,
            "mode": limit.mode,
            "bucket": name,
            "numbers": limit.algorithm.to_string(),
            "overridden": limit.overridden,
            "claimed": limit.claimed,
            "burst": limit.algorithm.ceiling(),
            "left": untouched.remaining,
            "full_in_us": untouched.reset_after,
            "wait_us": wait,
        })
    };
    let act = match act {
        Act::Show(_) => "show",
        Act::Reset(_) => "reset",
    };
    let buckets: Vec<_> = chosen.iter().map(bucket).collect();
    json!({"act": act, "read_from": levels.from, "buckets": buckets})
}
