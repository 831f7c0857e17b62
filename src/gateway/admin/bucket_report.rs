//! Formats the levels of buckets before and after a change, as text. `bucket_document` formats them as JSON.

use super::bucket_levels::Levels;
use super::bucket_lookup::{BucketSelection, Limit};
use base::pseudonym::PseudonymKey;
use base::time::{Micros, Timestamp};
use base::waiting_time::WaitingTime;
use config::Config;
use ledger::algorithm::Algorithm;
use ledger::algorithm::ban::BanPeriod;
use ledger::algorithm::concurrency::Holder;
use ledger::algorithm::lease::{Purse, RememberedPurse};
use ledger::algorithm::raise::{Raise, RaiseId};
use ledger::bucket_key::BucketKey;
use ledger::bucket_level::BucketLevel;
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
    /// Bans each bucket for this time from now on.
    Ban(Micros),
    /// Raises the limit of one bucket, by the raise with this id.
    Raise(RaiseId),
}

/// The result of a bucket command: the change, and the levels of the buckets before the change.
#[derive(Debug)]
pub(crate) struct BucketReport<'c> {
    pub config: &'c Config,
    pub change: Change,
    pub before: Levels,
    /// The levels after the change, read again after a reset. `None` without a change.
    pub after: Option<Levels>,
}

impl BucketReport<'_> {
    pub(crate) fn lines(&self, chosen: &[BucketSelection]) -> Vec<String> {
        let mut lines: Vec<String> = chosen.iter().flat_map(|chosen| self.describe(chosen)).collect();
        let from = &self.before.from;
        let is_at_home = |chosen: &BucketSelection| {
            chosen.limit.as_ref().is_some_and(|limit| matches!(limit.algorithm, Algorithm::Home(_)))
        };
        let is_purse = |chosen: &BucketSelection| {
            chosen.limit.as_ref().is_some_and(|limit| matches!(limit.algorithm, Algorithm::Purse(_)))
        };
        let seen = match self.config.store.is_shared() {
            true if chosen.iter().any(is_at_home) => {
                "; a region that has just been refused asks again within `return_after`"
            }
            true => "; a gateway that has just refused by it reads it again within a second",
            false => "",
        };
        lines.push(match self.change {
            Change::None => format!("read from {from}"),
            Change::Reset if chosen.iter().any(|chosen| self.is_held_after(chosen)) => {
                format!("nothing is spent from now on, in {from}; what is held ends by itself{seen}")
            }
            Change::Reset if chosen.iter().all(is_purse) => {
                format!("empty from now on, in {from}: what a purse held is lost until it ends, and the next request asks home")
            }
            Change::Reset if chosen.iter().any(is_purse) => {
                let purses = "what a purse of this region held is lost until it ends, and the next request asks home";
                format!("full from now on, in {from}{seen}; {purses}")
            }
            Change::Reset => format!("full from now on, in {from}{seen}"),
            Change::GiveBack(_) => format!("given back in {from}{seen}"),
            Change::Ban(_) => format!("banned from now on, in {from}{seen}"),
            Change::Raise(_) => format!("raised in {from}{seen}"),
        });
        lines
    }

    fn describe(&self, chosen: &BucketSelection) -> Vec<String> {
        let name = bucket_name(&self.config.hash_key, &chosen.key);
        let Some(limit) = &chosen.limit else {
            let kept = if self.before.state(&chosen.key).is_some() { "something is spent" } else { "full" };
            return vec![match self.change {
                Change::Reset => format!("bucket {name}  was: {kept}"),
                Change::None | Change::GiveBack(_) | Change::Ban(_) | Change::Raise(_) => {
                    format!("bucket {name}  {kept}; name the RULE to see how much is left")
                }
            }];
        };
        let most = self.before.raised(&chosen.key, &limit.algorithm).ceiling();
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
        let (most, before) = (shown(most), self.before.bucket(&chosen.key, &limit.algorithm, limit.cost));
        let left = shown(before.untouched.remaining);
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
            (Change::Ban(_), Some(_)) => format!("{left} left of {most}"),
            (Change::Reset, _) if before.purse.is_some() => {
                format!("had {} in the purse", shown(before.purse.map(|purse| purse.left).unwrap_or_default()))
            }
            (Change::Reset, Some(after)) if self.is_held_after(chosen) => {
                let now = after.bucket(&chosen.key, &limit.algorithm, limit.cost).untouched.remaining;
                let [now, held] = [now, self.held(chosen, limit, after)].map(shown);
                format!("{now} left of {most} now, {held} held; had {left}")
            }
            (Change::Raise(_), Some(after)) => {
                let now = after.bucket(&chosen.key, &limit.algorithm, limit.cost).untouched.remaining;
                let raised = after.raised(&chosen.key, &limit.algorithm).ceiling();
                let [now, raised] = [now, raised].map(shown);
                match self.is_new_raise(chosen, limit) {
                    true => format!("{now} left of {raised}, had {left} of {most}"),
                    false => format!("it has this raise already: {now} left of {raised}"),
                }
            }
            (Change::Reset | Change::GiveBack(_) | Change::Ban(_) | Change::Raise(_), _) => {
                format!("had {left} of {most} left")
            }
        };
        let levels = match (self.change, &self.after) {
            (Change::Ban(_) | Change::Raise(_), Some(after)) => after,
            _ => &self.before,
        };
        let ban = levels.ban(&chosen.key, &limit.algorithm).map(|banned| self.ban(banned, limit));
        let holders = if self.change == Change::None { self.holders(chosen, limit) } else { Vec::new() };
        let holders = holders.into_iter().map(|Holder { owner, held, since }| {
            let gateway = match owner {
                PROCESS => "this gateway".to_owned(),
                PREVIOUS_PROCESS => "the previous process".to_owned(),
                owner if owner.is_timed() => format!("a service, by the hold {owner}"),
                owner => format!("gateway {owner}"),
            };
            format!("    {gateway} holds {} since {}", shown(held), Date(since))
        });
        let leases = if self.change == Change::None { self.leases(chosen, limit) } else { Vec::new() };
        let raises = levels.raises(&chosen.key, &limit.algorithm);
        let raises = raises.into_iter().map(|Raise { id, amount, end }| {
            format!("    raised by {} until {}, by raise {id}", shown(amount), Date(self.date_of(end, limit)))
        });
        [head, format!("  {level}")].into_iter().chain(leases).chain(raises).chain(ban).chain(holders).collect()
    }

    /// Returns a line about the ban of a bucket: the one before the change, or the one that begins with it.
    fn ban(&self, BanPeriod { end, step }: BanPeriod, limit: &Limit) -> String {
        let at = self.reported().at;
        let wait = end.since(at.of(&limit.algorithm));
        match (wait, self.change) {
            (Micros(0), _) => format!("    ban {step} is over, and is remembered"),
            (wait, Change::Reset) => {
                let ends = WaitingTime(wait).with_end_if_long(|| Date(at.date.plus(wait)).to_string());
                format!("    ban {step} would have ended in {ends}")
            }
            (wait, _) => {
                let until = Date(at.date.plus(wait));
                format!("    banned until {until}, in {}, by ban {step}", WaitingTime(wait))
            }
        }
    }

    /// Returns the date of a moment on the clock by which this limit is charged.
    pub(super) fn date_of(&self, moment: Timestamp, limit: &Limit) -> Timestamp {
        let at = self.before.at;
        at.date.plus(moment.since(at.of(&limit.algorithm)))
    }

    /// Returns the date of a moment before `now` on the clock of the bucket.
    pub(super) fn past_date(&self, moment: Timestamp, now: Timestamp) -> Timestamp {
        Timestamp(self.before.at.date.0.saturating_sub(now.since(moment).0))
    }

    /// Returns the sum of the raises at home, as a purse has last heard, and the date on which the first of them ends. It is rounded up to
    /// a whole second, because a purse counts from the moment at which it asked.
    pub(super) fn raise_at_home(&self, state: Option<&[u64]>, limit: &Limit) -> Option<(Cost, Date)> {
        let (amount, end) = Purse::raise(state, self.before.at.of(&limit.algorithm))?;
        let second = Micros(self.date_of(end, limit).0).ceil_seconds().saturating_mul(1_000_000);
        Some((amount, Date(Timestamp(second))))
    }

    /// Returns whether the change has raised the bucket. It has not if the bucket had this raise before.
    fn is_new_raise(&self, chosen: &BucketSelection, limit: &Limit) -> bool {
        let Change::Raise(id) = self.change else { return false };
        self.before.raises(&chosen.key, &limit.algorithm).iter().all(|raise| raise.id != id)
    }

    /// Returns the gateways that hold something of a bucket. Empty if nothing can be held under the limit.
    pub(super) fn holders(&self, chosen: &BucketSelection, limit: &Limit) -> Vec<Holder> {
        let state = self.before.state(&chosen.key);
        limit.algorithm.holders(state.as_deref(), self.before.at.of(&limit.algorithm))
    }

    /// Returns lines about what regions have leased of a limit over several regions. Empty for other limits.
    fn leases(&self, chosen: &BucketSelection, limit: &Limit) -> Vec<String> {
        let (state, now) = (self.before.state(&chosen.key), self.before.at.of(&limit.algorithm));
        let shown = |amount| limit.unit.amount(amount);
        match &limit.algorithm {
            Algorithm::Purse(purse) => {
                let left = purse.left(state.as_deref(), now);
                let level = self.before.bucket(&chosen.key, &limit.algorithm, limit.cost);
                let heard = level.home_heard.map(|heard| Date(self.past_date(heard, now)));
                let heard = match (heard, level.remaining()) {
                    (None, _) => "home was never heard".to_owned(),
                    (Some(heard), Some(known)) => format!("{} at home, as heard at {heard}", shown(known.less(left))),
                    (Some(heard), None) => format!("home was last heard at {heard}, which says nothing of now"),
                };
                let [left, largest] = [left, purse.largest()].map(shown);
                let purse_line =
                    format!("    {left} in the purse of this region, which holds up to {largest}; {heard}");
                let raise = self.raise_at_home(state.as_deref(), limit);
                let raise = raise.map(|(amount, end)| format!("    raised by {} at home until {end}", shown(amount)));
                [purse_line].into_iter().chain(raise).collect()
            }
            Algorithm::Home(home) => {
                let purses =
                    home.purses(state.as_deref(), now).into_iter().filter(|purse| purse.held > Cost::default());
                let line = |RememberedPurse { held, ends, .. }| {
                    let until = Date(self.date_of(ends, limit));
                    format!("    a region holds up to {} until {until}", shown(held))
                };
                purses.map(line).collect()
            }
            _ => Vec::new(),
        }
    }

    fn level(&self, chosen: &BucketSelection, limit: &Limit) -> String {
        let level = self.before.bucket(&chosen.key, &limit.algorithm, limit.cost);
        let BucketLevel { untouched, wait, delay, .. } = level;
        if limit.algorithm.slots().is_some() {
            let held = self.spent(chosen, limit);
            let most = self.before.raised(&chosen.key, &limit.algorithm).ceiling();
            return format!("{held} of {most} held, {} free", untouched.remaining);
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
                format!("full in {} ({printed})", WaitingTime(after))
            }
        };
        let pays = match wait {
            Some(Micros(0)) if delay > Micros(0) => {
                format!("; a request of {cost} waits {} ms", delay.0.div_ceil(1000))
            }
            Some(Micros(0)) if level.purse.is_some_and(|purse| purse.asks_home) => {
                format!("; a request of {cost} asks home first")
            }
            Some(Micros(0)) => String::new(),
            // Home is known to be short. When it can pay again is not known here.
            Some(wait) if level.purse.is_some() => {
                format!("; a request of {cost} asks home again in {}", WaitingTime(wait))
            }
            Some(wait) => {
                let moment = self.before.at.date.plus(wait);
                let printed = || limit.algorithm.print_end(moment).unwrap_or_else(|| Date(moment).to_string());
                format!("; a request of {cost} passes in {}", WaitingTime(wait).with_end_if_long(printed))
            }
            None => format!("; a request of {cost} never passes"),
        };
        let most = shown(self.before.raised(&chosen.key, &limit.algorithm).ceiling());
        match level.remaining().map(shown) {
            Some(left) => format!("{books}{left} left of {most}, {full}{pays}"),
            None => format!("what is left of {most} is not known{pays}"),
        }
    }

    pub(super) fn held(&self, chosen: &BucketSelection, limit: &Limit, levels: &Levels) -> Cost {
        let holders = limit.algorithm.holders(levels.state(&chosen.key).as_deref(), levels.at.of(&limit.algorithm));
        holders.iter().fold(Cost::default(), |sum, holder| sum.plus(holder.held))
    }

    /// Returns the levels that are reported: those before a reset, or those after any other change.
    pub(super) fn reported(&self) -> &Levels {
        self.after.as_ref().filter(|_| self.change != Change::Reset).unwrap_or(&self.before)
    }

    /// Returns whether something is still held of a bucket after the change.
    fn is_held_after(&self, chosen: &BucketSelection) -> bool {
        let (Some(limit), Some(after)) = (&chosen.limit, &self.after) else { return false };
        self.held(chosen, limit, after) > Cost::default()
    }

    fn spent(&self, chosen: &BucketSelection, limit: &Limit) -> Cost {
        self.before.spent(&chosen.key, &limit.algorithm)
    }

    /// Returns the amount that was given back to one bucket. `after` are the levels after the change.
    pub(crate) fn given_back(&self, chosen: &BucketSelection, limit: &Limit, after: &Levels) -> Cost {
        let left = after.spent(&chosen.key, &limit.algorithm).thousandths();
        Cost::from_thousandths(self.spent(chosen, limit).thousandths().saturating_sub(left))
    }
}

/// What the log says about a raise.
pub(crate) struct LoggedRaise<'c> {
    pub limit: &'c Limit,
    pub bucket: String,
    pub amount: String,
    pub until: String,
    /// The burst or limit before and after.
    pub before: String,
    pub after: String,
}

impl<'c> LoggedRaise<'c> {
    /// Describes the raise that the report is about. `None` if the bucket had it before.
    pub(crate) fn of(report: &BucketReport<'_>, chosen: &'c [BucketSelection]) -> Option<LoggedRaise<'c>> {
        let Change::Raise(id) = report.change else { return None };
        let (chosen, after) = (chosen.first()?, report.after.as_ref()?);
        let limit = chosen.limit.as_ref().filter(|limit| report.is_new_raise(chosen, limit))?;
        let Raise { amount, end, .. } =
            after.raises(&chosen.key, &limit.algorithm).into_iter().find(|raise| raise.id == id)?;
        let shown = |amount| limit.unit.amount(amount).to_string();
        let most = |levels: &Levels| shown(levels.raised(&chosen.key, &limit.algorithm).ceiling());
        Some(LoggedRaise {
            limit,
            bucket: bucket_name(&report.config.hash_key, &chosen.key),
            amount: shown(amount),
            until: Date(report.date_of(end, limit)).to_string(),
            before: most(&report.before),
            after: most(after),
        })
    }
}
