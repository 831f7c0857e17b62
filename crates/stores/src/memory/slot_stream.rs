//! Writes to a stream what requests hold, and reads the stream in the next process. So the limits of the next process
//! also count the requests that the previous process still answers.
//!
//! A message has everything that is held. It begins with the number of buckets in 4 bytes. Each bucket has its key in
//! 16 bytes, and four integers of 8 bytes: `amount`, `since` and `settled` of [`HeldAmount`], and a last one whose lowest bit is
//! `is_budget`, above `resets`. Integers are little-endian. A later message replaces an earlier one.

use std::io::{self, Read, Write};

use super::Memory;
use super::local_holds::LocalHolds;
use base::time::Timestamp;
use ledger::bucket_key::BucketKey;
use ledger::cost::Cost;

/// The number of bytes for one bucket.
const BUCKET: usize = 48;

/// How much the requests of a process hold of a bucket, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldAmount {
    pub key: BucketKey,
    pub amount: Cost,
    pub since: Timestamp,
    /// The sum of the costs that were settled after the buckets were handed over, and after the last reset. Zero for slots.
    pub settled: Cost,
    /// The number of resets after the buckets were handed over.
    pub resets: u64,
    pub is_budget: bool,
}

/// Writes a message.
///
/// # Errors
/// If the stream cannot be written.
pub fn write(held: &[HeldAmount], mut to: impl Write) -> io::Result<()> {
    let count = u32::try_from(held.len()).map_err(io::Error::other)?;
    let mut message = Vec::with_capacity(4 + BUCKET * held.len());
    message.extend_from_slice(&count.to_le_bytes());
    for HeldAmount { key, amount, since, settled, resets, is_budget } in held {
        message.extend_from_slice(&key.0);
        message.extend_from_slice(&amount.thousandths().to_le_bytes());
        message.extend_from_slice(&since.0.to_le_bytes());
        message.extend_from_slice(&settled.thousandths().to_le_bytes());
        message.extend_from_slice(&(u64::from(*is_budget) | resets << 1).to_le_bytes());
    }
    to.write_all(&message)
}

/// Reads a message, and waits for it.
///
/// # Errors
/// If the stream has ended or cannot be read.
pub fn read(mut from: impl Read) -> io::Result<Vec<HeldAmount>> {
    let mut count = [0; 4];
    from.read_exact(&mut count)?;
    let mut held = Vec::new();
    for _ in 0..u32::from_le_bytes(count) {
        let mut bytes = [0; BUCKET];
        from.read_exact(&mut bytes)?;
        let (key, numbers) = (bytes.first_chunk::<16>(), bytes.last_chunk::<32>());
        let (Some(key), Some(numbers)) = (key, numbers) else { continue };
        let (words, _) = numbers.as_chunks::<8>();
        if let [amount, since, settled, last] = words {
            let last = u64::from_le_bytes(*last);
            held.push(HeldAmount {
                key: BucketKey(*key),
                amount: Cost::from_thousandths(u64::from_le_bytes(*amount)),
                since: Timestamp(u64::from_le_bytes(*since)),
                settled: Cost::from_thousandths(u64::from_le_bytes(*settled)),
                resets: last >> 1,
                is_budget: last & 1 != 0,
            });
        }
    }
    Ok(held)
}

impl Memory {
    /// Returns what the requests of this process and of earlier processes hold.
    pub fn held_amounts(&self) -> Vec<HeldAmount> {
        self.holds.iter().flat_map(|held| held.amounts()).collect()
    }

    /// Whether this store counts holds of another process.
    pub fn counts_elsewhere(&self) -> bool {
        self.holds.iter().any(|held| held.counts_elsewhere())
    }

    /// Counts what the requests of another process hold, in place of its earlier amounts. The next request of a bucket
    /// charges the newly settled costs, after the new resets.
    pub fn count_held_elsewhere(&self, held: &[HeldAmount]) {
        let now = self.now();
        for (index, shard) in self.holds.iter().enumerate() {
            shard.count_elsewhere(held.iter().filter(|held| self.shard_of(&held.key) == index).copied(), now);
        }
    }

    /// Begins to hand over the buckets: until [`Memory::resume`], settled costs and resets change no bucket here, but are part of
    /// [`Memory::held_amounts`]. Must be called before [`Memory::write_buckets`], so that no cost is counted twice.
    pub fn hand_over(&self) {
        self.holds.iter().for_each(LocalHolds::hand_over);
    }

    /// Undoes [`Memory::hand_over`]: this process charges the costs itself.
    pub fn resume(&self) {
        self.holds.iter().for_each(LocalHolds::resume);
    }

    /// Notes that these amounts were sent to the next process.
    pub fn mark_sent(&self, sent: &[HeldAmount]) {
        for held in sent.iter().filter(|held| held.settled > Cost::default() || held.resets > 0) {
            if let Some(shard) = self.holds.get(self.shard_of(&held.key)) {
                shard.mark_sent(held);
            }
        }
    }

    /// Returns whether costs that were settled during a hand-over wait to be sent to the next process.
    pub fn has_unsent_costs(&self) -> bool {
        self.holds.iter().any(LocalHolds::has_unsent_costs)
    }
}
