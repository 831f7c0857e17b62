//! Lists the reasons for which a request is refused.

use crate::limit::algorithm::Algorithm;

/// Why a request was refused: the word in `X-Tollgate-Reason` and in metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    TokenBucketExceeded,
    CostTooLarge,
    StoreUnavailable,
    Denied,
    TokenInvalid,
    TokenMissing,
    KeysUnavailable,
    KeyInvalid,
    AmbiguousRequest,
    BadRequest,
}

impl Reason {
    pub const ALL: [Reason; 10] = [
        Reason::TokenBucketExceeded,
        Reason::CostTooLarge,
        Reason::StoreUnavailable,
        Reason::Denied,
        Reason::TokenInvalid,
        Reason::TokenMissing,
        Reason::KeysUnavailable,
        Reason::KeyInvalid,
        Reason::AmbiguousRequest,
        Reason::BadRequest,
    ];

    /// The reason for a refusal by a limit of this algorithm that has too little left.
    pub fn exceeded(algorithm: &Algorithm) -> Reason {
        match algorithm {
            Algorithm::TokenBucket(_) => Reason::TokenBucketExceeded,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Reason::TokenBucketExceeded => "token_bucket_exceeded",
            Reason::CostTooLarge => "cost_too_large",
            Reason::StoreUnavailable => "store_unavailable",
            Reason::Denied => "denied",
            Reason::TokenInvalid => "token_invalid",
            Reason::TokenMissing => "token_missing",
            Reason::KeysUnavailable => "keys_unavailable",
            Reason::KeyInvalid => "key_invalid",
            Reason::AmbiguousRequest => "ambiguous_request",
            Reason::BadRequest => "bad_request",
        }
    }
}
