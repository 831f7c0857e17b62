//! Lists the reasons why a token is not accepted.

/// The reason why a token is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalid {
    Malformed,
    Algorithm,
    Issuer,
    Audience,
    Expired,
    NotYetValid,
    UnknownKey,
    Signature,
}

impl Invalid {
    pub const ALL: [Invalid; 8] = [
        Invalid::Malformed,
        Invalid::Algorithm,
        Invalid::Issuer,
        Invalid::Audience,
        Invalid::Expired,
        Invalid::NotYetValid,
        Invalid::UnknownKey,
        Invalid::Signature,
    ];

    /// Returns the label of this reason in metrics. Clients do not see this label.
    pub fn name(self) -> &'static str {
        match self {
            Invalid::Malformed => "malformed",
            Invalid::Algorithm => "algorithm",
            Invalid::Issuer => "issuer",
            Invalid::Audience => "audience",
            Invalid::Expired => "expired",
            Invalid::NotYetValid => "not_yet_valid",
            Invalid::UnknownKey => "unknown_key",
            Invalid::Signature => "signature",
        }
    }
}

/// The reason why a token is not accepted: it is invalid, or cannot be verified at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenError {
    Invalid(Invalid),
    /// The token cannot be verified, because the issuer's keys have never been fetched.
    KeysUnavailable,
}
