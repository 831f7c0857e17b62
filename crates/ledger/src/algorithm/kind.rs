//! Lists the algorithms by name, and their Lua twins.

use super::step::State;
use super::{budget, concurrency, fixed_window, leaky_bucket, lease, raise, sliding_log, sliding_window, token_bucket};
use crate::cost::Cost;
use base::time::Timestamp;

macro_rules! token_bucket {
    () => {
        concat!(include_str!("rate.lua"), include_str!("token_bucket/token_bucket.lua"))
    };
}

macro_rules! fixed_window {
    () => {
        include_str!("fixed_window/fixed_window.lua")
    };
}

/// The twin of a budget whose spent amount is that of another twin. `width` is the number of bytes of an owner's entry.
macro_rules! budget {
    ($width:literal, $spent:expr) => {
        concat!(
            "local WIDTH, spent_twin = ",
            $width,
            ", (function()\n",
            $spent,
            "\nend)()\n",
            include_str!("owner_entries.lua"),
            include_str!("budget/budget.lua")
        )
    };
}

/// The twin of the home of a limit, whose spent amount is that of another twin.
macro_rules! home {
    ($spent:expr) => {
        concat!("local spent_twin = (function()\n", $spent, "\nend)()\n", include_str!("lease/home.lua"))
    };
}

/// The twin of a purse, whose share of the limit is that of another twin, or `false`.
macro_rules! purse {
    ($share:expr) => {
        concat!("local share_twin = ", $share, "\n", include_str!("lease/purse/purse.lua"))
    };
}

/// The twin of a limit with bans.
macro_rules! with_ban {
    ($banned:expr) => {
        concat!("local banned_twin = (function()\n", $banned, "\nend)()\n", include_str!("ban/ban.lua"))
    };
}

/// The Lua twins, for stores that run scripts. Each is a block that returns a table of functions:
/// - `new` reads the settings of a limit, in eight bytes each. It returns a limit, and the position after the settings.
///   The limit is `outside` if the settings do not hold at the server's time.
/// - `open` makes a bucket from a stored value, or a full bucket from `false`. The bucket has the fields `limit`,
///   `found` (the stored value) and `changed` (whether it must be written although nothing is charged). From an invalid
///   value, `open` makes an empty bucket that is `invalid`.
/// - `most` returns how many times a bucket can pay a cost. Its last argument is whether the bucket is only checked. `charge`
///   charges a cost.
/// - `close` returns the value to store, and the time until which the store must keep the value.
/// - `give_back` gives thousandths back to a stored value, at a moment. It returns the new value, or `false` for an invalid
///   value.
/// - `undo` takes back what is left of a charge, if another bucket refused the request. It changes the bucket and
///   returns `true`, or returns what `close` would return, or `false` if nothing is left. Without `undo`, the charge
///   stays.
/// - `digest`, for large values, is called last, with a bucket and the value that was found. The reply has the digest
///   in place of the value. The step in Rust gives the same results for the digest.
/// - `accept` accepts a report of an owner. It returns `false` if the report is not accepted, and otherwise what the owner
///   has settled if the limit `settles`. Only limits of which requests hold something have it.
/// - `is_banned` returns whether a ban of the bucket runs, `begins_ban` whether a refused request begins a ban, and
///   `begin_ban` begins it. Only limits with bans have them.
/// - `most_spent` returns how many times a bucket could pay if nothing were held. Only budgets have it.
/// - `settles` is `true` if the reports about a limit also have sums of settled costs, and `resets` if they also count
///   resets. Then `accept` also returns whether the owner has reset the bucket.
/// - `renew` accepts a report about a stored value if nothing is asked of the bucket. It returns the value to store,
///   which is kept as long as the stored value. It returns `false` if only `open` and `accept` can accept the report.
/// - `hear`, of purses and homes, reads an act or a word of a region, and changes the bucket. It returns the reply.
/// - `unraised` is `true` if raises do not enlarge the limit. In all other limits they enlarge the field `capacity`, which counts
///   in `unit`s, or else in thousandths.
///
/// No twin accepts a value with raises (`raise/raise.lua`).
///
/// A bucket has the field `stored_until` if the twin knows the time until which the store keeps the stored value.
pub const TWINS: [&str; 21] = [
    token_bucket!(),
    fixed_window!(),
    include_str!("sliding_log/sliding_log.lua"),
    include_str!("sliding_window/sliding_window.lua"),
    concat!(include_str!("rate.lua"), include_str!("leaky_bucket/leaky_bucket.lua")),
    concurrency::TWIN,
    budget!(40, token_bucket!()),
    budget!(40, fixed_window!()),
    with_ban!(token_bucket!()),
    with_ban!(fixed_window!()),
    with_ban!(budget!(40, token_bucket!())),
    with_ban!(budget!(40, fixed_window!())),
    budget!(48, token_bucket!()),
    budget!(48, fixed_window!()),
    with_ban!(budget!(48, token_bucket!())),
    with_ban!(budget!(48, fixed_window!())),
    purse!("false"),
    home!(token_bucket!()),
    home!(fixed_window!()),
    purse!(concat!("(function()\n", token_bucket!(), "\nend)()")),
    purse!(concat!("(function()\n", fixed_window!(), "\nend)()")),
];

/// The algorithms by name, without the settings of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AlgorithmKind {
    TokenBucket,
    FixedWindow,
    SlidingLog,
    SlidingWindow,
    LeakyBucket,
    Concurrency,
    /// A token bucket whose costs are known only when a request ends.
    TokenBudget,
    /// A fixed window whose costs are known only when a request ends.
    WindowBudget,
    TokenBucketWithBan,
    FixedWindowWithBan,
    TokenBudgetWithBan,
    WindowBudgetWithBan,
    /// A token bucket whose costs are known only when a request ends, which can also forget what was spent.
    TokenBudgetWithResets,
    /// A fixed window whose costs are known only when a request ends, which can also forget what was spent.
    WindowBudgetWithResets,
    TokenBudgetWithResetsAndBan,
    WindowBudgetWithResetsAndBan,
    /// What one region has leased from the home of a token bucket.
    TokenPurse,
    /// What one region has leased from the home of a fixed window.
    WindowPurse,
    /// The home of a token bucket that holds over several regions.
    TokenHome,
    /// The home of a fixed window that holds over several regions.
    WindowHome,
}

impl AlgorithmKind {
    /// The algorithms that gateway.yaml can name.
    pub const ALL: [AlgorithmKind; 6] = [
        AlgorithmKind::TokenBucket,
        AlgorithmKind::FixedWindow,
        AlgorithmKind::SlidingLog,
        AlgorithmKind::SlidingWindow,
        AlgorithmKind::LeakyBucket,
        AlgorithmKind::Concurrency,
    ];

    /// Returns the algorithm's name in gateway.yaml and in bucket keys.
    pub const fn name(self) -> &'static str {
        match self {
            AlgorithmKind::TokenBucket
            | AlgorithmKind::TokenBudget
            | AlgorithmKind::TokenBucketWithBan
            | AlgorithmKind::TokenBudgetWithBan
            | AlgorithmKind::TokenBudgetWithResets
            | AlgorithmKind::TokenBudgetWithResetsAndBan
            | AlgorithmKind::TokenPurse
            | AlgorithmKind::TokenHome => token_bucket::NAME,
            AlgorithmKind::FixedWindow
            | AlgorithmKind::WindowBudget
            | AlgorithmKind::FixedWindowWithBan
            | AlgorithmKind::WindowBudgetWithBan
            | AlgorithmKind::WindowBudgetWithResets
            | AlgorithmKind::WindowBudgetWithResetsAndBan
            | AlgorithmKind::WindowPurse
            | AlgorithmKind::WindowHome => fixed_window::NAME,
            AlgorithmKind::SlidingLog => sliding_log::NAME,
            AlgorithmKind::SlidingWindow => sliding_window::NAME,
            AlgorithmKind::LeakyBucket => leaky_bucket::NAME,
            AlgorithmKind::Concurrency => concurrency::NAME,
        }
    }

    /// Returns whether a granted request holds some of the bucket until the request ends. The keys of such buckets
    /// have another format, which old gateways never read.
    pub const fn is_held(self) -> bool {
        self.is_budget() || matches!(self, AlgorithmKind::Concurrency)
    }

    /// Returns whether the bucket counts both what is spent and what requests hold.
    pub const fn is_budget(self) -> bool {
        match self {
            AlgorithmKind::TokenBudget
            | AlgorithmKind::WindowBudget
            | AlgorithmKind::TokenBudgetWithBan
            | AlgorithmKind::WindowBudgetWithBan
            | AlgorithmKind::TokenBudgetWithResets
            | AlgorithmKind::WindowBudgetWithResets
            | AlgorithmKind::TokenBudgetWithResetsAndBan
            | AlgorithmKind::WindowBudgetWithResetsAndBan => true,
            AlgorithmKind::TokenBucket
            | AlgorithmKind::FixedWindow
            | AlgorithmKind::SlidingLog
            | AlgorithmKind::SlidingWindow
            | AlgorithmKind::LeakyBucket
            | AlgorithmKind::Concurrency
            | AlgorithmKind::TokenBucketWithBan
            | AlgorithmKind::FixedWindowWithBan
            | AlgorithmKind::TokenPurse
            | AlgorithmKind::WindowPurse
            | AlgorithmKind::TokenHome
            | AlgorithmKind::WindowHome => false,
        }
    }

    /// Returns whether the bucket has a ban. The keys of such buckets have another format, which old gateways never read.
    pub const fn has_ban(self) -> bool {
        matches!(
            self,
            AlgorithmKind::TokenBucketWithBan
                | AlgorithmKind::FixedWindowWithBan
                | AlgorithmKind::TokenBudgetWithBan
                | AlgorithmKind::WindowBudgetWithBan
                | AlgorithmKind::TokenBudgetWithResetsAndBan
                | AlgorithmKind::WindowBudgetWithResetsAndBan
        )
    }

    /// Returns whether the entries of the bucket's owners count resets. The keys of such buckets have another format, which old
    /// gateways never read.
    pub const fn has_resets(self) -> bool {
        matches!(
            self,
            AlgorithmKind::TokenBudgetWithResets
                | AlgorithmKind::WindowBudgetWithResets
                | AlgorithmKind::TokenBudgetWithResetsAndBan
                | AlgorithmKind::WindowBudgetWithResetsAndBan
        )
    }

    /// Returns whether the bucket is the purse of a region.
    pub const fn is_purse(self) -> bool {
        matches!(self, AlgorithmKind::TokenPurse | AlgorithmKind::WindowPurse)
    }

    /// Returns whether the bucket is the home of a limit that holds over several regions.
    pub const fn is_home(self) -> bool {
        matches!(self, AlgorithmKind::TokenHome | AlgorithmKind::WindowHome)
    }

    /// Returns the kind of the home from which a purse of this kind is filled. Any other kind is its own.
    #[must_use]
    pub const fn at_home(self) -> AlgorithmKind {
        match self {
            AlgorithmKind::TokenPurse => AlgorithmKind::TokenHome,
            AlgorithmKind::WindowPurse => AlgorithmKind::WindowHome,
            other => other,
        }
    }

    /// Parses the name of an algorithm; `None` if the name is unknown.
    pub fn parse(text: &str) -> Option<AlgorithmKind> {
        AlgorithmKind::ALL.into_iter().find(|kind| kind.name() == text)
    }

    /// Gives back up to `amount` of what was spent from the bucket with this state. Returns the new state; `None` for
    /// an invalid state.
    pub fn give_back(self, state: &[u64], amount: Cost) -> Option<State> {
        // Raises stay.
        match raise::plain(state) {
            Some(plain) => Some(raise::with_prefix(raise::prefix(state), self.plain_give_back(plain, amount)?)),
            None => Some(State::from_slice(state)),
        }
    }

    /// Gives back as [`AlgorithmKind::give_back`] does, at `now`. With [`budget::EVERYTHING`], the timed holds that have ended are
    /// forgotten too, so that what they held is not spent later.
    pub fn give_back_at(self, state: &[u64], amount: Cost, now: Timestamp) -> Option<State> {
        let plain = raise::plain(state).filter(|_| amount >= budget::EVERYTHING && self.is_budget() && self.is_held());
        let left = plain.and_then(|plain| budget::without_ended(self, plain, now));
        let left = left.map(|left| raise::with_prefix(raise::prefix(state), left));
        self.give_back(left.as_deref().unwrap_or(state), amount)
    }

    fn plain_give_back(self, state: &[u64], amount: Cost) -> Option<State> {
        match self {
            AlgorithmKind::TokenBucket => token_bucket::give_back(state, amount),
            AlgorithmKind::FixedWindow => fixed_window::give_back(state, amount),
            AlgorithmKind::SlidingLog => sliding_log::give_back(state, amount),
            AlgorithmKind::SlidingWindow => sliding_window::give_back(state, amount),
            // A leaky bucket has the state of a token bucket. A waiting request still goes on when planned.
            AlgorithmKind::LeakyBucket => token_bucket::give_back(state, amount),
            AlgorithmKind::Concurrency => concurrency::give_back(state, amount),
            AlgorithmKind::TokenBudget
            | AlgorithmKind::TokenBucketWithBan
            | AlgorithmKind::TokenBudgetWithBan
            | AlgorithmKind::TokenBudgetWithResets
            | AlgorithmKind::TokenBudgetWithResetsAndBan => {
                budget::give_back(self, state, amount, token_bucket::give_back)
            }
            AlgorithmKind::WindowBudget
            | AlgorithmKind::FixedWindowWithBan
            | AlgorithmKind::WindowBudgetWithBan
            | AlgorithmKind::WindowBudgetWithResets
            | AlgorithmKind::WindowBudgetWithResetsAndBan => {
                budget::give_back(self, state, amount, fixed_window::give_back)
            }
            // What a purse has spent comes back at home.
            AlgorithmKind::TokenPurse | AlgorithmKind::WindowPurse => {
                lease::purse::is_purse(state).then(|| State::from_slice(state))
            }
            AlgorithmKind::TokenHome => lease::home::give_back(state, amount, token_bucket::give_back),
            AlgorithmKind::WindowHome => lease::home::give_back(state, amount, fixed_window::give_back),
        }
    }

    /// Returns the index of the algorithm's Lua twin in [`TWINS`].
    pub const fn twin(self) -> usize {
        match self {
            AlgorithmKind::TokenBucket => 0,
            AlgorithmKind::FixedWindow => 1,
            AlgorithmKind::SlidingLog => 2,
            AlgorithmKind::SlidingWindow => 3,
            AlgorithmKind::LeakyBucket => 4,
            AlgorithmKind::Concurrency => 5,
            AlgorithmKind::TokenBudget => 6,
            AlgorithmKind::WindowBudget => 7,
            AlgorithmKind::TokenBucketWithBan => 8,
            AlgorithmKind::FixedWindowWithBan => 9,
            AlgorithmKind::TokenBudgetWithBan => 10,
            AlgorithmKind::WindowBudgetWithBan => 11,
            AlgorithmKind::TokenBudgetWithResets => 12,
            AlgorithmKind::WindowBudgetWithResets => 13,
            AlgorithmKind::TokenBudgetWithResetsAndBan => 14,
            AlgorithmKind::WindowBudgetWithResetsAndBan => 15,
            AlgorithmKind::TokenPurse | AlgorithmKind::WindowPurse => 16,
            AlgorithmKind::TokenHome => 17,
            AlgorithmKind::WindowHome => 18,
        }
    }

    /// Returns the reason of a refusal: the name of the algorithm with `_exceeded`.
    pub const fn exceeded(self) -> &'static str {
        match self {
            AlgorithmKind::TokenBucket
            | AlgorithmKind::TokenBudget
            | AlgorithmKind::TokenBucketWithBan
            | AlgorithmKind::TokenBudgetWithBan
            | AlgorithmKind::TokenBudgetWithResets
            | AlgorithmKind::TokenBudgetWithResetsAndBan
            | AlgorithmKind::TokenPurse
            | AlgorithmKind::TokenHome => token_bucket::EXCEEDED,
            AlgorithmKind::FixedWindow
            | AlgorithmKind::WindowBudget
            | AlgorithmKind::FixedWindowWithBan
            | AlgorithmKind::WindowBudgetWithBan
            | AlgorithmKind::WindowBudgetWithResets
            | AlgorithmKind::WindowBudgetWithResetsAndBan
            | AlgorithmKind::WindowPurse
            | AlgorithmKind::WindowHome => fixed_window::EXCEEDED,
            AlgorithmKind::SlidingLog => sliding_log::EXCEEDED,
            AlgorithmKind::SlidingWindow => sliding_window::EXCEEDED,
            AlgorithmKind::LeakyBucket => leaky_bucket::EXCEEDED,
            AlgorithmKind::Concurrency => concurrency::EXCEEDED,
        }
    }
}
