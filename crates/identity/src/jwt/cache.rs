//! Caches verified tokens, so that a repeated token needs only a hash and a lookup.
//!
//! An entry is found by a hash of the whole token and a secret of this process. The entry is used only while the token
//! is within its validity, and the issuer still has the key that verified the token.

use std::sync::{Arc, Weak};

use quick_cache::Weighter;
use sha2::{Digest, Sha256};

use super::issuer::Validity;
use super::keys::Key;
use super::token::MAX_TOKEN_BYTES;
use base::time::Timestamp;
use request::identity::Claims;

/// The size of the cache, in bytes.
const CAPACITY: u64 = 32 << 20;

/// The result of verifying a token, as the cache keeps it.
#[derive(Clone, Debug)]
pub(crate) struct CachedToken {
    pub claims: Arc<Claims>,
    pub validity: Validity,
    /// A weak reference to the key that verified the token. When the key set no longer contains the key, the token is
    /// verified again.
    pub key: Weak<Key>,
}

type Name = [u8; 32];

#[derive(Debug)]
pub(super) struct Cache {
    seed: Sha256,
    entries: quick_cache::sync::Cache<Name, CachedToken, BySize>,
}

#[derive(Clone, Debug)]
struct BySize;

impl Weighter<Name, CachedToken> for BySize {
    fn weight(&self, _: &Name, verified: &CachedToken) -> u64 {
        // The size is computed whenever an entry moves. This takes little time, because a token has few claims.
        verified.claims.size() as u64 + 256
    }
}

impl Cache {
    pub(super) fn new() -> Cache {
        let mut secret = [0; 32];
        // If no random bytes are available, the hashes are not secret but still identify the tokens.
        let _ = ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut secret);
        let typical = CAPACITY / 4096;
        Cache {
            seed: Sha256::new_with_prefix(secret),
            entries: quick_cache::sync::Cache::with_weighter(usize::try_from(typical).unwrap_or(0), CAPACITY, BySize),
        }
    }

    pub(super) fn get(&self, token: &[u8], now: Timestamp) -> Option<Arc<Claims>> {
        // A token that is too long is invalid, so it need not be hashed.
        if token.len() > MAX_TOKEN_BYTES {
            return None;
        }
        let name = self.name(token);
        let CachedToken { claims, validity, key } = self.entries.get(&name)?;
        let counts = validity.from <= now && now < validity.until && key.strong_count() > 0;
        if !counts {
            self.entries.remove(&name);
        }
        counts.then_some(claims)
    }

    pub(super) fn insert(&self, token: &[u8], verified: CachedToken) {
        self.entries.insert(self.name(token), verified);
    }

    fn name(&self, token: &[u8]) -> Name {
        let mut hash = self.seed.clone();
        hash.update(token);
        hash.finalize().into()
    }
}
