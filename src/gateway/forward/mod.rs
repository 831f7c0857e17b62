//! The way of a request over HTTP/1.x: received, decided, forwarded, ended.
//!
//! [`exchange::Exchange`] is what is known of a request; whatever becomes of it, its drop is the end, where it is counted and
//! logged. Heads stay the bytes that came ([`head_edit`]); a body is what its coding contains ([`transfer`]).

mod attempts;
pub mod chunked;
mod client;
mod delay;
pub mod download;
mod exchange;
mod fault;
mod field_names;
mod forwarder;
mod forwarding;
mod head_edit;
pub mod http1_response_head;
mod own_response;
mod received;
mod request_head;
mod response_head;
mod trailers;
mod transfer;
mod upload;
pub mod upstream_pool;

pub use forwarder::Forwarder;

use pingora::apps::HttpServerApp;
use pingora::server::ShutdownWatch;

use super::server::http1::application::{Http1Application, ReceivedRequest, serve_session};
use super::server::http1::downstream_stream::DownstreamStream;

impl Http1Application for Forwarder {
    async fn serve(
        &self,
        stream: Box<DownstreamStream>,
        request: ReceivedRequest,
        shutdown: &ShutdownWatch,
    ) -> Option<Box<DownstreamStream>> {
        let snapshot = self.gateway.snapshot.load();
        // Upstreams of HTTP/2 are reached through Pingora's proxy.
        if snapshot.destinations.have_http2_upstreams {
            drop(snapshot);
            return Box::pin(serve_session(&self.proxy, stream, request, shutdown)).await;
        }
        Box::pin(received::serve(self, stream, request, snapshot)).await
    }

    async fn cleanup(&self) {
        self.proxy.http_cleanup().await;
    }
}
