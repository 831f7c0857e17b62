//! Injects mistakes into the keeper of leases, only with the feature `test-hooks`.
//!
//! The last expression of each function is the result without a mistake, as in a release build.

use base::time::Timestamp;
use ledger::algorithm::lease::{HomeAnswer, MarkedWord};

/// The mistake that a test injects.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KeeperHooks {
    #[cfg(feature = "test-hooks")]
    mistake: Option<mistake::Mistake>,
}

impl KeeperHooks {
    /// Returns the mistake of a whole gateway, which the environment variable `TOLLGATE_TEST_FLAW` names.
    pub(super) fn of_process() -> KeeperHooks {
        #[cfg(feature = "test-hooks")]
        if let Ok(name) = std::env::var("TOLLGATE_TEST_FLAW") {
            return KeeperHooks { mistake: mistake::Mistake::named(&name) };
        }
        KeeperHooks::default()
    }

    /// Returns the answer that is credited before home has heard of the word.
    pub(super) fn credited_first(self, marked: &MarkedWord) -> Option<HomeAnswer> {
        #[cfg(feature = "test-hooks")]
        if self.mistake == Some(mistake::Mistake::CreditFirst) {
            return mistake::granted(marked);
        }
        let _ = marked;
        None
    }

    /// Returns the answer that is credited, and the mark from which its times count.
    pub(super) fn credited(self, answer: HomeAnswer, mark: Timestamp) -> (HomeAnswer, Timestamp) {
        #[cfg(feature = "test-hooks")]
        if let Some(mistake) = self.mistake {
            return mistake.credited(answer, mark);
        }
        (answer, mark)
    }
}

#[cfg(feature = "test-hooks")]
mod mistake {
    use base::time::{Micros, Timestamp};
    use ledger::algorithm::lease::{HomeAnswer, HomeRaise, MarkedWord, WordKind};
    use ledger::cost::Cost;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Mistake {
        /// A purse is credited before home debits.
        CreditFirst,
        /// A purse does not end with its period.
        EndlessPurse,
        /// A purse ends by the time of the answer in place of that of its mark.
        EndsFromAnswer,
    }

    impl Mistake {
        pub(super) fn named(name: &str) -> Option<Mistake> {
            match name {
                "credit_first" => Some(Mistake::CreditFirst),
                "endless_purse" => Some(Mistake::EndlessPurse),
                "ends_from_answer" => Some(Mistake::EndsFromAnswer),
                _ => None,
            }
        }

        pub(super) fn credited(self, answer: HomeAnswer, mark: Timestamp) -> (HomeAnswer, Timestamp) {
            match (self, answer) {
                (Mistake::EndlessPurse, HomeAnswer::Answer { id, kind, given, again_after, rest, raise, .. }) => {
                    let (period, remains) = (Timestamp(1), Micros(3_600_000_000));
                    (HomeAnswer::Answer { id, kind, given, period, remains, again_after, rest, raise }, mark)
                }
                // A mark in the future counts as now.
                (Mistake::EndsFromAnswer, answer) => (answer, Timestamp(1 << 52)),
                (_, answer) => (answer, mark),
            }
        }
    }

    /// Returns an answer that gives what a lease asks for.
    pub(super) fn granted(marked: &MarkedWord) -> Option<HomeAnswer> {
        let word = marked.word;
        (word.kind == WordKind::Lease).then_some(HomeAnswer::Answer {
            id: word.id,
            kind: word.kind,
            given: word.amount,
            period: Timestamp(1),
            remains: Micros(3_600_000_000),
            again_after: Micros(0),
            rest: Cost::default(),
            raise: HomeRaise::default(),
        })
    }
}
