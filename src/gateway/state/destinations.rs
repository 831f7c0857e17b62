//! Holds where the requests of each route go, with the handles that count them.

use std::collections::HashSet;
use std::sync::Arc;

use crate::config::Config;
use crate::gateway::telemetry::labels::NO_ROUTE;
use crate::gateway::telemetry::metrics::{Metrics, RESPONSES, RouteMetrics, UpstreamMetrics};
use crate::gateway::upstream::Upstream;
use crate::route::route_set::RouteChoice;

/// Where requests go, which take one route to one upstream. A request holds it to its end.
#[derive(Debug)]
pub struct Destination {
    pub route: Arc<RouteMetrics>,
    /// `None` for requests that were answered before they had a route.
    pub upstream: Option<UpstreamOfRoute>,
}

/// An upstream, with the handles that count what it gets.
#[derive(Clone, Debug)]
pub struct UpstreamOfRoute {
    pub upstream: Arc<Upstream>,
    pub metrics: Arc<UpstreamMetrics>,
}

impl Destination {
    /// The name of the upstream; empty without one.
    pub fn upstream_name(&self) -> &str {
        self.upstream.as_ref().map_or("", |one| one.upstream.name())
    }
}

/// Every destination of a configuration.
#[derive(Debug)]
pub struct Destinations {
    /// Indexed by [`crate::route::RouteId`].
    by_route: Vec<Arc<Destination>>,
    /// Of requests that were answered before they had a route. Where there is only one, it is that.
    unrouted: Arc<Destination>,
    upstreams: Vec<UpstreamOfRoute>,
}

impl Destinations {
    /// The destinations of the configuration with this number. Of an upstream that `before` has too, everything that is known
    /// is kept.
    pub fn new(before: Option<&Destinations>, config: &Config, number: u32, metrics: &Metrics) -> Destinations {
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
                }
            })
            .collect();
        let route = |name: &str| Arc::new(RouteMetrics::new(&metrics.registry, number, name));
        let by_route: Vec<Arc<Destination>> = config
            .routes
            .routes()
            .iter()
            .map(|one| {
                let upstream = usize::try_from(one.upstream.0).ok().and_then(|index| upstreams.get(index)).cloned();
                Arc::new(Destination { route: route(&one.name), upstream })
            })
            .collect();
        let only = config.routes.only().and_then(|only| by_route.get(usize::try_from(only.route.0).ok()?)).cloned();
        let unrouted = only.unwrap_or_else(|| Arc::new(Destination { route: route(NO_ROUTE), upstream: None }));
        let names: HashSet<&str> =
            by_route.iter().chain([&unrouted]).map(|destination| destination.route.route()).collect();
        series.keep(RESPONSES, "route", &names);
        Destinations { by_route, unrouted, upstreams }
    }

    /// Where a request goes.
    pub fn of(&self, choice: RouteChoice) -> Option<&Arc<Destination>> {
        self.by_route.get(usize::try_from(choice.route.0).ok()?)
    }

    /// What counts a request that was answered before it had a route.
    pub fn unrouted(&self) -> &Arc<Destination> {
        &self.unrouted
    }

    pub fn upstreams(&self) -> impl Iterator<Item = &Arc<Upstream>> {
        self.upstreams.iter().map(|one| &one.upstream)
    }

    fn upstream_named(&self, name: &str) -> Option<&Arc<Upstream>> {
        self.upstreams().find(|upstream| upstream.name() == name)
    }
}
