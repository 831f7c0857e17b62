//! Verifies signed JSON Web Tokens (RFC 7519), following the recommendations of RFC 8725.
//!
//! The configuration determines which algorithms, keys, issuers and audiences are accepted. Verified tokens are cached
//! until they expire, or their key is removed.

pub mod algorithm;
mod cache;
mod error;
mod issuer;
mod json;
pub mod keys;
pub mod remote_key_set;
mod settings;
pub mod token;

use std::borrow::Cow;
use std::sync::Arc;

use http::header::{self, HeaderName};
use http::request::Parts;
use serde_json::{Map, Value};

pub use super::on_invalid::OnInvalid;
use base::time::Clock;
use cache::{Cache, CachedToken};
pub use error::{Invalid, TokenError};
use issuer::TrustedIssuer;
use remote_key_set::RemoteKeySet;
use request::attribute::Attribute;
use request::identity::Claims;
use request::key_places::{bearer_value, is_token};
use request::request::Request;
pub use settings::{Issuer, KeySource, OnMissing, Settings};
use token::UnverifiedToken;

/// Verifies the tokens of requests, with the settings of one configuration.
#[derive(Debug)]
pub struct Verifier {
    token_from: Vec<Attribute>,
    shared_with_keys: Vec<Attribute>,
    issuers: Vec<TrustedIssuer>,
    cache: Cache,
    clock: Clock,
}

impl Verifier {
    pub fn new(settings: &Settings, clock: Clock) -> Verifier {
        Verifier::after(None, settings, clock)
    }

    /// Makes the verifier that replaces `before`. The fetched keys of `before` are kept if the new settings still use them.
    pub fn after(before: Option<&Verifier>, settings: &Settings, clock: Clock) -> Verifier {
        let fetched = |wanted: &remote_key_set::Settings| {
            let mut known = before.into_iter().flat_map(Verifier::remotes);
            if let Some(same) = known.clone().find(|remote| remote.settings() == wanted) {
                return Arc::clone(same);
            }
            let former = known.find(|remote| remote.issuer() == wanted.issuer).map(Arc::as_ref);
            Arc::new(RemoteKeySet::after(former, wanted.clone(), clock.clone()))
        };
        let trusted = |issuer: &Issuer| TrustedIssuer {
            remote: match &issuer.keys {
                KeySource::Fixed(_) | KeySource::Unknown => None,
                KeySource::Fetched(settings) => Some(fetched(settings)),
            },
            issuer: issuer.clone(),
        };
        Verifier {
            token_from: settings.token_from.clone(),
            shared_with_keys: settings.shared_with_keys.clone(),
            issuers: settings.issuers.iter().map(trusted).collect(),
            cache: Cache::new(),
            clock,
        }
    }

    /// Returns the key sets that are fetched from issuers. The caller must keep these sets up to date.
    pub fn remotes(&self) -> impl Iterator<Item = &Arc<RemoteKeySet>> + Clone {
        self.issuers.iter().filter_map(|trusted| trusted.remote.as_ref())
    }

    /// Returns the token of a request, not yet parsed. `None` if the request has no token.
    pub fn find<'r>(&self, request: &Request<'r>) -> Option<Cow<'r, [u8]>> {
        self.token_from.iter().find_map(|source| {
            let found = match source {
                Attribute::Header(name) => in_header(request.head, name).map(Cow::Borrowed),
                source => source.resolve(request),
            };
            // An empty value after `Bearer` is an invalid token, never a key.
            let may_be_key = self.shared_with_keys.contains(source);
            found.filter(|value| !may_be_key || value.is_empty() || is_token(value))
        })
    }

    /// Returns the claims of a token that was verified before and is still valid. `None` for any other token.
    pub fn cached(&self, token: &[u8]) -> Option<Arc<Claims>> {
        self.cache.get(token, self.clock.wall())
    }

    /// Verifies a token with the current keys.
    ///
    /// # Errors
    ///
    /// If the token is invalid, or if the keys of its issuer have never been fetched.
    pub fn verify(&self, token: &[u8]) -> Result<Arc<Claims>, TokenError> {
        let unverified = UnverifiedToken::parse(token).map_err(TokenError::Invalid)?;
        let trusted = self.issuer_of(&unverified.claims).map_err(TokenError::Invalid)?;
        let validity = trusted.check(&unverified, self.clock.wall()).map_err(TokenError::Invalid)?;
        let key = trusted.verify_signature(&unverified)?;
        // If several issuers are trusted, the issuer is part of the client's identity.
        let issuer = trusted.issuer.name.clone().filter(|_| self.issuers.len() > 1);
        let claims = Arc::new(Claims::new(unverified.claims, issuer));
        self.cache.insert(token, CachedToken { claims: Arc::clone(&claims), validity, key });
        Ok(claims)
    }

    /// Fetches the keys of the token's issuer again, because the token's key is unknown. Returns whether a fetch has
    /// ended.
    pub(crate) async fn refetch_keys_for(&self, token: &[u8]) -> bool {
        let Ok(unverified) = UnverifiedToken::parse(token) else { return false };
        match self.issuer_of(&unverified.claims).map(|trusted| &trusted.remote) {
            Ok(Some(remote)) => remote.refetch().await,
            _ => false,
        }
    }

    /// Returns the issuer that the token names in `iss`. An issuer without a name accepts any `iss`.
    fn issuer_of(&self, claims: &Map<String, Value>) -> Result<&TrustedIssuer, Invalid> {
        let named = |trusted: &&TrustedIssuer| match &trusted.issuer.name {
            Some(name) => claims.get("iss").and_then(Value::as_str) == Some(name),
            None => true,
        };
        self.issuers.iter().find(named).ok_or(Invalid::Issuer)
    }
}

/// Returns the token in a header field. `Authorization` must have the scheme `Bearer`, in upper or lower case (RFC
/// 6750, section 2.1). In any other field, `Bearer` is optional.
fn in_header<'r>(head: &'r Parts, name: &HeaderName) -> Option<&'r [u8]> {
    let value = head.headers.get(name)?.as_bytes().trim_ascii();
    // If nothing follows `Bearer`, the token is invalid, but not missing.
    bearer_value(value).or_else(|| (*name != header::AUTHORIZATION && !value.is_empty()).then_some(value))
}
