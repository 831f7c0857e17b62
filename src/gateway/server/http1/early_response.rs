//! Answers on a connection on which no valid request has arrived, and closes the connection.

use std::time::Duration;

use http::HeaderValue;
use pingora::protocols::Stream;

use super::downstream_stream::DownstreamStream;
use super::request_body::BodyError;
use super::request_head::HeadError;
use super::response_head;
use crate::gateway::response::problem::{ProblemResponse, Recipient};
use crate::gateway::response::request_id;
use crate::gateway::runtime::write_backpressure::WriteBackpressure;
use crate::gateway::server::connection_guard::{ConnectionSlot, CountGuard};
use crate::gateway::server::connection_handle::ConnectionHandle;
use crate::gateway::server::rejected_head;
use crate::gateway::server::request_client::Reuse;
use crate::gateway::server::server_state::ServerState;
use crate::gateway::telemetry::access_log::request_end::RequestEnd;
use crate::gateway::telemetry::labels::Origin;
use base::time;
use base::time::Micros;
use decision::access_log_line::Kind;
use decision::cors::CorsAnswer;
use decision::refusal::Refusal;
use request::grpc_timeout::is_grpc_type;

/// The longest time for a client to accept a response. The response has some hundred bytes.
const WRITE_TIMEOUT: Duration = Duration::from_secs(2);

/// The reason why a head is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadRejection {
    Invalid(HeadError),
    /// The head was not complete within the header timeout.
    TimedOut,
    /// The body is longer than allowed, or the part of the body that arrived with the head is invalid.
    Body(BodyError),
}

impl HeadRejection {
    fn status(self) -> u16 {
        match self {
            HeadRejection::Invalid(error) => error.status(),
            HeadRejection::TimedOut => 408,
            HeadRejection::Body(error) => error.status(),
        }
    }

    /// Returns the reason as text, for the log. The text contains no bytes of the client.
    pub fn detail(self) -> &'static str {
        match self {
            HeadRejection::Invalid(error) => error.detail(),
            HeadRejection::TimedOut => "head not complete in time",
            HeadRejection::Body(error) => error.detail(),
        }
    }
}

impl From<HeadRejection> for Refusal {
    fn from(rejection: HeadRejection) -> Refusal {
        Refusal::bad_request(rejection.status())
    }
}

/// Answers a request whose head is rejected. `duration` is how long the gateway waited for the head.
pub(super) async fn reject_head(
    state: &ServerState,
    mut stream: Box<DownstreamStream>,
    rejection: HeadRejection,
    duration: Micros,
) {
    let request_id = request_id::keep_or_make(request_id_of(stream.unparsed()).as_ref());
    let method = method(stream.unparsed()).to_owned();
    let (refusal, detail) = (Refusal::from(rejection), rejection.detail());
    log::debug!(code = refusal.status, detail, request_id = request_id.to_str().unwrap_or_default(); "head refused");
    state.metrics.count_refusal(refusal.reason);
    let snapshot = state.snapshot.load();
    let recipient = Recipient::at(&snapshot.config, stream.handle.listener());
    let cors = match rejected_head::whole_head(stream.unparsed()) {
        Some(head) => rejected_head::cors(&snapshot.config, &stream.handle, &head),
        None => {
            let origin = only_field(stream.unparsed(), b"origin:");
            snapshot.config.cors.as_ref().and_then(|cors| cors.answer_unread(origin.as_ref()))
        }
    };
    let about = RejectedRequest { method: &method, request_id: &request_id, cors, duration };
    respond(state, &mut stream, &ProblemResponse { recipient, ..ProblemResponse::refusal(&refusal) }, about).await;
}

/// Answers 503 on a connection that exceeds a limit. `guard` is held until the connection is closed.
pub(crate) async fn reject_connection(state: &ServerState, stream: Stream, guard: CountGuard) {
    // The index of the listener is never used, because there is no request.
    let handle = ConnectionHandle::http1(0, &stream, None);
    let mut stream = Box::new(DownstreamStream::new(
        stream,
        ConnectionSlot::Rejected(guard),
        WriteBackpressure::default(),
        handle,
        state.clock.clone(),
    ));
    let response = ProblemResponse::fault(503);
    let request_id = request_id::keep_or_make(None);
    let cors = state.snapshot.load().config.cors.as_ref().and_then(|cors| cors.answer_unread(None));
    let about = RejectedRequest { method: "", request_id: &request_id, cors, duration: Micros(0) };
    respond(state, &mut stream, &response, about).await;
    stream.interrupt();
}

/// The known parts of a request that could not be read.
struct RejectedRequest<'h> {
    method: &'h str,
    request_id: &'h HeaderValue,
    cors: Option<CorsAnswer>,
    /// How long the gateway waited for the head.
    duration: Micros,
}

async fn respond(
    state: &ServerState,
    stream: &mut DownstreamStream,
    response: &ProblemResponse<'_>,
    RejectedRequest { method, request_id, cors, duration }: RejectedRequest<'_>,
) {
    let snapshot = state.snapshot.load();
    let pages = snapshot.config.error_pages.as_ref();
    // gRPC calls get no error page. On a listener for other proxies, an unreadable head may be that of a gRPC call.
    let may_be_grpc = match only_field(stream.unparsed(), b"content-type:") {
        Some(kind) => is_grpc_type(&kind),
        None => response.recipient != Recipient::Client && rejected_head::whole_head(stream.unparsed()).is_none(),
    };
    let page =
        pages.filter(|_| !may_be_grpc).and_then(|pages| pages.find(None, response.status())).map(|(_, page)| page);
    // The route is not known, so the format for the whole configuration is used.
    let is_http = response.recipient == Recipient::Client && !may_be_grpc;
    let format = snapshot.config.error_formats.of_file.filter(|_| is_http);
    let mut own = ProblemResponse { page, format, cors: cors.as_ref(), ..*response }.response_to_unread(request_id);
    if method == "HEAD" {
        own.body.clear();
    }
    let mut bytes = Vec::with_capacity(512 + own.body.len());
    response_head::write_own(&own, Reuse::Closed, &mut bytes);
    bytes.extend_from_slice(&own.body);
    count(state, response, own.status, method, request_id, duration, own.body.len());
    match time::timeout(WRITE_TIMEOUT, stream.write_response(&bytes)).await {
        Ok(Ok(())) => {}
        Ok(Err(fault)) => log::debug!(error = fault.detail(); "response not written"),
        Err(_) => log::debug!("response not read by the client in time"),
    }
}

/// Counts and logs a response that no application has written. `duration` is the time for which the gateway waited for the
/// request.
pub(crate) fn count(
    state: &ServerState,
    response: &ProblemResponse<'_>,
    code: u16,
    method: &str,
    request_id: &HeaderValue,
    duration: Micros,
    body_bytes: usize,
) {
    let snapshot = state.snapshot.load();
    let route = &snapshot.destinations.unrouted().route;
    route.count_response(method, code, Origin::Gateway);
    route.duration(Origin::Gateway).record(duration.seconds());
    let end = RequestEnd {
        kind: if response.reason().is_some() { Kind::Refused } else { Kind::Error },
        request_id,
        route: route.route(),
        method,
        code,
        origin: Origin::Gateway,
        duration,
        upstream: None,
        endpoint: None,
        failed_attempts: Vec::new(),
        request_bytes: 0,
        response_bytes: body_bytes,
        detail: None,
    };
    if let Some(writer) = snapshot.access_log_of(end.kind) {
        writer.write(&end.headless_line(response.reason(), &state.clock));
    }
}

/// Returns the first word of a head, which is used as the method.
fn method(bytes: &[u8]) -> &str {
    let word = bytes.iter().take(16).position(|byte| *byte == b' ').and_then(|end| bytes.get(..end));
    word.and_then(|word| std::str::from_utf8(word).ok()).unwrap_or_default()
}

/// Returns the request id in an invalid head.
fn request_id_of(bytes: &[u8]) -> Option<HeaderValue> {
    fields(bytes, b"x-request-id:").next()
}

/// Returns the value of a field that occurs once in an invalid head.
fn only_field(bytes: &[u8], name: &'static [u8]) -> Option<HeaderValue> {
    let mut values = fields(bytes, name);
    values.next().filter(|_| values.next().is_none())
}

/// Returns the values of a field in an invalid head. `name` includes the colon.
fn fields<'b>(bytes: &'b [u8], name: &'static [u8]) -> impl Iterator<Item = HeaderValue> + 'b {
    let lines = bytes.split(|byte| *byte == b'\n').skip(1);
    // An empty line ends the head.
    let lines = lines.take_while(|line| !line.trim_ascii_end().is_empty());
    lines.filter_map(move |line| {
        let (start, value) = line.split_at_checked(name.len())?;
        // A line without CR at its end may be incomplete, so it is left out.
        let value = start.eq_ignore_ascii_case(name).then_some(value.strip_suffix(b"\r"))??;
        HeaderValue::from_bytes(value.trim_ascii()).ok()
    })
}
