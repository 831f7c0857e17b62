//! Builds rules and requests for the tests of this crate, and for the tests of the header fields that show a decision.

use http::request::Parts;

use base::position::Position;
use base::time::Micros;
use ledger::algorithm::Algorithm;
use ledger::algorithm::token_bucket::{Rate, TokenBucket};
use ledger::cost::Cost;
use request::attribute::Attribute;
use request::client_address::ClientAddress;
use request::matcher::Expectation;
use request::request::Request;
use rules::rule::{
    Action, BanStatus, Condition, Expose, Limit, LimitKey, Mode, OnStoreFailure, Otherwise, Policy, Price,
    RefusalStatus, Rule, RuleSource,
};
use rules::rule_set::RuleSet;

/// Compiles these policies to a set of rules.
pub fn rule_set(policies: Vec<Policy>) -> RuleSet {
    RuleSet::compile(RuleSource { policies, exempt: Vec::new() })
}

/// Makes a token bucket that holds `burst` tokens and refills with one token per second.
pub fn bucket(burst: u64) -> Algorithm {
    token_bucket(Cost::ONE, Micros(1_000_000), burst)
}

pub fn token_bucket(amount: Cost, period: Micros, burst: u64) -> Algorithm {
    Algorithm::TokenBucket(TokenBucket::new(Rate { amount, period }, burst).unwrap())
}

pub fn limit(burst: u64) -> Limit {
    Limit {
        name: String::new(),
        meter: None,
        algorithm: bucket(burst),
        claimed: None,
        price: Price::Fixed(Cost::ONE),
        overrides: Vec::new(),
        candidate: None,
        candidate_claimed: None,
        expose: Expose::Yes,
        refusal: RefusalStatus::QuotaExceeded,
        ban_status: BanStatus::default(),
        on_store_failure: OnStoreFailure::Deny,
    }
}

/// Makes a policy with one rule, whose limit key is `ip:address`. The policy and the rule are both named `name`.
pub fn policy(name: &str, action: Action) -> Policy {
    let rule = Rule {
        name: name.to_owned(),
        conditions: Vec::new(),
        keys: vec![LimitKey { text: "ip:address".to_owned(), alternatives: vec![Attribute::Address] }],
        mode: Mode::Enforce,
        action,
        until: None,
        position: Position::default(),
    };
    Policy {
        name: name.to_owned(),
        conditions: Vec::new(),
        mode: Mode::Enforce,
        otherwise: Otherwise::Allow,
        rules: vec![rule],
        position: Position::default(),
    }
}

/// Returns the condition that a request has this header field.
pub fn has_header(name: &str) -> Condition {
    Condition {
        attribute: Attribute::parse(&format!("header:{name}")).unwrap(),
        expectation: Expectation::Present(true),
    }
}

pub fn head(fields: &[(&str, &str)]) -> Parts {
    let head = fields.iter().fold(http::Request::builder(), |head, (name, value)| head.header(*name, *value));
    head.body(()).unwrap().into_parts().0
}

pub fn request(head: &Parts) -> Request<'_> {
    let client = ClientAddress::new([203, 0, 113, 7].into(), 64);
    Request::new(head, client).with_destination("default", "default")
}
