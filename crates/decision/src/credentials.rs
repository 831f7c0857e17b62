//! Decides whether a request continues after the check of its credentials, with or without an identity.

use std::sync::Arc;

use super::refusal::Refusal;
use super::retry_after::{Jitter, retry_after};
use base::time::Micros;
use identity::api_keys::ApiKeyLookup;
use identity::jwt::{OnInvalid, OnMissing};
use identity::token_auth::TokenStatus;
use request::identity::KnownKey;

/// How long a client should wait if the keys of its token's issuer have never been fetched. Jitter is added to this time.
const KEYS_WAIT: Micros = Micros(3_000_000);

/// Decides, from the status of the token, whether the request continues: with the claims of a valid token, or without claims.
///
/// # Errors
/// Returns the refusal if the token could not be verified, or if the settings reject a missing or an invalid token.
pub fn check_token(
    status: TokenStatus,
    on_missing: OnMissing,
    on_invalid: OnInvalid,
    jitter: Jitter,
) -> Result<(), Refusal> {
    match (status, on_missing, on_invalid) {
        (TokenStatus::Valid | TokenStatus::Cached, _, _) => Ok(()),
        (TokenStatus::Missing, OnMissing::Anonymous, _) => Ok(()),
        (TokenStatus::Missing, OnMissing::Reject, _) => Err(Refusal::token_missing()),
        (TokenStatus::Invalid(_), _, OnInvalid::Anonymous) => Ok(()),
        (TokenStatus::Invalid(invalid), _, OnInvalid::Reject) => Err(Refusal::token_invalid(invalid)),
        (TokenStatus::Limited { wait, spread }, _, _) => {
            Err(Refusal::too_many_invalid_tokens(retry_after(spread, wait, jitter)))
        }
        (TokenStatus::KeysUnavailable { spread }, _, _) => {
            Err(Refusal::keys_unavailable(retry_after(spread, KEYS_WAIT, jitter)))
        }
    }
}

/// Decides, from the API key, whether the request continues. Returns the holder of a known key. `None` if the request
/// continues without a key.
///
/// # Errors
/// Returns the refusal of an unknown key, if `on_invalid` rejects it.
pub fn check_api_key(presented: ApiKeyLookup, on_invalid: OnInvalid) -> Result<Option<Arc<KnownKey>>, Refusal> {
    match (presented, on_invalid) {
        (ApiKeyLookup::Absent, _) => Ok(None),
        (ApiKeyLookup::Known(key), _) => Ok(Some(key)),
        (ApiKeyLookup::Unknown(_), OnInvalid::Anonymous) => Ok(None),
        (ApiKeyLookup::Unknown(place), OnInvalid::Reject) => Err(Refusal::key_invalid(&place)),
    }
}
