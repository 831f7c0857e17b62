//! Where a connection comes in: every head is read and judged here, before Pingora sees a byte of it.
//!
//! Pingora gets a request whose head is without fault, over a stream that ends where the request does. So nothing is read
//! twice with two results, no session sees what belongs to another, and whatever is wrong with a head is answered before
//! anything is charged. What keeps a connection for a next request is the loop in here.

pub mod body_framing;
mod connection_guard;
mod connections_per_client;
mod downstream_stream;
mod early_response;
mod idle_timeout;
mod lingering_close;
#[cfg(test)]
mod pingora_parity;
mod poll_on_wake;
pub mod request_head;
mod reusable_timer;
mod syntax;
mod upstream_read_timeout;

pub use body_framing::BodyError;
pub use connections_per_client::PerClientConnections;
pub use upstream_read_timeout::UpstreamTimedOut;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use async_trait::async_trait;
use bytes::Buf;
use metrics::Gauge;
use pingora::apps::{HttpServerApp, ServerApp};
use pingora::protocols::Stream;
use pingora::protocols::http::ServerSession;
use pingora::proxy::HttpProxy;
use pingora::server::ShutdownWatch;

use super::connections::Connections;
use super::proxy_protocol::ProxyProtocol;
use crate::base::time;
use crate::base::time::Micros;
use crate::config::Bounds;
use crate::gateway::proxy::Proxy;
use crate::gateway::state::GatewayState;
use crate::limit::request::ClientAddress;
use body_framing::BodyFraming;
use connection_guard::{ConnectionGuard, ConnectionSlot};
use downstream_stream::DownstreamStream;
use early_response::{ConnectionLimit, HeadRejection};
use idle_timeout::IdleTimeout;
use request_head::{Body, Head, HeadParser, Size};

/// One listener's, on one thread.
#[expect(missing_debug_implementations, reason = "Pingora's proxy has none")]
pub struct Http1Server {
    pub gateway: Arc<GatewayState>,
    pub proxy: Arc<HttpProxy<Proxy>>,
    /// The connections of all listeners and threads.
    pub connections: Arc<Connections>,
    /// Counts the open connections of this listener.
    pub gauge: Gauge,
    /// Where every connection has to begin with one.
    pub headers: Option<Arc<ProxyProtocol>>,
}

/// What came of waiting for a head.
enum Came {
    Head(Head),
    Refused {
        refusal: HeadRejection,
        took: Micros,
    },
    /// The client has gone, or has kept still for too long, or this process leaves.
    Nothing,
}

#[async_trait]
impl ServerApp for Http1Server {
    async fn process_new(self: &Arc<Self>, stream: Stream, shutdown: &ShutdownWatch) -> Option<Stream> {
        let (mut counted, before) = ConnectionGuard::new(&self.connections.open, &self.gauge);
        let most = self.connections.fd_budget.cut(&self.bounds());
        if before >= most {
            drop(counted);
            // What is rare is on the heap, so that it makes no connection larger.
            Box::pin(self.turn_away(stream, ConnectionLimit::Connections)).await;
            return None;
        }
        let stream = match &self.headers {
            None => stream,
            Some(headers) => Box::pin(headers.take(stream, shutdown)).await?,
        };
        if self.is_beyond_its_own(&stream, &mut counted) {
            drop(counted);
            Box::pin(self.turn_away(stream, ConnectionLimit::ConnectionsPerClient)).await;
            return None;
        }
        let mut framed = Box::new(DownstreamStream::new(
            stream,
            ConnectionSlot::Accepted(counted),
            self.connections.stalled_writes.clone(),
            self.gateway.clock.clone(),
        ));
        let mut leaving = shutdown.clone();
        let leaving = pin!(async { drop(leaving.wait_for(|leaving| *leaving).await) });
        let mut quiet = IdleTimeout::new(leaving);
        loop {
            if !self.begun(&mut framed, &mut quiet).await {
                return None;
            }
            // Only now: while nothing came, another configuration may have.
            let (bounds, silence) = self.bounds_and_silence();
            let head = match self.head(&mut framed, &bounds).await {
                Came::Head(head) => head,
                Came::Refused { refusal, took } => {
                    Box::pin(self.refuse(framed, refusal, took)).await;
                    return None;
                }
                Came::Nothing => return None,
            };
            let remainder = BodyFraming::of(head.body, bounds.body_bytes.unwrap_or(u64::MAX));
            let prefix = framed.begin(head.length, remainder, bounds.body_timeout.into(), silence);
            let addendum = framed.addendum();
            let mut session = ServerSession::new_http1(framed);
            session.set_connection_user_context(Some(Box::new(addendum)));
            // A whole head: Pingora does not read for it, and has no time to keep.
            session.set_pipelined_prefix(prefix);
            let (stream, _) = self.proxy.process_new_http(session, shutdown).await?.consume();
            framed = stream.into_any().downcast::<DownstreamStream>().ok()?;
            if !framed.is_between_requests() {
                return None;
            }
        }
    }

    async fn cleanup(&self) {
        self.proxy.http_cleanup().await;
    }
}

impl Http1Server {
    fn bounds(&self) -> Bounds {
        self.gateway.snapshot.load().config.bounds
    }

    /// And how long an upstream may say nothing.
    fn bounds_and_silence(&self) -> (Bounds, Micros) {
        let config = &self.gateway.snapshot.load().config;
        (config.bounds, config.upstream_timeouts.read)
    }

    /// Counts a connection as its client's; whether it is beyond what one client may have.
    fn is_beyond_its_own(&self, stream: &Stream, counted: &mut ConnectionGuard) -> bool {
        let digest = stream.get_socket_digest();
        let peer = digest.as_ref().and_then(|digest| Some(digest.peer_addr()?.as_inet()?.ip()));
        let Some(peer) = peer else { return false };
        let snapshot = self.gateway.snapshot.load();
        let config = &snapshot.config;
        let client = ClientAddress::new(peer, config.client_ip.ipv6_prefix);
        let before = counted.belongs_to(client, &self.connections.per_client);
        // A proxy comes for many.
        config.bounds.connections_per_client.is_some_and(|most| before >= most) && !config.client_ip.trusts(peer)
    }

    /// Waits for the rest of a head and judges it.
    async fn head(&self, framed: &mut DownstreamStream, bounds: &Bounds) -> Came {
        let size = Size { bytes: bounds.header_bytes, fields: bounds.headers, target: bounds.target_bytes };
        let mut scanner = HeadParser::default();
        let refused = |refusal, took| Came::Refused { refusal, took };
        let judge = |scanner: &mut HeadParser, framed: &mut DownstreamStream| match scanner.scan(framed.ahead(), &size)
        {
            Ok(head) => match head?.body {
                Body::Length(length) if bounds.body_bytes.is_some_and(|most| length > most) => {
                    Some(Err(HeadRejection::BodyTooLong))
                }
                _ => head.map(Ok),
            },
            Err(flaw) => Some(Err(HeadRejection::Flawed(flaw))),
        };
        // Mostly all of it has come at once.
        match judge(&mut scanner, framed) {
            Some(Ok(head)) => return Came::Head(head),
            Some(Err(refusal)) => return refused(refusal, Micros(0)),
            None => {}
        }
        let started = self.gateway.clock.now();
        let rest = async {
            loop {
                match poll_fn(|cx| framed.poll_ahead(cx)).await {
                    Ok(1..) => {}
                    Ok(0) | Err(_) => return None,
                }
                if let Some(judged) = judge(&mut scanner, framed) {
                    return Some(judged);
                }
            }
        };
        let came = time::timeout(bounds.header_timeout.into(), rest).await;
        let took = self.gateway.clock.now().since(started);
        match came.unwrap_or(Some(Err(HeadRejection::Late))) {
            Some(Ok(head)) => Came::Head(head),
            Some(Err(refusal)) => refused(refusal, took),
            None => Came::Nothing,
        }
    }

    /// Waits for the first byte of a head. Some send an empty line behind a body, which is none (RFC 9112, section 2.2).
    async fn begun(
        &self,
        framed: &mut DownstreamStream,
        quiet: &mut IdleTimeout<impl Future<Output = ()> + Unpin>,
    ) -> bool {
        let mut skipped = false;
        loop {
            match &framed.ahead()[..] {
                [b'\r', b'\n', ..] if !skipped => {
                    framed.ahead().advance(2);
                    skipped = true;
                    continue;
                }
                [] => {}
                [b'\r'] if !skipped => {}
                _ => return true,
            }
            let end = self.gateway.clock.now().plus(self.bounds().idle_timeout);
            let read = poll_fn(|cx| match framed.poll_ahead(cx) {
                Poll::Ready(read) => Poll::Ready(read.unwrap_or(0)),
                Poll::Pending => quiet.poll(end, &self.gateway.clock, cx).map(|()| 0),
            });
            if read.await == 0 {
                return false;
            }
        }
    }
}
