//! Identifies the eviction queue of a bucket, by the bucket's limit and by how much of the limit is spent.

use ledger::bucket_key::LimitTag;
use ledger::cost::Cost;

/// The number of variants of [`SpentClass`].
pub(super) const CLASSES: usize = 4;

/// How much of a limit is spent in a bucket, as a class. Buckets of the lowest class are evicted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SpentClass {
    /// Less than an eighth is spent.
    Little,
    /// At least an eighth is spent, but less than half.
    Some,
    /// Half or more is spent.
    Much,
    /// The bucket cannot pay the cost of the last charge again.
    Drained,
}

impl SpentClass {
    pub(super) const ALL: [SpentClass; CLASSES] =
        [SpentClass::Little, SpentClass::Some, SpentClass::Much, SpentClass::Drained];

    /// Returns the class of a bucket after it has paid `cost`. `remaining` is then its level, and `ceiling` the level
    /// of a full bucket.
    pub(super) fn of(remaining: Cost, ceiling: Cost, cost: Cost) -> SpentClass {
        let (remaining, ceiling) = (remaining.thousandths(), ceiling.thousandths());
        let spent = ceiling.saturating_sub(remaining);
        if remaining < cost.thousandths() || remaining == 0 {
            SpentClass::Drained
        } else if spent >= ceiling.div_ceil(2) {
            SpentClass::Much
        } else if spent >= ceiling.div_ceil(8) {
            SpentClass::Some
        } else {
            SpentClass::Little
        }
    }
}

/// Identifies the queue of the buckets of one limit and one class. The two lowest bits are the class, and the other
/// bits are from the limit's tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueId(pub u32);

impl QueueId {
    pub(super) fn new(limit: LimitTag, class: SpentClass) -> QueueId {
        let class = match class {
            SpentClass::Little => 0,
            SpentClass::Some => 1,
            SpentClass::Much => 2,
            SpentClass::Drained => 3,
        };
        QueueId(limit.0 << 2 | class)
    }

    pub(super) fn limit(self) -> LimitTag {
        LimitTag(self.0 >> 2)
    }

    pub(super) fn class(self) -> SpentClass {
        match self.0 & 3 {
            0 => SpentClass::Little,
            1 => SpentClass::Some,
            2 => SpentClass::Much,
            _ => SpentClass::Drained,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_the_share_that_is_spent() {
        let class = |remaining, cost| {
            SpentClass::of(Cost::from_tokens(remaining), Cost::from_tokens(100), Cost::from_tokens(cost))
        };
        let cases = [
            (99, 1, SpentClass::Little),
            (88, 1, SpentClass::Little),
            (87, 1, SpentClass::Some),
            (51, 1, SpentClass::Some),
            (50, 1, SpentClass::Much),
            (1, 1, SpentClass::Much),
            (0, 1, SpentClass::Drained),
            (60, 61, SpentClass::Drained),
        ];
        for (remaining, cost, expected) in cases {
            assert_eq!(class(remaining, cost), expected, "{remaining} left after paying {cost}");
        }
    }

    #[test]
    fn a_queue_is_of_its_limit_and_its_class() {
        for class in SpentClass::ALL {
            let queue = QueueId::new(LimitTag(0x3fff_fffe), class);
            assert_eq!((queue.limit(), queue.class()), (LimitTag(0x3fff_fffe), class));
            assert_eq!(QueueId::new(queue.limit(), class), queue);
        }
    }
}
