//! `tollgate bucket show|reset|grant`: shows the level of a client's bucket, resets it to full, or gives back an
//! amount.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde_json::Value;

use super::admin_client;
use super::admin_client::Method;
use super::bucket_backend::Backend;
use super::bucket_log;
use super::config_file::examine;
use super::failure::{Failure, with_hint, wrong_usage};
use super::output;
use super::output::Page;
use crate::gateway::bucket_lookup::{self, BucketSelection, LookupError};
use crate::gateway::bucket_query::{self, BucketQuery};
use crate::gateway::bucket_report::{BucketReport, Change, bucket_name};
use base::reachable::reachable;
use base::time::Clock;
use config::Config;
use config::problem::Purpose;
use ledger::algorithm::AlgorithmKind;
use ledger::bucket_key::BucketKey;
use ledger::cost::Cost;
use ledger::money;
use request::matcher::QuotedText;
use rules::partial_evaluation::Knowledge;

const EXAMPLE: &str = "\
Example: show what a client has left under the rule `free`, reset it, and show a bucket by its name in the access log.

  tollgate bucket show free jwt:sub=acme
  tollgate bucket reset free jwt:sub=acme
  tollgate bucket show free --hash 0c2a66c5
  tollgate bucket show free jwt:sub=acme --admin 127.0.0.1:9901

Example: give a client back up to 500 of what it has spent this month.

  tollgate bucket grant free.month jwt:sub=acme 500";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Arguments {
    #[command(subcommand)]
    act: Act,
}

#[derive(Debug, clap::Subcommand)]
enum Act {
    /// Show the level; change nothing
    Show(Which),
    /// Reset it to full, and show what it held
    Reset(Which),
    /// Give back up to an amount of what is spent, and show what it held and holds
    Grant(Grant),
}

/// The place of the buckets, and the format of the output.
#[derive(Debug, clap::Args)]
struct Place {
    /// The configuration; gateway.yaml where neither it nor --admin is given
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The issuer of the tokens, where the file trusts several
    #[arg(long, value_name = "ISSUER")]
    issuer: Option<String>,
    /// The admin listener of a running gateway, which then answers by its own file; with -c, to query for buckets in memory
    /// instead of the listener in that file
    #[arg(long, value_name = "ADDRESS", value_parser = admin_client::address_argument)]
    admin: Option<SocketAddr>,
    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct Which {
    #[command(flatten)]
    place: Place,
    /// The rule: `free`, `plan/free`, or `free.second` for one of several limits; or a meter, with all its rules
    #[arg(value_name = "RULE", required_unless_present = "hash")]
    rule: Option<String>,
    /// A value for each limit key of the rule
    #[arg(value_name = "KEY=VALUE", conflicts_with = "hash")]
    keys: Vec<String>,
    /// The bucket's name in the access log, or at least its first 8 digits
    #[arg(long, value_name = "NAME", value_parser = name)]
    hash: Option<String>,
}

#[derive(Debug, clap::Args)]
#[command(
    override_usage = "tollgate bucket grant [OPTIONS] <RULE> [KEY=VALUE]... <AMOUNT>",
    after_help = "KEY=VALUE is a value for each limit key of the rule; AMOUNT is how much to give back, such as 500 or 0.5; of a limit on money, USD."
)]
struct Grant {
    #[command(flatten)]
    place: Place,
    /// The rule: `free`, `plan/free`, or `free.second` for one of several limits; or a meter, with all its rules
    #[arg(value_name = "RULE")]
    rule: String,
    // The keys and the amount are one list. If they were two, and options followed, clap could not find the boundary.
    #[arg(value_name = "AMOUNT", num_args = 1.., required = true, hide = true)]
    keys_and_amount: Vec<String>,
}

fn name(text: &str) -> Result<String, String> {
    let text = text.to_ascii_lowercase();
    let fits = (8..=16).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if fits { Ok(text) } else { Err("must be 8 to 16 hexadecimal digits".to_owned()) }
}

/// Shows buckets, resets them, or gives back an amount to them.
///
/// # Errors
/// When the file has problems, an argument names no bucket, or the store does not answer.
pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let place = match &arguments.act {
        Act::Show(Which { place, .. }) | Act::Reset(Which { place, .. }) | Act::Grant(Grant { place, .. }) => place,
    };
    if let Act::Grant(grant) = &arguments.act {
        grant.amount_and_keys()?;
    }
    if let (Some(admin), None) = (place.admin, &place.config) {
        return ask(reachable(admin), &arguments.act, place);
    }
    let path = &place.config.clone().unwrap_or_else(|| PathBuf::from("gateway.yaml"));
    let config = examine(path, Purpose::ReachStore)?;
    let backend = Backend::of(&config, path, place.admin)?;
    let known = Knowledge {
        client: None,
        issuer: place.issuer.as_deref(),
        at: Clock::system().wall(),
        names: &config.hash_key,
    };
    let (change, chosen) = match &arguments.act {
        Act::Show(which) => (Change::None, which.choose(&backend, &config, known)?),
        Act::Reset(which) => {
            let chosen = which.choose(&backend, &config, known)?;
            (Change::Reset, bucket_lookup::changeable(chosen).map_err(failure)?)
        }
        Act::Grant(grant) => {
            let (amount, keys) = grant.amount_and_keys()?;
            let chosen = by_values(&config, &grant.rule, keys, known)?;
            let chosen = bucket_lookup::changeable(chosen).map_err(failure)?;
            let amount = bucket_lookup::amount(amount, &chosen).map_err(|error| wrong_usage(error.what))?;
            (Change::GiveBack(amount), chosen)
        }
    };
    // Limits of one meter share a bucket, so each key is kept once.
    let mut kinds: BTreeMap<BucketKey, Option<AlgorithmKind>> = BTreeMap::new();
    for chosen in &chosen {
        kinds.insert(chosen.key, chosen.limit.as_ref().map(|limit| limit.algorithm.kind()));
    }
    let keys: Vec<BucketKey> = kinds.keys().copied().collect();
    let (before, after) = match change {
        Change::None => (backend.read(&keys)?, None),
        Change::Reset => {
            bucket_lookup::check_stored(&backend.read(&keys)?, &keys).map_err(failure)?;
            (backend.reset(&kinds)?, None)
        }
        Change::GiveBack(amount) => {
            let kinds: Vec<_> = kinds.into_iter().filter_map(|(key, kind)| Some((key, kind?))).collect();
            let (before, after) = backend.give_back(&kinds, amount)?;
            (before, Some(after))
        }
    };
    let report = BucketReport { config: &config, change, before, after };
    if change != Change::None {
        bucket_log::log_change(&report, &chosen)?;
    }
    let mut page = Page::default();
    match place.json {
        true => page.pretty_json(&report.document(&chosen))?,
        false => page.lines(report.lines(&chosen)),
    }
    output::print(&page)
}

/// Sends the command to a running gateway.
fn ask(admin: SocketAddr, act: &Act, place: &Place) -> Result<(), Failure> {
    let query = |act, which: &Which| BucketQuery {
        act,
        rule: which.rule.clone(),
        keys: which.keys.clone(),
        hash: which.hash.clone(),
        issuer: place.issuer.clone(),
        user: bucket_log::user(),
        gateway: format!("the gateway at {admin}"),
    };
    let (method, query) = match act {
        Act::Show(which) => (Method::Get, query(bucket_query::Act::Show, which)),
        Act::Reset(which) => (Method::Delete, query(bucket_query::Act::Reset, which)),
        Act::Grant(grant) => {
            let (amount, keys) = grant.amount_and_keys()?;
            let query = BucketQuery {
                act: bucket_query::Act::Grant(amount.to_owned()),
                rule: Some(grant.rule.clone()),
                keys: keys.to_vec(),
                hash: None,
                issuer: place.issuer.clone(),
                user: bucket_log::user(),
                gateway: format!("the gateway at {admin}"),
            };
            (Method::Patch, query)
        }
    };
    let answer = admin_client::query(admin, method, &query)?;
    let mut page = Page::default();
    let lines = answer.get("lines").and_then(Value::as_array);
    match (place.json, lines, answer.get("document").filter(|document| document.is_object())) {
        (true, _, Some(document)) => page.pretty_json(document)?,
        (false, Some(lines), _) => page.lines(lines.iter().filter_map(Value::as_str)),
        _ => {
            return Err(
                format!("{admin}: answered something else than buckets: is it a gateway of this version?").into()
            );
        }
    }
    output::print(&page)
}

fn by_values(
    config: &Config,
    rule: &str,
    values: &[String],
    known: Knowledge<'_>,
) -> Result<Vec<BucketSelection>, Failure> {
    bucket_lookup::by_values(config, rule, values, known).map_err(failure)
}

fn failure(LookupError { what, hint }: LookupError) -> Failure {
    match hint {
        Some(hint) => with_hint(what, hint),
        None => what.into(),
    }
}

impl Which {
    fn choose(
        &self,
        backend: &Backend,
        config: &Config,
        known: Knowledge<'_>,
    ) -> Result<Vec<BucketSelection>, Failure> {
        match (&self.rule, &self.hash) {
            (Some(rule), None) => by_values(config, rule, &self.keys, known),
            (rule, Some(begin)) => {
                let key = found(backend, config, begin)?.ok_or_else(|| {
                    let hint = "a full bucket is not stored; and names depend on `hash_key` in the file";
                    with_hint(format!("no bucket in {backend} is called {begin}"), hint)
                })?;
                Ok(vec![bucket_lookup::by_key(config, rule.as_deref(), key).map_err(failure)?])
            }
            (None, None) => Err("a RULE or --hash must be given".into()),
        }
    }
}

impl Grant {
    /// Returns the text of the amount, and the values of the limit keys before it. Only the limit tells whether the
    /// amount is money.
    fn amount_and_keys(&self) -> Result<(&str, &[String]), Failure> {
        let (last, keys) = self.keys_and_amount.split_last().ok_or("AMOUNT: missing")?;
        let amount = money::parse(last).filter(|amount| *amount > Cost::default());
        amount.ok_or_else(|| {
            let what = "AMOUNT: must be a number above 0 with at most 3 decimals, after the values of the limit keys";
            wrong_usage(format!("{what}; is {}", QuotedText(last.as_bytes())))
        })?;
        Ok((last, keys))
    }
}

/// Returns the only bucket whose name begins with `begin`. `None` if no stored bucket has such a name.
///
/// # Errors
/// When several buckets have such a name, `hash_key` is not known, or the store does not answer.
pub(super) fn found(backend: &Backend, config: &Config, begin: &str) -> Result<Option<BucketKey>, Failure> {
    const PROGRESS_STEP: u64 = 100_000;
    // Only a shared store needs `hash_key` here: for buckets in memory, the gateway finds the names.
    if !config.hash_key.is_known() && matches!(backend, Backend::Shared(_)) {
        let hint = "name the bucket by its RULE and KEY=VALUE, or set hash_key where this command runs";
        return Err(with_hint("hash_key: must be known to find a bucket by its name in a shared store", hint));
    }
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
            let names: Vec<String> = several.iter().map(|key| bucket_name(&config.hash_key, key)).collect();
            Err(format!("{begin} begins the names of {} buckets: {}", names.len(), names.join(", ")).into())
        }
    }
}
