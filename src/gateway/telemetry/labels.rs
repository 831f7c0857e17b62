//! Lists the values that metrics' labels take: closed sets, never a client's words.

pub use crate::access_log_line::Origin;
use crate::auth::jwt::Invalid;

/// The name of the only route and the only upstream.
pub const DEFAULT: &str = "default";

/// What became of a request.
#[derive(Clone, Copy, Debug)]
pub enum DecisionResult {
    Allowed,
    Refused,
    Exempt,
    Unlimited,
}

/// The methods that are told apart, and what stands for all others.
pub const METHODS: [&str; 8] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "OTHER"];

/// The one of [`METHODS`] that this is.
pub fn method(method: &str) -> &'static str {
    METHODS.into_iter().find(|known| *known == method).unwrap_or("OTHER")
}

/// How the upstream failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamError {
    Unresolved,
    ConnectTimeout,
    ConnectFailed,
    ReadTimeout,
    WriteTimeout,
    Closed,
    InvalidAnswer,
}

impl UpstreamError {
    pub const ALL: [UpstreamError; 7] = [
        UpstreamError::Unresolved,
        UpstreamError::ConnectTimeout,
        UpstreamError::ConnectFailed,
        UpstreamError::ReadTimeout,
        UpstreamError::WriteTimeout,
        UpstreamError::Closed,
        UpstreamError::InvalidAnswer,
    ];

    pub fn name(self) -> &'static str {
        match self {
            UpstreamError::Unresolved => "unresolved",
            UpstreamError::ConnectTimeout => "connect_timeout",
            UpstreamError::ConnectFailed => "connect_failed",
            UpstreamError::ReadTimeout => "read_timeout",
            UpstreamError::WriteTimeout => "write_timeout",
            UpstreamError::Closed => "closed",
            UpstreamError::InvalidAnswer => "invalid_answer",
        }
    }
}

/// What came of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenResult {
    Valid,
    /// It was verified before.
    Known,
    /// It was not looked at: its client has shown too many that do not verify.
    Limited,
    NoKeys,
    Invalid(Invalid),
}

impl TokenResult {
    pub fn all() -> impl Iterator<Item = TokenResult> {
        let rest = Invalid::ALL.into_iter().map(TokenResult::Invalid);
        [TokenResult::Valid, TokenResult::Known, TokenResult::Limited, TokenResult::NoKeys].into_iter().chain(rest)
    }

    pub fn name(self) -> &'static str {
        match self {
            TokenResult::Valid => "valid",
            TokenResult::Known => "known",
            TokenResult::Limited => "limited",
            TokenResult::NoKeys => "no_keys",
            TokenResult::Invalid(why) => why.name(),
        }
    }
}
