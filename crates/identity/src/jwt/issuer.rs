//! Checks a token against the issuer that it names: algorithm, audience, times, signature.

use std::sync::{Arc, Weak};

use serde_json::Value;

use super::error::{Invalid, TokenError};
use super::keys::Key;
use super::remote_key_set::RemoteKeySet;
use super::settings::{Issuer, KeySource};
use super::token::UnverifiedToken;
use base::time::Timestamp;

/// An issuer with its current keys.
#[derive(Debug)]
pub(crate) struct TrustedIssuer {
    pub issuer: Issuer,
    /// The fetched keys. `None` if the keys are in the configuration.
    pub remote: Option<Arc<RemoteKeySet>>,
}

/// The time in which a token is valid. It includes the moment `from` and excludes the moment `until`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Validity {
    pub from: Timestamp,
    pub until: Timestamp,
}

impl TrustedIssuer {
    /// Checks the token's algorithm, audience and times, but not the signature, whose check takes more time.
    ///
    /// # Errors
    ///
    /// Returns the first requirement that the token does not meet.
    pub(super) fn check(&self, unverified: &UnverifiedToken<'_>, now: Timestamp) -> Result<Validity, Invalid> {
        let Issuer { audience, algorithms, leeway, .. } = &self.issuer;
        if !algorithms.contains(&unverified.algorithm) {
            return Err(Invalid::Algorithm);
        }
        let claims = &unverified.claims;
        if !audience.is_empty() && !audience_matches(claims.get("aud"), audience) {
            return Err(Invalid::Audience);
        }
        let expires = claims.get("exp").and_then(numeric_date).ok_or(Invalid::Malformed)?;
        let until = expires.plus(*leeway);
        let from = match claims.get("nbf") {
            None => Timestamp(0),
            Some(begins) => {
                let begins = numeric_date(begins).ok_or(Invalid::Malformed)?;
                Timestamp(begins.0.saturating_sub(leeway.0))
            }
        };
        if now >= until {
            return Err(Invalid::Expired);
        }
        if now < from {
            return Err(Invalid::NotYetValid);
        }
        Ok(Validity { from, until })
    }

    /// Verifies the signature of the token. Returns a weak reference to the key that verified the signature.
    ///
    /// # Errors
    ///
    /// If no key verifies the signature, or if the keys of the issuer are not available.
    pub(crate) fn verify_signature(&self, unverified: &UnverifiedToken<'_>) -> Result<Weak<Key>, TokenError> {
        let fetched;
        let set = match (&self.issuer.keys, &self.remote) {
            (KeySource::Fixed(set), _) => set,
            (KeySource::Fetched(_), Some(remote)) => {
                fetched = remote.current().ok_or(TokenError::KeysUnavailable)?;
                &*fetched
            }
            (KeySource::Fetched(_), None) | (KeySource::Unknown, _) => return Err(TokenError::KeysUnavailable),
        };
        let id = unverified.key_id.as_deref();
        let mut refused = Invalid::UnknownKey;
        for key in set.candidates(unverified.algorithm, id) {
            if key.verifies(unverified.algorithm, unverified.message, &unverified.signature) {
                return Ok(Arc::downgrade(key));
            }
            // The signature is wrong if the token names no key, or if the named key was tried. If only keys without an
            // id were tried, the reason stays `UnknownKey`.
            if id.is_none() || key.is_named(id) {
                refused = Invalid::Signature;
            }
        }
        Err(TokenError::Invalid(refused))
    }
}

/// Whether the token is meant for one of these audiences. `aud` is a string or an array of strings (RFC 7519, section
/// 4.1.3).
fn audience_matches(found: Option<&Value>, audience: &[String]) -> bool {
    let ours = |text: &str| audience.iter().any(|name| name == text);
    match found {
        Some(Value::String(text)) => ours(text),
        Some(Value::Array(members)) => {
            members.iter().all(Value::is_string) && members.iter().filter_map(Value::as_str).any(ours)
        }
        _ => false,
    }
}

/// Converts seconds since the epoch, possibly with a fraction (RFC 7519, section 2, NumericDate). Times before the
/// epoch become the epoch.
fn numeric_date(value: &Value) -> Option<Timestamp> {
    let number = value.as_number()?;
    if let Some(seconds) = number.as_u64() {
        return Some(Timestamp(seconds.saturating_mul(1_000_000)));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates, and is not negative")]
    number.as_f64().map(|seconds| Timestamp((seconds.max(0.0) * 1e6) as u64))
}
