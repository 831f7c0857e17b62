//! Handles a request: receives it, decides about it, forwards it, and reports its end.
//!
//! [`exchange::Exchange`] goes through these stages as a value. When it is dropped, the request is counted and logged.
//! Heads are kept as the bytes that arrived ([`head_edit`]). If both sides speak HTTP/1.1, a [`transfer`] moves the
//! bytes. Every other pair of protocols has a [`relay`].

mod attempts;
mod body_decision;
pub mod chunked;
mod client_certificate;
mod connect_error;
mod cost_observer;
pub mod download;
mod exchange;
mod exchange_end;
mod fault;
mod forged_fields;
mod forwarder;
mod forwarding;
mod head_edit;
mod hop_by_hop;
mod http1_client;
pub mod http1_response_head;
mod http1_upstream;
mod http2_client;
mod http2_counted_frames;
mod http2_heads;
pub(super) mod http2_pool;
mod http2_upstream;
mod outgoing_request;
mod own_response;
mod own_response_settings;
mod queue_wait;
mod read_body;
mod received;
mod relay;
mod relay_sides;
mod relayed_exchange;
mod repeatable;
mod request_head;
mod request_target;
mod response_head;
mod response_observer;
mod response_record;
mod response_report;
mod trailers;
mod transfer;
mod transferred_exchange;
mod untrusted_forwarded_for;
mod upload;
pub(super) mod upstream_pool;
mod withheld_key;

pub(crate) use forwarder::{ForwardLogs, Forwarder};

use super::server::http1::application::{Http1Application, ReceivedRequest};
use super::server::http1::downstream_stream::DownstreamStream;
use super::server::http2::application::{Http2Application, Http2Request};

impl Http1Application for Forwarder {
    fn serve(
        &self,
        stream: Box<DownstreamStream>,
        request: ReceivedRequest,
    ) -> impl Future<Output = Option<Box<DownstreamStream>>> + Send {
        Box::pin(received::serve(self, stream, request, self.gateway.snapshot.load()))
    }
}

impl Http2Application for Forwarder {
    fn serve(&self, request: Http2Request) -> impl Future<Output = ()> + Send {
        received::serve_http2(self, request)
    }
}
