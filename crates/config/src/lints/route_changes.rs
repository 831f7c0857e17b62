//! Finds routes that redirect a request to the same route, and routes that change a field from which an attribute is
//! read.

use std::borrow::Cow;

use http::header::{COOKIE, HeaderName};

use super::constraints::Constraints;
use super::file::File;
use super::location::{Finding, Location};
use request::attribute::Attribute;
use request::matcher::{Expectation, Text};
use rules::route::route_set::Route;
use rules::route::target::{RouteAnswer, Target};
use rules::rule::Condition;

/// Finds routes that redirect to a path which the same route redirects again.
pub(super) fn redirect_loop(file: &File<'_>) -> Vec<Finding> {
    let routes = file.config.routes.routes();
    let mut found = Vec::new();
    for (index, route) in routes.iter().enumerate() {
        let Some(below) = redirected_to(route) else { continue };
        // The request after the redirect differs from the request before it only by its path.
        let moved: Vec<Condition> =
            route.conditions.iter().filter(|condition| !reads_path(condition)).cloned().chain([below]).collect();
        let requests = Constraints::of(&moved);
        let returns = route.conditions.iter().all(|condition| requests.implies(condition));
        let before = routes.iter().take(index);
        let is_caught = before.into_iter().any(|before| !before.conditions.iter().any(|one| requests.excludes(one)));
        if returns && !is_caught {
            let location = file.root.key("routes").member(index).key("redirect");
            let what = "redirects to a path for which it redirects again, without end";
            found.push(location.finding(what, "redirect to a path outside of its `match`"));
        }
    }
    found
}

/// Returns the condition that the redirected path meets. `None` if the redirect changes more than the path.
fn redirected_to(route: &Route) -> Option<Condition> {
    let Target::Answer(RouteAnswer::Redirect(redirect)) = &route.target else { return None };
    let path = redirect.path.as_ref().filter(|_| redirect.stays_at_host())?;
    let is_exact = |text: &Text| matches!(text, Text::Exact(_));
    let names_one = route
        .conditions
        .iter()
        .filter(|condition| condition.attribute == Attribute::Path)
        .any(|condition| matches!(&condition.expectation, Expectation::AnyOf(texts) if texts.iter().all(is_exact)));
    let new = path.new_prefix().to_vec();
    let text = if names_one { Text::Exact(new) } else { Text::Subtree(new) };
    Some(Condition { attribute: Attribute::Path, expectation: Expectation::AnyOf(vec![text]) })
}

fn reads_path(condition: &Condition) -> bool {
    matches!(condition.attribute.source(), Attribute::Path | Attribute::PathSegment(_))
}

/// Finds routes that set or remove a request field from which the gateway reads a credential or another attribute. The
/// upstream then gets a different value than the gateway.
pub(super) fn changed_identity(file: &File<'_>) -> Vec<Finding> {
    let config = file.config;
    let tokens = config.jwt.iter().flat_map(|jwt| &jwt.token_from);
    // If the upstream does not get the API key of a client, a route may set the gateway's own key in its place.
    let forwarded_keys = config.api_keys.iter().filter(|keys| keys.withheld().is_none());
    let places = forwarded_keys.flat_map(|keys| keys.from.attributes());
    let credentials: Vec<Cow<'_, Attribute>> = tokens.map(Cow::Borrowed).chain(places).collect();
    let mut found = Vec::new();
    for (index, route) in config.routes.routes().iter().enumerate() {
        let Some(forwarding) = &route.forwarding else { continue };
        let changes = &forwarding.request_headers;
        let location = file.root.key("routes").member(index).key("request_headers");
        let set = changes.set.iter().enumerate().map(|(at, (name, _))| (name, location.key("set").pair(at)));
        let removed = changes.remove.iter().enumerate().map(|(at, name)| (name, location.key("remove").member(at)));
        for (name, location) in set.chain(removed) {
            let is_read = |attribute: &Attribute| match attribute.source() {
                Attribute::Header(read) => read == name,
                Attribute::Cookie(_) => *name == COOKIE,
                _ => false,
            };
            let by_rules = config.rules.attributes().iter().chain(config.routes.attributes());
            let reader = if credentials.iter().any(|attribute| is_read(attribute)) {
                "which holds a credential"
            } else if by_rules.clone().any(is_read) {
                "which rules or routes read"
            } else {
                continue;
            };
            found.push(finding(&location, name, reader));
        }
    }
    found
}

fn finding(location: &Location<'_>, name: &HeaderName, reader: &str) -> Finding {
    let what = format!("changes `{name}`, {reader}: the upstream gets another value than the gateway");
    location
        .finding(what, "use a name of its own for the upstream, or allow this if the upstream must not get the value")
}
