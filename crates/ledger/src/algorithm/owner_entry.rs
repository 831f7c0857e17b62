//! Packs the entry of one owner of a bucket, in the form that `owner_entries.rs` describes.

use crate::holds::report::Owner;
use base::time::Timestamp;

/// The largest sequence.
pub(super) const SEQUENCES: u64 = (1 << 48) - 1;

/// What a bucket keeps of one owner.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnerEntry {
    pub owner: Owner,
    pub sequence: u64,
    /// The amount that the owner holds, in thousandths.
    pub held: u64,
    pub until: Timestamp,
    /// The second since the Unix epoch in which the owner began to hold something.
    pub since: u64,
    /// The sum in the owner's last accepted report, in thousandths. 0 for slots.
    pub settled: u64,
    /// The number of resets in the owner's last accepted report.
    pub resets: u64,
}

impl OwnerEntry {
    /// Returns the entry of an owner that holds nothing and has sent no report.
    pub(super) fn silent(owner: Owner, until: Timestamp) -> OwnerEntry {
        OwnerEntry { owner, sequence: 0, held: 0, until, since: 0, settled: 0, resets: 0 }
    }

    pub(super) fn pack(&self) -> [u64; 4] {
        let (held, until) = (self.held, self.until.0);
        [
            self.owner.0,
            self.sequence | held << 48,
            (held >> 16) | until << 32,
            ((until >> 32) & 0xff_ffff) | self.since << 24,
        ]
    }

    pub(super) fn unpack(&[owner, first, second, third]: &[u64; 4], settled: u64, resets: u64) -> OwnerEntry {
        OwnerEntry {
            owner: Owner(owner),
            sequence: first & SEQUENCES,
            held: (first >> 48) | (second & 0xffff_ffff) << 16,
            until: Timestamp(second >> 32 | (third & 0xff_ffff) << 32),
            since: third >> 24,
            settled,
            resets,
        }
    }
}
