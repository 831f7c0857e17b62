//! Describes a refusal: the only place that writes the status code of a decision.

use super::reason::Reason;
use identity::jwt::Invalid;
use rules::ambiguity::Ambiguity;

/// A refused request, as its client sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub status: u16,
    pub reason: Reason,
    /// In seconds, spread included; `None` where waiting does not help.
    pub retry_after: Option<u64>,
    pub problem: ProblemType,
    /// The end of the window that has to pass, in RFC 3339.
    pub resets_at: Option<String>,
    /// Why the token does not verify: for the log, never for the client.
    pub invalid_token: Option<Invalid>,
}

/// The type of a problem (RFC 9457), as the body of the response names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProblemType {
    /// `about:blank`: the status says everything.
    Blank,
    /// These limits of the caller are used up. Limits that are not exposed are left out.
    QuotaExceeded { violated: Vec<String> },
    /// These limits, which all callers share, are used up. Limits that are not exposed are left out.
    ReducedCapacity { violated: Vec<String> },
}

/// Whether the refusing limits are the caller's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExceededCapacity {
    /// At least one of them is the caller's own.
    Quota,
    /// All of them are shared by all callers.
    SharedCapacity,
}

impl Refusal {
    /// The request violates HTTP or a bound of `limits`; `status` is the protocol's for that violation.
    pub fn bad_request(status: u16) -> Refusal {
        Refusal::new(status, Reason::BadRequest)
    }

    /// The request is for a host that must not be asked for on its connection (421).
    pub fn misdirected() -> Refusal {
        Refusal::bad_request(421)
    }

    /// The request has more than one reading.
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

    /// The client has sent too many tokens that do not verify: this one is not verified.
    pub fn too_many_invalid_tokens(retry_after: u64) -> Refusal {
        Refusal { retry_after: Some(retry_after), ..Refusal::new(429, Reason::TokenInvalid) }
    }

    /// The keys of a token's issuer have never been fetched.
    pub(crate) fn keys_unavailable(retry_after: u64) -> Refusal {
        Refusal { retry_after: Some(retry_after), ..Refusal::new(503, Reason::KeysUnavailable) }
    }

    /// The API key is not known.
    pub(crate) fn key_invalid() -> Refusal {
        Refusal::new(401, Reason::KeyInvalid)
    }

    /// Every endpoint of the upstream has as many requests as it may have.
    pub fn upstream_busy() -> Refusal {
        Refusal { retry_after: Some(1), ..Refusal::new(503, Reason::UpstreamBusy) }
    }

    /// No route matches the request.
    pub(crate) fn no_route() -> Refusal {
        Refusal::new(404, Reason::NoRoute)
    }

    /// A rule, or a policy's `otherwise`, is `deny`.
    pub(crate) fn denied() -> Refusal {
        Refusal::new(403, Reason::Denied)
    }

    /// The cost is above what a limit can hold: the store is not asked.
    pub(crate) fn cost_too_large() -> Refusal {
        Refusal::new(429, Reason::CostTooLarge)
    }

    /// The store gave no answer, and a limit has `on_store_failure: deny`.
    pub fn store_unavailable(retry_after: u64) -> Refusal {
        Refusal { retry_after: Some(retry_after), ..Refusal::new(503, Reason::StoreUnavailable) }
    }

    /// Limits have too little left. `violated` are the names of those that are exposed.
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
