//! The TLS stage of a connection: reads the name that the client asks for, chooses the certificate, and makes the handshake.
//!
//! A deadline bounds the time of a handshake. `limits.handshakes_at_once` bounds the number of handshakes at once.

pub(crate) mod client_exclusion;
mod encrypted_stream;

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use pingora::protocols::Stream;
use pingora::server::ShutdownWatch;
use rustls::server::Acceptor;
use rustls::{Error, HandshakeKind};
use tokio::io::{AsyncBufRead, AsyncWriteExt};
use tokio_rustls::LazyConfigAcceptor;

use super::connection_limits::{ConnectionLimits, HandshakeLimit};
use super::connections_per_client::ClientGuard;
use super::server_state::ServerState;
use crate::gateway::runtime::log_throttle::LogThrottle;
use crate::gateway::telemetry::labels::HandshakeResult;
use crate::gateway::telemetry::metrics::HandshakeMetrics;
use base::interval::fixed_interval;
use base::time;
use base::tls::certificate_error;
use base::tls::server::Session;
pub use encrypted_stream::EncryptedStream;

/// The longest time for a handshake. It begins when the connection has been accepted, or when its PROXY protocol header
/// has been read.
const DEADLINE: Duration = Duration::from_secs(5);

/// The longest wait for the first request after a handshake, while the process shuts down.
const FIRST_REQUEST: Duration = Duration::from_secs(1);

/// The fatal alert `unrecognized_name`, as a record that is not encrypted yet.
const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];

/// The stage that encrypts the connections of one listener, for all threads.
#[derive(Debug)]
pub(crate) struct TlsStage {
    /// The index of the listener in the configuration.
    listener: usize,
    handshakes: Arc<HandshakeMetrics>,
    throttle: LogThrottle,
}

/// The reason why a handshake failed or was ended.
#[derive(Debug)]
enum Failure {
    Timeout,
    TooMany(HandshakeLimit),
    /// The client asked for a name without a certificate, or for no name.
    UnknownName,
    /// The client resumed a session whose client certificate has expired.
    Expired,
    Failed(io::Error),
}

impl TlsStage {
    pub(crate) fn new(listener: usize, handshakes: Arc<HandshakeMetrics>) -> TlsStage {
        TlsStage { listener, handshakes, throttle: LogThrottle::default() }
    }

    /// Makes the handshake. Returns the decrypted stream, and what was negotiated. `None` if the connection must be closed.
    /// `client` is the client for which the connection is counted, if there is one.
    pub(crate) async fn accept(
        &self,
        stream: Stream,
        state: &ServerState,
        (limits, client): (&ConnectionLimits, Option<&ClientGuard>),
        shutdown: &ShutdownWatch,
    ) -> Option<(Stream, Arc<Session>)> {
        let handshake = self.handshake(stream, state, limits, client);
        let handshake = time::timeout(fixed_interval("tls_handshake", DEADLINE), handshake);
        match handshake.await.unwrap_or(Err(Failure::Timeout)) {
            Ok((mut stream, session)) => {
                if *shutdown.borrow() {
                    let first = poll_fn(|cx| Pin::new(&mut stream.inner).poll_fill_buf(cx).map(drop));
                    // The result is not needed, because the HTTP server then reads the bytes or finds the error.
                    let _ = time::timeout(FIRST_REQUEST, first).await;
                }
                Some((Box::new(stream), Arc::new(session)))
            }
            Err(failure) => {
                self.report(&failure, state);
                None
            }
        }
    }

    async fn handshake(
        &self,
        stream: Stream,
        state: &ServerState,
        limits: &ConnectionLimits,
        client: Option<&ClientGuard>,
    ) -> Result<(EncryptedStream, Session), Failure> {
        let mut start = LazyConfigAcceptor::new(Acceptor::default(), stream).await.map_err(Failure::Failed)?;
        let (certificates, bounds) = {
            let config = &state.snapshot.load().config;
            let server = config.listeners.get(self.listener).and_then(|listener| listener.tls.as_ref());
            (server.ok_or(Failure::UnknownName)?.in_force(), config.bounds)
        };
        let Some(entry) = certificates.choose(start.client_hello().server_name()).cloned() else {
            // An error is ignored, because the connection is closed anyway.
            let _ = start.io.write_all(&UNRECOGNIZED_NAME).await;
            return Err(Failure::UnknownName);
        };
        let guard = limits.begin_handshake(client, &bounds).map_err(Failure::TooMany)?;
        let stream = start.into_stream(entry.config(state.clock.wall())).await.map_err(Failure::Failed)?;
        drop(guard);
        let (_, connection) = stream.get_ref();
        let is_resumed = connection.handshake_kind() == Some(HandshakeKind::Resumed);
        let shown = connection.peer_certificates().unwrap_or_default();
        let session = Session::new(certificates, entry, connection.server_name(), shown);
        // A resumed session does not verify its certificate again, so the expiry is checked here.
        let certificate = session.identity().certificate.as_ref();
        if is_resumed && certificate.is_some_and(|certificate| certificate.has_expired(state.clock.wall())) {
            return Err(Failure::Expired);
        }
        self.handshakes.count(if is_resumed { HandshakeResult::Resumed } else { HandshakeResult::Full });
        Ok((EncryptedStream::new(stream), session))
    }

    fn report(&self, failure: &Failure, state: &ServerState) {
        let (result, detail) = match failure {
            Failure::Timeout => (HandshakeResult::Timeout, "not complete in time".to_owned()),
            Failure::TooMany(HandshakeLimit::Handshakes) => {
                (HandshakeResult::TooMany, "limits.handshakes_at_once is reached".to_owned())
            }
            Failure::TooMany(HandshakeLimit::HandshakesOfClient) => {
                (HandshakeResult::TooMany, "a tenth of limits.handshakes_at_once is reached by some client".to_owned())
            }
            Failure::UnknownName => (HandshakeResult::UnknownName, "no certificate for the name".to_owned()),
            Failure::Expired => (HandshakeResult::ClientCertificate, "the client's certificate has expired".to_owned()),
            Failure::Failed(error) => (result(error), certificate_error::of_client(&error.to_string()).into_owned()),
        };
        self.handshakes.count(result);
        // Load balancers connect and close only to check the port. This is no error.
        if result == HandshakeResult::Closed {
            return;
        }
        let Some(connections) = self.throttle.admit(state.clock.now()) else { return };
        log::debug!(result = result.name(), detail, connections; "TLS handshake failed");
    }
}

/// The result of a failed handshake.
fn result(error: &io::Error) -> HandshakeResult {
    match error.get_ref().and_then(|cause| cause.downcast_ref::<Error>()) {
        None => HandshakeResult::Closed,
        Some(Error::NoCertificatesPresented | Error::InvalidCertificate(_)) => HandshakeResult::ClientCertificate,
        Some(Error::AlertReceived(_)) => HandshakeResult::Alert,
        Some(_) => HandshakeResult::Protocol,
    }
}
