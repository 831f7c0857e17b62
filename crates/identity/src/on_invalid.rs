//! The treatment of a request with invalid credentials: an unknown API key, or a token that does not verify.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnInvalid {
    /// The request is rejected with 401.
    Reject,
    /// The request continues as if it had no credentials.
    Anonymous,
}
