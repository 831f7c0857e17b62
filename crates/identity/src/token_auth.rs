//! Authenticates requests by their tokens.
//!
//! Invalid tokens have their own limit for each client address, so a flood of them affects no bucket of a rule. When
//! the limit of an address is used up, only tokens in the cache are still accepted from this address.

use std::sync::Arc;

use super::address_limit::{AddressLimit, ExceededAddressLimit};
use super::jwt;
use super::jwt::{Invalid, OnInvalid, OnMissing, Settings, TokenError};
use base::time::{Clock, Micros};
use request::identity::Claims;
use request::request::Request;

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
    /// The limit of invalid tokens.
    invalid: AddressLimit,
}

impl TokenAuth {
    /// Makes the authenticator that replaces `before`. The fetched keys and the counts of invalid tokens are kept.
    pub fn after(before: Option<&TokenAuth>, settings: &Settings, clock: Clock) -> TokenAuth {
        let before_limit = before.map(|before| &before.invalid);
        let invalid = AddressLimit::after(before_limit, "invalid_limit", settings.invalid_limit, clock.clone());
        TokenAuth {
            verifier: jwt::Verifier::after(before.map(TokenAuth::verifier), settings, clock),
            on_invalid: settings.on_invalid,
            on_missing: settings.on_missing,
            invalid,
        }
    }

    pub fn verifier(&self) -> &jwt::Verifier {
        &self.verifier
    }

    /// Removes the clients' buckets that are full again. The caller must call this about every second.
    pub fn sweep(&self) {
        self.invalid.sweep();
    }

    /// Verifies the token of a request. Returns the status of the token, and its claims if the token is valid.
    pub async fn verify(&self, request: &Request<'_>) -> (TokenStatus, Option<Arc<Claims>>) {
        let Some(token) = self.verifier.find(request) else { return (TokenStatus::Missing, None) };
        if let Some(claims) = self.verifier.cached(&token) {
            return (TokenStatus::Cached, Some(claims));
        }
        if let Err(ExceededAddressLimit { wait, spread }) = self.invalid.check(request.client) {
            return (TokenStatus::Limited { wait, spread }, None);
        }
        let mut verified = self.verifier.verify(&token);
        if matches!(verified, Err(TokenError::Invalid(_))) {
            // The address is charged before the keys are fetched, so every request that waits for the fetch has been
            // charged.
            let _ = self.invalid.take(request.client);
        }
        // The future of this rare case is on the heap, so that it does not enlarge the task of every request.
        if verified == Err(TokenError::Invalid(Invalid::UnknownKey))
            && Box::pin(self.verifier.refetch_keys_for(&token)).await
        {
            verified = self.verifier.verify(&token);
        }
        match verified {
            Ok(claims) => (TokenStatus::Valid, Some(claims)),
            Err(TokenError::KeysUnavailable) => {
                (TokenStatus::KeysUnavailable { spread: self.invalid.spread(request.client) }, None)
            }
            Err(TokenError::Invalid(invalid)) => (TokenStatus::Invalid(invalid), None),
        }
    }
}
