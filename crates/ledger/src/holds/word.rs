//! Holds a word: how much an owner holds of a bucket, as it tells the store.

use crate::cost::Cost;
use base::time::Micros;

/// How long a word counts, from the store's time at which it was accepted. It is as long as a gateway's heartbeat counts.
pub const LIFE: Micros = Micros(7_000_000);

/// How often an owner repeats its word about each bucket of which it holds something: three times within [`LIFE`].
pub const SAY_EVERY: Micros = Micros(2_000_000);

/// The largest amount that one owner can hold of a bucket. The sum of all owners stays below 2^53.
pub const MOST_HELD: Cost = Cost::from_thousandths((1 << 43) - 1);

/// An owner of holds: one request thread of one run of a gateway. Its number is random, so that the next run is another owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(pub u64);

impl Owner {
    /// The owner of what is held of a bucket whose value was invalid: it never speaks, so that its holds end.
    pub const NOBODY: Owner = Owner(0);
}

/// An absolute number, never a difference: what an owner holds of a bucket, without what is asked in the same call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Word {
    pub owner: Owner,
    /// Grows with every call of the owner; below 2^48.
    pub sequence: u64,
    /// Counted as [`MOST_HELD`] if it is more.
    pub held: Cost,
}
