//! Writes the buckets of a memory store to a stream, and reads them in another process. The file `store.memory.file`
//! and the handover to the next process are such streams.
//!
//! | bytes | |
//! |---|---|
//! | 16 | `tollgate buckets` |
//! | 1 | the version of this format |
//! | 1, then the given number of bytes | the format of the keys and states, [`ledger::bucket_key::FORMAT`] |
//! | 8 | the store's time when writing began, in microseconds since the Unix epoch |
//! | each bucket: 1 | 1 |
//! | 4 | its limit and how much of the limit is spent, as [`QueueId`] |
//! | 16 | its key |
//! | 8 | the moment until which the bucket is kept |
//! | 4, then 8 for each integer | the number of integers in its state, and the integers |
//! | at the end: 1 | 0 |
//! | 8 | the number of buckets |
//! | 4 | CRC-32 of everything before it |
//!
//! Integers are little-endian. A key includes the algorithm's name, so only the algorithm that wrote a state reads it.
//!
//! Times are those of [`base::time::Clock`]. If the wall clock was set back between two processes, states are read as they
//! are, and each algorithm corrects moments that are too far ahead: nothing that was spent comes back, and no ban is
//! lost. If it was set back by more than an hour, buckets are kept as long as they would have been kept without the step. If the clock
//! was set forward, buckets are also refilled for the skipped time.

use std::fmt;
use std::io::{self, BufReader, BufWriter, Read, Write};

use super::queue_id::QueueId;
use super::{Entry, Memory};
use base::time::{Micros, Timestamp};
use ledger::algorithm::State;
use ledger::bucket_key::{BucketKey, FORMAT};

const MAGIC: &[u8; 16] = b"tollgate buckets";
const VERSION: u8 = 2;
const BUCKET: u8 = 1;
const END: u8 = 0;
const KEY_FORMAT: usize = FORMAT.len();

/// The number of buckets that are copied each time a shard is locked.
const BATCH: usize = 512;

/// The longest time by which the stream may be ahead of the clock. If it is further ahead, the moments until which its
/// buckets are kept are moved by the time that the stream is ahead.
const AHEAD: Micros = Micros(3_600_000_000);

/// The reason why buckets cannot be read from a stream.
#[derive(Debug)]
pub enum InvalidBuckets {
    Read(io::Error),
    /// The bytes are not a stream of buckets.
    Foreign,
    Version(u8),
    /// Another version of Tollgate wrote the stream. Its keys or states have another meaning.
    KeyFormat,
    Truncated,
    Damaged,
    /// More bytes follow after the end of the stream.
    TooLong,
}

impl fmt::Display for InvalidBuckets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InvalidBuckets::Read(error) => error.fmt(f),
            InvalidBuckets::Foreign => f.write_str("this is not a bucket file of Tollgate"),
            InvalidBuckets::Version(version) => write!(f, "the format must be {VERSION}, is {version}"),
            InvalidBuckets::KeyFormat => f.write_str("another version of Tollgate wrote it, whose buckets differ"),
            InvalidBuckets::Truncated => f.write_str("it ends early"),
            InvalidBuckets::Damaged => f.write_str("it is damaged"),
            InvalidBuckets::TooLong => f.write_str("more bytes follow after its end"),
        }
    }
}

impl std::error::Error for InvalidBuckets {}

/// Writes and reads the buckets of a store, one shard at a time, so that requests go on.
impl Memory {
    /// Writes all buckets that are not full to `to`, and returns their number.
    ///
    /// # Errors
    /// If `to` cannot be written.
    pub fn write_buckets(&self, to: impl Write) -> io::Result<u64> {
        let mut to = ChecksumStream { inner: BufWriter::new(to), hash: crc32fast::Hasher::new() };
        let now = self.clock.now();
        to.write_all(MAGIC)?;
        to.write_all(&[VERSION])?;
        // The text of the format is ten bytes long, so its length fits into one byte.
        to.write_all(&[u8::try_from(KEY_FORMAT).unwrap_or(u8::MAX)])?;
        to.write_all(FORMAT)?;
        to.write_all(&now.0.to_le_bytes())?;
        let (mut count, mut buffer) = (0, Vec::new());
        for (shard, keys) in self.shards.iter().zip(self.keys()) {
            for batch in keys.chunks(BATCH) {
                buffer.clear();
                let shard = shard.lock();
                for key in batch {
                    // The bucket may have been evicted since its key was listed.
                    let Some((queue, kept_until, state)) =
                        shard.kept(key).filter(|(_, kept_until, _)| *kept_until > now)
                    else {
                        continue;
                    };
                    append(&mut buffer, key, queue, kept_until, state)?;
                    count += 1;
                }
                drop(shard);
                to.write_all(&buffer)?;
            }
        }
        to.write_all(&[END])?;
        to.write_all(&u64::to_le_bytes(count))?;
        let checksum = to.hash.clone().finalize();
        to.write_all(&checksum.to_le_bytes())?;
        to.inner.flush()?;
        Ok(count)
    }

    /// Reads buckets until the end of the stream. Must be called before the first request. Returns the number of
    /// buckets that were kept. Full buckets are left out.
    ///
    /// # Errors
    /// If the stream is invalid. Then no bucket is kept.
    pub fn read_buckets(&self, from: impl Read) -> Result<usize, InvalidBuckets> {
        let read = self.read(from);
        match read {
            Ok(()) => Ok(self.buckets()),
            Err(error) => {
                for keys in self.keys() {
                    self.remove(&keys);
                }
                Err(error)
            }
        }
    }

    fn read(&self, from: impl Read) -> Result<(), InvalidBuckets> {
        let mut from = ChecksumStream { inner: BufReader::new(from), hash: crc32fast::Hasher::new() };
        // A stream shorter than the magic bytes is not a stream of buckets.
        let magic = from.bytes().map_err(|error| match error {
            InvalidBuckets::Truncated => InvalidBuckets::Foreign,
            error => error,
        })?;
        if magic != *MAGIC {
            return Err(InvalidBuckets::Foreign);
        }
        let [version] = from.bytes()?;
        if version != VERSION {
            return Err(InvalidBuckets::Version(version));
        }
        let [length] = from.bytes()?;
        if usize::from(length) != KEY_FORMAT || from.bytes::<KEY_FORMAT>()? != *FORMAT {
            return Err(InvalidBuckets::KeyFormat);
        }
        let written = Timestamp(from.integer()?);
        let now = self.clock.now();
        let is_moved = written.since(now) > AHEAD;
        let mut count = 0;
        loop {
            match from.bytes()? {
                [BUCKET] => {}
                [END] => break,
                _ => return Err(InvalidBuckets::Damaged),
            }
            let (key, queue, mut entry) = from.bucket()?;
            count += 1;
            if is_moved {
                entry.kept_until = now.plus(entry.kept_until.since(written));
            }
            if entry.kept_until > now {
                let shard = &mut self.shard(self.shard_of(&key)).lock();
                self.keep(shard, key, queue, entry, now);
            }
        }
        if from.integer()? != count {
            return Err(InvalidBuckets::Damaged);
        }
        let expected = from.hash.clone().finalize();
        if u32::from_le_bytes(from.bytes()?) != expected {
            return Err(InvalidBuckets::Damaged);
        }
        match from.bytes::<1>() {
            Err(InvalidBuckets::Truncated) => Ok(()),
            Err(error) => Err(error),
            Ok(_) => Err(InvalidBuckets::TooLong),
        }
    }
}

fn append(
    buffer: &mut Vec<u8>,
    key: &BucketKey,
    queue: QueueId,
    kept_until: Timestamp,
    state: &State,
) -> io::Result<()> {
    let length = u32::try_from(state.len()).map_err(|_| io::Error::other("a bucket's state is too long"))?;
    buffer.push(BUCKET);
    buffer.extend_from_slice(&queue.0.to_le_bytes());
    buffer.extend_from_slice(&key.0);
    buffer.extend_from_slice(&kept_until.0.to_le_bytes());
    buffer.extend_from_slice(&length.to_le_bytes());
    state.iter().for_each(|integer| buffer.extend_from_slice(&integer.to_le_bytes()));
    Ok(())
}

/// A stream that computes the checksum of its bytes.
struct ChecksumStream<S> {
    inner: S,
    hash: crc32fast::Hasher,
}

impl<S: Write> ChecksumStream<S> {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        self.inner.write_all(bytes)
    }
}

impl<S: Read> ChecksumStream<S> {
    fn bytes<const LENGTH: usize>(&mut self) -> Result<[u8; LENGTH], InvalidBuckets> {
        let mut bytes = [0; LENGTH];
        self.inner.read_exact(&mut bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => InvalidBuckets::Truncated,
            _ => InvalidBuckets::Read(error),
        })?;
        self.hash.update(&bytes);
        Ok(bytes)
    }

    fn integer(&mut self) -> Result<u64, InvalidBuckets> {
        self.bytes().map(u64::from_le_bytes)
    }

    /// Reads a bucket after its first byte.
    fn bucket(&mut self) -> Result<(BucketKey, QueueId, Entry), InvalidBuckets> {
        let queue = QueueId(u32::from_le_bytes(self.bytes()?));
        let (key, kept_until) = (BucketKey(self.bytes()?), Timestamp(self.integer()?));
        let length = u32::from_le_bytes(self.bytes()?);
        // The state grows as integers are read, so a false length reserves no memory.
        let mut state = (0..length).map(|_| self.integer()).collect::<Result<State, _>>()?;
        state.shrink_to_fit();
        Ok((key, queue, Entry { state, kept_until }))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::Settings;
    use super::super::queue_id::SpentClass;
    use super::*;
    use base::time::Clock;
    use ledger::bucket_key::LimitTag;
    use proptest::prelude::*;
    use smallvec::smallvec;

    const SECOND: u64 = 1_000_000;
    const HOUR: u64 = 3_600 * SECOND;
    const NOW: Timestamp = Timestamp(1_000_000 * SECOND);

    fn memory(now: Timestamp) -> Arc<Memory> {
        Memory::new(&Settings { max_buckets: 4096, ..Settings::default() }, Clock::manual(now))
    }

    fn key(number: u8) -> BucketKey {
        BucketKey([number; 16])
    }

    /// The queue of a key. The keys of the tests belong to three limits.
    fn queue(key: &BucketKey, class: SpentClass) -> QueueId {
        QueueId::new(LimitTag(u32::from(key.0[0] / 100)), class)
    }

    fn put(memory: &Memory, key: BucketKey, class: SpentClass, kept_until: Timestamp, state: State) {
        let shard = &mut memory.shard(memory.shard_of(&key)).lock();
        memory.keep(shard, key, queue(&key, class), Entry { state, kept_until }, NOW);
    }

    fn kept(memory: &Memory, key: &BucketKey) -> Option<(QueueId, Timestamp, State)> {
        let shard = memory.shard(memory.shard_of(key)).lock();
        shard.kept(key).map(|(queue, kept_until, state)| (queue, kept_until, state.clone()))
    }

    fn written(memory: &Memory) -> Vec<u8> {
        let mut bytes = Vec::new();
        memory.write_buckets(&mut bytes).unwrap();
        bytes
    }

    /// A stream of two buckets. One of them is full after a second.
    fn two() -> Vec<u8> {
        let memory = memory(NOW);
        put(&memory, key(1), SpentClass::Drained, NOW.plus(Micros(HOUR)), smallvec![1, 2, NOW.0]);
        put(&memory, key(2), SpentClass::Little, NOW.plus(Micros(SECOND)), smallvec![3, 4, NOW.0]);
        written(&memory)
    }

    #[test]
    fn what_was_full_is_not_written_and_what_is_full_by_now_is_not_kept() {
        let before = memory(NOW);
        put(&before, key(1), SpentClass::Drained, NOW.plus(Micros(HOUR)), smallvec![1, 2, NOW.0]);
        put(&before, key(2), SpentClass::Little, NOW.plus(Micros(SECOND)), smallvec![3, 4, NOW.0]);
        put(&before, key(3), SpentClass::Little, NOW, smallvec![3, 4, 5]);
        let mut bytes = Vec::new();
        assert_eq!(before.write_buckets(&mut bytes).unwrap(), 2);
        let after = memory(NOW.plus(Micros(60 * SECOND)));
        assert_eq!(after.read_buckets(&*bytes).unwrap(), 1);
        let expected = (queue(&key(1), SpentClass::Drained), NOW.plus(Micros(HOUR)), smallvec![1, 2, NOW.0]);
        assert_eq!(kept(&after, &key(1)), Some(expected));
    }

    #[test]
    fn more_than_fit_are_evicted_the_least_spent_first() {
        let before = memory(NOW);
        for number in 0..40 {
            let class = if number < 30 { SpentClass::Little } else { SpentClass::Drained };
            put(&before, key(number), class, NOW.plus(Micros(HOUR)), smallvec![1]);
        }
        let after = Memory::new(&Settings { max_buckets: 10, ..Settings::default() }, Clock::manual(NOW));
        assert_eq!(after.read_buckets(&*written(&before)).unwrap(), 10);
        assert!((30..40).all(|number| kept(&after, &key(number)).is_some()));
    }

    #[test]
    fn a_clock_set_back_leaves_states_as_they_are_and_after_an_hour_keeps_them_no_longer_than_before() {
        let state: State = smallvec![1, 2, NOW.0];
        for back in [HOUR, HOUR + SECOND, 24 * HOUR] {
            let now = Timestamp(NOW.0 - back);
            let after = memory(now);
            assert_eq!(after.read_buckets(&*two()).unwrap(), 2);
            let from = if back > HOUR { now } else { NOW };
            let expected = (queue(&key(1), SpentClass::Drained), from.plus(Micros(HOUR)), state.clone());
            assert_eq!(kept(&after, &key(1)), Some(expected), "{back}");
        }
    }

    #[track_caller]
    fn check_invalid(bytes: &[u8], expected: &str) {
        let after = memory(NOW);
        let error = after.read_buckets(bytes).unwrap_err();
        assert_eq!((error.to_string(), after.buckets()), (expected.to_owned(), 0));
    }

    #[test]
    fn anything_else_is_reported_and_leaves_no_bucket() {
        let good = two();
        let foreign = "this is not a bucket file of Tollgate";
        check_invalid(b"", foreign);
        check_invalid(b"upstream: http://127.0.0.1:9000\n", foreign);
        for length in 0..good.len() {
            check_invalid(&good[..length], if length < MAGIC.len() { foreign } else { "it ends early" });
        }
        check_invalid(&[&*good, b"\n"].concat(), "more bytes follow after its end");
        for version in [1, 3] {
            let mut other = good.clone();
            other[MAGIC.len()] = version;
            check_invalid(&other, &format!("the format must be 2, is {version}"));
        }
        let mut other_keys = good.clone();
        other_keys[MAGIC.len() + 1 + KEY_FORMAT] = b'2';
        check_invalid(&other_keys, "another version of Tollgate wrote it, whose buckets differ");
        let after = memory(NOW);
        assert_eq!(after.read_buckets(&*good).unwrap(), 2);
    }

    #[test]
    fn every_changed_bit_is_noticed() {
        let good = two();
        for bit in 0..good.len() * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let after = memory(NOW);
            assert!(after.read_buckets(&*bytes).is_err(), "bit {bit}");
            assert_eq!(after.buckets(), 0);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Generates states of up to 80 random integers.
        #[test]
        fn what_is_written_is_read(
            buckets in prop::collection::hash_map(
                any::<[u8; 16]>(),
                (0usize..4, 1u64..HOUR, prop::collection::vec(any::<u64>(), 0..80)),
                0..2_000,
            )
        ) {
            let before = memory(NOW);
            for (key, (class, wait, state)) in &buckets {
                let kept_until = NOW.plus(Micros(*wait));
                put(&before, BucketKey(*key), SpentClass::ALL[*class], kept_until, state.iter().copied().collect());
            }
            let after = memory(NOW);
            prop_assert_eq!(after.read_buckets(&*written(&before)).unwrap(), buckets.len());
            for key in buckets.keys().copied().map(BucketKey) {
                prop_assert_eq!(kept(&after, &key), kept(&before, &key));
            }
        }
    }
}
