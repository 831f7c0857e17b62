//! Truncates SHA-256 hashes to their first bytes.

use sha2::{Digest, Sha256};

/// Returns the first bytes of a hash. A hash has 32 bytes; there are zeros after them.
pub(crate) fn first_bytes<const N: usize>(hash: Sha256) -> [u8; N] {
    let mut first = [0; N];
    first.iter_mut().zip(hash.finalize()).for_each(|(byte, hashed)| *byte = hashed);
    first
}

/// Returns the first eight bytes of a hash as a number.
pub(crate) fn first_number(hash: Sha256) -> u64 {
    u64::from_be_bytes(first_bytes(hash))
}
