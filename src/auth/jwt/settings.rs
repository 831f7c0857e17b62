//! What gateway.yaml says of tokens: issuers, their keys and audiences, and where a token is looked for.

use jsonwebtoken::Algorithm;

use super::jwks;
use super::keys::KeySet;
use crate::auth::on_invalid::OnInvalid;
use crate::base::time::Micros;
use crate::limit::algorithm::token_bucket::TokenBucket;
use crate::limit::attribute::Attribute;

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
    pub keys: KeySource,
    /// How far two clocks may differ.
    pub leeway: Micros,
}

/// Where an issuer's keys come from.
#[derive(Clone, Debug, PartialEq)]
pub enum KeySource {
    Fixed(KeySet),
    Fetched(jwks::Settings),
}
