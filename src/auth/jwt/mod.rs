//! Verifies tokens: JSON Web Tokens (RFC 7519), signed, in the way that RFC 8725 asks for.
//!
//! A file says which algorithms, keys, issuers and audiences are accepted; a token only says which of them it claims. What
//! verifies is remembered for as long as it would verify again: until it expires, or its key is gone.

mod cache;
mod error;
mod issuer;
mod json;
pub mod jwks;
pub mod keys;
mod settings;
pub mod token;

use std::borrow::Cow;
use std::sync::Arc;

use http::header::{self, HeaderName};
use http::request::Parts;
use serde_json::{Map, Value};

pub use super::on_invalid::OnInvalid;
use crate::base::time::Clock;
use crate::limit::attribute::Attribute;
use crate::limit::identity::Claims;
use crate::limit::request::Request;
use cache::{Cache, CachedToken};
pub use error::{Invalid, TokenError};
use issuer::TrustedIssuer;
use jwks::RemoteKeySet;
pub use settings::{Issuer, KeySource, OnMissing, Settings};
use token::UnverifiedToken;

/// The verifier of one configuration.
#[derive(Debug)]
pub struct Verifier {
    token_from: Vec<Attribute>,
    issuers: Vec<TrustedIssuer>,
    cache: Cache,
    clock: Clock,
}

impl Verifier {
    pub fn new(settings: &Settings, clock: Clock) -> Verifier {
        Verifier::after(None, settings, clock)
    }

    /// In the place of `before`, whose fetched sets are kept where they are still wanted.
    pub fn after(before: Option<&Verifier>, settings: &Settings, clock: Clock) -> Verifier {
        let known = |wanted: &jwks::Settings| {
            before.and_then(|before| before.remotes().find(|remote| remote.settings() == wanted)).cloned()
        };
        let fetched = |wanted: &jwks::Settings| {
            known(wanted).unwrap_or_else(|| Arc::new(RemoteKeySet::new(wanted.clone(), clock.clone())))
        };
        let trusted = |issuer: &Issuer| TrustedIssuer {
            remote: match &issuer.keys {
                KeySource::Fixed(_) => None,
                KeySource::Fetched(settings) => Some(fetched(settings)),
            },
            issuer: issuer.clone(),
        };
        Verifier {
            token_from: settings.token_from.clone(),
            issuers: settings.issuers.iter().map(trusted).collect(),
            cache: Cache::new(),
            clock,
        }
    }

    /// The sets that are fetched, to be kept fresh by whoever runs this.
    pub fn remotes(&self) -> impl Iterator<Item = &Arc<RemoteKeySet>> {
        self.issuers.iter().filter_map(|trusted| trusted.remote.as_ref())
    }

    /// What a request has in the place of a token: it has not been looked at.
    pub fn find<'r>(&self, request: &Request<'r>) -> Option<Cow<'r, [u8]>> {
        self.token_from.iter().find_map(|source| match source {
            Attribute::Header(name) => in_header(request.head, name).map(Cow::Borrowed),
            source => source.resolve(request),
        })
    }

    /// The claims of a token that was verified before, and would be again.
    pub fn cached(&self, token: &[u8]) -> Option<Arc<Claims>> {
        self.cache.get(token, self.clock.wall())
    }

    /// Verifies a token with the keys that are known.
    pub fn verify(&self, token: &[u8]) -> Result<Arc<Claims>, TokenError> {
        let unverified = UnverifiedToken::parse(token).map_err(TokenError::Invalid)?;
        let trusted = self.issuer_of(&unverified.claims).map_err(TokenError::Invalid)?;
        let validity = trusted.check(&unverified, self.clock.wall()).map_err(TokenError::Invalid)?;
        let key = trusted.verify_signature(&unverified)?;
        // The issuer is a part of what is counted where it would not be the same for all.
        let issuer = trusted.issuer.name.clone().filter(|_| self.issuers.len() > 1);
        let claims = Arc::new(Claims::new(unverified.claims, issuer));
        self.cache.insert(token, CachedToken { claims: Arc::clone(&claims), validity, key });
        Ok(claims)
    }

    /// Has the keys of a token's issuer fetched anew, because they lack the token's, and waits for that; says whether it
    /// was done.
    pub async fn refetch_keys_for(&self, token: &[u8]) -> bool {
        let Ok(unverified) = UnverifiedToken::parse(token) else { return false };
        match self.issuer_of(&unverified.claims).map(|trusted| &trusted.remote) {
            Ok(Some(remote)) => remote.refetch().await,
            _ => false,
        }
    }

    /// The token's `iss` chooses among several issuers; of one it must be the name, if that is set.
    fn issuer_of(&self, claims: &Map<String, Value>) -> Result<&TrustedIssuer, Invalid> {
        let named = |trusted: &&TrustedIssuer| match &trusted.issuer.name {
            Some(name) => claims.get("iss").and_then(Value::as_str) == Some(name),
            None => true,
        };
        self.issuers.iter().find(named).ok_or(Invalid::Issuer)
    }
}

/// In `Authorization` behind `Bearer`, in any case (RFC 6750, section 2.1); any other scheme is no token. In another
/// field with or without it.
fn in_header<'r>(head: &'r Parts, name: &HeaderName) -> Option<&'r [u8]> {
    const BEARER: &[u8] = b"bearer";
    let value = head.headers.get(name)?.as_bytes().trim_ascii();
    let scheme = value.split(|byte| matches!(byte, b' ' | b'\t')).next().unwrap_or_default();
    if scheme.eq_ignore_ascii_case(BEARER) {
        // Nothing behind it, or a tab before it, makes a token that does not verify, not the absence of one.
        return Some(value.get(scheme.len()..)?.trim_ascii_start());
    }
    (*name != header::AUTHORIZATION && !value.is_empty()).then_some(value)
}
