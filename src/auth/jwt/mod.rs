//! Verifies tokens: JSON Web Tokens (RFC 7519), signed, in the way that RFC 8725 asks for.
//!
//! A file says which algorithms, keys, issuers and audiences are accepted; a token only says which of them it claims. What
//! verifies is remembered for as long as it would verify again: until it expires, or its key is gone.

mod cache;
mod json;
pub mod jwks;
pub mod keys;
pub mod token;

use std::borrow::Cow;
use std::sync::Arc;

use http::header::{self, HeaderName};
use http::request::Parts;
use jsonwebtoken::Algorithm;
use serde_json::{Map, Value};

use crate::base::time::{Clock, Micros, Timestamp};
use crate::limit::algorithm::token_bucket::TokenBucket;
use crate::limit::attribute::Attribute;
use crate::limit::identity::Claims;
use crate::limit::request::Request;
use cache::{Cache, Verified};
use jwks::Remote;
use keys::KeySet;
use token::Unverified;

/// How tokens are found and verified.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// One, or several that the token's `iss` chooses from.
    pub issuers: Vec<Issuer>,
    /// Where a token is looked for: the first place that has one counts.
    pub token_from: Vec<Attribute>,
    pub on_invalid: OnInvalid,
    pub on_missing: OnMissing,
    /// For each client address: how many tokens that do not verify are looked at.
    pub invalid_limit: TokenBucket,
}

/// What becomes of a request with a token that does not verify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnInvalid {
    /// 401.
    Reject,
    /// It has no claims, like one without a token.
    Anonymous,
}

/// What becomes of a request without a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnMissing {
    Anonymous,
    Reject,
}

/// Whose tokens are believed.
#[derive(Clone, Debug, PartialEq)]
pub struct Issuer {
    /// What `iss` must be; when it is not set, `iss` is not looked at.
    pub name: Option<String>,
    /// What `aud` must hold one of; when it is empty, `aud` is not looked at.
    pub audience: Vec<String>,
    pub algorithms: Vec<Algorithm>,
    pub keys: Keys,
    /// How far two clocks may differ.
    pub leeway: Micros,
}

/// Where an issuer's keys come from.
#[derive(Clone, Debug, PartialEq)]
pub enum Keys {
    Fixed(KeySet),
    Fetched(jwks::Settings),
}

/// Why a token is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalid {
    Malformed,
    Algorithm,
    Issuer,
    Audience,
    Expired,
    NotYetValid,
    UnknownKey,
    Signature,
}

impl Invalid {
    pub const ALL: [Invalid; 8] = [
        Invalid::Malformed,
        Invalid::Algorithm,
        Invalid::Issuer,
        Invalid::Audience,
        Invalid::Expired,
        Invalid::NotYetValid,
        Invalid::UnknownKey,
        Invalid::Signature,
    ];

    /// The word in metrics. Clients are not told which.
    pub fn name(self) -> &'static str {
        match self {
            Invalid::Malformed => "malformed",
            Invalid::Algorithm => "algorithm",
            Invalid::Issuer => "issuer",
            Invalid::Audience => "audience",
            Invalid::Expired => "expired",
            Invalid::NotYetValid => "not_yet_valid",
            Invalid::UnknownKey => "unknown_key",
            Invalid::Signature => "signature",
        }
    }
}

/// Why a token is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenError {
    Invalid(Invalid),
    /// The issuer's keys have never been fetched: nothing can be said of the token.
    KeysUnavailable,
}

/// The verifier of one configuration.
#[derive(Debug)]
pub struct Verifier {
    token_from: Vec<Attribute>,
    issuers: Vec<Trusted>,
    cache: Cache,
    clock: Clock,
}

/// An issuer with its keys, as they are now.
#[derive(Debug)]
struct Trusted {
    issuer: Issuer,
    /// None while its keys are fixed.
    remote: Option<Arc<Remote>>,
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
            known(wanted).unwrap_or_else(|| Arc::new(Remote::new(wanted.clone(), clock.clone())))
        };
        let trusted = |issuer: &Issuer| Trusted {
            remote: match &issuer.keys {
                Keys::Fixed(_) => None,
                Keys::Fetched(settings) => Some(fetched(settings)),
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
    pub fn remotes(&self) -> impl Iterator<Item = &Arc<Remote>> {
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
    pub fn known(&self, token: &[u8]) -> Option<Arc<Claims>> {
        self.cache.get(token, self.clock.wall())
    }

    /// Verifies a token with the keys that are known.
    pub fn verify(&self, token: &[u8]) -> Result<Arc<Claims>, TokenError> {
        let unverified = Unverified::parse(token).map_err(TokenError::Invalid)?;
        let trusted = self.choose(&unverified.claims).map_err(TokenError::Invalid)?;
        let validity = trusted.check(&unverified, self.clock.wall()).map_err(TokenError::Invalid)?;
        let key = trusted.verified(&unverified)?;
        // The issuer is a part of what is counted where it would not be the same for all.
        let issuer = trusted.issuer.name.clone().filter(|_| self.issuers.len() > 1);
        let claims = Arc::new(Claims::new(unverified.claims, issuer));
        self.cache.insert(token, Verified { claims: Arc::clone(&claims), validity, key });
        Ok(claims)
    }

    /// Has the keys of a token's issuer fetched anew, because they lack the token's, and waits for that; says whether it
    /// was done.
    pub async fn fetch_for(&self, token: &[u8]) -> bool {
        let Ok(unverified) = Unverified::parse(token) else { return false };
        match self.choose(&unverified.claims).map(|trusted| &trusted.remote) {
            Ok(Some(remote)) => remote.ask_again().await,
            _ => false,
        }
    }

    /// The token's `iss` chooses among several issuers; of one it must be the name, if that is set.
    fn choose(&self, claims: &Map<String, Value>) -> Result<&Trusted, Invalid> {
        let named = |trusted: &&Trusted| match &trusted.issuer.name {
            Some(name) => claims.get("iss").and_then(Value::as_str) == Some(name),
            None => true,
        };
        self.issuers.iter().find(named).ok_or(Invalid::Issuer)
    }
}

/// When a token is good: from the first moment on, and before the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    pub from: Timestamp,
    pub until: Timestamp,
}

impl Trusted {
    /// Everything but the signature: it costs little, and what fails here needs no more.
    fn check(&self, unverified: &Unverified<'_>, now: Timestamp) -> Result<Validity, Invalid> {
        let Issuer { audience, algorithms, leeway, .. } = &self.issuer;
        if !algorithms.contains(&unverified.algorithm) {
            return Err(Invalid::Algorithm);
        }
        let claims = &unverified.claims;
        if !audience.is_empty() && !is_for(claims.get("aud"), audience) {
            return Err(Invalid::Audience);
        }
        let expires = claims.get("exp").and_then(moment).ok_or(Invalid::Malformed)?;
        let until = expires.plus(*leeway);
        let from = match claims.get("nbf") {
            None => Timestamp(0),
            Some(begins) => {
                let begins = moment(begins).ok_or(Invalid::Malformed)?;
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

    /// The key that signed it.
    fn verified(&self, unverified: &Unverified<'_>) -> Result<std::sync::Weak<keys::Key>, TokenError> {
        let fetched;
        let set = match (&self.issuer.keys, &self.remote) {
            (Keys::Fixed(set), _) => set,
            (Keys::Fetched(_), Some(remote)) => {
                fetched = remote.current().ok_or(TokenError::KeysUnavailable)?;
                &*fetched
            }
            (Keys::Fetched(_), None) => return Err(TokenError::KeysUnavailable),
        };
        let id = unverified.key_id.as_deref();
        let mut refused = Invalid::UnknownKey;
        for key in set.candidates(unverified.algorithm, id) {
            if key.verifies(unverified.algorithm, unverified.message, &unverified.signature) {
                return Ok(Arc::downgrade(key));
            }
            // A key without a name may be any; that it is not the one says nothing of the one that was named.
            if id.is_none() || key.is_named(id) {
                refused = Invalid::Signature;
            }
        }
        Err(TokenError::Invalid(refused))
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

/// `aud` is a text or a list of texts (RFC 7519, section 4.1.3).
fn is_for(found: Option<&Value>, audience: &[String]) -> bool {
    let ours = |text: &str| audience.iter().any(|name| name == text);
    match found {
        Some(Value::String(text)) => ours(text),
        Some(Value::Array(members)) => {
            members.iter().all(Value::is_string) && members.iter().filter_map(Value::as_str).any(ours)
        }
        _ => false,
    }
}

/// Seconds since the epoch, also with a fraction (RFC 7519, section 2, NumericDate); before the epoch is at it.
fn moment(value: &Value) -> Option<Timestamp> {
    let number = value.as_number()?;
    if let Some(seconds) = number.as_u64() {
        return Some(Timestamp(seconds.saturating_mul(1_000_000)));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates, and is not negative")]
    number.as_f64().map(|seconds| Timestamp((seconds.max(0.0) * 1e6) as u64))
}
