//! Lists the reasons why a request is refused.

use ledger::algorithm::AlgorithmKind;

/// The reason of a refusal. Its name is a word that is sent in `X-Tollgate-Reason` and used in metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A limit with this algorithm has too little left for the request.
    Exceeded(AlgorithmKind),
    CostTooLarge,
    StoreUnavailable,
    Denied,
    TokenInvalid,
    TokenMissing,
    KeysUnavailable,
    KeyInvalid,
    AmbiguousRequest,
    BadRequest,
    NoRoute,
    UpstreamBusy,
}

impl Reason {
    /// All reasons but [`Reason::Exceeded`].
    const OTHERS: [Reason; 11] = [
        Reason::CostTooLarge,
        Reason::StoreUnavailable,
        Reason::Denied,
        Reason::TokenInvalid,
        Reason::TokenMissing,
        Reason::KeysUnavailable,
        Reason::KeyInvalid,
        Reason::AmbiguousRequest,
        Reason::BadRequest,
        Reason::NoRoute,
        Reason::UpstreamBusy,
    ];

    pub fn all() -> impl Iterator<Item = Reason> {
        AlgorithmKind::ALL.into_iter().map(Reason::Exceeded).chain(Reason::OTHERS)
    }

    pub fn name(self) -> &'static str {
        match self {
            Reason::Exceeded(kind) => kind.exceeded(),
            Reason::CostTooLarge => "cost_too_large",
            Reason::StoreUnavailable => "store_unavailable",
            Reason::Denied => "denied",
            Reason::TokenInvalid => "token_invalid",
            Reason::TokenMissing => "token_missing",
            Reason::KeysUnavailable => "keys_unavailable",
            Reason::KeyInvalid => "key_invalid",
            Reason::AmbiguousRequest => "ambiguous_request",
            Reason::BadRequest => "bad_request",
            Reason::NoRoute => "no_route",
            Reason::UpstreamBusy => "upstream_busy",
        }
    }
}
