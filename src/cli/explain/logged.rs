//! `tollgate explain --id`: explains a request that is in a gateway's access log.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;
use memchr::memmem::Finder;

use crate::cli::bucket;
use crate::cli::bucket_backend::Backend;
use crate::cli::explain::answer::retry_after_words;
use crate::cli::failure::{Failure, with_hint};
use crate::cli::output::Page;
use crate::gateway::bucket_lookup;
use base::position::Position;
use base::pseudonym::Pseudonym;
use base::waiting_time::WaitingTime;
use config::Config;
use decision::access_log_line::{Kind, Line, LoggedLimit, LoggedPrice, LoggedUsage, MoneyUnit, Source};
use ledger::algorithm::Algorithm;
use ledger::bucket_level::BucketLevel;
use ledger::cost::Cost;
use ledger::money::AmountFormat;
use ledger::outcome::Verdict;
use request::door::Door;
use request::matcher::{Expectation, QuotedText, Text};
use rules::explanation::Date;
use rules::rule::{Action, Mode, Price};

/// The longest line, in bytes. A gateway's lines are far shorter.
const LONGEST: u64 = 1 << 20;
/// The maximum number of lines to report. Several may have the id, if a client chose it.
const MOST: usize = 20;

/// A line of a log, and its position.
struct LoggedLine {
    file: PathBuf,
    number: u64,
    text: Vec<u8>,
}

/// The lines that were found for an id.
#[derive(Default)]
struct Matches {
    /// The lines with this id.
    exact: Vec<LoggedLine>,
    /// The lines whose id begins with the wanted id.
    prefixed: Vec<LoggedLine>,
    /// The number of lines that have a request id, as every line of a gateway has.
    of_ours: u64,
}

/// Searches access logs for a request, and explains the request.
#[derive(Debug)]
pub(super) struct Search<'s> {
    /// The id of the request, or the beginning of the id.
    pub id: &'s str,
    pub logs: &'s [PathBuf],
    pub file: &'s Path,
    /// The place where buckets are read. `None` if they are not read.
    pub backend: Option<Backend>,
    pub json: bool,
    /// Whether `file` names these logs, so that their settings are known.
    pub are_of_file: bool,
}

impl Search<'_> {
    /// Finds the request in the logs, and returns the explanation.
    ///
    /// # Errors
    /// When a log cannot be read, no log has the request, or the store does not answer.
    pub(super) fn run(&self, config: &Config) -> Result<Page, Failure> {
        let mut lines = 0;
        let mut matches = Matches::default();
        for log in self.logs {
            self.search(log, &mut lines, &mut matches)
                .map_err(|error| format!("{}: must be a readable file: {error}", log.display()))?;
        }
        let of_ours = matches.of_ours;
        let found = self.choose(matches)?;
        if found.is_empty() {
            let logs: Vec<_> = self.logs.iter().map(|log| log.display().to_string()).collect();
            if lines > 0 && of_ours == 0 {
                return Err(format!(
                    "{}: must be an access log of a gateway, has no request_id in {lines} lines",
                    logs.join(", ")
                )
                .into());
            }
            let what = format!("no request {} in {lines} lines of {}", self.id, logs.join(", "));
            return Err(with_hint(what, hint(config, self.are_of_file)));
        }
        let mut page = Page::default();
        for LoggedLine { file, number, text } in &found {
            let position = format!("{}:{number}", file.display());
            let line =
                Line::read(text).map_err(|error| format!("{position}: must be a line of an access log: {error}"))?;
            match self.json {
                true => page.written_json(String::from_utf8_lossy(text).trim_end()),
                false => page.lines(self.describe(&line, &position, config)?),
            }
        }
        Ok(page)
    }

    /// Returns the lines with the wanted id, or else the lines of the only id that begins with the wanted id.
    fn choose(&self, Matches { exact, prefixed, .. }: Matches) -> Result<Vec<LoggedLine>, Failure> {
        if !exact.is_empty() {
            return Ok(exact);
        }
        let ids: BTreeSet<String> =
            prefixed.iter().filter_map(|found| Some(Line::read(&found.text).ok()?.request_id.into_owned())).collect();
        if ids.len() > 1 {
            let at_least = if prefixed.len() == MOST { "at least " } else { "" };
            let ids: Vec<String> = ids.into_iter().collect();
            return Err(
                format!("{} begins the ids of {at_least}{} requests: {}", self.id, ids.len(), ids.join(", ")).into()
            );
        }
        Ok(prefixed)
    }

    /// Collects the lines that may belong to the request, by their text.
    fn search(&self, log: &Path, lines: &mut u64, matches: &mut Matches) -> std::io::Result<()> {
        let wanted = format!("\"request_id\":\"{}", self.id);
        let (finder, any) = (Finder::new(&wanted), Finder::new("\"request_id\":\""));
        let mut reader = open(log)?;
        let (mut text, mut number) = (Vec::new(), 0);
        loop {
            text.clear();
            if reader.by_ref().take(LONGEST).read_until(b'\n', &mut text)? == 0 {
                return Ok(());
            }
            number += 1;
            *lines += 1;
            matches.of_ours += u64::from(any.find(&text).is_some());
            let Some(at) = finder.find(&text) else { continue };
            let found = match text.get(at + wanted.len()) {
                Some(b'"') => &mut matches.exact,
                _ => &mut matches.prefixed,
            };
            if found.len() < MOST {
                found.push(LoggedLine { file: log.to_owned(), number, text: text.clone() });
            }
        }
    }

    fn describe(&self, line: &Line<'_>, position: &str, config: &Config) -> Result<Vec<String>, Failure> {
        let mut page = vec![format!("{}  request {}  {position}", Date(line.time), line.request_id)];
        let detail = line.detail.as_ref().map_or_else(String::new, |detail| format!(" ({detail})"));
        let became = match (line.kind, &line.reason) {
            (Kind::Allowed, _) if line.door.is_some() => "PASSED".to_owned(),
            (Kind::Allowed, _) => format!("PASSED: the upstream answered {}", line.code),
            (Kind::Refused, Some(reason)) => {
                // A gRPC call always has the status 200.
                let door = line.door.as_deref().and_then(Door::named);
                let status = match door {
                    Some(Door::ExtAuthz | Door::Rls) => String::new(),
                    _ => format!("{} ", line.code),
                };
                format!("REFUSED {status}{reason}{detail}")
            }
            (Kind::Refused, None) => format!("REFUSED {}", line.code),
            (Kind::Error, _) => format!("ERROR {}{detail}", line.code),
        };
        let after = line.decision_us.map_or_else(String::new, |span| format!(", decided in {} us", span.0));
        let waited = line.waited_us.map_or_else(String::new, |span| format!(", waited {} us", span.0));
        let way = match line.door.as_deref() {
            None => format!("{} to route {}", line.method, line.route),
            // At such a door there is no request.
            Some(door) if Door::named(door).is_some_and(Door::has_only_descriptors) => {
                format!("asked about at the door {door}")
            }
            Some(door) => format!("{}, asked about at the door {door}", line.method),
        };
        page.push(format!("{became}; {way}{after}{waited}"));
        let source = line.source.map(|source| match source {
            Source::Store => "the store decided",
            Source::Cached => "decided by what the store had just shown",
            Source::Fallback => "decided without the store, which gave no answer",
        });
        let shown = |amount: Cost| format_of(line.unit).of(amount);
        match (&line.policy, &line.rule, line.cost, line.bucket) {
            (Some(policy), Some(rule), Some(cost), Some(bucket)) => {
                let position = self.position(policy, rule, config);
                let has = line.remaining.map_or_else(
                    || "level not known".to_owned(),
                    |left| match line.kind {
                        Kind::Refused => format!("had {}", shown(left)),
                        _ => format!("{} left after it", shown(left)),
                    },
                );
                let pays = match (line.kind, line.settled) {
                    (Kind::Refused, _) => format!("needs {}", shown(cost)),
                    (_, Some(settled)) => format!("reserved {}, cost {}", shown(cost), shown(settled)),
                    (_, None) => format!("paid {}", shown(cost)),
                };
                page.push(format!("by {policy}/{rule}  {position}"));
                page.push(format!("  {pays}, {has}; bucket {bucket}"));
                let sent = line.retry_after.map(|seconds| retry_after_words(seconds, line.time));
                page.extend(sent.map(|sent| format!("  Retry-After {sent}")));
                page.extend(source.map(|source| format!("  {source}")));
                if line.limits.is_empty() {
                    page.extend(self.level(policy, rule, cost, &bucket.to_string(), config)?);
                }
            }
            (Some(policy), rule, ..) => {
                let by = match rule {
                    Some(rule) => format!("{policy}/{rule}"),
                    None => format!("{policy}, none of whose rules applied"),
                };
                let position = self.denier_position(policy, rule.as_deref(), config);
                page.extend([format!("by {by}  {position}"), "  no bucket is charged".to_owned()]);
            }
            _ => page.push("no limit was checked".to_owned()),
        }
        for limit in &line.limits {
            page.push(limit_line(limit, &self.position(&limit.policy, &limit.rule, config)));
            page.extend(self.level(&limit.policy, &limit.rule, limit.cost, &limit.bucket.to_string(), config)?);
        }
        page.extend(used(line));
        for (attribute, value) in &line.attributes {
            for name in value.elements() {
                let text = spelt(attribute, *name, config).map_or_else(String::new, |text| format!("  {text}"));
                page.push(format!("{attribute}  {name}{text}"));
            }
        }
        for (attribute, value) in &line.values {
            let texts = value.elements().iter().map(|text| QuotedText(text.text().as_bytes()));
            page.extend(texts.map(|text| format!("{attribute}  {text}")));
        }
        Ok(page)
    }

    /// Returns the position of the rule in the current file.
    fn position(&self, policy: &str, limit: &str, config: &Config) -> String {
        let found = bucket_lookup::find(config, &format!("{policy}/{limit}"));
        self.position_of(found.ok().map(|(_, rule)| rule.position))
    }

    fn denier_position(&self, policy: &str, rule: Option<&str>, config: &Config) -> String {
        let policy = config.rules.source().policies.iter().find(|known| known.name == policy);
        self.position_of(policy.and_then(|policy| match rule {
            Some(rule) => policy.rules.iter().find(|known| known.name == rule).map(|rule| rule.position),
            None => Some(policy.position),
        }))
    }

    fn position_of(&self, position: Option<Position>) -> String {
        let file = self.file.display();
        match position {
            Some(position) => format!("{file}:{}", position.line),
            None => format!("(not in {file} any more)"),
        }
    }

    /// Returns the current level of the bucket, if levels are to be read.
    fn level(
        &self,
        policy: &str,
        limit: &str,
        cost: Cost,
        name: &str,
        config: &Config,
    ) -> Result<Option<String>, Failure> {
        let Some(backend) = &self.backend else { return Ok(None) };
        let Some(OwnNumbers { algorithm, format, by_default }) = own_numbers(policy, limit, config) else {
            return Ok(None);
        };
        // A full bucket is not stored, nor is a purse that has not heard of home for long.
        let Some(key) = bucket::found(backend, config, name)? else {
            if matches!(algorithm, Algorithm::Purse(_)) {
                return Ok(Some(format!("  now: no purse of this region ({backend})")));
            }
            return Ok(Some(format!("  now: full, or gone ({backend})")));
        };
        let levels = backend.read(&[key])?;
        let level = levels.bucket(&key, &algorithm, cost);
        let BucketLevel { wait, raised, .. } = level;
        let passes = match wait {
            Some(wait) if wait.0 > 0 && algorithm.slots().is_some() => ", passes when a request ends".to_owned(),
            Some(wait) if wait.0 > 0 => {
                let moment = levels.at.date.plus(wait);
                let printed = || algorithm.print_end(moment).unwrap_or_else(|| Date(moment).to_string());
                format!(", passes in {}", WaitingTime(wait).with_end_if_long(printed))
            }
            _ if level.purse.is_some_and(|purse| purse.asks_home) => ", asks home first".to_owned(),
            _ => String::new(),
        };
        let most = format.of(algorithm.raised(raised).ceiling());
        let left = level.remaining().map_or_else(|| "unknown".to_owned(), |left| format.of(left).to_string());
        let period = algorithm.period(levels.state(&key).as_deref(), levels.at.of(&algorithm));
        let until = period.and_then(|period| algorithm.print_end(period.end));
        let until = until.map_or_else(String::new, |until| format!(" until {until}"));
        Ok(Some(format!("  now: {left} left of {most}{by_default}{until}{passes} ({})", levels.from)))
    }
}

/// Returns how the amounts of a logged limit are displayed.
fn format_of(unit: Option<MoneyUnit>) -> AmountFormat {
    match unit {
        Some(MoneyUnit::UsdMillionths) => AmountFormat::Dollars,
        None => AmountFormat::Number,
    }
}

/// Describes the tokens that a language model has used for a request, and their cost. `None` for other requests.
fn used(line: &Line<'_>) -> Option<String> {
    let LoggedUsage { input, output, cached, cache_write, estimated } = line.usage?;
    let model = line.model.as_deref().unwrap_or("a model that the response does not name");
    let estimated = if estimated { ", an estimate" } else { "" };
    let price = line.price.as_ref().map_or_else(String::new, |price| {
        let LoggedPrice { model, line, usd, of_asked } = price;
        let of_asked = if *of_asked { ", of the model that was asked for" } else { "" };
        format!("; {usd} USD by line {line} of the prices ({model}{of_asked})")
    });
    Some(format!(
        "used {input} tokens of input, {output} of output, {cached} cached, {cache_write} written to a cache, by {model}\
         {estimated}{price}"
    ))
}

fn limit_line(limit: &LoggedLimit<'_>, position: &str) -> String {
    let LoggedLimit { policy, rule, mode, verdict, cost, settled, remaining, unit, bucket } = limit;
    let verdict = match verdict {
        Verdict::Allow => "could pay",
        Verdict::Deny => "SHORT",
        Verdict::Held => "HELD by other requests",
        Verdict::Banned => "BANNED",
        Verdict::Never => "can never pay this",
        Verdict::Unasked => "not asked",
    };
    let shadow = if *mode == Mode::Shadow { "  shadow" } else { "" };
    let shown = |amount: Cost| format_of(*unit).of(amount);
    let left = remaining.map_or_else(String::new, |left| format!(", {} left", shown(left)));
    let cost = match settled {
        Some(settled) => format!("reserved {}, cost {}", shown(*cost), shown(*settled)),
        None => format!("cost {}", shown(*cost)),
    };
    format!("limit {policy}/{rule}{shadow}  {verdict}: {cost}{left}; bucket {bucket}  {position}")
}

/// The numbers of a limit without overrides and credentials.
struct OwnNumbers {
    algorithm: Algorithm,
    /// How the amounts are displayed.
    format: AmountFormat,
    /// A text that is printed after the numbers.
    by_default: &'static str,
}

/// Returns the limit's own numbers.
fn own_numbers(policy: &str, limit: &str, config: &Config) -> Option<OwnNumbers> {
    let (_, rule) = bucket_lookup::find(config, &format!("{policy}/{limit}")).ok()?;
    let Action::Charge(limits) = &rule.action else { return None };
    let is_it = |name: &str| limit == rule.name || limit == format!("{}.{name}", rule.name);
    let limit = limits.iter().find(|each| is_it(&each.name))?;
    let by_default = if limit.claimed.is_some() { " by default" } else { "" };
    let format = match &limit.price {
        Price::Settled(price) => price.unit().format(),
        Price::Fixed(_) | Price::FromRequest { .. } => AmountFormat::Number,
    };
    Some(OwnNumbers { algorithm: limit.algorithm, format, by_default })
}

/// Returns the possible reasons why the request is not in the log.
fn hint(config: &Config, are_of_file: bool) -> String {
    let rotated = "older requests may be in a log that was rotated away";
    if !are_of_file {
        return rotated.to_owned();
    }
    let Some(log) = &config.access_log else { return format!("the file has no `access_log`; {rotated}") };
    let missing: Vec<&str> = Kind::ALL.iter().filter(|kind| !log.when.contains(kind)).map(|kind| word(*kind)).collect();
    match missing.is_empty() {
        true => rotated.to_owned(),
        false => format!("`access_log.when` leaves out {}; {rotated}", missing.join(", ")),
    }
}

/// Returns the word for a kind of request in the report.
fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::Allowed => "allowed",
        Kind::Refused => "refused",
        Kind::Error => "error",
    }
}

/// Returns the value of a pseudonym, if the file names this value.
fn spelt(attribute: &str, name: Pseudonym, config: &Config) -> Option<String> {
    let source = config.rules.source();
    let rules = source.policies.iter().flat_map(|policy| &policy.rules);
    let of_rules = rules.flat_map(|rule| &rule.conditions);
    let of_policies = source.policies.iter().flat_map(|policy| &policy.conditions);
    let conditions = of_policies.chain(of_rules).filter(|condition| condition.attribute.to_string() == attribute);
    let mut texts = conditions.flat_map(|condition| match &condition.expectation {
        Expectation::AnyOf(texts) | Expectation::Not(texts) => texts.as_slice(),
        _ => &[],
    });
    texts.find_map(|text| match text {
        Text::Exact(text) if config.hash_key.value(attribute, text) == name => Some(QuotedText(text).to_string()),
        _ => None,
    })
}

/// Opens a log. The first bytes show whether it is compressed.
fn open(log: &Path) -> std::io::Result<Box<dyn BufRead>> {
    if log.as_os_str() == "-" {
        return Ok(Box::new(BufReader::with_capacity(1 << 16, std::io::stdin())));
    }
    let mut reader = BufReader::with_capacity(1 << 16, File::open(log)?);
    let compressed = reader.fill_buf()?.starts_with(&[0x1f, 0x8b]);
    Ok(if compressed { Box::new(BufReader::new(MultiGzDecoder::new(reader))) } else { Box::new(reader) })
}
