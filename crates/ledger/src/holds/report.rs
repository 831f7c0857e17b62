//! Defines a report: the message in which an owner tells the store how much it holds of a bucket.

use std::fmt;

use crate::cost::Cost;
use base::time::Micros;

/// How long a [`Report`] counts after the store has accepted it, by the store's clock. A heartbeat counts for the same
/// time.
pub const LIFE: Micros = Micros(7_000_000);

/// The interval at which an owner repeats its report about a bucket, so that one lost report does no harm.
pub const REPORT_EVERY: Micros = Micros(2_000_000);

/// How much earlier an owner may repeat a report, to send it in one call with other reports.
pub const EARLY: Micros = Micros(500_000);

/// The largest amount that one owner can hold of a bucket. The sum of all owners then stays below 2^53.
pub const MOST_HELD: Cost = Cost::from_thousandths((1 << 43) - 1);

/// Identifies an owner of holds: one request thread of a gateway process. Most of the number is random.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(pub u64);

impl Owner {
    /// The owner that holds the whole bucket if its stored value was invalid. It sends no reports, so its holds end
    /// after [`LIFE`].
    pub const NOBODY: Owner = Owner(0);

    /// Returns the owner for a thread of a gateway: six bytes of `name`, the random name of the gateway in heartbeats,
    /// and the number of the thread.
    pub fn of_gateway(name: [u8; 8], thread: usize) -> Owner {
        let thread = u64::try_from(thread).unwrap_or_default() & 0xffff;
        // 0 is the number of `NOBODY`.
        Owner((u64::from_be_bytes(name) & !0xffff | thread).max(1))
    }
}

/// Displays the owner as the gateway's name in 12 hexadecimal digits, `/`, and the number of the thread.
impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:012x}/{}", self.0 >> 16, self.0 & 0xffff)
    }
}

/// A message to the store that says how much an owner holds of a bucket. The amount does not include what is asked in
/// the same call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Report {
    pub owner: Owner,
    /// The number of the owner's call, which grows with every call and is below 2^48.
    pub sequence: u64,
    /// The amount that the owner holds. An amount above [`MOST_HELD`] counts as [`MOST_HELD`].
    pub held: Cost,
    /// The amount that the owner has settled. Zero for slots, which are only held.
    pub settled: SettledSums,
}

/// The costs that an owner has settled of one bucket since the owner began to keep it, as sums that only grow. From two
/// sums the store computes what is new.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SettledSums {
    /// The sum that the store had accepted, as far as the owner knew. A bucket that does not know the owner charges
    /// `to` less `from`.
    pub from: Cost,
    /// The sum of all settled costs. A bucket that knows the owner charges `to` less the last sum that it accepted from
    /// this owner. With 0, an owner that has forgotten its sum begins again, and the bucket forgets the last sum too.
    pub to: Cost,
}
