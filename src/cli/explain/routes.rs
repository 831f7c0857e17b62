//! Explains which route a request takes, and why it takes none of those before it.

use super::report;
use crate::config::Config;
use crate::limit::explanation::Failure;
use crate::limit::partial::Observation;
use crate::limit::request::Request;
use crate::limit::rule::Condition;

/// How many routes that do not match are listed; the last ones, which are the nearest to the one that does.
const MOST: usize = 20;

/// The routes up to the one that the request takes; empty for a file without `routes`.
pub fn explain(config: &Config, request: &Request<'_>) -> Vec<report::Route> {
    if config.routes.only().is_some() {
        return Vec::new();
    }
    let mut explained = Vec::new();
    for route in config.routes.routes() {
        let failed = route.conditions.iter().find_map(|condition| failure(condition, request));
        let matches = failed.is_none();
        explained.push(report::Route {
            name: route.name.clone(),
            line: route.position.line,
            matches,
            upstream: config.upstream(route.upstream).map(|upstream| upstream.name.clone()),
            why: failed.unwrap_or_default(),
        });
        if matches {
            break;
        }
    }
    let surplus = explained.len().saturating_sub(MOST + 1);
    explained.drain(..surplus);
    explained
}

/// Why a condition does not hold, in words.
fn failure(condition: &Condition, request: &Request<'_>) -> Option<String> {
    let value = condition.attribute.resolve_for_match(request);
    let holds = condition.expectation.holds_for(&value, request.client.address());
    (!holds).then(|| Failure::Condition { condition, found: Observation::from(value) }.to_string())
}
