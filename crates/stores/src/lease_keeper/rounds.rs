//! Carries words: marks purses in the region's store, sends their words to home in one call for each node, and credits the answers.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::task::JoinSet;

use super::asked_purses::PurseDemand;
use super::home_call::{HomeCall, PurseWord};
use super::{AskAnswer, LeaseEvent, LeaseKeeper, PurseBucket, REGION_TIMEOUT, SOON};
use crate::error::StoreError;
use crate::lease_acts::{ActResult, BucketAct};
use crate::redis::cluster::NodeId;
use base::time::{Micros, Timestamp};
use ledger::algorithm::Algorithm;
use ledger::algorithm::lease::{HomeAnswer, HomeRaise, LeaseAct, LeaseReply, PurseAct, PurseReply, WordId, WordKind};
use ledger::bucket_key::BucketKey;
use ledger::cost::Cost;

/// Tags of words are below this number.
const TAGS: u64 = 1 << 53;

/// What a round begins with.
#[derive(Clone, Debug)]
pub(super) enum Round {
    /// Asks home for what these purses lack.
    Lease(Vec<PurseDemand>),
    /// Sends words again that had no answer.
    Resend(Vec<(PurseBucket, WordId)>),
    /// Returns what lies in purses that were untouched for some time.
    Surplus(Vec<(PurseBucket, Micros)>),
}

/// A word without an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnansweredWord {
    pub purse: PurseBucket,
    pub id: WordId,
    pub again_at: Timestamp,
}

/// A purse that has got an amount.
#[derive(Clone, Copy, Debug)]
pub(super) struct PurseFill {
    pub purse: PurseBucket,
    pub at: Timestamp,
    pub ends: Timestamp,
    pub held: Cost,
}

/// What has come of a round.
#[derive(Clone, Debug, Default)]
pub(super) struct RoundEnd {
    /// The words that the round has sent again, whether they were answered or not.
    pub resent: Vec<(BucketKey, WordId)>,
    pub unanswered: Vec<UnansweredWord>,
    pub filled: Vec<PurseFill>,
    /// The purses that were looked at.
    pub looks: Vec<Look>,
}

/// A look at a purse that may give something back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub purse: PurseBucket,
    pub at: Timestamp,
    pub result: LookResult,
}

/// What a look at a purse has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LookResult {
    /// Nothing to give back.
    Kept,
    /// The purse gives something back, and keeps this amount.
    GaveBack { left: Cost },
    /// Home is away. What would be given back might be lost, and the region can spend it.
    HomeAway,
}

/// The purses for which a round asks. If the round breaks off, the requests that wait for them get an answer.
struct AskedOfRound<'k> {
    keeper: &'k LeaseKeeper,
    keys: Vec<BucketKey>,
}

impl AskedOfRound<'_> {
    fn of<'k>(keeper: &'k LeaseKeeper, round: &Round) -> AskedOfRound<'k> {
        let keys = match round {
            Round::Lease(asked) => asked.iter().map(|asked| asked.purse.key).collect(),
            Round::Resend(_) | Round::Surplus(_) => Vec::new(),
        };
        AskedOfRound { keeper, keys }
    }
}

impl Drop for AskedOfRound<'_> {
    fn drop(&mut self) {
        for key in &self.keys {
            self.keeper.asked.lock().end(key, AskAnswer::NoHome);
        }
    }
}

impl LeaseKeeper {
    pub(super) async fn round(self: &Arc<Self>, round: Round) -> RoundEnd {
        let mut end = RoundEnd::default();
        let mut asked = AskedOfRound::of(self, &round);
        let is_waited_for = !asked.keys.is_empty();
        let carried = match round {
            Round::Lease(asked) => self.mark(&asked).await,
            Round::Resend(words) => self.mark_again(&words, &mut end).await,
            Round::Surplus(purses) => self.take_surplus(&purses, &mut end).await,
        };
        let mut by_node: HashMap<Option<NodeId>, Vec<PurseWord>> = HashMap::new();
        for one in carried {
            by_node.entry(self.home.node_of(&one.purse.home_key())).or_default().push(one);
        }
        // A node of a cluster that gives no answer keeps no other one from being heard.
        let mut calls: JoinSet<RoundEnd> = JoinSet::new();
        for carried in by_node.into_values() {
            let keeper = Arc::clone(self);
            calls.spawn(async move {
                let mut end = RoundEnd::default();
                keeper.carry(&carried, &mut end, is_waited_for).await;
                end
            });
        }
        let mut is_whole = true;
        while let Some(called) = calls.join_next().await {
            match called {
                Ok(called) => {
                    end.unanswered.extend(called.unanswered);
                    end.filled.extend(called.filled);
                }
                // Only after a panic. The requests that wait for its words get an answer with the end of the round.
                Err(_) => is_whole = false,
            }
        }
        if is_whole {
            asked.keys.clear();
        }
        end
    }

    /// Marks the purses that are low. Returns the words to send. The other purses are answered.
    async fn mark(&self, asked: &[PurseDemand]) -> Vec<PurseWord> {
        let act = |asked: &PurseDemand| PurseAct::Mark { cost: asked.cost, tag: fastrand::u64(..TAGS) };
        let replies = self.in_region(asked.iter().map(|asked| (asked.purse, act(asked)))).await;
        let mut words = Vec::new();
        for (PurseDemand { purse, .. }, reply) in asked.iter().zip(replies) {
            match reply {
                Some(PurseReply::Send(marked)) => words.push(PurseWord { purse: *purse, marked }),
                // Another word is under way, and home has just refused words.
                Some(_) if self.refuses_words(purse) => {
                    self.asked.lock().end(&purse.key, AskAnswer::NoHome);
                }
                Some(_) => self.asked.lock().end(&purse.key, AskAnswer::UnderWay),
                None => self.asked.lock().end(&purse.key, AskAnswer::NoStore),
            }
        }
        words
    }

    async fn mark_again(&self, words: &[(PurseBucket, WordId)], end: &mut RoundEnd) -> Vec<PurseWord> {
        end.resent.extend(words.iter().map(|(purse, id)| (purse.key, *id)));
        let replies = self.in_region(words.iter().map(|(purse, id)| (*purse, PurseAct::Resend { id: *id }))).await;
        let mut carried = Vec::new();
        for ((purse, id), reply) in words.iter().zip(replies) {
            match reply {
                Some(PurseReply::Send(marked)) => carried.push(PurseWord { purse: *purse, marked }),
                // The word was answered meanwhile.
                Some(_) => {}
                None => end.unanswered.push(self.later(*purse, *id)),
            }
        }
        carried
    }

    async fn take_surplus(&self, purses: &[(PurseBucket, Micros)], end: &mut RoundEnd) -> Vec<PurseWord> {
        let (away, purses): (Vec<_>, Vec<_>) = purses.iter().partition(|(purse, _)| self.is_home_away(purse));
        let act = |(purse, idle): &(PurseBucket, Micros)| {
            (*purse, PurseAct::Surplus { tag: fastrand::u64(..TAGS), idle: *idle })
        };
        let replies = self.in_region(purses.iter().map(act)).await;
        let (mut carried, at) = (Vec::new(), self.clock.now());
        end.looks.extend(away.into_iter().map(|(purse, _)| Look { purse, at, result: LookResult::HomeAway }));
        for ((purse, _), reply) in purses.iter().zip(replies) {
            let result = match reply {
                Some(PurseReply::Send(marked)) => {
                    carried.push(PurseWord { purse: *purse, marked });
                    LookResult::GaveBack { left: marked.word.left }
                }
                Some(_) | None => LookResult::Kept,
            };
            end.looks.push(Look { purse: *purse, at, result });
        }
        carried
    }

    /// Returns a word that is to be sent again when the region's store has had time to come back.
    fn later(&self, purse: PurseBucket, id: WordId) -> UnansweredWord {
        UnansweredWord { purse, id, again_at: self.clock.now().plus(purse.purse.return_after()) }
    }

    /// Sends words to one node of home, and credits the answers. If requests wait for them, they also learn that there is no answer. A lease that
    /// is under way for a purse has an answer of its own. So has a word whose answer was lost: it is sent again, unless home is away.
    async fn carry(&self, carried: &[PurseWord], end: &mut RoundEnd, is_waited_for: bool) {
        let sent = self.clock.now();
        let first: Vec<(&PurseWord, HomeAnswer)> =
            carried.iter().filter_map(|one| Some((one, self.hooks.credited_first(&one.marked)?))).collect();
        if !first.is_empty() {
            self.credit(&first, sent, end, is_waited_for).await;
        }
        let HomeCall { answers, fault, healed } = self.at_home(carried).await;
        let took = self.clock.now().since(sent);
        self.events.send(LeaseEvent::Called { words: carried.len(), took, healed, fault });
        self.note_refusals(carried, &answers);
        let mut answered = Vec::new();
        for (one, answer) in carried.iter().zip(answers) {
            match answer {
                Ok(answer) => answered.push((one, answer)),
                Err(error) => {
                    let (id, again_at) = (one.marked.word.id, sent.plus(one.marked.again_after));
                    end.unanswered.push(UnansweredWord { purse: one.purse, id, again_at });
                    if is_waited_for {
                        let is_lost = error.is_lost_answer() && !self.is_home_away(&one.purse);
                        let answer = if is_lost { AskAnswer::UnderWay } else { AskAnswer::NoHome };
                        self.asked.lock().end(&one.purse.key, answer);
                    }
                }
            }
        }
        if !answered.is_empty() {
            self.credit(&answered, sent, end, is_waited_for).await;
        }
    }

    /// Notes whether the node of home with the buckets of these purses has refused all of their words.
    fn note_refusals(&self, carried: &[PurseWord], answers: &[Result<HomeAnswer, StoreError>]) {
        let Some(node) = carried.first().map(|one| self.home.node_of(&one.purse.home_key())) else { return };
        let until = self.clock.now().plus(self.settings.lock().timeout);
        let mut refused_until = self.refused_until.lock();
        match answers.iter().all(|answer| answer.is_err_and(StoreError::is_refusal)) {
            true => refused_until.insert(node, until),
            false => refused_until.remove(&node),
        };
    }

    /// Whether the node of home with the bucket of this purse has just refused words.
    fn refuses_words(&self, purse: &PurseBucket) -> bool {
        let until = self.refused_until.lock().get(&self.home.node_of(&purse.home_key())).copied();
        until.is_some_and(|until| self.clock.now() < until)
    }

    async fn credit(
        &self,
        answered: &[(&PurseWord, HomeAnswer)],
        sent: Timestamp,
        end: &mut RoundEnd,
        is_waited_for: bool,
    ) {
        let act = |(one, answer): &(&PurseWord, HomeAnswer)| {
            let wanted = self.asked.lock().wanted(&one.purse.key);
            let (answer, mark) = self.hooks.credited(self.for_purse(*answer), one.marked.mark);
            (one.purse, PurseAct::Credit { answer, mark, wanted })
        };
        let acts: Vec<_> = answered.iter().map(act).collect();
        let replies = self.in_region(acts.into_iter()).await;
        for ((one, answer), reply) in answered.iter().zip(replies) {
            let Some(reply) = reply else {
                end.unanswered.push(self.later(one.purse, one.marked.word.id));
                if is_waited_for {
                    self.asked.lock().end(&one.purse.key, AskAnswer::NoStore);
                }
                continue;
            };
            let is_credited = reply == PurseReply::Credited;
            self.report(one, answer, is_credited);
            if let HomeAnswer::Answer { kind: WordKind::Lease, given, remains, .. } = *answer
                && is_credited
                && given > Cost::default()
            {
                let (at, held) = (self.clock.now(), one.marked.word.left.plus(given));
                end.filled.push(PurseFill { purse: one.purse, at, ends: sent.plus(remains), held });
            }
            self.asked.lock().end(&one.purse.key, AskAnswer::Answered);
        }
    }

    /// Returns the answer as a purse takes it: with which it asks home again soon, if there was a reload lately. It learns of no raise while a
    /// gateway runs that would find its state invalid then.
    fn for_purse(&self, mut answer: HomeAnswer) -> HomeAnswer {
        if let HomeAnswer::Answer { again_after, raise, .. } = &mut answer {
            if self.clock.now().0 < self.asks_soon_until.load(Ordering::Relaxed) {
                *again_after = SOON.min(*again_after);
            }
            if !self.region.writes_newest_format() {
                *raise = HomeRaise::default();
            }
        }
        answer
    }

    fn report(&self, one: &PurseWord, answer: &HomeAnswer, is_credited: bool) {
        let tag = one.purse.tag;
        match *answer {
            HomeAnswer::Answer { kind: WordKind::Lease, given, .. } if given > Cost::default() => {
                self.events.send(match is_credited {
                    true => LeaseEvent::Leased { tag, amount: given },
                    false => LeaseEvent::Stranded { tag, amount: given },
                });
            }
            HomeAnswer::Answer { kind: WordKind::Return, .. } if is_credited => {
                self.events.send(LeaseEvent::Returned { tag, amount: one.marked.word.amount });
            }
            HomeAnswer::Answer { .. } | HomeAnswer::Older { .. } => {}
        }
    }

    /// Does acts of purses in the region's store. `None`: it is not known whether the act was done.
    async fn in_region(&self, acts: impl Iterator<Item = (PurseBucket, PurseAct)>) -> Vec<Option<PurseReply>> {
        let act = |(PurseBucket { key, purse, tag }, act)| BucketAct {
            key,
            limit: Algorithm::Purse(purse),
            tag,
            act: LeaseAct::Purse(act),
        };
        let acts: Vec<BucketAct> = acts.map(act).collect();
        let Ok(done) = self.region.act(&acts, REGION_TIMEOUT).await else { return vec![None; acts.len()] };
        let reply = |result| match result {
            ActResult::Done(LeaseReply::Purse(reply)) => Some(reply),
            _ => None,
        };
        done.results.into_iter().map(reply).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::schedule::test_purse;
    use super::super::{KeeperSettings, LeaseSink, MOST_IN_CALL};
    use super::*;
    use crate::events::EventSink;
    use crate::lease_store::LeaseStore;
    use crate::settings::Settings;
    use base::time::Clock;
    use tokio::sync::oneshot;

    /// A keeper whose home is not connected.
    fn keeper() -> LeaseKeeper {
        let clock = Clock::manual(Timestamp(1_763_672_400_000_000));
        let open = |settings: &Settings| LeaseStore::open(settings, clock.clone(), EventSink::new(|_| {}));
        let away = Settings::Redis(crate::redis::Settings {
            target: crate::redis::Target::at("127.0.0.1", 1),
            login: crate::redis::Login::default(),
            timeout: Micros(1_000_000),
            prefix: "lease".to_owned(),
            breaker: crate::breaker::Settings::default(),
            gateways: 1,
        });
        let settings = KeeperSettings { region: Arc::from("eu"), regions: 2, timeout: Micros(1_000_000) };
        let (region, home) = (open(&Settings::default()), open(&away));
        LeaseKeeper::new(region, home, settings, clock, LeaseSink::new(|_| {}))
    }

    /// Adds a request that waits for a purse, and begins the round that asks for it.
    fn asked(keeper: &LeaseKeeper) -> (Vec<PurseDemand>, oneshot::Receiver<AskAnswer>) {
        let (sender, answer) = oneshot::channel();
        let now = keeper.clock.now();
        let mut asked = keeper.asked.lock();
        asked.add_waiting(test_purse(1), Cost::ONE, sender, now);
        (asked.begin(now, MOST_IN_CALL), answer)
    }

    #[tokio::test]
    async fn requests_get_an_answer_when_their_round_breaks_off_and_can_ask_again() {
        let keeper = keeper();
        for _ in 0..2 {
            let (asked, mut answer) = asked(&keeper);
            assert_eq!(asked.len(), 1);
            let round = AskedOfRound::of(&keeper, &Round::Lease(asked));
            assert!(answer.try_recv().is_err());
            drop(round);
            assert_eq!(answer.await, Ok(AskAnswer::NoHome));
        }
    }

    #[tokio::test]
    async fn only_the_round_that_asks_for_a_purse_tells_its_requests_that_home_is_away() {
        let keeper = keeper();
        let home = keeper.home.clone();
        tokio::spawn(async move { home.run().await });
        keeper.home.first_attempt().await;
        let (asked, mut answer) = asked(&keeper);
        let carried = keeper.mark(&asked).await;
        assert_eq!(carried.len(), 1);
        keeper.carry(&carried, &mut RoundEnd::default(), false).await;
        assert!(answer.try_recv().is_err());
        keeper.carry(&carried, &mut RoundEnd::default(), true).await;
        assert_eq!(answer.await, Ok(AskAnswer::NoHome));
    }
}
