//! The settings of `jwt`: issuers, their keys and audiences, and where requests carry a token.

use jsonwebtoken::Algorithm;

use super::jwks;
use super::keys::KeySet;
use crate::on_invalid::OnInvalid;
use base::time::Micros;
use ledger::algorithm::token_bucket::TokenBucket;
use request::attribute::Attribute;

/// How tokens are found and verified.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// One issuer, or several among which the token's `iss` chooses.
    pub issuers: Vec<Issuer>,
    /// Where a token is looked for, in this order; the first one found is used.
    pub token_from: Vec<Attribute>,
    pub on_invalid: OnInvalid,
    pub on_missing: OnMissing,
    /// For each client address, how many invalid tokens are verified before further tokens are refused.
    pub invalid_limit: TokenBucket,
}

/// How a request without a token is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnMissing {
    Anonymous,
    Reject,
}

/// A trusted issuer of tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Issuer {
    /// The required `iss`; `None`: `iss` is not checked.
    pub name: Option<String>,
    /// The audiences of which `aud` must contain one; empty: `aud` is not checked.
    pub audience: Vec<String>,
    pub algorithms: Vec<Algorithm>,
    pub keys: KeySource,
    /// The tolerated difference of two clocks.
    pub leeway: Micros,
}

/// Where an issuer's keys come from.
#[derive(Clone, Debug, PartialEq)]
pub enum KeySource {
    Fixed(KeySet),
    Fetched(jwks::Settings),
    /// A secret that is unknown, in a file that is only examined: no token can be verified.
    Unknown,
}
