//! The handle to a connection that a server passes to the application with every request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pingora::protocols::Stream;

use super::client_socket::ClientSocket;
use super::connection_limits::{ConnectionLimits, UpstreamConnections};
use crate::gateway::runtime::write_backpressure::WriteBackpressure;
use base::time::{Micros, Timestamp};
use base::tls::server::Session;
use request::scheme::Scheme;

/// The interval at which a request id is put into the HPACK table of a connection, so that later ids need not repeat
/// the name of the field. Each new id is compared with every id in the table, so only few ids are put there.
const KEPT_REQUEST_ID: Micros = Micros(30_000_000);

/// A handle to one connection.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionHandle(Arc<HandleState>);

#[derive(Debug)]
struct HandleState {
    listener: usize,
    scheme: Scheme,
    tls: Option<Arc<Session>>,
    /// `None` for a connection of HTTP/1.
    http2: Option<Http2State>,
    closing: AtomicBool,
    /// The arrival of the last HTTP/2 request whose id was put into the HPACK table. 0 before the first one.
    kept_request_id: AtomicU64,
    /// The time at which requests were last accepted, in HTTP/2; 0 before the first request.
    accepted: AtomicU64,
    socket: Option<Arc<ClientSocket>>,
}

/// The state that the streams of an HTTP/2 connection share.
#[derive(Debug)]
struct Http2State {
    upstream_connections: UpstreamConnections,
    write_backpressure: WriteBackpressure,
}

impl ConnectionHandle {
    /// Makes the handle of an HTTP/1 connection. `listener` is the index, in the configuration, of the connection's listener.
    /// `tls` is the session of an encrypted connection.
    pub(crate) fn http1(listener: usize, stream: &Stream, tls: Option<Arc<Session>>) -> ConnectionHandle {
        ConnectionHandle::new(listener, stream, tls, None)
    }

    /// Makes the handle of an HTTP/2 connection. `write_backpressure` counts the responses that its client has not read.
    pub(crate) fn http2(
        listener: usize,
        stream: &Stream,
        tls: Option<Arc<Session>>,
        limits: &Arc<ConnectionLimits>,
        write_backpressure: WriteBackpressure,
    ) -> ConnectionHandle {
        let state = Http2State { upstream_connections: UpstreamConnections::new(limits), write_backpressure };
        ConnectionHandle::new(listener, stream, tls, Some(state))
    }

    fn new(listener: usize, stream: &Stream, tls: Option<Arc<Session>>, http2: Option<Http2State>) -> ConnectionHandle {
        ConnectionHandle(Arc::new(HandleState {
            listener,
            // Only streams of TLS have this digest, so it shows the scheme.
            scheme: if stream.get_ssl_digest().is_some() { Scheme::Https } else { Scheme::Http },
            socket: stream.get_socket_digest().map(|digest| Arc::new(ClientSocket::new(digest))),
            tls,
            http2,
            closing: AtomicBool::new(false),
            kept_request_id: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
        }))
    }

    /// Returns the counter of connections to upstreams. `None` in HTTP/1.
    pub(crate) fn upstream_connections(&self) -> Option<&UpstreamConnections> {
        self.0.http2.as_ref().map(|http2| &http2.upstream_connections)
    }

    /// Returns the counter of unread responses on the connection. `None` in HTTP/1.
    pub(crate) fn write_backpressure(&self) -> Option<&WriteBackpressure> {
        self.0.http2.as_ref().map(|http2| &http2.write_backpressure)
    }

    pub(crate) fn is_http2(&self) -> bool {
        self.0.http2.is_some()
    }

    /// Whether to put the id of a request that arrived at `at` into the HPACK table of the connection.
    pub(crate) fn keeps_request_id(&self, at: Timestamp) -> bool {
        if !self.is_http2() {
            return false;
        }
        // `Relaxed` is enough, because all requests of a connection are on one thread.
        let last = known(self.0.kept_request_id.load(Ordering::Relaxed));
        let keeps = last.is_none_or(|last| at.since(last) >= KEPT_REQUEST_ID);
        if keeps {
            self.0.kept_request_id.store(at.0, Ordering::Relaxed);
        }
        keeps
    }

    /// Notes the time at which requests of HTTP/2 were read.
    pub(crate) fn note_accepted(&self, now: Timestamp) {
        self.0.accepted.store(now.0, Ordering::Relaxed);
    }

    /// Returns the time at which requests were last read. `None` in HTTP/1.
    pub(crate) fn accepted(&self) -> Option<Timestamp> {
        known(self.0.accepted.load(Ordering::Relaxed))
    }

    /// Returns the client's socket. `None` if the stream has no socket.
    pub(crate) fn socket(&self) -> Option<&Arc<ClientSocket>> {
        self.0.socket.as_ref()
    }

    /// The index, in the configuration, of the connection's listener. A reload does not change this index.
    pub(crate) fn listener(&self) -> usize {
        self.0.listener
    }

    pub(crate) fn scheme(&self) -> Scheme {
        self.0.scheme
    }

    /// The TLS session; `None` for a connection that is not encrypted.
    pub(crate) fn tls(&self) -> Option<&Arc<Session>> {
        self.0.tls.as_ref()
    }

    /// Makes the server close the connection after the requests that are under way. Used only in HTTP/2.
    pub(crate) fn close_when_done(&self) {
        self.0.closing.store(true, Ordering::Relaxed);
    }

    /// Whether the connection is to be closed after the requests that are under way.
    pub(crate) fn is_to_be_closed(&self) -> bool {
        self.0.closing.load(Ordering::Relaxed)
    }
}

fn known(time: u64) -> Option<Timestamp> {
    (time > 0).then_some(Timestamp(time))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::runtime::fd_limit::FdBudget;

    fn stream() -> Stream {
        Box::new(tokio::io::duplex(1).0)
    }

    fn http2() -> ConnectionHandle {
        let limits = Arc::new(ConnectionLimits::new(FdBudget::here()));
        ConnectionHandle::http2(0, &stream(), None, &limits, WriteBackpressure::default().of_connection(None))
    }

    #[test]
    fn the_first_request_id_of_http2_is_kept_and_one_in_a_while() {
        let handle = http2();
        let kept: Vec<u64> = (1..=65).filter(|second| handle.keeps_request_id(Timestamp(second * 1_000_000))).collect();
        assert_eq!(kept, [1, 31, 61]);
        assert!(!ConnectionHandle::http1(0, &stream(), None).keeps_request_id(Timestamp(1)));
    }
}
