//! Judges the token of a request, and counts what came of it.
//!
//! Tokens that do not verify have a limit of their own, for each client address, in this process: a flood of them touches
//! no rule's bucket, and once it is used up nothing more is verified for that address. What was verified before needs no
//! verifying, so whoever has shown a good token goes on.

use std::sync::Arc;

use smallvec::smallvec;

use crate::auth::jwt;
use crate::auth::jwt::{Invalid, OnInvalid, OnMissing, Settings};
use crate::base::time::{Clock, Micros};
use crate::gateway::enforcement::authenticate::Refused;
use crate::gateway::response::problem::Reason;
use crate::gateway::telemetry::labels::TokenResult;
use crate::gateway::telemetry::metrics::Metrics;
use crate::limit::algorithm::Algorithm;
use crate::limit::algorithm::token_bucket::TokenBucket;
use crate::limit::charge::{Charge, LimitId, Plan};
use crate::limit::cost::Cost;
use crate::limit::identity::Claims;
use crate::limit::key::{Descriptor, KeySeed, LimitIdentity};
use crate::limit::request::{ClientAddress, Request};
use crate::store::memory;
use crate::store::memory::Memory;

/// How many client addresses with bad tokens are remembered.
const ADDRESSES: usize = 100_000;
/// What a client is told to wait while an issuer's keys have never been fetched.
const NO_KEYS: Micros = Micros(3_000_000);

/// The tokens of one configuration.
#[derive(Debug)]
pub struct TokenAuth {
    verifier: jwt::Verifier,
    on_invalid: OnInvalid,
    on_missing: OnMissing,
    invalid: InvalidLimit,
}

impl TokenAuth {
    /// In the place of `before`: keys that were fetched stay known, and what bad tokens have spent stays spent.
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

    /// To be called every second or so.
    pub fn sweep(&self) {
        self.invalid.buckets.sweep();
    }

    /// The claims of the request's token, if it has a good one.
    pub async fn judge(&self, request: &Request<'_>, metrics: &Metrics) -> Result<Option<Arc<Claims>>, Refused> {
        let Some(token) = self.verifier.find(request) else {
            return match self.on_missing {
                OnMissing::Anonymous => Ok(None),
                OnMissing::Reject => Err(Refused::new(401, Reason::TokenMissing)),
            };
        };
        if let Some(claims) = self.verifier.known(&token) {
            metrics.count_token(TokenResult::Known);
            return Ok(Some(claims));
        }
        let bucket = self.invalid.plan(request.client);
        if let Some(wait) = self.invalid.wait(&bucket) {
            metrics.count_token(TokenResult::Limited);
            return Err(Refused { wait: Some(wait), ..Refused::new(429, Reason::TokenInvalid) }.spread(&bucket));
        }
        let mut verified = self.verifier.verify(&token);
        if matches!(verified, Err(jwt::TokenError::Invalid(_))) {
            // Before anything is waited for: a crowd of them is held to the limit together.
            self.invalid.charge(&bucket);
        }
        if verified == Err(jwt::TokenError::Invalid(Invalid::UnknownKey)) && self.verifier.fetch_for(&token).await {
            verified = self.verifier.verify(&token);
        }
        match verified {
            Ok(claims) => {
                metrics.count_token(TokenResult::Valid);
                Ok(Some(claims))
            }
            Err(jwt::TokenError::KeysUnavailable) => {
                metrics.count_token(TokenResult::NoKeys);
                Err(Refused { wait: Some(NO_KEYS), ..Refused::new(503, Reason::KeysUnavailable) }.spread(&bucket))
            }
            Err(jwt::TokenError::Invalid(why)) => {
                metrics.count_token(TokenResult::Invalid(why));
                match self.on_invalid {
                    OnInvalid::Anonymous => Ok(None),
                    OnInvalid::Reject => Err(Refused::new(401, Reason::TokenInvalid)),
                }
            }
        }
    }
}

fn buckets_of(clock: Clock) -> Arc<Memory> {
    Arc::new(Memory::new(&memory::Settings { max_buckets: ADDRESSES }, clock))
}

/// One bucket for each client address.
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
            algorithm: algorithm.name(),
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
        };
        Plan { enforced: smallvec![charge], shadow: smallvec![] }
    }

    /// How long until another bad token is looked at; none when one is now.
    fn wait(&self, plan: &Plan) -> Option<Micros> {
        let found = self.buckets.peek(plan);
        if found.is_granted() { None } else { found.enforced.first().map(|outcome| outcome.retry_after) }
    }

    fn charge(&self, plan: &Plan) {
        self.buckets.take(plan);
    }
}
