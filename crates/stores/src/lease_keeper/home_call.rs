//! Sends words to home in one call, and reads its answers.

use std::time::Duration;

use super::{LeaseKeeper, PurseBucket};
use crate::error::{Fault, StoreError};
use crate::lease_acts::{ActResult, BucketAct};
use base::time::sleep;
use ledger::algorithm::Algorithm;
use ledger::algorithm::lease::{HomeAnswer, LeaseAct, LeaseReply, MarkedWord, RegionId};

/// The pause before words are sent again on the next connection to home.
const SEND_AGAIN: Duration = Duration::from_millis(5);

/// A word that a purse sends to home.
#[derive(Clone, Copy, Debug)]
pub(super) struct PurseWord {
    pub purse: PurseBucket,
    pub marked: MarkedWord,
}

/// What has come of the words of one call.
pub(super) struct HomeCall {
    pub answers: Vec<Result<HomeAnswer, StoreError>>,
    /// Why no word has an answer.
    pub fault: Option<Fault>,
    /// The number of buckets at home whose invalid state was replaced.
    pub healed: u64,
}

impl LeaseKeeper {
    /// Sends words to home. A word whose answer is lost with its connection is sent again on the next one, because home answers the same
    /// word once.
    pub(super) async fn at_home(&self, carried: &[PurseWord]) -> HomeCall {
        let settings = self.settings.lock().clone();
        let act = |PurseWord { purse, marked }: &PurseWord| {
            let region = RegionId::of_purse(&settings.region, purse.key.0);
            let limit = Algorithm::Home(purse.purse.home(settings.regions)?);
            let act = LeaseAct::Word(region, marked.word);
            Some(BucketAct { key: purse.home_key(), limit, tag: purse.tag, act })
        };
        let mut waiting: Vec<(usize, BucketAct)> =
            carried.iter().enumerate().filter_map(|(place, one)| Some((place, act(one)?))).collect();
        let mut answers = vec![Err(StoreError::UnexpectedReply); carried.len()];
        let (mut healed, mut is_sent) = (0, false);
        let until = self.clock.now().plus(settings.timeout);
        loop {
            let acts: Vec<BucketAct> = waiting.iter().map(|(_, act)| *act).collect();
            let done = self.home.act(&acts, until.since(self.clock.now())).await;
            is_sent |= done.as_ref().err().is_none_or(|fault| !fault.is_unsent);
            let (results, fault) = match done {
                Ok(done) => {
                    healed += done.healed;
                    (done.results, None)
                }
                Err(fault) => (vec![ActResult::NoAnswer(fault.error); acts.len()], Some(fault)),
            };
            for ((place, _), result) in waiting.iter().zip(results) {
                if let Some(place) = answers.get_mut(*place) {
                    *place = answer_of(result);
                }
            }
            let is_lost = |place: usize| matches!(answers.get(place), Some(Err(error)) if error.is_lost_answer());
            waiting.retain(|(place, act)| is_lost(*place) && !self.home.is_away(&act.key));
            if waiting.is_empty() || self.clock.now() >= until {
                let refusal = || Some(Fault::new(answers.first()?.err()?, "home has answered, and refused"));
                let is_unanswered = answers.iter().all(Result::is_err);
                let fault = is_unanswered.then(|| fault.or_else(refusal)).flatten();
                let fault = fault.map(|fault| Fault { is_unsent: !is_sent, ..fault });
                return HomeCall { answers, fault, healed };
            }
            // The end of the connection may not have been noticed yet.
            sleep(SEND_AGAIN).await;
        }
    }
}

fn answer_of(result: ActResult) -> Result<HomeAnswer, StoreError> {
    match result {
        ActResult::Done(LeaseReply::Home(answer)) => Ok(answer),
        ActResult::NoAnswer(error) => Err(error),
        ActResult::OutOfMemory => Err(StoreError::OutOfMemory),
        ActResult::OutsidePeriod => Err(StoreError::OutsidePeriod),
        ActResult::Done(LeaseReply::Purse(_)) | ActResult::OtherLimit => Err(StoreError::UnexpectedReply),
    }
}
