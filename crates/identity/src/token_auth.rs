//! Authenticates requests by their tokens.
//!
//! Invalid tokens have their own limit for each client address, so a flood of them affects no bucket of a rule. When
//! the limit of an address is used up, only tokens in the cache are still accepted from this address.

use std::sync::Arc;

use smallvec::smallvec;

use super::jwt;
use super::jwt::{Invalid, OnInvalid, OnMissing, Settings, TokenError};
use base::time::{Clock, Micros};
use ledger::algorithm::Algorithm;
use ledger::algorithm::token_bucket::TokenBucket;
use ledger::bucket_key::{Descriptor, KeySeed, LimitIdentity};
use ledger::charge::{Charge, ChargePurpose, LimitId, Plan};
use ledger::cost::Cost;
use request::client_address::ClientAddress;
use request::identity::Claims;
use request::request::Request;
use stores::memory;
use stores::memory::Memory;

/// The largest number of client addresses with invalid tokens that are remembered.
const ADDRESSES: usize = 100_000;

/// The result of verifying the token of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenStatus {
    Missing,
    Valid,
    /// The token was verified before, and is still valid.
    Cached,
    /// The token is not verified, because its client has sent too many invalid tokens.
    Limited {
        wait: Micros,
        /// A number that is fixed for the client's bucket. It spreads `Retry-After` over the clients.
        spread: u32,
    },
    /// The token cannot be verified, because the keys of its issuer have never been fetched.
    KeysUnavailable {
        spread: u32,
    },
    Invalid(Invalid),
}

/// Authenticates requests by their tokens, with the settings of one configuration.
#[derive(Debug)]
pub struct TokenAuth {
    verifier: jwt::Verifier,
    pub on_invalid: OnInvalid,
    pub on_missing: OnMissing,
    invalid: InvalidLimit,
}

impl TokenAuth {
    /// Makes the authenticator that replaces `before`. The fetched keys and the counts of invalid tokens are kept.
    pub fn after(before: Option<&TokenAuth>, settings: &Settings, clock: Clock) -> TokenAuth {
        let buckets = before.map(|before| Arc::clone(&before.invalid.buckets));
        TokenAuth {
            verifier: jwt::Verifier::after(before.map(TokenAuth::verifier), settings, clock.clone()),
            on_invalid: settings.on_invalid,
            on_missing: settings.on_missing,
            invalid: InvalidLimit::new(settings.invalid_limit, buckets.unwrap_or_else(|| buckets_of(clock))),
        }
    }

    pub fn verifier(&self) -> &jwt::Verifier {
        &self.verifier
    }

    /// Removes the clients' buckets that are full again. The caller must call this about every second.
    pub fn sweep(&self) {
        self.invalid.buckets.sweep();
    }

    /// Verifies the token of a request. Returns the status of the token, and its claims if the token is valid.
    pub async fn verify(&self, request: &Request<'_>) -> (TokenStatus, Option<Arc<Claims>>) {
        let Some(token) = self.verifier.find(request) else { return (TokenStatus::Missing, None) };
        if let Some(claims) = self.verifier.cached(&token) {
            return (TokenStatus::Cached, Some(claims));
        }
        let bucket = self.invalid.plan(request.client);
        let spread = bucket.charges().next().map_or(0, |charge| charge.key.spread());
        if let Some(wait) = self.invalid.wait(&bucket) {
            return (TokenStatus::Limited { wait, spread }, None);
        }
        let mut verified = self.verifier.verify(&token);
        if matches!(verified, Err(TokenError::Invalid(_))) {
            // Charged before the keys are fetched, so that every request that waits for the fetch has been charged.
            self.invalid.charge(&bucket);
        }
        // The future of this rare case is on the heap, so that it does not enlarge the task of every request.
        if verified == Err(TokenError::Invalid(Invalid::UnknownKey))
            && Box::pin(self.verifier.refetch_keys_for(&token)).await
        {
            verified = self.verifier.verify(&token);
        }
        match verified {
            Ok(claims) => (TokenStatus::Valid, Some(claims)),
            Err(TokenError::KeysUnavailable) => (TokenStatus::KeysUnavailable { spread }, None),
            Err(TokenError::Invalid(invalid)) => (TokenStatus::Invalid(invalid), None),
        }
    }
}

fn buckets_of(clock: Clock) -> Arc<Memory> {
    Memory::new(&memory::Settings { max_buckets: ADDRESSES, ..memory::Settings::default() }, clock)
}

/// Limits invalid tokens, with one bucket for each client address.
#[derive(Debug)]
struct InvalidLimit {
    bucket: TokenBucket,
    seed: KeySeed,
    buckets: Arc<Memory>,
}

impl InvalidLimit {
    fn new(bucket: TokenBucket, buckets: Arc<Memory>) -> InvalidLimit {
        let algorithm = Algorithm::TokenBucket(bucket);
        let identity = LimitIdentity {
            policy: "",
            rule: "invalid_limit",
            limit: "",
            mode: "enforce",
            algorithm: algorithm.kind(),
            keys: &["ip:address".to_owned()],
        };
        InvalidLimit { bucket, seed: KeySeed::new(&identity), buckets }
    }

    fn plan(&self, client: ClientAddress) -> Plan {
        let mut descriptor = Descriptor::default();
        descriptor.push(0, client.text().as_bytes());
        let charge = Charge {
            key: self.seed.key(&descriptor),
            algorithm: Algorithm::TokenBucket(self.bucket),
            cost: Cost::ONE,
            limit: LimitId(0),
            variant: 0,
            tag: self.seed.tag(),
            purpose: ChargePurpose::Spend,
        };
        Plan { enforced: smallvec![charge], shadow: smallvec![] }
    }

    /// Returns how long the client must wait until a token is verified again. `None` if a token may be verified now.
    fn wait(&self, plan: &Plan) -> Option<Micros> {
        let settlement = self.buckets.peek(plan);
        if settlement.is_granted() { None } else { settlement.enforced.first().map(|outcome| outcome.retry_after) }
    }

    fn charge(&self, plan: &Plan) {
        self.buckets.take(plan);
    }
}
