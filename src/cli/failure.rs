//! Why a command ends with exit code 1.

/// The error of a command, printed to standard error.
pub type Failure = Box<dyn std::error::Error>;
