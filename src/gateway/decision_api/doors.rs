//! Lists the kinds of decision listeners (doors) for other proxies and for services, and determines the door of each call.

use http::request::Parts;

use super::grpc::frame;
use super::{grpc, http_door, json_door};
use config::Decide;
use request::door::Door;

/// The doors that are gRPC services, each with its service and its method.
const SERVICES: [(Door, &str, &str); 2] = [
    (Door::ExtAuthz, "envoy.service.auth.v3.Authorization", "Check"),
    (Door::Rls, "envoy.service.ratelimit.v3.RateLimitService", "ShouldRateLimit"),
];

/// The gRPC health check. Every listener with a gRPC door answers it.
const HEALTH: (&str, &str) = ("grpc.health.v1.Health", "Check");

/// What a call to a `decide` listener asks for: a decision of some kind, or a health check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallTarget {
    Http,
    ExtAuthz,
    Rls,
    /// A call of `/take` with a JSON body.
    Take,
    /// A call of `/settle` with a JSON body.
    Settle,
    Health,
    /// A gRPC method that the listener does not have.
    UnknownMethod,
    /// A call that none of the listener's doors answers.
    NotFound,
}

impl CallTarget {
    /// Returns what a call asks for. `settings` are the settings of the listener that has received the call.
    pub(super) fn of(head: &Parts, is_http2: bool, settings: &Decide) -> CallTarget {
        let path = head.uri.path();
        match path {
            json_door::TAKE if settings.doors.contains(&Door::Json) => return CallTarget::Take,
            json_door::SETTLE if settings.doors.contains(&Door::Json) => return CallTarget::Settle,
            _ => {}
        }
        // A call of `/decide` has the content type of the client's request. So the content type does not say which kind of
        // call it is.
        if !http_door::is_path(path) && is_http2 && settings.needs_http2() && grpc::is_call(head) {
            return CallTarget::of_method(path, settings);
        }
        if settings.doors.contains(&Door::Http) { CallTarget::Http } else { CallTarget::NotFound }
    }

    /// Returns whether the call is a gRPC call.
    pub(super) fn is_grpc(self) -> bool {
        !matches!(self, CallTarget::Http | CallTarget::Take | CallTarget::Settle | CallTarget::NotFound)
    }

    /// Returns the maximum length of the body that must be read, in bytes. `None` if no body is read.
    pub(super) fn longest_body(self, head: &Parts) -> Option<usize> {
        match self {
            CallTarget::ExtAuthz | CallTarget::Rls | CallTarget::Health => Some(frame::PREFIX + frame::LONGEST),
            CallTarget::Take | CallTarget::Settle => json_door::check_head(head).is_ok().then_some(json_door::LONGEST),
            CallTarget::Http | CallTarget::UnknownMethod | CallTarget::NotFound => None,
        }
    }

    /// Returns the door that the log reports for the call. If the call asks for no decision, this is the door of its
    /// gRPC service, or the listener's first door.
    pub(super) fn door(self, path: &str, settings: &Decide) -> Door {
        let named = match self {
            CallTarget::Http => return Door::Http,
            CallTarget::ExtAuthz => return Door::ExtAuthz,
            CallTarget::Rls => return Door::Rls,
            CallTarget::Take | CallTarget::Settle => return Door::Json,
            CallTarget::Health | CallTarget::UnknownMethod => split_method(path).and_then(|(name, _)| of_service(name)),
            CallTarget::NotFound => None,
        };
        let has = |door: &Door| settings.doors.contains(door);
        named.filter(has).or_else(|| settings.doors.first().copied()).unwrap_or(Door::Http)
    }

    fn of_method(path: &str, settings: &Decide) -> CallTarget {
        let called = split_method(path);
        if called == Some(HEALTH) {
            return CallTarget::Health;
        }
        let door = SERVICES.iter().find(|(_, service, method)| called == Some((*service, *method)));
        match door.map(|(door, ..)| *door).filter(|door| settings.doors.contains(door)) {
            Some(Door::ExtAuthz) => CallTarget::ExtAuthz,
            Some(Door::Rls) => CallTarget::Rls,
            Some(Door::Proxy | Door::Http | Door::Json) | None => CallTarget::UnknownMethod,
        }
    }
}

/// Returns the kind of decision listener (door) whose gRPC service has this name. `None` if the service is unknown.
pub(super) fn of_service(name: &str) -> Option<Door> {
    SERVICES.iter().find(|(_, service, _)| *service == name).map(|(door, ..)| *door)
}

/// Splits the path of a gRPC call into the service and the method.
fn split_method(path: &str) -> Option<(&str, &str)> {
    path.strip_prefix('/')?.split_once('/')
}
