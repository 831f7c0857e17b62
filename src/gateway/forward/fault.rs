//! Names why an exchange failed, whose fault that is, and which response it gets.

use super::http1_response_head::InvalidHead;
use crate::gateway::server::http1::BodyError;
use crate::gateway::server::http1::exchange_io::ClientFault;
use crate::gateway::telemetry::labels::UpstreamError;
use decision::refusal::Refusal;

/// The reason why an exchange failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Client(ClientFault),
    Upstream(UpstreamFault),
    /// Something of the gateway's own: a response with this status.
    Own(u16, &'static str),
}

/// The failure of an attempt at its endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamFault {
    pub error: UpstreamError,
    /// A description for the log, without bytes of the upstream.
    pub detail: String,
    pub stage: Stage,
}

/// The stage that an attempt has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// No byte of the request has been sent.
    Connecting,
    /// The upstream has said that it has not looked at the request.
    Refused,
    /// No byte of a response has arrived.
    Sent,
    /// The upstream has begun to answer.
    Answering,
}

impl UpstreamFault {
    pub fn new(error: UpstreamError, detail: impl Into<String>, stage: Stage) -> UpstreamFault {
        UpstreamFault { error, detail: detail.into(), stage }
    }

    /// The fault of a connection that the upstream has closed, or that broke.
    pub fn closed(error: Option<&std::io::Error>, stage: Stage) -> UpstreamFault {
        let detail = error.map_or_else(|| "ConnectionClosed".to_owned(), |error| format!("ReadError: {error}"));
        let is_tls = error.and_then(std::io::Error::get_ref).is_some_and(|cause| cause.is::<rustls::Error>());
        UpstreamFault::new(if is_tls { UpstreamError::Tls } else { UpstreamError::Closed }, detail, stage)
    }

    pub fn is_timeout(&self) -> bool {
        matches!(self.error, UpstreamError::ReadTimeout | UpstreamError::WriteTimeout | UpstreamError::TotalTimeout)
    }
}

impl From<InvalidHead> for UpstreamFault {
    fn from(InvalidHead(detail): InvalidHead) -> UpstreamFault {
        UpstreamFault::new(UpstreamError::InvalidAnswer, format!("InvalidHTTPHeader: {detail}"), Stage::Answering)
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
    /// The fault of an upstream to which no connection could be made.
    pub(super) fn unconnected(error: UpstreamError) -> Fault {
        UpstreamFault::new(error, "ConnectError", Stage::Connecting).into()
    }

    /// The status of the response, if the request still gets a response.
    pub(super) fn status(&self) -> Option<u16> {
        match self {
            Fault::Client(ClientFault::Body(error)) => Some(error.status()),
            // Handled where it is known who was waited for.
            Fault::Client(ClientFault::Expired) => Some(504),
            Fault::Client(ClientFault::Gone | ClientFault::Stalled | ClientFault::BuffersFull | ClientFault::Cut) => {
                None
            }
            Fault::Own(status, _) => Some(*status),
            Fault::Upstream(fault) => Some(match fault.error {
                UpstreamError::Busy => 503,
                UpstreamError::ConnectTimeout
                | UpstreamError::ReadTimeout
                | UpstreamError::WriteTimeout
                | UpstreamError::TotalTimeout => 504,
                _ => 502,
            }),
        }
    }

    /// The failure of the upstream, if the fault is one.
    pub(super) fn upstream_error(&self) -> Option<UpstreamError> {
        match self {
            Fault::Upstream(fault) => Some(fault.error),
            Fault::Client(_) | Fault::Own(..) => None,
        }
    }

    /// Whether the exchange has ended, so that not even the rest of its response is waited for.
    pub(super) fn ends_exchange(&self) -> bool {
        matches!(self, Fault::Client(ClientFault::Expired | ClientFault::Cut))
    }

    /// The refusal that the response states, unless it states a fault.
    pub(super) fn refusal(&self) -> Option<Refusal> {
        match (self.status(), self.upstream_error()) {
            (_, Some(UpstreamError::Busy)) => Some(Refusal::upstream_busy()),
            (Some(status @ (400 | 408 | 413)), _) => Some(Refusal::bad_request(status)),
            _ => None,
        }
    }

    /// The detail in the access log about a response that the gateway has not finished.
    pub(super) fn logged_detail(&self) -> Option<&'static str> {
        match self {
            Fault::Client(ClientFault::Cut) => Some("shutdown"),
            Fault::Client(ClientFault::BuffersFull) => Some("response_buffers"),
            _ => None,
        }
    }

    /// A description for the log, without bytes of the peer.
    pub(super) fn detail(&self) -> &str {
        match self {
            Fault::Upstream(fault) => &fault.detail,
            Fault::Own(_, detail) => detail,
            Fault::Client(fault) => fault.detail(),
        }
    }

    /// The fault of a body that is longer than the route allows.
    pub(super) const TOO_LONG: Fault = Fault::Client(ClientFault::Body(BodyError::TooLong));
    /// The body is not as long as the head says.
    pub(super) const LENGTH_MISMATCH: Fault = Fault::Own(400, "body differs from its length");
    /// The fault of a client that sent nothing more of the body for as long as the upstream would wait.
    pub(super) const UPLOAD_STALLED: Fault = Fault::Client(ClientFault::Body(BodyError::Stalled));
}
