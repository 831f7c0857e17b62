//! The HTTP/1.1 server: reads and checks the head of every request, and keeps a connection open for the next request.
//!
//! The application gets a request whose head is valid, and a stream that ends at the end of the request.

pub(crate) mod application;
pub(crate) mod client;
pub(crate) mod downstream_stream;
pub(crate) mod early_response;
pub(crate) mod exchange_io;
pub(crate) mod head_parts;
mod head_reader;
mod lingering_close;
#[cfg(test)]
mod parser_parity;
pub mod request_body;
pub mod request_head;
pub(crate) mod response_head;
pub(crate) mod syntax;
pub(super) mod timers;

pub(crate) use request_body::BodyError;
pub(crate) use timers::{grace_turns, poll_on_wake, reusable_timer};

use std::pin::pin;
use std::sync::Arc;

use bytes::BytesMut;
use pingora::protocols::Stream;
use pingora::server::ShutdownWatch;

use super::connection_guard::{ConnectionGuard, ConnectionSlot};
use super::connection_handle::ConnectionHandle;
use super::connections_per_client::ClientGuard;
use super::server_state::ServerState;
use super::tls::client_exclusion::ClientExclusion;
use crate::gateway::runtime::write_backpressure::WriteBackpressure;
use application::{Http1Application, ReceivedRequest};
use downstream_stream::DownstreamStream;
use head_reader::{NextHead, read_head};
use request_body::BodyFraming;
use timers::idle_timeout::{IdleTimeout, wait_for_first_byte};

/// Serves requests of HTTP/1.0 and HTTP/1.1 with the application `A`.
pub(crate) struct Http1Server<A> {
    pub app: Arc<A>,
    pub state: ServerState,
    pub write_backpressure: WriteBackpressure,
}

impl<A: Http1Application> Http1Server<A> {
    /// Serves the requests of a connection, until it is closed. `prefix` are the bytes that have already been read from the
    /// connection.
    pub(crate) async fn serve(
        &self,
        stream: Stream,
        prefix: BytesMut,
        guard: ConnectionGuard,
        handle: ConnectionHandle,
        shutdown: &ShutdownWatch,
    ) {
        let write_backpressure = self.write_backpressure.of_client(guard.client().map(ClientGuard::unread));
        let mut stream = Box::new(DownstreamStream::new(
            stream,
            ConnectionSlot::Accepted(guard),
            write_backpressure,
            handle,
            self.state.clock.clone(),
        ));
        *stream.unparsed() = prefix;
        let mut watch = shutdown.clone();
        let leave = pin!(async { drop(watch.wait_for(|leave| *leave).await) });
        let mut idle_timeout = IdleTimeout::new(leave, ClientExclusion::of(&stream.handle, &self.state));
        loop {
            if !wait_for_first_byte(&mut stream, &mut idle_timeout, &self.state).await {
                return;
            }
            idle_timeout.note_request();
            // The configuration may have changed while the connection was idle, so it is loaded only now.
            let bounds = self.state.snapshot.load().config.bounds;
            let head = match read_head(&mut stream, &bounds, &self.state).await {
                NextHead::Valid(head) => head,
                NextHead::Rejected { rejection, duration } => {
                    // Boxed, to keep the task of every connection small.
                    return Box::pin(early_response::reject_head(&self.state, stream, rejection, duration)).await;
                }
                NextHead::Closed => return,
            };
            let framing = BodyFraming::of(head.body, bounds.body_bytes.unwrap_or(u64::MAX));
            let request = ReceivedRequest { head, framing, client_timeout: bounds.body_timeout.into() };
            stream = match self.app.serve(stream, request).await {
                Some(stream) => stream,
                None => return,
            };
            // Exclusion is checked here too, because a client that pipelines its requests never waits between them.
            if idle_timeout.is_client_excluded().await {
                return;
            }
        }
    }
}
