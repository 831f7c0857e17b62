//! Defines the refusals of requests, each with its status code.

use super::reason::Reason;
use base::time::Timestamp;
use identity::jwt::Invalid;
use ledger::algorithm::AlgorithmKind;
use ledger::charge::{Charge, Plan};
use ledger::cost::Cost;
use request::key_places::KeyPlace;
use rules::ambiguity::Ambiguity;
use rules::rule::Expose;
use rules::rule_set::RuleSet;
use rules::settled_price::Unit;

/// The answer to a refused request: its status and reason, and further values for the response and the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub status: u16,
    pub reason: Reason,
    /// The value of `Retry-After` in seconds, with jitter added. `None` if waiting does not help.
    pub retry_after: Option<u64>,
    pub problem: ProblemType,
    /// The time of the refusal, by the store's clock. `None` if no limit refused the request.
    pub refused_at: Option<Timestamp>,
    /// The moment at which the window of the refusing limit ends, in RFC 3339. `None` if the limit has no window, or if
    /// no limit refused the request.
    pub resets_at: Option<String>,
    /// The reason why the token does not verify. It is logged, and never sent to the client.
    pub invalid_token: Option<Invalid>,
    /// The limit that can never pay the cost of the request. `None` for other refusals, and if clients may not see the limit.
    pub fits: Option<Box<Fits>>,
    /// What requests in flight hold of the budget that refuses the request. `None` if no budget refuses it.
    pub held: Option<Cost>,
    /// Whether the spent amount of a budget refuses the request. `false` if the request would fit without the requests
    /// in flight.
    pub is_budget_spent: bool,
    /// How a client can authenticate. A refusal with status 401 has a challenge.
    pub challenge: Option<Challenge>,
    /// The methods that the path accepts.
    pub allowed_methods: AllowedMethods,
}

/// The methods that a path of the gateway itself accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllowedMethods {
    /// They are not limited to some.
    Any,
    Reads,
    Post,
}

impl AllowedMethods {
    /// Returns the value of `Allow`. `None` if the methods are not limited to some.
    pub fn value(self) -> Option<&'static str> {
        match self {
            AllowedMethods::Any => None,
            AllowedMethods::Reads => Some("GET, HEAD"),
            AllowedMethods::Post => Some("POST"),
        }
    }
}

/// A limit whose full bucket holds less than a request costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fits {
    /// The name of the limit.
    pub limit: String,
    pub unit: Unit,
    /// The largest cost that a full bucket can pay.
    pub most: Cost,
    /// The cost of the request at this limit.
    pub cost: Cost,
}

/// A challenge of `WWW-Authenticate`, which a response with status 401 must have (RFC 9110, section 15.5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Challenge {
    /// A token or key with the scheme `Bearer` is missing (RFC 6750, section 3).
    Bearer,
    /// The token or key with the scheme `Bearer` is invalid.
    InvalidBearer,
    /// The API key outside of `Bearer` is unknown. No scheme is registered for API keys, so its name is our own.
    ApiKey,
}

impl Challenge {
    /// Returns the value of the field `WWW-Authenticate`.
    pub fn field_value(self) -> &'static str {
        match self {
            Challenge::Bearer => "Bearer",
            Challenge::InvalidBearer => "Bearer error=\"invalid_token\"",
            Challenge::ApiKey => "ApiKey",
        }
    }
}

/// The type of the problem document (RFC 9457) in the response to a refused request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProblemType {
    /// `about:blank`: the status is the whole explanation.
    Blank,
    /// The limits in `violated` are used up. At least one is the caller's own. Limits that clients may not see are left out.
    QuotaExceeded { violated: Vec<String> },
    /// The limits in `violated` are used up. All callers share them. Limits that clients may not see are left out.
    ReducedCapacity { violated: Vec<String> },
}

/// Whether the exceeded limits are the client's own, or shared by all clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExceededCapacity {
    /// At least one of the exceeded limits is the caller's own.
    Quota,
    /// All exceeded limits are shared by all callers.
    SharedCapacity,
}

impl Refusal {
    /// Makes the refusal of a request that violates HTTP or a bound of `limits`. HTTP defines the `status`.
    pub fn bad_request(status: u16) -> Refusal {
        Refusal::new(status, Reason::BadRequest)
    }

    /// Makes the refusal of a request for a host that must not be requested on this connection (421).
    pub fn misdirected() -> Refusal {
        Refusal::bad_request(421)
    }

    /// Makes the refusal of a request that can be read in more than one way, or has two different API keys.
    pub fn ambiguous(ambiguity: Ambiguity) -> Refusal {
        match ambiguity {
            Ambiguity::Ambiguous => Refusal::new(400, Reason::AmbiguousRequest),
            Ambiguity::Path => Refusal::bad_request(400),
        }
    }

    /// Makes the refusal of a request to the path of `usage` with another method than `GET` and `HEAD`.
    pub fn usage_method() -> Refusal {
        Refusal { allowed_methods: AllowedMethods::Reads, ..Refusal::bad_request(405) }
    }

    /// Makes the refusal of a request to the path of `usage`, because its client has sent too many of them.
    pub fn too_much_asked(retry_after: u64) -> Refusal {
        let reason = Reason::exceeded(AlgorithmKind::TokenBucket);
        Refusal::exceeded(ExceededCapacity::Quota, reason, Some(retry_after), Vec::new())
    }

    pub fn token_missing() -> Refusal {
        Refusal { challenge: Some(Challenge::Bearer), ..Refusal::new(401, Reason::TokenMissing) }
    }

    pub(crate) fn token_invalid(invalid: Invalid) -> Refusal {
        let challenge = Some(Challenge::InvalidBearer);
        Refusal { invalid_token: Some(invalid), challenge, ..Refusal::new(401, Reason::TokenInvalid) }
    }

    /// Makes the refusal of a token that is not verified, because the client has sent too many invalid tokens.
    pub fn too_many_invalid_tokens(retry_after: u64) -> Refusal {
        Refusal { retry_after: Some(retry_after), ..Refusal::new(429, Reason::TokenInvalid) }
    }

    /// Makes the refusal of a token that cannot be verified, because the keys of its issuer have never been fetched.
    pub(crate) fn keys_unavailable(retry_after: u64) -> Refusal {
        Refusal { retry_after: Some(retry_after), ..Refusal::new(503, Reason::KeysUnavailable) }
    }

    /// Makes the refusal of an unknown API key. `place` is where the request carries the key.
    pub(crate) fn key_invalid(place: &KeyPlace) -> Refusal {
        let challenge = match place {
            KeyPlace::Bearer => Challenge::InvalidBearer,
            KeyPlace::Attribute(_) => Challenge::ApiKey,
        };
        Refusal { challenge: Some(challenge), ..Refusal::new(401, Reason::KeyInvalid) }
    }

    /// Makes the refusal of a request whose upstream is busy: every endpoint already has as many requests as it may have.
    pub fn upstream_busy() -> Refusal {
        Refusal { retry_after: Some(1), ..Refusal::new(503, Reason::UpstreamBusy) }
    }

    /// Makes the refusal of a request that matches no route.
    pub(crate) fn no_route() -> Refusal {
        Refusal::new(404, Reason::NoRoute)
    }

    /// Makes the refusal of a request that a rule with `action: deny`, or a policy with `otherwise: deny`, refuses.
    pub(crate) fn denied() -> Refusal {
        Refusal::new(403, Reason::Denied)
    }

    /// Makes the refusal of a request whose cost is larger than a full bucket of a limit.
    pub(crate) fn cost_too_large() -> Refusal {
        Refusal::new(429, Reason::CostTooLarge)
    }

    /// Sets `fits` to the limit of this plan that can never pay its cost, if clients may see it. Of several such limits,
    /// only those with the unit of the first are compared, and the one that can pay least is named.
    #[must_use]
    pub fn with_fits(self, rules: &RuleSet, plan: &Plan) -> Refusal {
        let exposed = |charge: &Charge| rules.limit(charge.limit).filter(|limit| limit.expose == Expose::Yes);
        let too_large = plan.enforced.iter().filter(|charge| charge.is_too_large());
        let fits = too_large.filter_map(|charge| {
            let limit = exposed(charge)?;
            Some(Fits {
                limit: limit.name.clone(),
                unit: limit.unit(),
                most: charge.algorithm.ceiling(),
                cost: charge.cost,
            })
        });
        let less = |known: Fits, next: Fits| {
            if next.unit == known.unit && next.most < known.most { next } else { known }
        };
        Refusal { fits: fits.reduce(less).map(Box::new), ..self }
    }

    /// Makes the refusal of a request whose cost at a limit on language models would not be known.
    pub(crate) fn unpriced() -> Refusal {
        Refusal::new(400, Reason::Unpriced)
    }

    /// Makes the refusal of a request to a language model whose response will not tell its usage.
    pub(crate) fn usage_required() -> Refusal {
        Refusal::new(400, Reason::UsageRequired)
    }

    /// Makes the refusal of a request for which the store gave no answer, if a limit has `on_store_failure: deny`.
    pub fn store_unavailable(retry_after: u64) -> Refusal {
        Refusal { retry_after: Some(retry_after), ..Refusal::new(503, Reason::StoreUnavailable) }
    }

    /// Makes the refusal of a request that a purse cannot pay while its home gives no answer.
    pub fn home_unavailable(retry_after: u64) -> Refusal {
        Refusal { retry_after: Some(retry_after), ..Refusal::new(503, Reason::HomeUnavailable) }
    }

    /// Makes the refusal of a request for which limits have too little left. `violated` has the names that clients may
    /// see.
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

    /// Makes the refusal of a request by bans. `retry_after` is `None` if a ban refuses with 403.
    pub(crate) fn banned(retry_after: Option<u64>, violated: Vec<String>) -> Refusal {
        match retry_after {
            None => Refusal::new(403, Reason::Banned),
            Some(_) => Refusal::exceeded(ExceededCapacity::Quota, Reason::Banned, retry_after, violated),
        }
    }

    fn new(status: u16, reason: Reason) -> Refusal {
        Refusal {
            status,
            reason,
            retry_after: None,
            problem: ProblemType::Blank,
            refused_at: None,
            resets_at: None,
            invalid_token: None,
            fits: None,
            held: None,
            is_budget_spent: false,
            challenge: None,
            allowed_methods: AllowedMethods::Any,
        }
    }
}
