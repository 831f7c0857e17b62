//! Names why an exchange failed, which side caused the failure, and which response the client gets.

use super::http1_response_head::InvalidHead;
use crate::gateway::server::http1::BodyError;
use crate::gateway::server::http1::exchange_io::ClientFault;
use crate::gateway::telemetry::labels::UpstreamError;
use decision::refusal::Refusal;

/// The reason why a request or its response failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Client(ClientFault),
    Upstream(UpstreamFault),
    /// Any other failure, with the status of the response and a description for the log.
    Own(u16, &'static str),
}

/// The failure of one attempt, caused by the upstream or by the connection to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamFault {
    pub error: UpstreamError,
    /// A description for the log. It contains no bytes of the upstream.
    pub detail: String,
    pub stage: Stage,
}

/// The stage that an attempt had reached when it failed. The stage decides whether the request may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// No byte of the request has been sent.
    Connecting,
    /// The upstream has reported that it did not process the request. Only HTTP/2 can report this.
    Refused,
    /// The request may have been sent, and no byte of a response has arrived.
    Sent,
    /// A part of a response has arrived.
    Answering,
}

impl UpstreamFault {
    pub fn new(error: UpstreamError, detail: impl Into<String>, stage: Stage) -> UpstreamFault {
        UpstreamFault { error, detail: detail.into(), stage }
    }

    /// Makes the fault of an upstream that has sent an invalid head.
    pub fn invalid_head(detail: &str) -> UpstreamFault {
        UpstreamFault::new(UpstreamError::InvalidAnswer, format!("InvalidHTTPHeader: {detail}"), Stage::Answering)
    }

    /// Makes the fault of a connection that the upstream has closed, or that broke. `error` is `None` if the connection was
    /// closed without an error.
    pub fn closed(error: Option<&std::io::Error>, stage: Stage) -> UpstreamFault {
        let detail = error.map_or_else(|| "ConnectionClosed".to_owned(), |error| format!("ReadError: {error}"));
        let is_tls = error.and_then(std::io::Error::get_ref).is_some_and(|cause| cause.is::<rustls::Error>());
        UpstreamFault::new(if is_tls { UpstreamError::Tls } else { UpstreamError::Closed }, detail, stage)
    }

    pub fn is_timeout(&self) -> bool {
        matches!(
            self.error,
            UpstreamError::FirstByteTimeout
                | UpstreamError::ReadTimeout
                | UpstreamError::WriteTimeout
                | UpstreamError::TotalTimeout
        )
    }
}

impl From<InvalidHead> for UpstreamFault {
    fn from(InvalidHead(detail): InvalidHead) -> UpstreamFault {
        UpstreamFault::invalid_head(detail)
    }
}

impl From<ClientFault> for Fault {
    fn from(fault: ClientFault) -> Fault {
        Fault::Client(fault)
    }
}

impl From<UpstreamFault> for Fault {
    fn from(fault: UpstreamFault) -> Fault {
        Fault::Upstream(fault)
    }
}

impl Fault {
    /// Makes the fault of an upstream to which no connection could be made.
    pub(super) fn unconnected(error: UpstreamError) -> Fault {
        UpstreamFault::new(error, "ConnectError", Stage::Connecting).into()
    }

    /// Returns the status of the response for this fault. `None` if the client can no longer get a response.
    pub(super) fn status(&self) -> Option<u16> {
        match self {
            Fault::Client(ClientFault::Body(error)) => Some(error.status()),
            // A transfer or relay replaces this fault by one that names the side for which the gateway waited.
            Fault::Client(ClientFault::Expired) => Some(504),
            Fault::Client(ClientFault::Gone | ClientFault::Stalled | ClientFault::BuffersFull | ClientFault::Cut) => {
                None
            }
            Fault::Own(status, _) => Some(*status),
            Fault::Upstream(fault) => Some(match fault.error {
                UpstreamError::Busy => 503,
                UpstreamError::ConnectTimeout
                | UpstreamError::FirstByteTimeout
                | UpstreamError::ReadTimeout
                | UpstreamError::WriteTimeout
                | UpstreamError::TotalTimeout => 504,
                _ => 502,
            }),
        }
    }

    /// Returns the kind of the upstream's failure. `None` if the upstream has not caused the fault.
    pub(super) fn upstream_error(&self) -> Option<UpstreamError> {
        match self {
            Fault::Upstream(fault) => Some(fault.error),
            Fault::Client(_) | Fault::Own(..) => None,
        }
    }

    /// Whether the fault ends the exchange at once, because the deadline has passed or the process exits. After any
    /// other fault of the upload, a response that has begun continues.
    pub(super) fn ends_exchange(&self) -> bool {
        matches!(self, Fault::Client(ClientFault::Expired | ClientFault::Cut))
    }

    /// Returns the refusal that the response states. `None` if the response reports an error instead.
    pub(super) fn refusal(&self) -> Option<Refusal> {
        match (self.status(), self.upstream_error()) {
            (_, Some(UpstreamError::Busy)) => Some(Refusal::upstream_busy()),
            (Some(status @ (400 | 408 | 413)), _) => Some(Refusal::bad_request(status)),
            _ => None,
        }
    }

    /// Returns the detail that the access log gives for a response that the gateway itself has cut off. `None` for other
    /// faults.
    pub(super) fn logged_detail(&self) -> Option<&'static str> {
        match self {
            Fault::Client(ClientFault::Cut) => Some("shutdown"),
            Fault::Client(ClientFault::BuffersFull) => Some("response_buffers"),
            _ => None,
        }
    }

    /// Returns a description of the fault for the log. It contains no bytes of the peer.
    pub(super) fn detail(&self) -> &str {
        match self {
            Fault::Upstream(fault) => &fault.detail,
            Fault::Own(_, detail) => detail,
            Fault::Client(fault) => fault.detail(),
        }
    }

    /// The fault of a body that is longer than the route allows.
    pub(super) const TOO_LONG: Fault = Fault::Client(ClientFault::Body(BodyError::TooLong));
    /// The fault of a body whose length differs from the length in the head.
    pub(super) const LENGTH_MISMATCH: Fault = Fault::Own(400, "body differs from its length");
    /// The fault of a client that sent the body so slowly that a timeout of the upstream passed.
    pub(super) const UPLOAD_STALLED: Fault = Fault::Client(ClientFault::Body(BodyError::Stalled));
}
