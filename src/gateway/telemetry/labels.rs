//! Lists the values of metrics' labels: closed sets, never anything that a client sent.

pub(crate) use crate::gateway::upstream::UpstreamError;
pub(crate) use decision::access_log_line::Origin;
use identity::jwt::Invalid;

/// The label for the route of a request that was answered before its route was chosen, in a file with several routes.
pub(crate) const NO_ROUTE: &str = "none";

/// The result of a decision.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DecisionResult {
    Allowed,
    Refused,
    Exempt,
    Unlimited,
}

/// The methods that have their own label, and the label of all others.
pub(crate) const METHODS: [&str; 8] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "OTHER"];

/// The label of a method.
pub(crate) fn method(method: &str) -> &'static str {
    METHODS.into_iter().find(|known| *known == method).unwrap_or("OTHER")
}

/// The result of a TLS handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandshakeResult {
    Full,
    /// A session that the client has resumed.
    Resumed,
    Timeout,
    /// Too many handshakes were under way.
    TooMany,
    /// The client asked for a name without a certificate, or for no name.
    UnknownName,
    /// The client presented no certificate that verifies.
    ClientCertificate,
    /// The client aborted and sent the reason: for example, it does not trust the certificate.
    Alert,
    /// The client disconnected.
    Closed,
    /// Any other failure, such as bytes that are not TLS, or no common version.
    Protocol,
}

impl HandshakeResult {
    pub(crate) const ALL: [HandshakeResult; 9] = [
        HandshakeResult::Full,
        HandshakeResult::Resumed,
        HandshakeResult::Timeout,
        HandshakeResult::TooMany,
        HandshakeResult::UnknownName,
        HandshakeResult::ClientCertificate,
        HandshakeResult::Alert,
        HandshakeResult::Closed,
        HandshakeResult::Protocol,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            HandshakeResult::Full => "full",
            HandshakeResult::Resumed => "resumed",
            HandshakeResult::Timeout => "timeout",
            HandshakeResult::TooMany => "too_many",
            HandshakeResult::UnknownName => "unknown_name",
            HandshakeResult::ClientCertificate => "client_certificate",
            HandshakeResult::Alert => "alert",
            HandshakeResult::Closed => "closed",
            HandshakeResult::Protocol => "protocol",
        }
    }
}

/// The result of a token's verification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenResult {
    Valid,
    /// Accepted from the cache: it was verified before.
    Known,
    /// Not verified: its client has sent too many invalid tokens.
    Limited,
    NoKeys,
    Invalid(Invalid),
}

impl TokenResult {
    pub(crate) fn all() -> impl Iterator<Item = TokenResult> {
        let rest = Invalid::ALL.into_iter().map(TokenResult::Invalid);
        [TokenResult::Valid, TokenResult::Known, TokenResult::Limited, TokenResult::NoKeys].into_iter().chain(rest)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            TokenResult::Valid => "valid",
            TokenResult::Known => "known",
            TokenResult::Limited => "limited",
            TokenResult::NoKeys => "no_keys",
            TokenResult::Invalid(why) => why.name(),
        }
    }
}
