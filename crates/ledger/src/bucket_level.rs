//! Computes what a bucket holds from its stored state, without charging it.

use crate::algorithm::ban::BanPeriod;
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
    /// When the home of a limit over several regions was last heard. `None` for other limits, and if that is not known.
    pub heard: Option<Timestamp>,
}

impl BucketLevel {
    /// Computes the level of a bucket at `now`, for a request of this cost. `state` is `None` for a full bucket.
    pub fn of(algorithm: &Algorithm, state: Option<&[u64]>, cost: Cost, now: Timestamp) -> BucketLevel {
        let step = algorithm.step(state_to_ask(algorithm, state, now).as_deref(), cost, now);
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
            heard: match algorithm {
                Algorithm::Purse(purse) => purse.heard(state, now),
                _ => None,
            },
        }
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
