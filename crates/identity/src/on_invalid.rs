//! The treatment of a request with invalid credentials: an unknown API key, or a token that does not verify.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnInvalid {
    /// Rejected with 401.
    Reject,
    /// Continues as if it had no credentials.
    Anonymous,
}
