//! Describes a refusal: the only place that writes the status code of a decision.

use super::reason::Reason;
use identity::jwt::Invalid;
use rules::ambiguity::Ambiguity;

/// The answer to a refused request, as its client sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub status: u16,
    pub reason: Reason,
    /// The value of `Retry-After`, in seconds, with the random spread; `None` if waiting does not help.
    pub retry_after: Option<u64>,
    pub problem: ProblemType,
    /// The moment at which the window ends and the bucket is full, in RFC 3339.
    pub resets_at: Option<String>,
    /// The reason why the token does not verify: for the log, never for the client.
    pub invalid_token: Option<Invalid>,
}

/// The type of a problem document (RFC 9457).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProblemType {
    /// `about:blank`: the status says everything.
    Blank,
    /// These limits of the caller are used up. Limits that are not exposed are left out.
    QuotaExceeded { violated: Vec<String> },
    /// These limits, which all callers share, are used up. Limits that are not exposed are left out.
    ReducedCapacity { violated: Vec<String> },
}

/// Whether the exceeded limits are the client's own, or shared by all clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExceededCapacity {
    /// At least one of them is the caller's own.
    Quota,
    /// All of them are shared by all callers.
    SharedCapacity,
}

impl Refusal {
    /// The refusal of a request that violates HTTP or a bound of `limits`; `status` is the status that HTTP has for the
    /// violation.
    pub fn bad_request(status: u16) -> Refusal {
        Refusal::new(status, Reason::BadRequest)
    }

    /// The refusal of a request for a host that must not be requested on this connection (421).
    pub fn misdirected() -> Refusal {
        Refusal::bad_request(421)
    }

    /// The refusal of a request that can be read in more than one way.
    pub fn ambiguous(ambiguity: Ambiguity) -> Refusal {
        match ambiguity {
            Ambiguity::Ambiguous => Refusal::new(400, Reason::AmbiguousRequest),
            Ambiguity::Path => Refusal::bad_request(400),
        }
    }

    pub fn token_missing() -> Refusal {
        Refusal::new(401, Reason::TokenMissing)
    }

    pub(crate) fn token_invalid(invalid: Invalid) -> Refusal {
        Refusal { invalid_token: Some(invalid), ..Refusal::new(401, Reason::TokenInvalid) }
    }

    /// The refusal of a token that is not verified, because the client has sent too many invalid ones.
    pub fn too_many_invalid_tokens(retry_after: u64) -> Refusal {
        Refusal { retry_after: Some(retry_after), ..Refusal::new(429, Reason::TokenInvalid) }
    }

    /// The refusal of a token, because the keys of its issuer have never been fetched.
    pub(crate) fn keys_unavailable(retry_after: u64) -> Refusal {
        Refusal { retry_after: Some(retry_after), ..Refusal::new(503, Reason::KeysUnavailable) }
    }

    /// The refusal of an unknown API key.
    pub(crate) fn key_invalid() -> Refusal {
        Refusal::new(401, Reason::KeyInvalid)
    }

    /// The refusal of a request, because every endpoint of the upstream has as many requests as it may have.
    pub fn upstream_busy() -> Refusal {
        Refusal { retry_after: Some(1), ..Refusal::new(503, Reason::UpstreamBusy) }
    }

    /// The refusal of a request that matches no route.
    pub(crate) fn no_route() -> Refusal {
        Refusal::new(404, Reason::NoRoute)
    }

    /// The refusal by a rule with `action: deny`, or by a policy with `otherwise: deny`.
    pub(crate) fn denied() -> Refusal {
        Refusal::new(403, Reason::Denied)
    }

    /// The refusal of a cost that no full bucket of a limit could pay. The store is not asked.
    pub(crate) fn cost_too_large() -> Refusal {
        Refusal::new(429, Reason::CostTooLarge)
    }

    /// The refusal because the store gave no answer and a limit has `on_store_failure: deny`.
    pub fn store_unavailable(retry_after: u64) -> Refusal {
        Refusal { retry_after: Some(retry_after), ..Refusal::new(503, Reason::StoreUnavailable) }
    }

    /// The refusal because limits have too little left. `violated` are the names of the limits that clients may see.
    pub(crate) fn exceeded(
        exceeded: ExceededCapacity,
        reason: Reason,
        retry_after: Option<u64>,
        violated: Vec<String>,
    ) -> Refusal {
        let (status, problem) = match exceeded {
            ExceededCapacity::Quota => (429, ProblemType::QuotaExceeded { violated }),
            ExceededCapacity::SharedCapacity => (503, ProblemType::ReducedCapacity { violated }),
        };
        Refusal { retry_after, problem, ..Refusal::new(status, reason) }
    }

    fn new(status: u16, reason: Reason) -> Refusal {
        let problem = ProblemType::Blank;
        Refusal { status, reason, retry_after: None, problem, resets_at: None, invalid_token: None }
    }
}
