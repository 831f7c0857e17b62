//! Lists the reasons why a request is refused.

use ledger::algorithm::AlgorithmKind;

/// The reason of a refusal. Its name is a word that is sent in `X-Tollgate-Reason` and used in metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A limit with this algorithm has too little left for the request.
    Exceeded(AlgorithmKind),
    /// The unspent amount of a budget would suffice, but requests in flight hold too much of it.
    BudgetHeld,
    /// The bucket has a ban, so it refuses every request for some time.
    Banned,
    CostTooLarge,
    StoreUnavailable,
    /// A limit over several regions cannot be decided, because its home gives no answer.
    HomeUnavailable,
    Denied,
    TokenInvalid,
    TokenMissing,
    KeysUnavailable,
    KeyInvalid,
    AmbiguousRequest,
    BadRequest,
    NoRoute,
    UpstreamBusy,
    /// A limit on language models applies to a request that is in no known format, so that its cost would not be known.
    Unpriced,
    /// The settings require that the response of a language model tells its usage. The response to this request would
    /// not tell it.
    UsageRequired,
}

impl Reason {
    /// All reasons but [`Reason::Exceeded`].
    const OTHERS: [Reason; 16] = [
        Reason::BudgetHeld,
        Reason::Banned,
        Reason::CostTooLarge,
        Reason::StoreUnavailable,
        Reason::HomeUnavailable,
        Reason::Denied,
        Reason::TokenInvalid,
        Reason::TokenMissing,
        Reason::KeysUnavailable,
        Reason::KeyInvalid,
        Reason::AmbiguousRequest,
        Reason::BadRequest,
        Reason::NoRoute,
        Reason::UpstreamBusy,
        Reason::Unpriced,
        Reason::UsageRequired,
    ];

    /// Returns the reason of a limit with this algorithm that has too little left. A budget, or a limit with a ban, has
    /// the reason of its token bucket or fixed window.
    pub(crate) fn exceeded(kind: AlgorithmKind) -> Reason {
        Reason::Exceeded(match kind {
            AlgorithmKind::TokenBudget
            | AlgorithmKind::TokenBucketWithBan
            | AlgorithmKind::TokenBudgetWithBan
            | AlgorithmKind::TokenBudgetWithResets
            | AlgorithmKind::TokenBudgetWithResetsAndBan
            | AlgorithmKind::TokenPurse
            | AlgorithmKind::TokenHome => AlgorithmKind::TokenBucket,
            AlgorithmKind::WindowBudget
            | AlgorithmKind::FixedWindowWithBan
            | AlgorithmKind::WindowBudgetWithBan
            | AlgorithmKind::WindowBudgetWithResets
            | AlgorithmKind::WindowBudgetWithResetsAndBan
            | AlgorithmKind::WindowPurse
            | AlgorithmKind::WindowHome => AlgorithmKind::FixedWindow,
            kind => kind,
        })
    }

    pub fn all() -> impl Iterator<Item = Reason> {
        AlgorithmKind::ALL.into_iter().map(Reason::Exceeded).chain(Reason::OTHERS)
    }

    pub fn name(self) -> &'static str {
        match self {
            Reason::Exceeded(kind) => kind.exceeded(),
            Reason::BudgetHeld => "budget_held",
            Reason::Banned => "banned",
            Reason::CostTooLarge => "cost_too_large",
            Reason::StoreUnavailable => "store_unavailable",
            Reason::HomeUnavailable => "home_unavailable",
            Reason::Denied => "denied",
            Reason::TokenInvalid => "token_invalid",
            Reason::TokenMissing => "token_missing",
            Reason::KeysUnavailable => "keys_unavailable",
            Reason::KeyInvalid => "key_invalid",
            Reason::AmbiguousRequest => "ambiguous_request",
            Reason::BadRequest => "bad_request",
            Reason::NoRoute => "no_route",
            Reason::UpstreamBusy => "upstream_busy",
            Reason::Unpriced => "unpriced",
            Reason::UsageRequired => "usage_required",
        }
    }
}
