//! Formats the reasons why a rule does not apply, and other parts of an explanation.

use std::fmt;

use super::parts::{ExplainedNumber, Failure, MatchedElement, PickedKey};
use crate::claimed_numbers::{ClaimResult, ClaimedNumber};
use crate::partial_evaluation::Element;
use crate::rule::Condition;
use base::rfc3339;
use base::time::Timestamp;
use request::matcher::Expectation;

/// Displays `jwt:plan is "free", wants "enterprise"`.
impl fmt::Display for Failure<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Condition { condition: Condition { attribute, expectation }, found } => {
                write!(f, "{attribute} {found}, wants {expectation}")
            }
            Failure::Over { since } => write!(f, "over since {}", Date(*since)),
            Failure::Key(key) => write!(f, "limit key {} has no value", key.text),
        }
    }
}

/// Displays a timestamp as date and time in UTC, to the second.
#[derive(Clone, Copy, Debug)]
pub struct Date(pub Timestamp);

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&rfc3339::format_seconds(self.0))
    }
}

/// Displays `path "/v1/*"`, `ip:address cidr 10.0.0.0/8`.
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

/// Displays `jwt:roles has "admin"`.
impl fmt::Display for MatchedElement<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} has {}", self.attribute, Element(&self.element))
    }
}

/// Displays `burst 50: jwt:limits.burst is "50"`, `burst 20, the default: jwt:limits.burst is missing`.
impl fmt::Display for ExplainedNumber<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ExplainedNumber { number, found, amount, result } = self;
        let ClaimedNumber { kind, format, from, min, max, .. } = number;
        let default =
            if matches!(result, ClaimResult::Missing | ClaimResult::Unreadable) { ", the default" } else { "" };
        write!(f, "{} {}{default}: {from} {found}", kind.name(), format.of(*amount))?;
        match result {
            ClaimResult::Read | ClaimResult::Missing => Ok(()),
            ClaimResult::Cut if amount == max => write!(f, ", above the max of {}", format.of(*max)),
            ClaimResult::Cut => write!(f, ", below the min of {}", format.of(*min)),
            ClaimResult::Unreadable => write!(f, ", which is not {}", number.shape()),
        }
    }
}

/// Displays the alternative of the limit key that had a value: `jwt:sub`, `lower(query:user)`.
impl fmt::Display for PickedKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.part.fmt(f)
    }
}
