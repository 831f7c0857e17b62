//! Leases: a limit that holds over several regions, each with a store of its own.
//!
//! The limit has one bucket at its [`home`]. A region leases an amount from there, keeps it in a [`purse`] in its own store,
//! and pays its requests from the purse. So no request needs an answer from another region, unless the purse is empty.
//!
//! A lease takes three acts, each atomic in its store. The purse is marked as waiting for the answer to a word, home debits
//! what it gives, and the purse is credited if it still waits for that word. What is lost, late or doubled in between can only lose
//! an amount until the period ends, never spend it twice. Nothing is ever credited before home has debited it.
//!
//! - A word has a number, which grows with every word of the purse, and a random tag. Home keeps the last word of each
//!   region with its answer. The same word is answered as at the first time, and can be sent again as often as needed. A word with an
//!   older number, or with the same number and another tag, changes nothing, and is answered with the last number.
//! - A purse ends with the period for which it was leased, at the time of the mark plus what home says remains of the period. So it
//!   never ends too late, however far the clocks of the two stores are apart. A token bucket has no period: home holds what lies in
//!   purses for a fixed time after the last word of a region, and counts it as spent from then on.
//! - What is returned is taken from the purse before home hears of it.
//!
//! `python3 benches/regions` simulates the protocol, and chooses the sizes of leases.

mod balance;
pub mod home;
#[cfg(test)]
mod model_check;
pub mod purse;
mod remembered_purse;
mod size;

use sha2::{Digest, Sha256};
use smallvec::SmallVec;

use super::Algorithm;
use super::step::{EXACT, Entry};
use crate::cost::Cost;
use crate::truncated_hash::first_number;
pub use balance::PurseBalance;
use base::time::{Micros, Timestamp};
pub use home::{Home, HomeAnswer, HomeRaise};
pub use purse::{Purse, PurseAct, PurseReply};
pub use remembered_purse::RememberedPurse;
pub use size::LeaseSize;

/// Identifies a purse of a region at home: the beginning of a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionId(pub u64);

impl RegionId {
    pub fn of(name: &str) -> RegionId {
        RegionId(first_number(Sha256::new_with_prefix(name)) & EXACT)
    }

    /// Returns the id of the purse with this key in a region. Purses with other numbers of the same limit have other ids, because each
    /// of them numbers its own words.
    pub fn of_purse(region: &str, key: [u8; 16]) -> RegionId {
        RegionId(first_number(Sha256::new_with_prefix(region).chain_update(key)) & EXACT)
    }
}

/// Identifies a word among all words of a region about one bucket. The number grows. The tag is random: it tells the words of two
/// purses apart that have the same number, because one of them was lost or has the same region by mistake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WordId {
    pub number: u64,
    /// Below 2^53.
    pub tag: u64,
}

/// What a word asks of home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WordKind {
    /// To debit an amount for the purse.
    Lease,
    /// To take back an amount that the purse has given up.
    Return,
}

impl WordKind {
    /// Returns the number of this kind in a message and in a stored value.
    const fn code(self) -> u64 {
        match self {
            WordKind::Lease => 1,
            WordKind::Return => 2,
        }
    }

    const fn of_code(code: u64) -> Option<WordKind> {
        match code {
            1 => Some(WordKind::Lease),
            2 => Some(WordKind::Return),
            _ => None,
        }
    }
}

/// What a region says to home about one bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word {
    pub id: WordId,
    pub kind: WordKind,
    /// What the purse asks for at most, or gives back.
    pub amount: Cost,
    /// The least amount that helps. Zero for a return.
    pub least: Cost,
    /// What was in the purse at the mark, without what is given back.
    pub left: Cost,
    /// The period for which the amount that is given back was leased.
    pub period: Timestamp,
}

impl Word {
    /// Returns the word as integers, each below 2^53, for a store that runs scripts.
    pub fn numbers(&self, region: RegionId) -> [u64; 8] {
        let WordId { number, tag } = self.id;
        let [amount, least, left] = [self.amount, self.least, self.left].map(Cost::thousandths);
        [region.0, number, tag, self.kind.code(), amount, least, left, self.period.0]
    }
}

/// A word that is to be sent to home now, with its times on the clock of the region's store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkedWord {
    pub word: Word,
    /// When the purse was marked for this try. It travels beside the word: [`PurseAct::Credit`] needs it.
    pub mark: Timestamp,
    /// After how long the word should be sent again if there is no answer.
    pub again_after: Micros,
}

/// What a store lets one bucket do beside charges: an act of a purse, or a word that a home hears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseAct {
    Purse(PurseAct),
    Word(RegionId, Word),
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseReply {
    Purse(PurseReply),
    Home(HomeAnswer),
}

impl LeaseAct {
    /// Does this act on the bucket of `limit` with this state. Returns the entry that must be stored before the reply is used.
    /// `None` if the act is not one for such a limit.
    pub fn apply(
        &self,
        limit: &Algorithm,
        state: Option<&[u64]>,
        now: Timestamp,
    ) -> Option<(Option<Entry>, LeaseReply)> {
        match self {
            LeaseAct::Purse(act) => limit.act(state, *act, now).map(|(entry, reply)| (entry, LeaseReply::Purse(reply))),
            LeaseAct::Word(region, word) => {
                limit.hear(state, *region, word, now).map(|(entry, answer)| (entry, LeaseReply::Home(answer)))
            }
        }
    }

    /// Returns the act as integers, each below 2^53, for a store that runs scripts.
    pub fn numbers(&self) -> SmallVec<[u64; 14]> {
        match self {
            LeaseAct::Purse(act) => act.numbers(),
            LeaseAct::Word(region, word) => SmallVec::from_slice(&word.numbers(*region)),
        }
    }

    /// Parses the reply of a script to this act. `None` for any other numbers.
    pub fn parse_reply(&self, numbers: &[u64]) -> Option<LeaseReply> {
        match self {
            LeaseAct::Purse(_) => PurseReply::parse(numbers).map(LeaseReply::Purse),
            LeaseAct::Word(..) => HomeAnswer::parse(numbers).map(LeaseReply::Home),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_region_is_fixed_and_exact_in_a_double() {
        // Other gateways, and those of another version, speak for the same region.
        assert_eq!(RegionId::of("eu"), RegionId(0x0002_8294_1aaf_2d69));
        assert!(["", "eu", "us", "ap"].map(RegionId::of).iter().all(|region| region.0 <= EXACT));
    }
}
