//! Computes what a bucket holds from its stored state, without charging it.

use crate::algorithm::ban::BanPeriod;
use crate::algorithm::lease::purse::ASK_HOME;
use crate::algorithm::{Algorithm, ChargeResult, Level, Period, State, budget};
use crate::cost::Cost;
use crate::holds::report::{LIFE, Owner, Report, SettledSums};
use base::time::{Micros, Timestamp};

/// An owner that is no gateway and holds no slots. The steps with which levels are computed need an owner.
const READER: Owner = Owner(u64::MAX);

/// What a bucket holds at one moment, and when it can pay for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketLevel {
    /// The amount that is spent. In a bucket of slots, the slots that requests hold.
    pub spent: Cost,
    /// The amount that requests in flight hold of a budget. Zero for other limits.
    pub held: Cost,
    /// By how much raises enlarge the burst or limit.
    pub raised: Cost,
    pub untouched: Level,
    /// The time until the bucket can pay for the request. Zero if the bucket can pay now, `None` if the bucket can never pay.
    pub wait: Option<Micros>,
    /// The time by which the bucket delays the request if the bucket can pay now.
    pub delay: Micros,
    /// The period of a fixed window. `None` if no period runs, as for other algorithms.
    pub period: Option<Period>,
    /// The ban that runs.
    pub ban: Option<BanPeriod>,
    /// When the home of a limit over several regions was last heard. `None` if that is not known, and for other limits.
    pub home_heard: Option<Timestamp>,
    /// What this region holds of a limit over several regions. `None` for other limits, and if only the outcome of a charge is known.
    pub purse: Option<PurseLevel>,
}

/// What a region holds of a limit over several regions, and what it knows of home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PurseLevel {
    pub left: Cost,
    /// Whether what home said last says what is left there now. Otherwise the whole limit counts as left.
    pub is_home_known: bool,
    /// Whether the request asks home, because the purse cannot pay.
    pub asks_home: bool,
}

impl BucketLevel {
    /// Computes the level of a bucket at `now`, for a request of this cost. `state` is `None` for a full bucket.
    pub fn of(algorithm: &Algorithm, state: Option<&[u64]>, cost: Cost, now: Timestamp) -> BucketLevel {
        let step = algorithm.step(state_to_ask(algorithm, state, now).as_deref(), cost, now);
        let asks_home = step.charge == ChargeResult::Short { wait: ASK_HOME };
        let (wait, delay) = match step.charge {
            ChargeResult::Fits { delay, .. } => (Some(Micros(0)), delay),
            ChargeResult::Short { wait } => (Some(wait), Micros(0)),
            ChargeResult::Held => (Some(budget::WAIT), Micros(0)),
            ChargeResult::Never => (None, Micros(0)),
            // Nothing is asked, so no ban begins.
            ChargeResult::Banned { begins: Some(ban), .. } => (ban.otherwise, Micros(0)),
            ChargeResult::Banned { wait, .. } => (Some(wait), Micros(0)),
        };
        BucketLevel {
            spent: algorithm.spent(state, now),
            held: algorithm.held(state, now),
            raised: algorithm.raised_by(state, now),
            untouched: step.untouched,
            wait,
            delay,
            period: algorithm.period(state, now),
            ban: algorithm.running_ban(state, now),
            home_heard: algorithm.home_heard(state),
            purse: match algorithm {
                Algorithm::Purse(purse) => Some(PurseLevel {
                    left: purse.left(state, now),
                    is_home_known: purse.is_home_known(state, now),
                    asks_home,
                }),
                _ => None,
            },
        }
    }

    /// Returns what is left. `None` for a purse that has not heard of home in this period.
    pub fn remaining(&self) -> Option<Cost> {
        self.purse.is_none_or(|purse| purse.is_home_known).then_some(self.untouched.remaining)
    }
}

/// Returns the state of a bucket on which a step of its algorithm can be tried. `None` for a full bucket. A bucket of slots or
/// of a budget always has a state here, with an owner that holds nothing, because its steps need one.
pub fn state_to_ask(algorithm: &Algorithm, state: Option<&[u64]>, now: Timestamp) -> Option<State> {
    let report =
        Report { owner: READER, sequence: 1, held: Cost::default(), settled: SettledSums::default(), life: LIFE };
    let accepted = algorithm.accept(state, report, now).map(|entry| entry.state);
    accepted.or_else(|| state.map(State::from_slice))
}
