//! Defines a report: the message in which an owner tells the store how much it holds of a bucket.

use std::fmt;

use crate::cost::Cost;
use base::time::{Micros, Timestamp};

/// How long a [`Report`] counts after the store has accepted it, by the store's clock. A heartbeat counts for the same
/// time.
pub const LIFE: Micros = Micros(7_000_000);

/// The interval at which an owner repeats its report about a bucket, so that one lost report does no harm.
pub const REPORT_EVERY: Micros = Micros(2_000_000);

/// How much earlier an owner may repeat a report, to send it in one call with other reports.
pub const EARLY: Micros = Micros(500_000);

/// The largest amount that one owner can hold of a bucket. The sum of all owners then stays below 2^53.
pub const MOST_HELD: Cost = Cost::from_thousandths((1 << 43) - 1);

/// The longest time of a timed hold.
pub const LONGEST_HOLD: Micros = Micros(3_600_000_000);

/// The largest number of timed holds of one bucket that have not ended. A bucket has more room for owners, which is left for
/// the threads of gateways.
pub const MOST_TIMED_HOLDS: usize = 512;

/// The sequence of the report with which a timed hold settles. A bucket accepts it only if the hold has taken something there and
/// has not ended.
pub(crate) const SETTLE: u64 = 2;

/// Identifies an owner of holds: one request thread of a gateway process, or a timed hold. Most of the number is random.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(pub u64);

/// The last two bytes of the owner of a timed hold. No gateway has a thread with this number.
const TIMED: u64 = 0xfffe;

impl Owner {
    /// The owner that holds the whole bucket if its stored value was invalid. It sends no reports, so its holds end
    /// after [`LIFE`].
    pub const NOBODY: Owner = Owner(0);

    /// Returns the owner for a thread of a gateway: six bytes of `name`, the random name of the gateway in heartbeats,
    /// and the number of the thread.
    pub fn of_gateway(name: [u8; 8], thread: usize) -> Owner {
        let thread = u64::try_from(thread).unwrap_or_default().min(TIMED - 1);
        // 0 is the number of `NOBODY`.
        Owner((u64::from_be_bytes(name) & !0xffff | thread).max(1))
    }

    /// Returns the owner for a timed hold, from a random number.
    pub fn of_timed_hold(random: u64) -> Owner {
        Owner(random & !0xffff | TIMED)
    }

    /// Returns whether this is the owner of a timed hold.
    pub fn is_timed(self) -> bool {
        self.0 & 0xffff == TIMED
    }
}

/// Displays the owner as the gateway's name in 12 hexadecimal digits, `/`, and the number of the thread. In place of that number, a
/// timed hold has the word `hold`.
impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_timed() {
            true => write!(f, "{:012x}/hold", self.0 >> 16),
            false => write!(f, "{:012x}/{}", self.0 >> 16, self.0 & 0xffff),
        }
    }
}

/// What a bucket knows of a timed hold. It knows the last holds that have settled or ended, not all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimedHoldStatus {
    /// The bucket has never known the hold, or no longer does.
    Unknown,
    Runs,
    Settled,
    /// The hold did not settle in time, and ended at this moment. Of a budget, what it held is spent.
    Ended(Timestamp),
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
    /// How long the report counts: [`LIFE`] for a thread of a gateway.
    pub life: Micros,
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
    /// The resets that the owner has settled. None at limits without `reset_on`.
    pub resets: Resets,
}

impl SettledSums {
    /// Returns whether the store has accepted all that is settled.
    pub(super) fn are_accepted(&self) -> bool {
        self.from == self.to && self.resets.accepted == self.resets.count
    }
}

/// How many times an owner has reset one bucket since the owner began to keep it. A reset forgets what was spent of the
/// bucket. From two counts the store sees whether a report has a reset that the bucket does not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Resets {
    /// The number of resets that the store had accepted, as far as the owner knew. A bucket that does not know the owner
    /// is reset only if `count` is higher.
    pub accepted: u64,
    /// The number of resets. A bucket that knows the owner is reset only if this is higher than the last number that it
    /// accepted from this owner. Of this owner's costs, only those after the last reset are then spent.
    pub count: u64,
    /// The sum of all costs that the owner had settled at its last reset.
    pub sum: Cost,
}
