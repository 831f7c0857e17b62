//! The gRPC health check: whether the listener has a service, and whether the process accepts calls.

use bytes::Bytes;

use super::envoy_call::EnvoyCall;
use super::frame::{self, FrameError};
use super::messages::{HealthCheckRequest, HealthCheckResponse, ServingStatus};
use super::{Reply, Status, message};
use crate::gateway::decision_api::doors;

/// Answers a health check of gRPC: whether the listener has the service, and whether the process accepts calls.
pub(crate) fn answer(envoy: EnvoyCall<'_>, body: Result<Bytes, FrameError>) -> Reply {
    match message(body) {
        Ok(message) => status(envoy, &message),
        Err(error) => error.into(),
    }
}

fn status(envoy: EnvoyCall<'_>, message: &HealthCheckRequest) -> Reply {
    let is_known = match &*message.service {
        "" => true,
        service => doors::of_service(service).is_some_and(|door| envoy.settings.doors.contains(&door)),
    };
    if !is_known {
        return Reply::Failure(Status::NotFound, "this listener has no such service");
    }
    let status = if envoy.api.gateway.is_draining() { ServingStatus::NotServing } else { ServingStatus::Serving };
    Reply::Message(frame::write(&HealthCheckResponse { status: status.into() }))
}
