//! Makes a hash of bytes that is the same in every process and version of Tollgate, so that all gateways select the
//! same endpoint.

use sha2::{Digest, Sha256};

pub(super) fn stable_hash(bytes: &[u8]) -> u64 {
    let digest: [u8; 32] = Sha256::digest(bytes).into();
    digest.first_chunk().map_or(0, |first| u64::from_be_bytes(*first))
}
