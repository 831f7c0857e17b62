//! Tests properties of the reader of stored buckets, on modified files.

use std::sync::Arc;

use super::mutation::fuzz;
use base::time::{Clock, Timestamp};
use stores::memory::{Memory, Settings};

/// The time at which the corpus was written.
const WRITTEN: Timestamp = Timestamp(1_795_219_200_000_000);

fn memory() -> Arc<Memory> {
    Memory::new(&Settings { max_buckets: 64, ..Settings::default() }, Clock::manual(WRITTEN))
}

/// Replaces the checksum by a correct one, so that changes are not detected by the checksum.
fn with_checksum(bytes: &[u8]) -> Vec<u8> {
    let body = &bytes[..bytes.len().saturating_sub(4)];
    [body, &crc32fast::hash(body).to_le_bytes()].concat()
}

#[test]
fn buckets() {
    let words: &[&[u8]] =
        &[b"tollgate buckets", b"\x01\x0atollgate/1", &[1; 18], &[0; 13], &[0xff; 8], &[3, 0, 0, 0], &[0xff; 4]];
    fuzz("buckets", words, |bytes| {
        let answer = |bytes: &[u8]| {
            let memory = memory();
            let read = memory.read_buckets(bytes).map_err(|error| error.to_string());
            assert!(memory.buckets() <= 64);
            match &read {
                Err(_) => assert_eq!(memory.buckets(), 0),
                Ok(kept) => {
                    assert_eq!(memory.buckets(), *kept);
                    // Buckets that were read can be written, and read again.
                    let mut written = Vec::new();
                    assert_eq!(memory.write_buckets(&mut written).unwrap(), *kept as u64);
                    assert_eq!(self::memory().read_buckets(&*written).unwrap(), *kept);
                }
            }
            read.map(usize::next_power_of_two)
        };
        (answer(bytes), answer(&with_checksum(bytes)))
    });
}
