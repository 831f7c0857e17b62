//! Serves one call: checks who asks, gets the answer from the door, and writes it.

use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;

use super::DecisionApi;
use super::call::Call;
use super::call_body::{self, BodyClient};
use super::doors::CallTarget;
use super::grpc::envoy_call::EnvoyCall;
use super::grpc::frame::FrameError;
use super::grpc::{self, Reply, Status};
use super::{ext_authz, http_door, json_door, rls};
use crate::gateway::response::own_response::OwnResponse;
use crate::gateway::response::problem::{ProblemResponse, Recipient};
use crate::gateway::server::http1::BodyError;
use crate::gateway::server::http1::application::ReceivedRequest;
use crate::gateway::server::http1::client::{Client, ClientRequest};
use crate::gateway::server::http1::downstream_stream::DownstreamStream;
use crate::gateway::server::http1::exchange_io::ClientFault;
use crate::gateway::server::http2::application::Http2Request;
use crate::gateway::server::http2::client::Http2Client;
use crate::gateway::server::request_client::{RequestClient, Reuse, WaitEnd};
use crate::gateway::state::snapshot::Snapshot;
use config::{Decide, RefuseWith};
use decision::refusal::Refusal;

/// Serves one call over HTTP/1.x. Returns the connection if another call may follow on it, and `None` otherwise.
pub(super) async fn serve(
    api: &DecisionApi,
    stream: Box<DownstreamStream>,
    request: ReceivedRequest,
) -> Option<Box<DownstreamStream>> {
    let ClientRequest { mut client, head, .. } = Client::begin(stream, request, &api.gateway.lifecycle);
    let connection = client.stream.handle();
    let snapshot = api.gateway.snapshot.load();
    let Ok(head) = head else {
        let head = http::Request::new(()).into_parts().0;
        let mut call = Call::begin(api, head, connection, &snapshot);
        let problem = ProblemResponse::refusal(&Refusal::bad_request(400)).response(&call.head, &call.request_id);
        call.write(&mut client, problem).await;
        return None;
    };
    let mut call = Call::begin(api, head, connection, &snapshot);
    let asked = Asked::of(&call, &snapshot)?;
    let reuse = serve_call(&mut client, &mut call, &snapshot, asked).await;
    drop(call);
    client.end(reuse)
}

/// Serves one call over HTTP/2: reads its message, decides, and writes the answer.
pub(super) async fn serve_http2(api: &DecisionApi, request: Http2Request) {
    let Http2Request { head, stream, handle, .. } = request;
    if api.gateway.is_draining() {
        handle.close_when_done();
    }
    let mut client = Http2Client::new(stream, &api.gateway.lifecycle);
    let snapshot = api.gateway.snapshot.load();
    let mut call = Call::begin(api, head, handle, &snapshot);
    let Some(asked) = Asked::of(&call, &snapshot) else { return };
    serve_call(&mut client, &mut call, &snapshot, asked).await;
}

/// Reads the body of a call if its door needs it, and answers the call. Returns whether another call may follow.
async fn serve_call<C: BodyClient>(
    client: &mut C,
    call: &mut Call<'_>,
    snapshot: &Arc<Snapshot>,
    asked: Asked<'_>,
) -> Reuse {
    let body = match asked.target.longest_body(&call.head) {
        // Few calls have a body. Its future is on the heap, so that it does not enlarge every task.
        Some(most) => {
            let within = snapshot.config.bounds.body_timeout.into();
            Box::pin(call_body::read(client, call, most, within)).await
        }
        None => Ok(Ok(Bytes::new())),
    };
    let answer = match body {
        Ok(body) => client.until(WaitEnd::RequestEnds, pin!(answer(call, snapshot, asked, body))).await,
        Err(fault) => Err(fault),
    };
    finish(client, call, answer).await
}

/// The peer that asks, the settings of its listener, and the target of the call.
struct Asked<'s> {
    peer: IpAddr,
    settings: &'s Decide,
    target: CallTarget,
}

impl<'s> Asked<'s> {
    /// Returns `None` if the peer may not ask. A reload may have withdrawn the permission.
    fn of(call: &Call<'_>, snapshot: &'s Snapshot) -> Option<Asked<'s>> {
        if !call.admits_connection(snapshot) {
            call.connection.close_when_done();
            return None;
        }
        let (peer, settings) = call.peer.zip(snapshot.config.decide(call.connection.listener()))?;
        let target = CallTarget::of(&call.head, call.connection.is_http2(), settings);
        settings.admits_call(peer, call.has_verified_certificate()).then_some(Asked { peer, settings, target })
    }
}

/// Gets the answer from the door of a call. `body` is the body of a call with a message or with JSON.
async fn answer(
    call: &mut Call<'_>,
    snapshot: &Arc<Snapshot>,
    Asked { peer, settings, target }: Asked<'_>,
    body: Result<Bytes, BodyError>,
) -> Result<OwnResponse, ClientFault> {
    if target.is_grpc() || matches!(target, CallTarget::Take | CallTarget::Settle) {
        call.trace = call.api.gateway.tracer.begin(&call.head.headers, call.started);
    }
    let envoy = EnvoyCall { api: call.api, snapshot, settings };
    let response = match target {
        CallTarget::Take => Box::pin(json_door::answer(call, snapshot, settings, body)).await?,
        CallTarget::Settle => Box::pin(json_door::settling::answer(call, snapshot, body)).await?,
        CallTarget::Http => http_door::answer(call, snapshot, (peer, settings)).await?,
        CallTarget::ExtAuthz => {
            let reply = match grpc::message(body.map_err(FrameError::from)) {
                Ok(message) => ext_authz::answer(envoy, call, &message).await?,
                Err(FrameError::TooLong) => ext_authz::refuse_too_long(envoy, call),
                Err(error) => error.into(),
            };
            call.reply(reply)
        }
        CallTarget::Rls => {
            let reply = match grpc::message(body.map_err(FrameError::from)) {
                Ok(message) => rls::answer(envoy, call, &message).await?,
                Err(FrameError::TooLong) => rls::refuse_too_long(envoy, call),
                Err(error) => error.into(),
            };
            call.reply(reply)
        }
        CallTarget::Health => call.reply(grpc::health::answer(envoy, body.map_err(FrameError::from))),
        CallTarget::UnknownMethod => {
            call.reply(Reply::Failure(Status::Unimplemented, "no door of this listener has this method"))
        }
        CallTarget::NotFound => {
            let recipient = Recipient::Edge(RefuseWith::Decided);
            let problem = ProblemResponse { recipient, ..ProblemResponse::fault(404) };
            problem.response(&call.head, &call.request_id)
        }
    };
    call.record_at_least(snapshot, peer, target.door(call.head.uri.path(), settings));
    Ok(response)
}

/// Writes the answer. Returns whether another call may follow. `answer` is an error if the other proxy has disconnected or
/// the process exits.
async fn finish<C: RequestClient>(
    client: &mut C,
    call: &mut Call<'_>,
    answer: Result<Result<OwnResponse, ClientFault>, ClientFault>,
) -> Reuse {
    match answer {
        Ok(Ok(response)) => call.write(client, response).await,
        Ok(Err(fault)) | Err(fault) => {
            let request_id = call.request_id.to_str().unwrap_or_default();
            log::debug!(request_id, error = fault.detail(); "call not answered");
            Reuse::Closed
        }
    }
}
