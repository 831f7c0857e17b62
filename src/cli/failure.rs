//! Why a command ends with exit code 1.

/// What went wrong, for standard error.
pub type Failure = Box<dyn std::error::Error>;
