//! Holds the destinations of requests: for each route and upstream, the metrics that count its requests.

use std::collections::HashSet;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::gateway::telemetry::labels::NO_ROUTE;
use crate::gateway::telemetry::metrics::{Metrics, RESPONSES, RouteMetrics, UpstreamMetrics};
use crate::gateway::upstream::Upstream;
use base::time::Micros;
use config::Config;
use identity::api_keys::ApiKeys;
use rules::route::UpstreamId;
use rules::route::forwarding::Forwarding;
use rules::route::llm_settings::LlmSettings;
use rules::route::route_set::{Route, RouteChoice};
use rules::route::target::{RouteAnswer, Target};

/// The destination of requests: a route with one of its upstreams, or a route without upstreams and its answer.
#[derive(Debug)]
pub(crate) struct Destination {
    pub route: Arc<RouteMetrics>,
    /// The upstream. `None` if the request was answered before a route was chosen, or if the route answers requests without an
    /// upstream.
    pub upstream: Option<UpstreamOfRoute>,
    /// How a route without an upstream answers requests: by a redirect or a fixed response. `None` if the route has an
    /// upstream, or if no route was chosen.
    pub answer: Option<RouteAnswer>,
    /// The changes that the route makes to requests and responses. `None` if the route changes nothing.
    pub forwarding: Option<Arc<Forwarding>>,
}

/// An upstream, with the metrics that count the requests to it.
#[derive(Clone, Debug)]
pub(crate) struct UpstreamOfRoute {
    pub upstream: Arc<Upstream>,
    pub metrics: Arc<UpstreamMetrics>,
    /// How long a gRPC, WebSocket or event stream may be idle. This timeout replaces the upstream's read timeout for such streams.
    pub stream_idle_timeout: Micros,
    /// The API keys that the upstream must not get. `None` if requests keep their keys.
    pub withheld_keys: Option<Arc<ApiKeys>>,
}

impl Destination {
    fn none(route: Arc<RouteMetrics>) -> Destination {
        Destination { route, upstream: None, answer: None, forwarding: None }
    }

    /// Returns the route's settings for requests to language models. Without them, returns the settings of the file.
    pub(crate) fn llm<'s>(&'s self, config: &'s Config) -> &'s Arc<LlmSettings> {
        self.forwarding.as_ref().and_then(|route| route.overrides.llm.as_ref()).unwrap_or(&config.llm)
    }

    /// Returns the name of the upstream, or an empty text if the destination has no upstream.
    pub(crate) fn upstream_name(&self) -> &str {
        self.upstream.as_ref().map_or("", |one| one.upstream.name())
    }
}

/// The destinations of one route, by upstream.
type DestinationsOfRoute = SmallVec<[(Option<UpstreamId>, Arc<Destination>); 1]>;

/// All destinations of a configuration. Used to find the destination of each request.
#[derive(Debug)]
pub(crate) struct Destinations {
    /// The destinations by [`rules::route::RouteId`]: one for each upstream to which the route leads, or one without an
    /// upstream.
    by_route: Vec<DestinationsOfRoute>,
    /// The destination of requests that were answered before a route was chosen. If the configuration has only one
    /// destination, these requests have that destination too.
    unrouted: Arc<Destination>,
    /// The destination of requests about which other proxies ask. Equal to `unrouted` if no proxy may ask.
    decided: Arc<Destination>,
    upstreams: Vec<UpstreamOfRoute>,
}

impl Destinations {
    /// Makes the destinations of a configuration. `number` is the number of its snapshot. An upstream that is also in `before`,
    /// the previous destinations, keeps its state.
    pub(crate) fn new(before: Option<&Destinations>, config: &Config, number: u32, metrics: &Metrics) -> Destinations {
        let series = metrics.registry.of_config(number);
        let upstreams: Vec<UpstreamOfRoute> = config
            .upstreams
            .iter()
            .map(|settings| {
                let known = before.and_then(|before| before.upstream_named(&settings.name));
                UpstreamOfRoute {
                    upstream: match known {
                        Some(known) => known.reconfigured(settings),
                        None => Arc::new(Upstream::new(settings)),
                    },
                    metrics: Arc::new(UpstreamMetrics::new(&settings.name, series)),
                    stream_idle_timeout: config.bounds.stream_idle_timeout,
                    withheld_keys: config.api_keys.clone().filter(|keys| keys.withheld().is_some()),
                }
            })
            .collect();
        let route = |name: &str| Arc::new(RouteMetrics::new(&metrics.registry, number, name));
        let destinations = |one: &Route| {
            let route = route(&one.name);
            let forwarding = &one.forwarding;
            let to = |id: UpstreamId| {
                let upstream = usize::try_from(id.0).ok().and_then(|index| upstreams.get(index)).cloned();
                let route = Arc::clone(&route);
                (Some(id), Arc::new(Destination { route, upstream, answer: None, forwarding: forwarding.clone() }))
            };
            match &one.target {
                Target::Answer(answer) => {
                    let (route, answer) = (Arc::clone(&route), Some(answer.clone()));
                    let answering = Destination { route, upstream: None, answer, forwarding: forwarding.clone() };
                    SmallVec::from_elem((None, Arc::new(answering)), 1)
                }
                Target::Upstream(_) | Target::Split(_) => one.upstreams().into_iter().map(to).collect(),
            }
        };
        let by_route: Vec<DestinationsOfRoute> = config.routes.routes().iter().map(destinations).collect();
        let only = config.routes.only().and_then(|only| by_route.get(usize::try_from(only.route.0).ok()?)?.first());
        let only = only.map(|(_, destination)| Arc::clone(destination));
        let unrouted = only.clone().unwrap_or_else(|| Arc::new(Destination::none(route(NO_ROUTE))));
        let decided = match config.decides() && only.is_some() {
            true => Arc::new(Destination::none(route(NO_ROUTE))),
            false => Arc::clone(&unrouted),
        };
        let names: HashSet<[&str; 1]> = by_route
            .iter()
            .flatten()
            .map(|(_, one)| one)
            .chain([&unrouted, &decided])
            .map(|one| [one.route.route()])
            .collect();
        series.keep(RESPONSES, ["route"], &names);
        UpstreamMetrics::keep(config.upstreams.iter().map(|upstream| &*upstream.name), series);
        Destinations { by_route, unrouted, decided, upstreams }
    }

    /// Returns the destination for a chosen route and upstream. `None` if the configuration has no such destination.
    pub(crate) fn of(&self, choice: RouteChoice) -> Option<&Arc<Destination>> {
        let destinations = self.by_route.get(usize::try_from(choice.route.0).ok()?)?;
        destinations.iter().find(|(upstream, _)| *upstream == choice.upstream).map(|(_, destination)| destination)
    }

    /// Returns the destination of requests that were answered before a route was chosen.
    pub(crate) fn unrouted(&self) -> &Arc<Destination> {
        &self.unrouted
    }

    /// Returns the destination of requests about which other proxies ask.
    pub(crate) fn decided(&self) -> &Arc<Destination> {
        &self.decided
    }

    pub(crate) fn upstreams(&self) -> impl Iterator<Item = &Arc<Upstream>> {
        self.upstreams.iter().map(|one| &one.upstream)
    }

    fn upstream_named(&self, name: &str) -> Option<&Arc<Upstream>> {
        self.upstreams().find(|upstream| upstream.name() == name)
    }
}
