//! Says in words what kept a rule from applying.

use std::fmt;

use super::{Failure, Picked};
use crate::limit::matcher::Expectation;
use crate::limit::rule::{Condition, Fold};

/// `jwt:plan is "free", wants "enterprise"`.
impl fmt::Display for Failure<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Condition { condition: Condition { attribute, expectation }, found } => {
                write!(f, "{attribute} {found}, wants {expectation}")
            }
            Failure::Key(key) => write!(f, "limit key {} has no value", key.text),
        }
    }
}

/// `path "/v1/*"`, `ip:address cidr 10.0.0.0/8`.
impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Condition { attribute, expectation } = self;
        match expectation {
            Expectation::Present(true) => write!(f, "{attribute} present"),
            Expectation::Present(false) => write!(f, "{attribute} missing"),
            _ => write!(f, "{attribute} {expectation}"),
        }
    }
}

/// The alternative that had a value: `jwt:sub`, `lower(query:user)`.
impl fmt::Display for Picked<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.part.fold {
            Fold::Exact => write!(f, "{}", self.part.attribute),
            Fold::Lower => write!(f, "lower({})", self.part.attribute),
        }
    }
}
