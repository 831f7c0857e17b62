//! Holds the routes of a file, and chooses that of a request.

use super::{DEFAULT, RouteId, UpstreamId};
use crate::limit::request::Request;

/// A route.
#[derive(Clone, Debug)]
pub struct Route {
    pub name: String,
    pub upstream: UpstreamId,
}

/// The routes of a file, in its order.
#[derive(Clone, Debug)]
pub struct RouteSet {
    routes: Vec<Route>,
}

/// Where a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteChoice {
    pub route: RouteId,
    pub upstream: UpstreamId,
}

impl RouteSet {
    /// The only route of a file with a single upstream.
    pub fn single() -> RouteSet {
        RouteSet { routes: vec![Route { name: DEFAULT.to_owned(), upstream: UpstreamId(0) }] }
    }

    /// A [`RouteId`] is an index into it.
    pub fn routes(&self) -> &[Route] {
        &self.routes
    }

    pub fn route(&self, id: RouteId) -> Option<&Route> {
        self.routes.get(usize::try_from(id.0).ok()?)
    }

    /// The first route that the request matches; `None` if it matches none.
    pub fn choose(&self, _: &Request<'_>) -> Option<RouteChoice> {
        self.only()
    }

    /// The route that every request takes, if there is one: it is also that of requests which were refused before their
    /// route could be chosen.
    pub fn only(&self) -> Option<RouteChoice> {
        let route = self.routes.first()?;
        Some(RouteChoice { route: RouteId(0), upstream: route.upstream })
    }
}
