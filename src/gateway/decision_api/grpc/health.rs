//! The health check of gRPC: whether the listener has a service, and whether the process accepts calls.

use pingora::Result;
use pingora::proxy::Session;

use super::envoy_call::EnvoyCall;
use super::messages::{HealthCheckRequest, HealthCheckResponse, ServingStatus};
use super::{Reply, Status, frame, read_message};
use crate::gateway::decision_api::call::Call;
use crate::gateway::decision_api::doors;

/// Answers a call of `Check`.
///
/// # Errors
/// When the other proxy has disconnected.
pub async fn answer(envoy: EnvoyCall<'_>, session: &mut Session, call: &mut Call) -> Result<()> {
    let reply = match read_message(session, envoy.body_timeout()).await? {
        Ok(message) => status(envoy, &message),
        Err(error) => error.into(),
    };
    envoy.reply(session, call, reply).await
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
