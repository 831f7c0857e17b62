//! Answers connections on which no request could be read, and closes them.

use std::time::Duration;

use http::HeaderValue;
use pingora::protocols::Stream;
use tokio::io::AsyncWriteExt;

use super::Http1Server;
use super::connection_guard::{ConnectionSlot, RejectionGuard};
use super::downstream_stream::DownstreamStream;
use super::request_head::HeadError;
use crate::access_log_line::Kind;
use crate::base::time;
use crate::base::time::Micros;
use crate::gateway::response::problem::{ProblemResponse, Reason};
use crate::gateway::response::request_id;
use crate::gateway::runtime::stalled_writes::StalledWrites;
use crate::gateway::telemetry::access_log::request_end::RequestEnd;
use crate::gateway::telemetry::labels::Origin;

/// What an answer of some hundred bytes may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// Why a head is answered here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadRejection {
    Flawed(HeadError),
    /// It was not whole in time.
    Late,
    /// It announces a longer body than there may be.
    BodyTooLong,
}

/// What there are too many of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionLimit {
    Connections,
    ConnectionsPerClient,
}

impl HeadRejection {
    fn status(self) -> u16 {
        match self {
            HeadRejection::Flawed(flaw) => flaw.status(),
            HeadRejection::Late => 408,
            HeadRejection::BodyTooLong => 413,
        }
    }

    fn detail(self) -> &'static str {
        match self {
            HeadRejection::Flawed(flaw) => flaw.detail(),
            HeadRejection::Late => "head not whole in time",
            HeadRejection::BodyTooLong => "body too long",
        }
    }
}

impl Http1Server {
    /// Answers a head that is none.
    pub(super) async fn refuse(&self, mut framed: Box<DownstreamStream>, refusal: HeadRejection, took: Micros) {
        let request_id = request_id::keep_or_make(sent_id(framed.ahead()).as_ref());
        let method = method(framed.ahead()).to_owned();
        let detail = refusal.detail();
        log::debug!(code = refusal.status(), detail, request_id = request_id.to_str().unwrap_or_default(); "head refused");
        self.gateway.metrics.count_refusal(Reason::BadRequest);
        let reply = ProblemResponse::refusal(refusal.status(), Reason::BadRequest);
        self.answer(&mut framed, &reply, &method, &request_id, took).await;
    }

    /// Answers a connection that is one too many, unless as many as there are files for are being answered already.
    pub(super) async fn turn_away(&self, stream: Stream, bound: ConnectionLimit) {
        let (said, hint) = match bound {
            ConnectionLimit::Connections => (
                &self.connections.over_limit,
                "limits.connections, or what the open-file limit leaves of it, is reached",
            ),
            ConnectionLimit::ConnectionsPerClient => {
                (&self.connections.over_client_limit, "limits.connections_per_client is reached by some client")
            }
        };
        if let Some(connections) = said.say(self.gateway.clock.now()) {
            log::warn!(connections, hint; "connections turned away");
        }
        if let Some(told) = RejectionGuard::new(&self.connections.rejecting, self.connections.fd_budget.told()) {
            let mut framed = Box::new(DownstreamStream::new(
                stream,
                ConnectionSlot::Rejected(told),
                StalledWrites::default(),
                self.gateway.clock.clone(),
            ));
            let reply = ProblemResponse::fault(503);
            self.answer(&mut framed, &reply, "", &request_id::keep_or_make(None), Micros(0)).await;
            framed.interrupt();
        }
    }

    async fn answer(
        &self,
        framed: &mut DownstreamStream,
        reply: &ProblemResponse<'_>,
        method: &str,
        id: &HeaderValue,
        took: Micros,
    ) {
        let metrics = &self.gateway.metrics;
        metrics.count_response(method, reply.status, Origin::Gateway);
        metrics.request_duration[0].record(took.seconds());
        let words = match reply.last_words(method, id) {
            Ok(words) => words,
            Err(error) => return log::debug!(error:% = error; "answer not made"),
        };
        let head = words.windows(4).position(|bytes| bytes == b"\r\n\r\n").map_or(0, |end| end + 4);
        let end = RequestEnd {
            kind: if reply.reason.is_some() { Kind::Refused } else { Kind::Error },
            request_id: id,
            method,
            code: reply.status,
            origin: Origin::Gateway,
            duration: took,
            upstream: None,
            request_bytes: 0,
            response_bytes: words.len() - head,
        };
        if let Some(writer) = self.gateway.snapshot.load().access_log_of(end.kind) {
            writer.write(&end.headless_line(reply.reason, &self.gateway.clock));
        }
        let written = async {
            framed.write_all(&words).await?;
            framed.flush().await
        };
        match time::timeout(PATIENCE, written).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => log::debug!(error:% = error; "answer not written"),
            Err(_) => log::debug!("answer not taken"),
        }
    }
}

/// What stands where a method would; only to be compared.
fn method(bytes: &[u8]) -> &str {
    let word = bytes.iter().take(16).position(|byte| *byte == b' ').and_then(|end| bytes.get(..end));
    word.and_then(|word| std::str::from_utf8(word).ok()).unwrap_or_default()
}

/// The id that a head would have, had it been one.
fn sent_id(bytes: &[u8]) -> Option<HeaderValue> {
    const NAME: &[u8] = b"x-request-id:";
    let mut lines = bytes.split(|byte| *byte == b'\n').skip(1);
    let value = lines.find_map(|line| {
        let (name, value) = line.split_at_checked(NAME.len())?;
        // Without its end it may be only the beginning of one.
        name.eq_ignore_ascii_case(NAME).then_some(value.strip_suffix(b"\r"))?
    })?;
    HeaderValue::from_bytes(value.trim_ascii()).ok()
}
