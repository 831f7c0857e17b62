//! The settings of `jwt`: issuers, their keys and audiences, and the parts of requests that may contain a token.

use jsonwebtoken::Algorithm;

use super::keys::KeySet;
use super::remote_key_set;
use crate::on_invalid::OnInvalid;
use base::time::Micros;
use ledger::algorithm::token_bucket::TokenBucket;
use request::attribute::Attribute;

/// The settings for finding and verifying tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The trusted issuers. If there are several, the token's `iss` selects the issuer.
    pub issuers: Vec<Issuer>,
    /// The attributes that may carry the token. The first in this list that a request has is used.
    pub token_from: Vec<Attribute>,
    /// The attributes in `token_from` that may also carry an API key. Their values are tokens only if they have the form of a
    /// token ([`request::key_places::is_token`]).
    pub shared_with_keys: Vec<Attribute>,
    pub on_invalid: OnInvalid,
    pub on_missing: OnMissing,
    /// The limit for invalid tokens of one client address. When it is exceeded, tokens are refused without
    /// verification.
    pub invalid_limit: TokenBucket,
}

/// What happens to a request without a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnMissing {
    Anonymous,
    Reject,
}

/// A trusted issuer of tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Issuer {
    /// The required value of `iss`. `None` means that `iss` is not checked.
    pub name: Option<String>,
    /// The accepted audiences: `aud` must contain one of them. If the list is empty, `aud` is not checked.
    pub audience: Vec<String>,
    pub algorithms: Vec<Algorithm>,
    pub keys: KeySource,
    /// The tolerated difference between the clocks of the issuer and the gateway.
    pub leeway: Micros,
}

/// The source of an issuer's keys.
#[derive(Clone, Debug, PartialEq)]
pub enum KeySource {
    Fixed(KeySet),
    Fetched(remote_key_set::Settings),
    /// A secret that is unknown, because the configuration is only checked and not run. No token can be verified.
    Unknown,
}
