//! Explains which route a request takes, and why the routes before it do not match.

use http::HeaderValue;
use http::header::HOST;

use super::report;
use config::Config;
use request::attribute::Attribute;
use request::request::Request;
use rules::explanation::Failure;
use rules::partial_evaluation::Observation;
use rules::route::forwarding::{Forwarding, Rewrite};
use rules::route::redirect::RedirectedRequest;
use rules::route::route_set::Route;
use rules::route::target::{RouteAnswer, Target};
use rules::rule::Condition;

/// The maximum number of listed routes that do not match. The last of them are listed.
const MAX_ROUTES: usize = 20;

/// Explains the route that the request takes, and some of the routes before it.
pub(super) fn explain(config: &Config, request: &Request<'_>) -> Vec<report::Route> {
    let is_plain = |route: &Route| route.forwarding.is_none() && matches!(route.target, Target::Upstream(_));
    if config.routes.only().is_some() && config.routes.routes().iter().all(is_plain) {
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
            upstream: upstream(config, route, request),
            answer: answer(&route.target, request),
            changes: if matches { details(route, request) } else { Vec::new() },
            why: failed.unwrap_or_default(),
        });
        if matches {
            break;
        }
    }
    let surplus = explained.len().saturating_sub(MAX_ROUTES + 1);
    explained.drain(..surplus);
    explained
}

/// Returns the name of a route's upstream. If the route chooses at random, returns the first.
fn upstream(config: &Config, route: &Route, request: &Request<'_>) -> Option<String> {
    let id = match &route.target {
        Target::Upstream(upstream) => *upstream,
        Target::Split(split) => split.choose(|attribute| attribute.resolve(request), |_| 0),
        Target::Answer(_) => return None,
    };
    Some(config.upstream(id)?.name.clone())
}

/// Describes how a matching route has chosen an upstream, and how it changes the request.
fn details(route: &Route, request: &Request<'_>) -> Vec<String> {
    let split = route.split().map(|split| {
        let shares: Vec<String> = split
            .shares()
            .iter()
            .map(|share| format!("{} of {} to {}", share.weight, split.total(), share.name))
            .collect();
        let by =
            split.by().map_or_else(|| "at random; explained for the first".to_owned(), |by| format!("by {}", by.text));
        format!("{}, {by}", shares.join(", "))
    });
    let changes = route.forwarding.as_deref().map(|forwarding| changes(forwarding, request));
    split.into_iter().chain(changes.into_iter().flatten()).collect()
}

/// Describes the answer of a route without an upstream.
fn answer(target: &Target, request: &Request<'_>) -> Option<String> {
    match target {
        Target::Upstream(_) | Target::Split(_) => None,
        Target::Answer(RouteAnswer::Redirect(redirect)) => {
            let uri = &request.head.uri;
            let query = uri.query().map_or_else(String::new, |query| format!("?{query}"));
            let authority = request.head.headers.get(HOST).map_or(&b""[..], |host| host.as_bytes());
            let (path, query) = (uri.path().as_bytes(), query.as_bytes());
            let request = RedirectedRequest { scheme: request.scheme().name(), authority, path, query };
            let location = redirect.location(request);
            let location =
                location.map_or_else(String::new, |location| String::from_utf8_lossy(location.as_bytes()).into());
            Some(format!("redirected with {} to {location}", redirect.code))
        }
        Target::Answer(RouteAnswer::Respond(respond)) => Some(format!("answered with {}", respond.status)),
    }
}

/// Describes the changes of a route to a request and its response. Values are left out, because they may be secret.
fn changes(forwarding: &Forwarding, request: &Request<'_>) -> Vec<String> {
    let Rewrite { path, stripped, host } = &forwarding.rewrite;
    let mut changes = Vec::new();
    if let Some(path) = path.as_ref().and_then(|path| path.replace(request.head.uri.path().as_bytes())) {
        let query = request.head.uri.query().map_or_else(String::new, |query| format!("?{query}"));
        changes.push(format!("the upstream gets {}{query}", String::from_utf8_lossy(&path)));
    }
    let overrides = &forwarding.overrides;
    changes.extend(overrides.body_bytes.map(|most| format!("a body of at most {most} bytes")));
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    changes.extend(host.iter().map(|host| format!("the upstream gets host: {}", text(host))));
    changes.extend(stripped.iter().map(|prefix| format!("the upstream gets x-forwarded-prefix: {}", text(prefix))));
    for (message, headers) in [("request", &forwarding.request_headers), ("response", &forwarding.response_headers)] {
        for (name, value) in &headers.set {
            let attributes: Vec<String> = value.attributes().map(|attribute| observed(attribute, request)).collect();
            changes.push(match (value.resolve(request), attributes.as_slice()) {
                (Some(_), []) => format!("{message}: sets {name}"),
                (Some(_), with) => format!("{message}: sets {name}, {}", with.join(", ")),
                (None, with) => {
                    format!("{message}: removes {name}, because its value cannot be made: {}", with.join(", "))
                }
            });
        }
        changes.extend(headers.remove.iter().map(|name| format!("{message}: removes {name}")));
    }
    changes
}

fn observed(attribute: &Attribute, request: &Request<'_>) -> String {
    format!("{attribute} {}", Observation::from(attribute.resolve_for_match(request)))
}

/// Describes why a condition does not hold.
fn failure(condition: &Condition, request: &Request<'_>) -> Option<String> {
    let value = condition.attribute.resolve_for_match(request);
    let holds = condition.expectation.holds_for(&value, request.client.address());
    (!holds).then(|| Failure::Condition { condition, found: Observation::from(value) }.to_string())
}
