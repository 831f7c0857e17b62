//! Defines a report: the message in which an owner tells the store how much it holds of a bucket.

use crate::cost::Cost;
use base::time::Micros;

/// How long a [`Report`] counts after the store has accepted it, by the store's clock. A gateway's heartbeat counts for the same
/// time.
pub const LIFE: Micros = Micros(7_000_000);

/// The interval at which an owner repeats its report about each bucket of which it holds something. The report is then sent
/// three times within [`LIFE`], so one lost report does no harm.
pub const REPORT_EVERY: Micros = Micros(2_000_000);

/// The largest amount that one owner can hold of a bucket. With this bound, the sum of all owners stays below 2^53.
pub const MOST_HELD: Cost = Cost::from_thousandths((1 << 43) - 1);

/// Identifies an owner of holds: one request thread of a gateway process. The number is random, so a restarted gateway has
/// other owners.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(pub u64);

impl Owner {
    /// The owner to which everything held of a bucket is attributed if the stored value was invalid. This owner sends no reports,
    /// so its holds end after [`LIFE`].
    pub const NOBODY: Owner = Owner(0);
}

/// A message to the store that says how much an owner holds of a bucket. The amount is absolute, never a difference, and does
/// not include what is asked in the same call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Report {
    pub owner: Owner,
    /// The number of the owner's call, by which the store recognises the newer of two reports. The number grows with
    /// every call and is below 2^48.
    pub sequence: u64,
    /// The amount that the owner holds. An amount above [`MOST_HELD`] counts as [`MOST_HELD`].
    pub held: Cost,
}
