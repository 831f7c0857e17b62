//! Lists the label values of metrics. They are closed sets and never contain text from a client.

pub(crate) use crate::gateway::upstream::UpstreamError;
pub(crate) use decision::access_log_line::Origin;
use identity::jwt::Invalid;

/// The value of the label `route` for requests that were answered before a route was chosen, in a configuration with several
/// routes.
pub(crate) const NO_ROUTE: &str = "none";

/// The result of a decision about a request, as a label of metrics.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DecisionResult {
    Allowed,
    Refused,
    Exempt,
    Unlimited,
}

/// The values of the label `method`: the methods that are counted separately, and `OTHER` for all further methods.
pub(crate) const METHODS: [&str; 8] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "OTHER"];

/// Returns the value of the label `method` for a request method.
pub(crate) fn method(method: &str) -> &'static str {
    METHODS.into_iter().find(|known| *known == method).unwrap_or("OTHER")
}

/// The result of a TLS handshake with a client, as a label of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandshakeResult {
    Full,
    /// The client resumed an earlier TLS session.
    Resumed,
    Timeout,
    /// The handshake was refused, because too many other handshakes were under way.
    TooMany,
    /// The client asked for a name for which there is no certificate, or for no name at all.
    UnknownName,
    /// The client presented no certificate, or one that could not be verified.
    ClientCertificate,
    /// The client aborted the handshake and sent the reason, for example that it does not trust the certificate.
    Alert,
    /// The client disconnected during the handshake.
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

/// The result of verifying a token, as a label of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenResult {
    Valid,
    /// The token was accepted because it was verified before and is cached.
    Known,
    /// The token was not verified, because its client has sent too many invalid tokens.
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
