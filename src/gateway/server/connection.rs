//! Takes a connection through its stages, from the accepted socket to its last request.
//!
//! | stage | in | what it does |
//! |---|---|---|
//! | accept | [`ConnectionLimits`] | counts the connection, or answers 503 because there are too many |
//! | PROXY protocol | [`ProxyProtocol`] | replaces the peer's address by the client's, where the listener expects a header |
//! | peers | [`DecisionClients`] | on a listener that decides for other proxies, closes connections of unknown peers |
//! | client | [`ConnectionLimits`] | counts the connection among those of its client, or answers 503 because the client has too many |
//! | TLS | [`TlsStage`] | makes the TLS handshake, where the listener has certificates |
//! | protocol | [`Http2Stage`] | finds out which version of HTTP the client speaks, where the listener has HTTP/2 |
//! | HTTP | [`Http1Server`], [`Http2Server`] | serves the requests |
//!
//! Every stage takes a stream and returns a stream. If a stage closes the connection, no other stage follows.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::BytesMut;
use metrics::Gauge;
use pingora::apps::ServerApp;
use pingora::protocols::{ALPN, Stream};
use pingora::server::ShutdownWatch;

use super::connection_guard::ConnectionGuard;
use super::connection_handle::ConnectionHandle;
use super::connection_limits::{ConnectionLimit, ConnectionLimits, Purpose};
use super::connections_per_client::ClientGuard;
use super::decision_clients::DecisionClients;
use super::http1::application::Http1Application;
use super::http1::{Http1Server, early_response};
use super::http2::Http2Server;
use super::http2::application::Http2Application;
use super::http2::preface::find_protocol;
use super::proxy_protocol_stage::ProxyProtocol;
use super::server_state::ServerState;
use super::tls::TlsStage;
use base::http_protocol::HttpProtocol;
use base::tls::server::Session;

/// Serves the connections of one listener on one thread.
pub(crate) struct ConnectionServer<A> {
    pub state: ServerState,
    /// The index of the listener in the configuration. A reload does not change this index.
    pub listener: usize,
    pub limits: Arc<ConnectionLimits>,
    /// The gauge of open connections. On a listener with several protocols, it counts only connections whose protocol is not
    /// known yet.
    pub gauge: Gauge,
    /// The PROXY protocol stage. `None` if connections begin without a PROXY protocol header.
    pub proxy_protocol: Option<Arc<ProxyProtocol>>,
    /// The check of the peer. `None` if every peer may connect.
    pub decision_clients: Option<Arc<DecisionClients>>,
    /// The TLS stage. `None` if connections are not encrypted.
    pub tls: Option<Arc<TlsStage>>,
    pub http1: Http1Server<A>,
    /// The HTTP/2 stage. `None` if the listener offers only HTTP/1.1.
    pub http2: Option<Http2Stage<A>>,
}

/// Serves HTTP/2 on one listener, which may also offer HTTP/1.1.
pub(crate) struct Http2Stage<A> {
    pub server: Http2Server<A>,
    /// The gauge of open HTTP/2 connections.
    pub gauge: Gauge,
    /// The gauge of open HTTP/1.1 connections; `None` if the listener does not offer HTTP/1.1.
    pub http1_gauge: Option<Gauge>,
}

#[async_trait]
impl<A: Http1Application + Http2Application> ServerApp for ConnectionServer<A> {
    async fn process_new(self: &Arc<Self>, stream: Stream, shutdown: &ShutdownWatch) -> Option<Stream> {
        let mut guard = match self.accept() {
            Ok(guard) => guard,
            // Boxed, to keep the task of every connection small.
            Err(limit) => return Box::pin(self.reject(stream, limit)).await,
        };
        let stream = match &self.proxy_protocol {
            None => stream,
            Some(proxy_protocol) => Box::pin(proxy_protocol.read(stream, shutdown)).await?,
        };
        if let Some(decision_clients) = &self.decision_clients
            && !decision_clients.admit(&stream, &self.state)
        {
            return None;
        }
        if let Err(limit) = self.count_client(&stream, &mut guard) {
            drop(guard);
            return Box::pin(self.reject(stream, limit)).await;
        }
        let (stream, session) = match &self.tls {
            None => (stream, None),
            Some(tls) => {
                let client = (&*self.limits, guard.client());
                let (stream, session) = Box::pin(tls.accept(stream, &self.state, client, shutdown)).await?;
                (stream, Some(session))
            }
        };
        if let Some(http2) = &self.http2 {
            Box::pin(self.serve_either(http2, stream, guard, session, shutdown)).await;
            return None;
        }
        let handle = ConnectionHandle::http1(self.listener, &stream, session);
        self.http1.serve(stream, BytesMut::new(), guard, handle, shutdown).await;
        None
    }
}

impl<A: Http1Application + Http2Application> ConnectionServer<A> {
    /// Serves a connection in the protocol that its client speaks.
    async fn serve_either(
        &self,
        http2: &Http2Stage<A>,
        mut stream: Stream,
        mut guard: ConnectionGuard,
        session: Option<Arc<Session>>,
        shutdown: &ShutdownWatch,
    ) {
        let (protocol, read) = match (&http2.http1_gauge, &session) {
            // The listener has HTTP/2 only. A client that speaks anything else fails at its first bytes.
            (None, _) => (HttpProtocol::H2, BytesMut::new()),
            (Some(_), Some(_)) if stream.selected_alpn_proto() == Some(ALPN::H2) => (HttpProtocol::H2, BytesMut::new()),
            (Some(_), Some(_)) => (HttpProtocol::Http1, BytesMut::new()),
            (Some(_), None) => match find_protocol(&mut stream, &self.state, shutdown).await {
                Some(found) => found,
                None => return,
            },
        };
        match (protocol, &http2.http1_gauge) {
            (HttpProtocol::Http1, Some(gauge)) => {
                guard.speaks(gauge);
                let handle = ConnectionHandle::http1(self.listener, &stream, session);
                self.http1.serve(stream, read, guard, handle, shutdown).await;
            }
            _ => {
                guard.speaks(&http2.gauge);
                let backpressure =
                    http2.server.write_backpressure.of_connection(guard.client().map(ClientGuard::unread));
                let handle = ConnectionHandle::http2(self.listener, &stream, session, &self.limits, backpressure);
                http2.server.serve(stream, read.freeze(), guard, handle, shutdown).await;
            }
        }
    }
}

impl<A> ConnectionServer<A> {
    fn accept(&self) -> Result<ConnectionGuard, ConnectionLimit> {
        let purpose = if self.decision_clients.is_some() { Purpose::Deciding } else { Purpose::Proxying };
        self.limits.accept(purpose, &self.gauge, &self.state.snapshot.load().config.bounds)
    }

    /// Counts a connection for its client. Connections without an IP address, and those of proxies in the listener's
    /// `clients`, are not counted.
    fn count_client(&self, stream: &Stream, guard: &mut ConnectionGuard) -> Result<(), ConnectionLimit> {
        let digest = stream.get_socket_digest();
        let peer = digest.as_ref().and_then(|digest| Some(digest.peer_addr()?.as_inet()?.ip()));
        let Some(peer) = peer else { return Ok(()) };
        let snapshot = self.state.snapshot.load();
        if self.decision_clients.is_some() && snapshot.config.decide(self.listener).is_some_and(|it| it.names(peer)) {
            return Ok(());
        }
        self.limits.count_client(guard, peer, &snapshot.config.client_ip, &snapshot.config.bounds)
    }

    /// Answers 503. Closes the connection without a response if it is encrypted, or if no file descriptor is left.
    async fn reject(&self, stream: Stream, limit: ConnectionLimit) -> Option<Stream> {
        if let Some(guard) = self.limits.reject(limit, &self.state.clock)
            && self.tls.is_none()
        {
            early_response::reject_connection(&self.state, stream, guard).await;
        }
        None
    }
}
