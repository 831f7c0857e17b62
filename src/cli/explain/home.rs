//! Plays what a gateway does about purses that cannot pay: it asks home for leases, and charges the request again.
//!
//! The acts are computed on states that were read. Nothing is written, and home hears no word.

use crate::cli::bucket_home::Site;
use crate::gateway::bucket_levels::Levels;
use base::time::Timestamp;
use config::Config;
use decision::speaking_limit::awaits_home;
use ledger::algorithm::lease::{LeaseAct, LeaseReply, MarkedWord, Purse, PurseAct, PurseReply, RegionId};
use ledger::algorithm::{Algorithm, State};
use ledger::bucket_key::BucketKey;
use ledger::charge::{Charge, Plan, Settlement, settle};
use ledger::outcome::Outcome;

/// How often the word of a purse is played. Home may know a later word than the purse, which then goes on from that one.
const TRIES: usize = 2;

/// What was read, and what a gateway would find out beside it.
pub(super) struct Live {
    pub levels: Levels,
    home: HomeReading,
}

enum HomeReading {
    /// No request waits for it.
    NotNeeded,
    Read(Levels),
    /// It gave no answer. Says why.
    Away(String),
}

/// A plan that was charged, after home was asked if that was needed.
pub(super) struct PlanTrial {
    pub plan: Plan,
    pub settlement: Settlement,
    pub asked: AskedHome,
}

/// What came of asking home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AskedHome {
    /// All purses can pay, or another limit refuses.
    No,
    /// It has answered. Names it.
    Answered(String),
    /// A purse waits for the answer to an earlier word.
    UnderWay,
    /// It gave no answer. Says why.
    Away(String),
}

impl Live {
    /// Reads home, if a purse of the plan cannot pay and nothing else refuses.
    pub(super) fn new(levels: Levels, plan: Option<&Plan>, config: &Config) -> Live {
        let keys: Vec<BucketKey> = plan.map_or(Vec::new(), |plan| {
            let (settlement, _) = settle(plan, &states(plan, &levels), levels.at);
            unpaid(plan, &settlement).iter().map(|(_, charge, purse)| charge.key.across(purse)).collect()
        });
        let home = match keys.is_empty() {
            true => HomeReading::NotNeeded,
            false => match Site::backend(config).and_then(|home| home.read(&keys)) {
                Ok(levels) => HomeReading::Read(levels),
                Err(error) => HomeReading::Away(error.to_string()),
            },
        };
        Live { levels, home }
    }

    /// Charges a plan as a gateway would.
    pub(super) fn charge(&self, plan: &Plan, config: &Config) -> PlanTrial {
        let mut states = states(plan, &self.levels);
        let (settlement, _) = settle(plan, &states, self.levels.at);
        let unpaid = unpaid(plan, &settlement);
        let mut asked = match &self.home {
            HomeReading::Read(levels) if !unpaid.is_empty() => AskedHome::Answered(levels.from.clone()),
            HomeReading::Away(why) if !unpaid.is_empty() => AskedHome::Away(why.clone()),
            _ => return PlanTrial { plan: plan.clone(), settlement, asked: AskedHome::No },
        };
        if let HomeReading::Read(at_home) = &self.home {
            for (place, charge, purse) in &unpaid {
                let now = self.levels.at.of(&charge.algorithm);
                let Some(state) = states.get_mut(*place) else { continue };
                if lease(charge, purse, state, now, at_home, config).is_none() {
                    asked = AskedHome::UnderWay;
                }
            }
        }
        let alone = matches!(asked, AskedHome::Away(_)).then(|| plan.without_home()).flatten();
        let plan = alone.unwrap_or_else(|| plan.clone());
        let (settlement, _) = settle(&plan, &states, self.levels.at);
        PlanTrial { plan, settlement, asked }
    }
}

fn states(plan: &Plan, levels: &Levels) -> Vec<Option<State>> {
    plan.charges().map(|charge| levels.state_to_ask(&charge.key, &charge.algorithm)).collect()
}

/// Returns the purses that could not pay a plan, with their places in it, if nothing else refuses it.
fn unpaid<'p>(plan: &'p Plan, settlement: &Settlement) -> Vec<(usize, &'p Charge, Purse)> {
    let refusing = || {
        let outcomes = plan.enforced.iter().zip(&settlement.enforced).enumerate();
        outcomes.filter(|(_, (_, outcome)): &(usize, (&Charge, &Outcome))| outcome.verdict.is_refusal())
    };
    if !refusing().all(|(_, (charge, outcome))| awaits_home(charge, outcome)) {
        return Vec::new();
    }
    let purse = |(place, (charge, _)): (usize, (&'p Charge, &Outcome))| match charge.algorithm {
        Algorithm::Purse(purse) => Some((place, charge, purse)),
        _ => None,
    };
    refusing().filter_map(purse).collect()
}

/// Plays a lease on the state of a purse. `None` if the purse waits for an earlier word, whose answer is not known here.
fn lease(
    charge: &Charge,
    purse: &Purse,
    state: &mut Option<State>,
    now: Timestamp,
    at_home: &Levels,
    config: &Config,
) -> Option<()> {
    let home = config.home.as_ref()?;
    let at = Algorithm::Home(purse.home(u64::try_from(home.regions.len()).ok()?)?);
    let id = RegionId::of_purse(&home.region, charge.key.0);
    let home_state = at_home.state(&charge.key.across(purse));
    for _ in 0..TRIES {
        let mark = LeaseAct::Purse(PurseAct::Mark { cost: charge.cost, tag: 0 });
        let (marked, reply) = mark.apply(&charge.algorithm, state.as_deref(), now)?;
        let LeaseReply::Purse(PurseReply::Send(MarkedWord { word, mark, .. })) = reply else { return None };
        let heard = LeaseAct::Word(id, word).apply(&at, home_state.as_deref(), at_home.at.of(&at))?;
        let (_, LeaseReply::Home(answer)) = heard else { return None };
        let credit = LeaseAct::Purse(PurseAct::Credit { answer, mark, wanted: charge.cost });
        let (credited, _) = credit.apply(&charge.algorithm, Some(&marked?.state), now)?;
        *state = Some(credited?.state);
        let (settlement, _) = settle(&alone(charge), std::slice::from_ref(state), now);
        if !settlement.enforced.first().is_some_and(|outcome| awaits_home(charge, outcome)) {
            return Some(());
        }
    }
    None
}

fn alone(charge: &Charge) -> Plan {
    let mut plan = Plan::default();
    plan.enforce(charge.clone());
    plan
}
