//! `tollgate bucket show|reset|grant|raise|ban|list`: shows the level of a client's bucket, resets it to full, gives back an
//! amount, raises its limit, bans it, or lists the banned buckets of a limit.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::Value;

use super::admin_client;
use super::admin_client::{AdminAddress, Method};
use super::bucket_backend::{Access, Backend};
use super::bucket_home::Site;
use super::bucket_log;
use super::bucket_raise::Raise;
use super::config_file::examine;
use super::failure::{Failure, with_hint, wrong_usage};
use super::output;
use super::output::Page;
use crate::gateway::ban_listing::BanListing;
use crate::gateway::ban_lookup;
use crate::gateway::bucket_lookup::{self, BucketSelection, LookupError};
use crate::gateway::bucket_query::{self, BucketQuery};
use crate::gateway::bucket_report::{BucketReport, Change, bucket_name};
use base::endpoint_address::EndpointAddress;
use base::time::{Clock, Micros};
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

  tollgate bucket grant free.month jwt:sub=acme 500

Example: let a client have 5000 more until the end of the month.

  tollgate bucket raise free.month jwt:sub=acme +5000 --until period-end --id ticket-1203

Example: ban a client for a day, and show who is banned.

  tollgate bucket ban login header:x-user=ann --for 24h
  tollgate bucket list login --banned

Example: list who has used at least 80 % of the month, as the gateway knows them by `records`.

  tollgate bucket list api-month --near 80% --admin 127.0.0.1:9901";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Arguments {
    #[command(subcommand)]
    act: Act,
}

#[derive(Debug, clap::Subcommand)]
enum Act {
    /// Show the level of a bucket; change nothing
    Show(Which),
    /// Reset a bucket to full, and show what it held
    Reset(Which),
    /// Give back up to AMOUNT of what is spent, and show the bucket before and after
    Grant(Grant),
    /// Add N to the burst or limit of one bucket until a moment
    Raise(Raise),
    /// Ban it from now on, in place of a ban that runs, and show the end of the ban
    Ban(Ban),
    /// List the subjects of a limit that a gateway knows, or its banned buckets; change nothing
    List(List),
}

/// The place of the buckets, and the format of the output.
#[derive(Debug, clap::Args)]
pub(super) struct Place {
    /// The configuration [default: gateway.yaml, unless --admin is given]
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The issuer of the tokens, if the file trusts several issuers
    #[arg(long, value_name = "ISSUER")]
    issuer: Option<String>,
    /// The admin listener of a running gateway, or `unix:PATH`: the gateway uses its own file. With -c, the admin listener
    /// to ask about buckets in memory [default: the one in the file]
    #[arg(long, value_name = "ADDRESS", value_parser = admin_client::listener_argument)]
    admin: Option<EndpointAddress>,
    /// The bucket at home of a limit over several regions, in place of this region's purse; needs -c or gateway.yaml here
    #[arg(long, conflicts_with = "admin")]
    pub home: bool,
    /// Print one JSON document instead of text
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, clap::Args)]
struct Which {
    #[command(flatten)]
    place: Place,
    /// The rule: `free`, `plan/free`, or `free.second` for one of several limits; or a meter, for all its rules
    #[arg(value_name = "RULE", required_unless_present = "hash")]
    rule: Option<String>,
    /// A value for each limit key of the rule
    #[arg(value_name = "KEY=VALUE", conflicts_with = "hash")]
    keys: Vec<String>,
    /// The bucket's name in the access log, or at least its first 8 digits
    #[arg(long, value_name = "NAME", value_parser = name, conflicts_with = "home")]
    hash: Option<String>,
}

#[derive(Debug, clap::Args)]
#[command(
    override_usage = "tollgate bucket grant [OPTIONS] <RULE> [KEY=VALUE]... <AMOUNT>",
    after_help = "KEY=VALUE is a value for each limit key of the rule; AMOUNT is how much to give back, such as 500 or 0.5, in USD for a limit on money."
)]
struct Grant {
    #[command(flatten)]
    place: Place,
    /// The rule: `free`, `plan/free`, or `free.second` for one of several limits; or a meter, for all its rules
    #[arg(value_name = "RULE")]
    rule: String,
    // The keys and the amount are one list. If they were two, and options followed, clap could not find the boundary.
    #[arg(value_name = "AMOUNT", num_args = 1.., required = true, hide = true)]
    keys_and_amount: Vec<String>,
}

#[derive(Debug, clap::Args)]
struct Ban {
    #[command(flatten)]
    which: Which,
    /// How long the ban lasts from now on: from 1s to 366d
    #[arg(long = "for", value_name = "DURATION", value_parser = config::ban_length)]
    length: Micros,
}

#[derive(Debug, clap::Args)]
struct List {
    #[command(flatten)]
    place: Place,
    /// The rule: `login`, `plan/login`, or `login.day` for one of several limits; or a meter
    #[arg(value_name = "RULE")]
    rule: String,
    /// List the buckets whose ban runs: at most 1000, those whose bans end last
    #[arg(long)]
    banned: bool,
    /// List only those who have used at least this share of the limit, such as 80%
    #[arg(long, value_name = "SHARE", value_parser = share, conflicts_with = "banned")]
    near: Option<u8>,
}

fn share(text: &str) -> Result<u8, String> {
    let share = text.strip_suffix('%').unwrap_or(text).parse().ok().filter(|share| *share <= 100);
    share.ok_or_else(|| "must be a share from 0% to 100%".to_owned())
}

fn name(text: &str) -> Result<String, String> {
    let text = text.to_ascii_lowercase();
    let fits = (8..=16).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if fits { Ok(text) } else { Err("must be 8 to 16 hexadecimal digits".to_owned()) }
}

/// Shows buckets, resets them, gives back an amount to them, bans them, or lists the banned ones.
///
/// # Errors
/// When the file has problems, an argument names no bucket, or the store does not answer.
pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let place = match &arguments.act {
        Act::Show(which) | Act::Reset(which) | Act::Ban(Ban { which, .. }) => &which.place,
        Act::Grant(Grant { place, .. }) | Act::Raise(Raise { place, .. }) | Act::List(List { place, .. }) => place,
    };
    if let Act::Grant(grant) = &arguments.act {
        grant.amount_and_keys()?;
    }
    if let Act::Ban(ban) = &arguments.act {
        ban.rule()?;
    }
    if let Act::Raise(raise) = &arguments.act {
        raise.arguments()?;
    }
    if let (Some(admin), None) = (&place.admin, &place.config) {
        return ask(&AdminAddress::new(admin.clone(), None), &arguments.act, place);
    }
    let path = &place.config.clone().unwrap_or_else(|| PathBuf::from("gateway.yaml"));
    let config = examine(path, Purpose::ReachStore)?;
    let access = match &arguments.act {
        Act::Show(_) | Act::List(_) => Access::Read,
        Act::Reset(_) | Act::Grant(_) | Act::Raise(_) | Act::Ban(_) => Access::Change,
    };
    let site = Site::of(place);
    let backend = match site {
        Site::Region => Backend::of(&config, path, place.admin.clone(), access)?,
        Site::Home => Site::backend(&config)?,
    };
    // A gateway bans and raises in its memory by its own file.
    if let (Backend::Gateway(address), Act::Ban(_) | Act::Raise(_) | Act::List(_)) = (&backend, &arguments.act) {
        return ask(address, &arguments.act, place);
    }
    let known = Knowledge {
        client: None,
        issuer: place.issuer.as_deref(),
        at: Clock::system().wall(),
        names: &config.hash_key,
        is_held: false,
    };
    let (change, chosen) = match &arguments.act {
        Act::Show(which) => (Change::None, which.choose(&backend, &config, known)?),
        Act::Reset(which) => {
            let chosen = which.choose(&backend, &config, known)?;
            (Change::Reset, bucket_lookup::changeable(chosen).map_err(failure)?)
        }
        Act::Grant(grant) => {
            let (amount, keys) = grant.amount_and_keys()?;
            let chosen = site.grantable(by_values(&config, &grant.rule, keys, known)?)?;
            let amount = bucket_lookup::amount(amount, &chosen).map_err(|error| wrong_usage(error.what))?;
            (Change::GiveBack(amount), chosen)
        }
        Act::Ban(ban) => (Change::Ban(ban.length), ban.choose(&backend, &config, known)?),
        Act::Raise(raise) => return raise.run(&backend, &config, known),
        Act::List(list) if list.banned => return list_bans(&config, &backend, list),
        Act::List(_) => {
            let hint = "--admin ADDRESS without -c asks a gateway, or say --banned";
            return Err(with_hint("only a gateway knows the subjects of its buckets", hint));
        }
    };
    let chosen = site.select(chosen, &config)?;
    // Limits of one meter share a bucket, so each key is kept once.
    let mut kinds: BTreeMap<BucketKey, Option<AlgorithmKind>> = BTreeMap::new();
    for chosen in &chosen {
        kinds.insert(chosen.key, chosen.limit.as_ref().map(|limit| limit.algorithm.kind()));
    }
    let keys: Vec<BucketKey> = kinds.keys().copied().collect();
    let (before, after) = match change {
        Change::Ban(length) => {
            let limit = |key: &BucketKey| chosen.iter().find(|chosen| chosen.key == *key)?.limit.as_ref();
            let limits: Vec<_> = keys.iter().filter_map(|key| Some((*key, limit(key)?.algorithm))).collect();
            let (before, after) = backend.set_ban(&limits, length)?;
            (before, Some(after))
        }
        Change::None | Change::Raise(_) => (backend.read(&keys)?, None),
        Change::Reset => {
            bucket_lookup::check_stored(&backend.read(&keys)?, &keys).map_err(failure)?;
            let before = backend.reset(&kinds)?;
            (before, Some(backend.read(&keys)?))
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
fn ask(admin: &AdminAddress, act: &Act, place: &Place) -> Result<(), Failure> {
    let query = |act, rule: Option<&String>, keys: &[String]| BucketQuery {
        act,
        rule: rule.cloned(),
        keys: keys.to_vec(),
        hash: None,
        issuer: place.issuer.clone(),
        user: bucket_log::user(),
        gateway: format!("the gateway at {admin}"),
    };
    let of_bucket =
        |act, which: &Which| BucketQuery { hash: which.hash.clone(), ..query(act, which.rule.as_ref(), &which.keys) };
    let (method, query) = match act {
        Act::Show(which) => (Method::Get, of_bucket(bucket_query::Act::Show, which)),
        Act::Reset(which) => (Method::Delete, of_bucket(bucket_query::Act::Reset, which)),
        Act::Grant(grant) => {
            let (amount, keys) = grant.amount_and_keys()?;
            let act = bucket_query::Act::Grant(amount.to_owned());
            (Method::Patch("grant"), query(act, Some(&grant.rule), keys))
        }
        Act::Raise(raise) => {
            let (arguments, keys) = raise.arguments()?;
            (Method::Patch("raise"), query(bucket_query::Act::Raise(arguments), Some(&raise.rule), keys))
        }
        Act::Ban(ban) => (Method::Patch("ban"), of_bucket(bucket_query::Act::Ban(ban.length.0), &ban.which)),
        Act::List(list) => {
            let act = if list.banned { bucket_query::Act::List } else { bucket_query::Act::Subjects(list.near) };
            (Method::Get, query(act, Some(&list.rule), &[]))
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

/// Finds the buckets that requests with these values charge, as [`bucket_lookup::by_values`] does.
///
/// # Errors
/// In the same cases.
pub(super) fn by_values(
    config: &Config,
    rule: &str,
    values: &[String],
    known: Knowledge<'_>,
) -> Result<Vec<BucketSelection>, Failure> {
    bucket_lookup::by_values(config, rule, values, known).map_err(failure)
}

pub(super) fn failure(LookupError { what, hint }: LookupError) -> Failure {
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

impl Ban {
    /// Returns the name of the rule. It is required with --hash too, because only the limit tells how its bucket is stored.
    fn rule(&self) -> Result<&str, Failure> {
        self.which.rule.as_deref().ok_or_else(|| wrong_usage("RULE: missing; a ban needs it beside --hash"))
    }

    fn choose(
        &self,
        backend: &Backend,
        config: &Config,
        known: Knowledge<'_>,
    ) -> Result<Vec<BucketSelection>, Failure> {
        let (rule, chosen) = (self.rule()?, self.which.choose(backend, config, known)?);
        let banned = match (&self.which.hash, &chosen[..]) {
            (Some(hash), [found]) => ban_lookup::bucket_of(config, rule, found.key, hash),
            _ => ban_lookup::with_ban(rule, chosen),
        };
        banned.map_err(failure)
    }
}

/// Prints the banned buckets of a limit in a shared store.
fn list_bans(config: &Config, backend: &Backend, list: &List) -> Result<(), Failure> {
    if !config.hash_key.is_known() {
        let hint = "set hash_key where this command runs, or ask a gateway with --admin";
        return Err(with_hint("hash_key: must be known to name buckets", hint));
    }
    let limit = ban_lookup::limit_with_ban(config, &list.rule).map_err(failure)?;
    let algorithm = limit.variants.first().ok_or("the limit has no numbers")?;
    let found = with_progress(|progress| backend.list_bans(algorithm, &|key| limit.has_bucket(key), progress))?;
    let listing = BanListing { config, limit, list: found, from: backend.to_string(), subject: &|_| None };
    let mut page = Page::default();
    match list.place.json {
        true => page.pretty_json(&listing.document())?,
        false => page.lines(listing.lines()),
    }
    output::print(&page)
}

/// Runs a search that reports the number of buckets read so far. On a terminal, this number is printed.
fn with_progress<T>(search: impl FnOnce(&mut dyn FnMut(u64)) -> Result<T, Failure>) -> Result<T, Failure> {
    const PROGRESS_STEP: u64 = 100_000;
    let watched = output::is_watched();
    let mut next = PROGRESS_STEP;
    let found = search(&mut |seen| {
        if watched && seen >= next {
            output::print_progress(format_args!("{seen} buckets read"));
            next = seen + PROGRESS_STEP;
        }
    });
    if watched && next > PROGRESS_STEP {
        output::end_progress();
    }
    found
}

/// Returns the only bucket whose name begins with `begin`. `None` if no stored bucket has such a name.
///
/// # Errors
/// When several buckets have such a name, `hash_key` is not known, or the store does not answer.
pub(super) fn found(backend: &Backend, config: &Config, begin: &str) -> Result<Option<BucketKey>, Failure> {
    // Only a shared store needs `hash_key` here: for buckets in memory, the gateway finds the names.
    if !config.hash_key.is_known() && matches!(backend, Backend::Shared(_)) {
        let hint = "name the bucket by its RULE and KEY=VALUE, or set hash_key where this command runs";
        return Err(with_hint("hash_key: must be known to find a bucket by its name in a shared store", hint));
    }
    let keys = with_progress(|progress| backend.find(begin, &config.hash_key, progress))?;
    match &keys[..] {
        [key] => Ok(Some(*key)),
        [] => Ok(None),
        several => {
            let names: Vec<String> = several.iter().map(|key| bucket_name(&config.hash_key, key)).collect();
            Err(format!("{begin} begins the names of {} buckets: {}", names.len(), names.join(", ")).into())
        }
    }
}
