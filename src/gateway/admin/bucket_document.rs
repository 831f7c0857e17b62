//! Formats the levels of buckets before and after a change, as JSON.

use serde_json::{Value, json};

use super::bucket_lookup::BucketSelection;
use super::bucket_report::{BucketReport, Change, bucket_name};
use base::time::{Micros, Timestamp};
use ledger::algorithm::Algorithm;
use ledger::algorithm::ban::BanPeriod;
use ledger::algorithm::concurrency::Holder;
use ledger::algorithm::raise::Raise;
use ledger::bucket_level::BucketLevel;
use rules::explanation::Date;

impl BucketReport<'_> {
    pub(crate) fn document(&self, chosen: &[BucketSelection]) -> Value {
        let act = match self.change {
            Change::None => "show",
            Change::Reset => "reset",
            Change::GiveBack(_) => "grant",
            Change::Ban(_) => "ban",
            Change::Raise(_) => "raise",
        };
        let buckets: Vec<Value> = chosen.iter().map(|chosen| self.object(chosen)).collect();
        json!({"act": act, "read_from": self.before.from, "buckets": buckets})
    }

    /// Returns the JSON of a bucket. The levels are those before a reset, or those after a grant, a ban or a raise.
    fn object(&self, chosen: &BucketSelection) -> Value {
        let name = bucket_name(&self.config.hash_key, &chosen.key);
        let levels = self.reported();
        let Some(limit) = &chosen.limit else {
            return json!({"bucket": name, "kept": levels.state(&chosen.key).is_some()});
        };
        let algorithm = &limit.algorithm;
        let level = levels.bucket(&chosen.key, algorithm, limit.cost);
        let BucketLevel { untouched, wait, delay, .. } = level;
        let most = match algorithm {
            Algorithm::TokenBucket(_) => "burst",
            Algorithm::Purse(purse) if purse.limit().token_bucket().is_some() => "burst",
            Algorithm::Home(home) if home.limit().token_bucket().is_some() => "burst",
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
            most: shown(levels.raised(&chosen.key, algorithm).ceiling()),
            "spent": level.remaining().map(|_| shown(levels.spent(&chosen.key, algorithm))),
            "left": level.remaining().map(shown),
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
        if let (Algorithm::Purse(purse), Some(held)) = (algorithm, level.purse) {
            add("purse", json!(shown(held.left)));
            add("largest_lease", json!(shown(purse.largest())));
            let now = levels.at.of(algorithm);
            add("home_heard", json!(level.home_heard.map(|heard| Date(self.past_date(heard, now)).to_string())));
            add("asks_home", json!(held.asks_home));
            if let Some((amount, end)) = self.raise_at_home(levels.state(&chosen.key).as_deref(), limit) {
                add("raises", json!([{"raise": null, "amount": shown(amount), "until": end.to_string()}]));
            }
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
        let raises = levels.raises(&chosen.key, algorithm);
        if !raises.is_empty() {
            let raise = |Raise { id, amount, end }: &Raise| {
                let until = Date(self.date_of(*end, limit)).to_string();
                json!({"raise": id.to_string(), "amount": shown(*amount), "until": until})
            };
            add("raises", raises.iter().map(raise).collect());
        }
        if let (Some(after), Change::GiveBack(_)) = (&self.after, self.change) {
            add("given_back", json!(shown(self.given_back(chosen, limit, after))));
        }
        if let (Some(after), Change::Reset) = (&self.after, self.change) {
            add("left_after", json!(after.bucket(&chosen.key, algorithm, limit.cost).remaining().map(shown)));
            if algorithm.is_held() {
                add("held_after", json!(shown(self.held(chosen, limit, after))));
            }
        }
        object
    }
}
