//! Parses an operator's request to raise the limit of one bucket, and computes the bucket's new state.

use std::cell::RefCell;

use serde::{Deserialize, Serialize};

use super::bucket_lookup::{self, BucketSelection, Limit, LookupError};
use base::rfc3339;
use base::time::Timestamp;
use ledger::algorithm::raise::{MOST_RAISES, Raise, RaiseError, RaiseId};
use ledger::algorithm::{Algorithm, Entry};
use ledger::bucket_key::BucketKey;
use ledger::cost::Cost;
use ledger::store_time::StoreTime;
use request::matcher::QuotedText;
use rules::explanation::Date;
use rules::rule::Mode;
use stores::memory::Memory;
use stores::{Fault, GivenBack, Inspector};

/// The longest id of a raise, and the longest reason, in bytes.
const LONGEST_ID: usize = 128;
const LONGEST_REASON: usize = 1024;

/// The last moment at which a raise can end, in microseconds since 1970: in the year 2255.
const LAST_END: u64 = (1 << 53) - 1;

/// The word for the end of the running period.
const PERIOD_END: &str = "period-end";

/// A request to raise the limit of a bucket, as the operator has written it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RaiseArguments {
    /// The amount, with a sign: `+500`.
    pub amount: String,
    /// `period-end`, or a date and time.
    pub until: String,
    pub id: String,
    pub reason: Option<String>,
}

/// When a raise ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    PeriodEnd,
    Moment(Timestamp),
}

/// A valid request to raise the limit of one bucket.
#[derive(Debug)]
pub(crate) struct RaiseRequest {
    pub key: BucketKey,
    pub id: RaiseId,
    limit: Limit,
    amount: Cost,
    until: Until,
}

impl RaiseArguments {
    /// Parses the end of the raise. Checks everything that does not depend on the limit.
    ///
    /// # Errors
    /// When an argument is invalid.
    pub(crate) fn until(&self) -> Result<Until, LookupError> {
        let is_clean = |text: &str| !text.contains(|character: char| character.is_control());
        if self.id.is_empty() || self.id.len() > LONGEST_ID || !is_clean(&self.id) {
            let id = QuotedText(self.id.as_bytes());
            return Err(format!("--id: must be 1 to {LONGEST_ID} bytes without control characters, is {id}").into());
        }
        if let Some(reason) = self.reason.as_ref().filter(|reason| reason.len() > LONGEST_REASON || !is_clean(reason)) {
            let (most, is) = (LONGEST_REASON, reason.len());
            return Err(format!("--reason: must be at most {most} bytes without control characters, has {is}").into());
        }
        self.unsigned()?;
        if self.until == PERIOD_END {
            return Ok(Until::PeriodEnd);
        }
        let moment = rfc3339::parse(&self.until).and_then(|moment| u64::try_from(moment).ok());
        moment.filter(|moment| *moment <= LAST_END).map(|moment| Until::Moment(Timestamp(moment))).ok_or_else(|| {
            let is = QuotedText(self.until.as_bytes());
            format!("--until: must be {PERIOD_END}, or a date and time like 2026-12-01T00:00:00Z before 2255; is {is}")
                .into()
        })
    }

    /// Returns the amount without its sign.
    fn unsigned(&self) -> Result<&str, LookupError> {
        let digits = self.amount.strip_prefix('+').filter(|digits| digits.starts_with(|c: char| c.is_ascii_digit()));
        digits.ok_or_else(|| {
            let is = QuotedText(self.amount.as_bytes());
            format!("+N: must be a + and an amount, after the values of the limit keys; is {is}").into()
        })
    }
}

impl RaiseRequest {
    /// Checks the arguments for these buckets. `name` is the name of the rule on the command line. Also returns the only bucket
    /// that it can mean: of its limits in force, without numbers on trial.
    ///
    /// # Errors
    /// When an argument is invalid, or the name does not mean exactly one bucket whose limit can be raised.
    pub(crate) fn new(
        arguments: &RaiseArguments,
        name: &str,
        mut chosen: Vec<BucketSelection>,
    ) -> Result<(RaiseRequest, Vec<BucketSelection>), LookupError> {
        let until = arguments.until()?;
        let is_enforced =
            |chosen: &BucketSelection| chosen.limit.as_ref().is_some_and(|limit| limit.mode == Mode::Enforce);
        if chosen.iter().any(is_enforced) {
            chosen.retain(is_enforced);
        }
        let first = chosen.first().and_then(|chosen| Some((chosen.key, chosen.limit.clone()?)));
        let (key, limit) = first.ok_or_else(|| LookupError::from(format!("{name} charges no bucket")))?;
        if chosen.iter().any(|other| other.key != key) {
            let names: Vec<&str> = chosen.iter().filter_map(|chosen| Some(&*chosen.limit.as_ref()?.name)).collect();
            return Err(format!("{name} has several limits: name one of {}", names.join(", ")).into());
        }
        bucket_lookup::not_at_home(&chosen)?;
        if until == Until::PeriodEnd && limit.algorithm.window().is_none() {
            let algorithm = limit.algorithm.name();
            let what = format!("--until: {PERIOD_END} is for a fixed_window, and {} is a {algorithm}", limit.name);
            return Err(LookupError { what, hint: Some("give a date and time like 2026-12-01T00:00:00Z".to_owned()) });
        }
        if matches!(limit.algorithm, Algorithm::LeakyBucket(_)) {
            return Err(format!("{} is a leaky_bucket, which has no burst and no limit to raise", limit.name).into());
        }
        let amount = bucket_lookup::amount_of("+N", arguments.unsigned()?, &chosen)?;
        Ok((RaiseRequest { key, id: RaiseId::of(&arguments.id), limit, amount, until }, chosen))
    }

    /// Returns the new entry of the bucket. `None` if the bucket has the raise already.
    ///
    /// # Errors
    /// When the bucket cannot get the raise.
    pub(crate) fn entry(&self, state: Option<&[u64]>, now: Timestamp) -> Result<Option<Entry>, LookupError> {
        let algorithm = &self.limit.algorithm;
        let end = match self.until {
            Until::Moment(moment) => moment,
            Until::PeriodEnd => algorithm.period(state, now).map(|period| period.end).ok_or_else(|| LookupError {
                what: format!("--until: no period of {} runs: its first request begins one", self.limit.name),
                hint: Some("give a date and time like 2026-12-01T00:00:00Z".to_owned()),
            })?,
        };
        let shown = |amount| self.limit.unit.amount(amount);
        algorithm.set_raise(state, Raise { id: self.id, amount: self.amount, end }, now).map_err(|error| match error {
            RaiseError::LeakyBucket => format!("{} is a leaky_bucket, and cannot be raised", self.limit.name).into(),
            RaiseError::Ended => {
                format!("--until: must be in the future, is {}, and it is {} there", Date(end), Date(now)).into()
            }
            RaiseError::OtherNumbers(Raise { amount, end, .. }) => {
                let known = format!("+{} until {}", shown(amount), Date(end));
                format!("--id: a raise of this bucket with this id is {known}: another raise needs another id").into()
            }
            RaiseError::TooMany => {
                let what = format!("{MOST_RAISES} raises of this bucket run, which is the most that it can have");
                LookupError { what, hint: Some("`tollgate bucket show` says when they end".to_owned()) }
            }
            RaiseError::TooLarge { largest } => {
                let [largest, is] = [largest, self.amount].map(shown);
                format!("+N: must be at most {largest}, so that {} stays exact; is {is}", self.limit.name).into()
            }
        })
    }

    /// Raises the bucket in the memory of this process.
    ///
    /// # Errors
    /// When the bucket cannot get the raise.
    pub(crate) fn raise_in_memory(&self, memory: &Memory) -> Result<(StoreTime, Vec<GivenBack>), LookupError> {
        let Limit { algorithm, tag, .. } = &self.limit;
        let mut refused = None;
        let (at, changed) = memory.change(&self.key, *tag, |state, time| {
            self.entry(state, time.of(algorithm)).unwrap_or_else(|error| {
                refused = Some(error);
                None
            })
        });
        refused.map_or(Ok((at, vec![changed])), Err)
    }

    /// Raises the bucket in a shared store.
    ///
    /// # Errors
    /// When the store gives no answer.
    pub(crate) async fn raise_in(
        &self,
        look: &mut Inspector,
    ) -> Result<Result<(Timestamp, Vec<GivenBack>), LookupError>, Fault> {
        let older = look.count_gateways_without_raises().await?;
        if older > 0 {
            let what = format!("{older} of the running gateways cannot read raises, and would empty the bucket");
            let hint = "update all gateways; one that has ended counts for 7 seconds more".to_owned();
            return Ok(Err(LookupError { what, hint: Some(hint) }));
        }
        let refused = RefCell::new(None);
        let entry = |_: &BucketKey, state: Option<&[u64]>, now: Timestamp| {
            self.entry(state, now).unwrap_or_else(|error| {
                refused.replace(Some(error));
                None
            })
        };
        let changed = look.change(&[self.key], &entry).await?;
        Ok(refused.into_inner().map_or(Ok(changed), Err))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::time::{Clock, Micros};
    use ledger::algorithm::fixed_window::{FixedWindow, Window};
    use ledger::bucket_key::LimitTag;
    use rules::settled_price::Unit;
    use stores::memory::Settings;

    const MINUTE: u64 = 60_000_000;
    const KEY: BucketKey = BucketKey([1; 16]);

    fn limit(window: u64) -> Limit {
        Limit {
            policy: "plan".to_owned(),
            name: "free".to_owned(),
            mode: Mode::Enforce,
            algorithm: Algorithm::FixedWindow(FixedWindow::new(5, Window::Epoch(Micros(window))).unwrap()),
            unit: Unit::Requests,
            cost: Cost::ONE,
            overridden: false,
            claimed: None,
            meter: None,
            tag: LimitTag(1),
        }
    }

    #[test]
    fn an_id_is_known_until_its_raise_ends_so_period_end_raises_each_period_once() {
        let clock = Clock::manual(Timestamp(10 * MINUTE));
        let memory = Memory::new(&Settings::default(), clock.clone());
        let raise = |limit: &Limit, tokens: u64, until: Until| {
            let amount = Cost::from_tokens(tokens);
            let request = RaiseRequest { key: KEY, id: RaiseId::of("t1"), limit: limit.clone(), amount, until };
            let raised = request.raise_in_memory(&memory).map(|(_, changed)| changed[0].before != changed[0].after);
            raised.map_err(|error| error.what)
        };
        let ends = || {
            let (_, found) = memory.change(&KEY, LimitTag(1), |_, _| None);
            let raises = limit(MINUTE).algorithm.raises(found.before.as_deref(), clock.now());
            raises.into_iter().map(|raise| (raise.amount.whole(), raise.end.0 / MINUTE)).collect::<Vec<_>>()
        };
        let minute = limit(MINUTE);
        assert_eq!(raise(&minute, 3, Until::PeriodEnd), Ok(true));
        // In the last microsecond of the period it is still the same raise, with whichever word it is asked for.
        clock.set(Timestamp(11 * MINUTE - 1));
        assert_eq!(raise(&minute, 3, Until::PeriodEnd), Ok(false));
        assert_eq!(raise(&minute, 3, Until::Moment(Timestamp(11 * MINUTE))), Ok(false));
        assert_eq!(ends(), [(3, 11)]);
        // Other numbers: an amount, a moment, and the end of a longer period after a change of the window.
        for refused in [
            raise(&minute, 4, Until::PeriodEnd),
            raise(&minute, 3, Until::Moment(Timestamp(12 * MINUTE))),
            raise(&limit(60 * MINUTE), 3, Until::PeriodEnd),
        ] {
            let what = refused.unwrap_err();
            assert!(
                what.starts_with("--id: a raise of this bucket with this id is +3 until 1970-01-01T00:11:00Z"),
                "{what}"
            );
        }
        // At the border the raise has ended, and its id is free: one more raise, until the end of the new period.
        clock.set(Timestamp(11 * MINUTE));
        assert_eq!(ends(), []);
        assert_eq!(
            raise(&minute, 3, Until::Moment(Timestamp(11 * MINUTE))).unwrap_err().split(',').next(),
            Some("--until: must be in the future")
        );
        assert_eq!(raise(&minute, 4, Until::PeriodEnd), Ok(true));
        assert_eq!(raise(&minute, 4, Until::PeriodEnd), Ok(false));
        assert!(raise(&minute, 3, Until::PeriodEnd).is_err());
        assert_eq!(ends(), [(4, 12)]);
    }
}
