//! Judges the credentials of a request: one that does not verify is refused before any rule is asked.
//!
//! Every kind of credential has its turn here, and nowhere else; what is proved goes into an [`Identity`]. That none of
//! them is ambiguous has been seen to before (`RuleSet::beside_credentials`).

use std::sync::Arc;

use crate::auth::api_keys::{OnInvalid, Presented};
use crate::base::time::Micros;
use crate::gateway::response::problem::Reason;
use crate::gateway::state::snapshot::Snapshot;
use crate::gateway::telemetry::metrics::Metrics;
use crate::limit::charge::Plan;
use crate::limit::identity::{Claims, KnownKey};
use crate::limit::key::BucketKey;
use crate::limit::request::Request;

/// What the credentials of a request prove.
#[derive(Debug, Default)]
pub struct Identity {
    claims: Option<Arc<Claims>>,
    key: Option<Arc<KnownKey>>,
}

/// How a request is refused for its credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    pub status: u16,
    pub reason: Reason,
    /// How long a client had better wait, and the bucket by which that is spread.
    pub wait: Option<Micros>,
    pub spread: Option<BucketKey>,
}

impl Refused {
    pub fn new(status: u16, reason: Reason) -> Refused {
        Refused { status, reason, wait: None, spread: None }
    }

    /// The same client is told the same everywhere, and others something else.
    pub fn spread(self, bucket: &Plan) -> Refused {
        Refused { spread: bucket.charges().next().map(|charge| charge.key), ..self }
    }
}

impl Identity {
    /// The request as the rules see it.
    pub fn show<'a>(&'a self, request: &Request<'a>) -> Request<'a> {
        Request { claims: self.claims.as_deref(), key: self.key.as_deref(), ..*request }
    }
}

pub async fn judge(snapshot: &Snapshot, metrics: &Metrics, request: &Request<'_>) -> Result<Identity, Refused> {
    let mut identity = Identity::default();
    if let Some(tokens) = &snapshot.tokens {
        identity.claims = tokens.judge(request, metrics).await?;
    }
    if let Some(api_keys) = &snapshot.config.api_keys {
        match api_keys.find(request) {
            Presented::Nothing => {}
            Presented::Known(key) => identity.key = Some(key),
            Presented::Unknown if api_keys.on_invalid == OnInvalid::Anonymous => {}
            Presented::Unknown => return Err(Refused::new(401, Reason::KeyInvalid)),
        }
    }
    Ok(identity)
}
