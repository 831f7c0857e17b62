//! Determines where a configuration file sends a request of a log.

use std::borrow::Cow;

use config::Config;
use request::attribute::Attribute;
use rules::partial_evaluation::{Knowledge, Observation};
use rules::route::route_set::{PartialChoice, RouteChoice};

/// The route and the upstream that a file chooses for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Destination<'c> {
    Chosen {
        route: &'c str,
        /// The name of the upstream. Empty if the route has no upstream. `None` if it is not known which of several is
        /// chosen.
        upstream: Option<&'c str>,
    },
    NoRoute,
    /// The route depends on an attribute that the log lacks.
    Unknown,
}

impl<'c> Destination<'c> {
    /// Chooses the route and the upstream from the attributes that the log records.
    pub(crate) fn choose<'a>(
        config: &'c Config,
        observe: &mut impl FnMut(&'c Attribute) -> Observation<'a>,
        known: &Knowledge<'_>,
    ) -> Destination<'c> {
        match config.routes.choose_partially(observe, known) {
            PartialChoice::Chosen(choice) => Destination::of(config, choice),
            PartialChoice::OneOf(route) => Destination::of(config, RouteChoice { route, upstream: None }),
            PartialChoice::NoRoute => Destination::NoRoute,
            PartialChoice::Unknown => Destination::Unknown,
        }
    }

    /// Returns the destination of a request about which another proxy asked: no route and no upstream.
    pub(crate) fn elsewhere() -> Destination<'c> {
        Destination::Chosen { route: "", upstream: Some("") }
    }

    /// Returns the destination of a request that took the route `name`. [`Destination::Unknown`] if the file has no
    /// such route.
    pub(crate) fn named(config: &'c Config, name: &str) -> Destination<'c> {
        config.routes.named(name).map_or(Destination::Unknown, |choice| Destination::of(config, choice))
    }

    fn of(config: &'c Config, choice: RouteChoice) -> Destination<'c> {
        let (route, upstream) = config.destination(choice);
        let is_open =
            choice.upstream.is_none() && config.routes.route(choice.route).is_some_and(|route| route.split().is_some());
        Destination::Chosen { route, upstream: (!is_open).then_some(upstream) }
    }

    /// Sets the upstream to which the request was sent, if the file's choice of an upstream is not known. `name` is the
    /// upstream in the log, or `None` if the log names no upstream.
    pub(crate) fn with_upstream(self, config: &'c Config, name: Option<&str>) -> Destination<'c> {
        let Destination::Chosen { route, upstream: None } = self else { return self };
        let named = config.upstreams.iter().find(|upstream| Some(&*upstream.name) == name);
        Destination::Chosen { route, upstream: named.map(|upstream| &*upstream.name) }
    }

    /// Returns what is known about the attribute `route` or `upstream`. `None` for any other attribute.
    pub(crate) fn observe(&self, attribute: &Attribute) -> Option<Observation<'c>> {
        let value = |name: &'c str| match name {
            "" => Observation::Missing,
            name => Observation::Value(Cow::Borrowed(name.as_bytes())),
        };
        match (attribute, self) {
            (Attribute::Folded(folding, source), _) => Some(self.observe(source)?.folded(*folding)),
            (Attribute::Route, Destination::Chosen { route, .. }) => Some(value(route)),
            (Attribute::Upstream, Destination::Chosen { upstream: Some(upstream), .. }) => Some(value(upstream)),
            (Attribute::Route | Attribute::Upstream, _) => Some(Observation::Unknown),
            _ => None,
        }
    }
}
