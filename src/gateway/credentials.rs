//! Judges the credentials of a request: one that does not verify is refused before any rule is asked.
//!
//! Every kind of credential has its turn here, and nowhere else; what is proved goes into an [`Identity`]. That none of
//! them is ambiguous has been seen to before (`RuleSet::beside_credentials`).

use std::sync::Arc;

use super::reply::Reason;
use crate::auth::api_keys::{OnInvalid, Presented};
use crate::config::Config;
use crate::limit::identity::KnownKey;
use crate::limit::request::Request;

/// What the credentials of a request prove.
#[derive(Debug, Default)]
pub struct Identity {
    key: Option<Arc<KnownKey>>,
}

/// How a request is refused for its credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    pub status: u16,
    pub reason: Reason,
}

impl Identity {
    /// The request as the rules see it.
    pub fn show<'a>(&'a self, request: &Request<'a>) -> Request<'a> {
        Request { key: self.key.as_deref(), ..*request }
    }
}

pub fn judge(config: &Config, request: &Request<'_>) -> Result<Identity, Refused> {
    let mut identity = Identity::default();
    if let Some(api_keys) = &config.api_keys {
        match api_keys.find(request) {
            Presented::Nothing => {}
            Presented::Known(key) => identity.key = Some(key),
            Presented::Unknown if api_keys.on_invalid == OnInvalid::Anonymous => {}
            Presented::Unknown => return Err(Refused { status: 401, reason: Reason::KeyInvalid }),
        }
    }
    Ok(identity)
}
