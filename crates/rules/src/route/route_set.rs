//! Holds the routes of a file, and chooses the route of a request.
//!
//! The first route that matches is chosen, whatever the length of its prefix. An index finds the few routes that may
//! match.

use std::sync::Arc;

use super::error_format::ErrorFormat;
use super::forwarding::Forwarding;
use super::llm_settings::LlmSettings;
use super::split::{PartialShare, Split};
use super::target::Target;
use super::{DEFAULT, RouteId, UpstreamId};
use crate::compiled_rule::{CompiledCondition, Slot, conditions_of};
use crate::index::{Index, among};
use crate::partial_evaluation::{Knowledge, Observation};
use crate::resolved::Values;
use crate::rule::Condition;
use base::position::Position;
use base::time::Timestamp;
use request::attribute::Attribute;
use request::request::Request;

/// A route: one entry of `routes` in gateway.yaml.
#[derive(Clone, Debug)]
pub struct Route {
    pub name: String,
    /// The conditions. A request must meet all of them. Conditions of routes do not depend on credentials.
    pub conditions: Vec<Condition>,
    pub target: Target,
    /// The changes to requests and responses; `None` if the route changes nothing.
    pub forwarding: Option<Arc<Forwarding>>,
    pub position: Position,
}

impl Route {
    /// Returns the upstreams to which the route leads. Empty if the route answers requests by itself.
    pub fn upstreams(&self) -> Vec<UpstreamId> {
        match &self.target {
            Target::Upstream(upstream) => vec![*upstream],
            Target::Split(split) => split.shares().iter().map(|share| share.upstream).collect(),
            Target::Answer(_) => Vec::new(),
        }
    }

    /// Returns the format of the gateway's own error responses. `None` if the route has no format of its own.
    pub fn error_format(&self) -> Option<ErrorFormat> {
        self.forwarding.as_ref()?.overrides.error_format
    }

    /// Returns the settings for requests to language models. `None` if the settings of the file apply.
    pub fn llm(&self) -> Option<&Arc<LlmSettings>> {
        self.forwarding.as_ref()?.overrides.llm.as_ref()
    }

    /// Returns the upstreams of the route with their weights. `None` for a route that does not split requests.
    pub fn split(&self) -> Option<&Split> {
        match &self.target {
            Target::Split(split) => Some(split),
            Target::Upstream(_) | Target::Answer(_) => None,
        }
    }
}

/// The routes of a file, compiled for choosing the route of each request.
#[derive(Clone, Debug)]
pub struct RouteSet {
    routes: Vec<Route>,
    attributes: Vec<Attribute>,
    compiled: Vec<CompiledRoute>,
    index: Option<Index>,
}

#[derive(Clone, Debug)]
struct CompiledRoute {
    /// The choice if this route is taken. For a split, it has no upstream, because the upstream is chosen for each
    /// request.
    choice: RouteChoice,
    split: Option<Split>,
    conditions: Vec<CompiledCondition>,
}

/// The route and the upstream that are chosen for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteChoice {
    pub route: RouteId,
    /// The upstream that gets the request. `None` if the route answers requests by itself, or if a split has not yet
    /// chosen an upstream.
    pub upstream: Option<UpstreamId>,
}

/// The route and the upstream for a request whose attributes are only partly known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartialChoice {
    Chosen(RouteChoice),
    /// The route is known, but not which of its upstreams gets the request.
    OneOf(RouteId),
    NoRoute,
    /// The route is not known, because a condition reads an unknown attribute.
    Unknown,
}

impl RouteSet {
    /// Makes the routes of a file that has a single upstream: one route to this upstream.
    pub fn single() -> RouteSet {
        let route = Route {
            name: DEFAULT.to_owned(),
            conditions: Vec::new(),
            target: Target::Upstream(UpstreamId(0)),
            forwarding: None,
            position: Position::default(),
        };
        RouteSet::compile(vec![route])
    }

    /// Compiles routes. Their names must have been checked before.
    pub fn compile(routes: Vec<Route>) -> RouteSet {
        let mut attributes = Vec::new();
        let mut slot = |attribute: &Attribute| {
            let index = attributes.iter().position(|known| known == attribute);
            Slot(index.unwrap_or_else(|| {
                attributes.push(attribute.clone());
                attributes.len() - 1
            }))
        };
        let mut condition = |condition: &Condition| CompiledCondition {
            slot: slot(&condition.attribute),
            condition: condition.clone(),
        };
        let compiled: Vec<CompiledRoute> = (0..)
            .zip(&routes)
            .map(|(id, route)| CompiledRoute {
                choice: RouteChoice {
                    route: RouteId(id),
                    upstream: match route.target {
                        Target::Upstream(upstream) => Some(upstream),
                        Target::Split(_) | Target::Answer(_) => None,
                    },
                },
                split: route.split().cloned(),
                conditions: route.conditions.iter().map(&mut condition).collect(),
            })
            .collect();
        let index = Index::of(compiled.iter().map(|route| conditions_of(&route.conditions)));
        RouteSet { routes, attributes, compiled, index }
    }

    /// Returns the routes in the order of the file. A [`RouteId`] is an index into this list.
    pub fn routes(&self) -> &[Route] {
        &self.routes
    }

    pub fn route(&self, id: RouteId) -> Option<&Route> {
        self.routes.get(usize::try_from(id.0).ok()?)
    }

    /// Returns the attributes that the conditions of routes read.
    pub fn attributes(&self) -> &[Attribute] {
        &self.attributes
    }

    /// Returns all attributes that the routes read: to choose a route or an upstream, and to set header fields.
    pub fn read_attributes(&self) -> impl Iterator<Item = &Attribute> {
        let forwarding = self.routes.iter().filter_map(|route| route.forwarding.as_deref());
        let splits = self.routes.iter().filter_map(|route| route.split()?.by());
        let split_by = splits.flat_map(|by| &by.alternatives);
        self.attributes.iter().chain(forwarding.flat_map(Forwarding::attributes)).chain(split_by)
    }

    /// Chooses the first route whose conditions the request meets; `None` if no route matches. `draw` returns a random
    /// number below its argument, for a split at random.
    pub fn choose(&self, request: &Request<'_>, draw: impl FnOnce(u64) -> u64) -> Option<RouteChoice> {
        let chosen = self.matched(request)?;
        Some(match &chosen.split {
            None => chosen.choice,
            Some(split) => {
                let upstream = split.choose(|attribute| attribute.resolve(request), draw);
                RouteChoice { upstream: Some(upstream), ..chosen.choice }
            }
        })
    }

    fn matched(&self, request: &Request<'_>) -> Option<&CompiledRoute> {
        if let [only] = self.compiled.as_slice()
            && only.conditions.is_empty()
        {
            return Some(only);
        }
        // No route depends on the time, so any time will do.
        let mut values = Values::new(&self.attributes, request, Timestamp(0));
        let found = self.index.as_ref().map(|index| values.find(index));
        let mut candidates = among(&self.compiled, found);
        candidates.find(|route| values.hold(&route.conditions))
    }

    /// Returns the route that every request takes. `None` if there are several routes, or if the only route has
    /// conditions. This is also the route of requests that are refused before a route is chosen.
    pub fn only(&self) -> Option<RouteChoice> {
        match self.compiled.as_slice() {
            [only] if only.conditions.is_empty() => Some(only.choice),
            _ => None,
        }
    }

    /// Returns the route with this name; `None` if no route has this name.
    pub fn named(&self, name: &str) -> Option<RouteChoice> {
        let (_, compiled) = self.routes.iter().zip(&self.compiled).find(|(route, _)| route.name == name)?;
        Some(compiled.choice)
    }

    /// Chooses the first route whose conditions a request meets, as far as the known attributes determine this.
    /// `observe` returns what is known about an attribute.
    pub fn choose_partially<'s, 'a>(
        &'s self,
        observe: &mut impl FnMut(&'s Attribute) -> Observation<'a>,
        known: &Knowledge<'_>,
    ) -> PartialChoice {
        for (route, compiled) in self.routes.iter().zip(&self.compiled) {
            let mut holds = Some(true);
            for Condition { attribute, expectation } in &route.conditions {
                match known.evaluate(expectation, attribute, &observe(attribute)) {
                    Some(true) => {}
                    Some(false) => {
                        holds = Some(false);
                        break;
                    }
                    None => holds = None,
                }
            }
            match holds {
                Some(true) => return compiled.choose_partially(observe),
                Some(false) => {}
                None => return PartialChoice::Unknown,
            }
        }
        PartialChoice::NoRoute
    }

    #[cfg(test)]
    fn without_index(mut self) -> RouteSet {
        self.index = None;
        self
    }
}

impl CompiledRoute {
    fn choose_partially<'s, 'a>(&'s self, observe: &mut impl FnMut(&'s Attribute) -> Observation<'a>) -> PartialChoice {
        let Some(split) = &self.split else { return PartialChoice::Chosen(self.choice) };
        match split.choose_partially(observe) {
            PartialShare::Chosen(upstream) => {
                PartialChoice::Chosen(RouteChoice { upstream: Some(upstream), ..self.choice })
            }
            PartialShare::Unknown => PartialChoice::OneOf(self.choice.route),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use proptest::prelude::*;

    use super::*;
    use request::client_address::ClientAddress;
    use request::matcher::{Expectation, Text};

    fn condition(attribute: &str, text: &str) -> Condition {
        let attribute = Attribute::parse(attribute).unwrap();
        let text = match attribute {
            Attribute::Path => Text::for_path(text),
            Attribute::Host => Text::for_host(text),
            _ => Text::exact(text),
        };
        Condition { attribute, expectation: Expectation::AnyOf(vec![text]) }
    }

    fn routes(matches: &[&[(&str, &str)]]) -> RouteSet {
        let route = |(number, conditions): (u32, &&[(&str, &str)])| Route {
            name: format!("r{number}"),
            conditions: conditions.iter().map(|(attribute, text)| condition(attribute, text)).collect(),
            target: Target::Upstream(UpstreamId(number % 3)),
            forwarding: None,
            position: Position::default(),
        };
        RouteSet::compile((0..).zip(matches).map(route).collect())
    }

    fn chosen(routes: &RouteSet, host: &str, target: &str) -> Option<u32> {
        let (head, ()) = http::Request::builder().uri(target).header("host", host).body(()).unwrap().into_parts();
        let client = ClientAddress::new(IpAddr::from([192, 0, 2, 1]), 64);
        let request = Request::new(&head, client);
        routes.choose(&request, |_| 0).map(|choice| choice.route.0)
    }

    #[test]
    fn the_first_route_that_matches_is_taken() {
        let routes = routes(&[
            &[("host", "api.example.com"), ("path", "/v1/*")],
            &[("path", "/v1/*")],
            &[("host", "*.example.com")],
        ]);
        assert_eq!(chosen(&routes, "api.example.com", "/v1/x"), Some(0));
        assert_eq!(chosen(&routes, "API.example.com:8080", "/v1"), Some(0));
        assert_eq!(chosen(&routes, "other", "/v1/../v1/x"), Some(1));
        assert_eq!(chosen(&routes, "www.example.com", "/v1x"), Some(2));
        assert_eq!(chosen(&routes, "a.b.example.com", "/"), None);
        assert_eq!(chosen(&routes, "example.com", "/"), None);
        assert_eq!(chosen(&routes, ".example.com", "/"), None);
    }

    #[test]
    fn the_only_route_without_conditions_is_every_request_s() {
        assert_eq!(chosen(&RouteSet::single(), "a", "/"), Some(0));
        assert_eq!(RouteSet::single().only().map(|only| only.upstream), Some(Some(UpstreamId(0))));
        assert_eq!(routes(&[&[("path", "/a")]]).only(), None);
    }

    #[test]
    fn an_unknown_attribute_leaves_the_route_open_only_where_it_decides() {
        let routes = routes(&[&[("path", "/a"), ("header:x-beta", "1")], &[("path", "/b")], &[]]);
        let names = base::pseudonym::PseudonymKey::default();
        let known = Knowledge { client: None, issuer: None, at: Timestamp(0), names: &names, is_held: false };
        let choose = |path: &'static str| {
            let mut observe = |attribute: &Attribute| match attribute {
                Attribute::Path => Observation::Value(path.as_bytes().into()),
                _ => Observation::Unknown,
            };
            match routes.choose_partially(&mut observe, &known) {
                PartialChoice::Chosen(choice) => Some(choice.route.0),
                PartialChoice::NoRoute => None,
                PartialChoice::Unknown | PartialChoice::OneOf(_) => Some(99),
            }
        };
        assert_eq!([choose("/a"), choose("/b"), choose("/c")], [Some(99), Some(1), Some(2)]);
    }

    proptest! {
        /// Only a few hosts and paths are generated, so that most requests match several routes.
        #[test]
        fn the_index_changes_no_choice(
            list in proptest::collection::vec((0..5usize, 0..6usize), 9..40),
            host in 0..5usize,
            path in 0..6usize,
        ) {
            const HOSTS: [&str; 5] = ["a.example", "b.example", "*.example", "c", "example"];
            const PATHS: [&str; 6] = ["/*", "/v1/*", "/v1", "/v1/x/*", "/v2/y", "/v1/x"];
            let list: Vec<Vec<(&str, &str)>> =
                list.iter().map(|(host, path)| vec![("host", HOSTS[*host]), ("path", PATHS[*path])]).collect();
            let list: Vec<&[(&str, &str)]> = list.iter().map(Vec::as_slice).collect();
            let indexed = routes(&list);
            prop_assert!(indexed.index.is_some());
            let plain = indexed.clone().without_index();
            let (host, path) = (HOSTS[host].replace('*', "z"), PATHS[path].replace('*', "w"));
            prop_assert_eq!(chosen(&indexed, &host, &path), chosen(&plain, &host, &path));
        }
    }
}
