//! Formats the levels of buckets before and after a change, as text and as JSON.

use serde_json::{Value, json};

use super::bucket_levels::{Bucket, Levels};
use super::bucket_lookup::{BucketSelection, Limit};
use base::pseudonym::PseudonymKey;
use base::time::{Micros, Timestamp};
use config::Config;
use ledger::algorithm::Algorithm;
use ledger::algorithm::ban::BanPeriod;
use ledger::algorithm::concurrency::Holder;
use ledger::bucket_key::BucketKey;
use ledger::cost::Cost;
use rules::explanation::Date;
use rules::rule::Mode;
use stores::memory::{PREVIOUS_PROCESS, PROCESS};

/// Returns the name of a bucket in the access log. If the key of the pseudonyms is not known, a text that says so.
pub(crate) fn bucket_name(names: &PseudonymKey, key: &BucketKey) -> String {
    match names.is_known() {
        true => names.bucket(&key.0).to_string(),
        false => "(hash_key is not known)".to_owned(),
    }
}

/// The change that a bucket command makes to buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    None,
    Reset,
    /// Gives back to each bucket up to this amount of what is spent.
    GiveBack(Cost),
}

/// The result of a bucket command: the change, and the levels of the buckets before the change.
#[derive(Debug)]
pub(crate) struct BucketReport<'c> {
    pub config: &'c Config,
    pub change: Change,
    pub before: Levels,
    /// The levels after an amount was given back. `None` for any other change.
    pub after: Option<Levels>,
}

impl BucketReport<'_> {
    pub(crate) fn lines(&self, chosen: &[BucketSelection]) -> Vec<String> {
        let mut lines: Vec<String> = chosen.iter().flat_map(|chosen| self.describe(chosen)).collect();
        let from = &self.before.from;
        let seen = match self.config.store.is_shared() {
            true => "; a gateway that has just refused by it reads it again within a second",
            false => "",
        };
        lines.push(match self.change {
            Change::None => format!("read from {from}"),
            Change::Reset => format!("full from now on, in {from}{seen}"),
            Change::GiveBack(_) => format!("given back in {from}{seen}"),
        });
        lines
    }

    fn describe(&self, chosen: &BucketSelection) -> Vec<String> {
        let name = bucket_name(&self.config.hash_key, &chosen.key);
        let Some(limit) = &chosen.limit else {
            let kept = if self.before.state(&chosen.key).is_some() { "something is spent" } else { "full" };
            return vec![match self.change {
                Change::Reset => format!("bucket {name}  was: {kept}"),
                Change::None | Change::GiveBack(_) => {
                    format!("bucket {name}  {kept}; name the RULE to see how much is left")
                }
            }];
        };
        let most = limit.algorithm.ceiling();
        let shadow = if limit.mode == Mode::Shadow { "  shadow" } else { "" };
        let meter = limit.meter.as_ref().map_or_else(String::new, |meter| format!(" of meter {meter}"));
        let overridden = if limit.overridden { " (override)" } else { "" };
        let claimed = limit.claimed.as_deref().map_or_else(String::new, |claimed| format!("; {claimed}"));
        let of = chosen.of.as_deref().map_or_else(String::new, |of| format!("  {of}"));
        let head = format!(
            "{}/{}{shadow}{of}  {}{overridden}{claimed}  bucket {name}{meter}",
            limit.policy,
            limit.name,
            limit.algorithm.display(limit.unit.format())
        );
        let shown = |amount| limit.unit.amount(amount);
        let (most, left) = (shown(most), self.before.bucket(&chosen.key, &limit.algorithm, limit.cost));
        let left = shown(left.untouched.remaining);
        let level = match (self.change, &self.after) {
            (Change::None, _) => self.level(chosen, limit),
            (Change::GiveBack(amount), Some(after)) => {
                let now = after.bucket(&chosen.key, &limit.algorithm, limit.cost).untouched.remaining;
                let now = shown(now);
                let holds = format!("{now} left of {most}, had {left}");
                let (given, spent) = (self.given_back(chosen, limit, after), self.spent(chosen, limit));
                match given.thousandths() {
                    0 if spent == Cost::default() => format!("nothing is spent: {now} left of {most}"),
                    // Nothing could be given back, although something is spent. So the state is invalid, and counts as
                    // an empty bucket.
                    0 => "its state is invalid and counts as empty: `tollgate bucket reset` makes it full".to_owned(),
                    _ if given < amount => {
                        format!("gave back {}, which is all that was spent: {holds}", shown(given))
                    }
                    _ => format!("gave back {}: {holds}", shown(given)),
                }
            }
            (Change::Reset | Change::GiveBack(_), _) => format!("held {left} of {most}"),
        };
        let ban = self.before.ban(&chosen.key, &limit.algorithm).map(|banned| self.ban(banned, limit));
        let holders = if self.change == Change::None { self.holders(chosen, limit) } else { Vec::new() };
        let holders = holders.into_iter().map(|Holder { owner, held, since }| {
            let gateway = match owner {
                PROCESS => "this gateway".to_owned(),
                PREVIOUS_PROCESS => "the previous process".to_owned(),
                owner => format!("gateway {owner}"),
            };
            format!("    {gateway} holds {} since {}", shown(held), Date(since))
        });
        [head, format!("  {level}")].into_iter().chain(ban).chain(holders).collect()
    }

    /// Returns a line about the ban of a bucket, before the change.
    fn ban(&self, BanPeriod { end, step }: BanPeriod, limit: &Limit) -> String {
        let wait = end.since(self.before.at.of(&limit.algorithm));
        match (wait, self.change) {
            (Micros(0), _) => format!("    ban {step} is over, and is remembered"),
            (wait, Change::Reset) => format!("    ban {step} would have ended in {}s", wait.ceil_seconds()),
            (wait, _) => {
                let until = Date(self.before.at.date.plus(wait));
                format!("    banned until {until}, in {}s, by ban {step}", wait.ceil_seconds())
            }
        }
    }

    /// Returns the gateways that hold something of a bucket. Empty if nothing can be held under the limit.
    fn holders(&self, chosen: &BucketSelection, limit: &Limit) -> Vec<Holder> {
        let state = self.before.state(&chosen.key);
        limit.algorithm.holders(state.as_deref(), self.before.at.of(&limit.algorithm))
    }

    fn level(&self, chosen: &BucketSelection, limit: &Limit) -> String {
        let Bucket { untouched, wait, delay } = self.before.bucket(&chosen.key, &limit.algorithm, limit.cost);
        if limit.algorithm.slots().is_some() {
            let held = self.spent(chosen, limit);
            return format!("{held} of {} held, {} free", limit.algorithm.ceiling(), untouched.remaining);
        }
        let shown = |amount| limit.unit.amount(amount);
        let cost = shown(limit.cost);
        let books = match limit.algorithm.is_held() {
            true => {
                let [spent, held] = [self.spent(chosen, limit), self.held(chosen, limit, &self.before)].map(shown);
                format!("{spent} spent, {held} held, ")
            }
            false => String::new(),
        };
        let full = match untouched.reset_after {
            Micros(0) => "full".to_owned(),
            after => {
                let moment = self.before.at.date.plus(after);
                let printed = limit.algorithm.print_end(moment).unwrap_or_else(|| Date(moment).to_string());
                format!("full in {}s ({printed})", after.ceil_seconds())
            }
        };
        let pays = match wait {
            Some(Micros(0)) if delay > Micros(0) => {
                format!("; a request of {cost} waits {} ms", delay.0.div_ceil(1000))
            }
            Some(Micros(0)) => String::new(),
            Some(wait) => format!("; a request of {cost} passes in {}s", wait.ceil_seconds()),
            None => format!("; a request of {cost} never passes"),
        };
        let [left, most] = [untouched.remaining, limit.algorithm.ceiling()].map(shown);
        format!("{books}{left} left of {most}, {full}{pays}")
    }

    fn held(&self, chosen: &BucketSelection, limit: &Limit, levels: &Levels) -> Cost {
        let holders = limit.algorithm.holders(levels.state(&chosen.key).as_deref(), levels.at.of(&limit.algorithm));
        holders.iter().fold(Cost::default(), |sum, holder| sum.plus(holder.held))
    }

    fn spent(&self, chosen: &BucketSelection, limit: &Limit) -> Cost {
        self.before.spent(&chosen.key, &limit.algorithm)
    }

    /// Returns the amount that was given back to one bucket. `after` are the levels after the change.
    pub(crate) fn given_back(&self, chosen: &BucketSelection, limit: &Limit, after: &Levels) -> Cost {
        let left = after.spent(&chosen.key, &limit.algorithm).thousandths();
        Cost::from_thousandths(self.spent(chosen, limit).thousandths().saturating_sub(left))
    }

    pub(crate) fn document(&self, chosen: &[BucketSelection]) -> Value {
        let act = match self.change {
            Change::None => "show",
            Change::Reset => "reset",
            Change::GiveBack(_) => "grant",
        };
        let buckets: Vec<Value> = chosen.iter().map(|chosen| self.object(chosen)).collect();
        json!({"act": act, "read_from": self.before.from, "buckets": buckets})
    }

    /// Returns the JSON of a bucket. The levels are those before a reset, or those after a grant.
    fn object(&self, chosen: &BucketSelection) -> Value {
        let name = bucket_name(&self.config.hash_key, &chosen.key);
        let levels = self.after.as_ref().unwrap_or(&self.before);
        let Some(limit) = &chosen.limit else {
            return json!({"bucket": name, "kept": levels.state(&chosen.key).is_some()});
        };
        let algorithm = &limit.algorithm;
        let Bucket { untouched, wait, delay } = levels.bucket(&chosen.key, algorithm, limit.cost);
        let most = match algorithm {
            Algorithm::TokenBucket(_) => "burst",
            Algorithm::Budget(budget) if budget.limit().token_bucket().is_some() => "burst",
            // Not `limit`, because the field `limit` contains the name of the limit.
            _ => "quota",
        };
        let shown = |amount| limit.unit.amount(amount);
        let mut object = json!({
            "policy": limit.policy,
            "limit": limit.name,
            "mode": limit.mode,
            "bucket": name,
            "algorithm": algorithm.name(),
            "numbers": algorithm.display(limit.unit.format()).to_string(),
            "unit": limit.unit.name(),
            "overridden": limit.overridden,
            "meter": limit.meter,
            "claimed": limit.claimed,
            most: shown(algorithm.ceiling()),
            "spent": shown(levels.spent(&chosen.key, algorithm)),
            "left": shown(untouched.remaining),
            "full_in_us": untouched.reset_after,
            "wait_us": wait,
            "delay_us": delay,
        });
        let mut add = |key: &str, value: Value| {
            if let Some(object) = object.as_object_mut() {
                object.insert(key.to_owned(), value);
            }
        };
        if algorithm.window().is_some() {
            let period = algorithm.period(levels.state(&chosen.key).as_deref(), levels.at.of(algorithm));
            let printed = |moment: Timestamp| algorithm.print_end(moment);
            let ends = period.map(|period| json!({"begin": printed(period.begin), "end": printed(period.end)}));
            add("period", json!(ends));
            add("resets_at", json!(period.and_then(|period| printed(period.end))));
        }
        if algorithm.is_held() {
            add("held", json!(shown(self.held(chosen, limit, levels))));
            let holder = |Holder { owner, held, since }: Holder| json!({"gateway": owner.to_string(), "held": shown(held), "since": Date(since).to_string()});
            add("holders", self.holders(chosen, limit).into_iter().map(holder).collect());
        }
        if limit.algorithm.ban().is_some() {
            let banned = levels.ban(&chosen.key, algorithm);
            let wait = banned.map(|BanPeriod { end, .. }| end.since(levels.at.of(algorithm)));
            let until = wait.filter(|wait| *wait > Micros(0)).map(|wait| Date(levels.at.date.plus(wait)).to_string());
            add("ban_step", json!(banned.map(|banned| banned.step)));
            add("banned_until", json!(until));
        }
        if let Some(after) = &self.after {
            add("given_back", json!(shown(self.given_back(chosen, limit, after))));
        }
        object
    }
}
