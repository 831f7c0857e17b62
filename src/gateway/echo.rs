//! A test upstream: answers every request with the text of the request.

use std::net::SocketAddr;

use async_trait::async_trait;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{Method, Response};
use parking_lot::Mutex;
use pingora::apps::http_app::ServeHttp;
use pingora::protocols::http::ServerSession;
use pingora::server::configuration::ServerConf;
use pingora::server::{RunArgs, Server, ShutdownSignal, ShutdownSignalWatch};
use tokio::signal::unix::{SignalKind, signal};

use super::server::listener::{BindError, ListeningSockets};
use super::server::queued_connections::AcceptingSockets;
use base::endpoint_address::EndpointAddress;

/// An echo server whose socket is bound. It is not started yet.
#[derive(Debug)]
pub(crate) struct Echo {
    sockets: ListeningSockets,
}

impl Echo {
    /// Binds the socket to `address`.
    ///
    /// # Errors
    /// If the address cannot be bound.
    pub(crate) fn bind(address: SocketAddr) -> Result<Echo, BindError> {
        Ok(Echo { sockets: ListeningSockets::bind(address.into(), None, 1, Vec::new())? })
    }

    pub(crate) fn address(&self) -> &EndpointAddress {
        &self.sockets.address
    }

    /// Runs the echo server until SIGTERM or SIGINT arrives. `ready` is called before the first request is served.
    pub(crate) fn run(self, ready: impl FnOnce() + Send + 'static) {
        let conf = ServerConf {
            grace_period_seconds: Some(0),
            graceful_shutdown_timeout_seconds: Some(0),
            ..ServerConf::default()
        };
        let mut server = Server::new_with_opt_and_conf(None, conf);
        server.bootstrap();
        for service in self.sockets.services("echo", &AcceptingSockets::default(), |_| EchoRequest) {
            server.add_service(service);
        }
        let ready: Box<dyn FnOnce() + Send> = Box::new(ready);
        server.run(RunArgs { shutdown_signal: Box::new(TerminationSignals(Mutex::new(Some(ready)))) });
    }
}

struct TerminationSignals(Mutex<Option<Box<dyn FnOnce() + Send>>>);

#[async_trait]
impl ShutdownSignalWatch for TerminationSignals {
    async fn recv(&self) -> ShutdownSignal {
        if let Some(ready) = self.0.lock().take() {
            ready();
        }
        if let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) {
            tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
        }
        ShutdownSignal::FastShutdown
    }
}

struct EchoRequest;

#[async_trait]
impl ServeHttp for EchoRequest {
    async fn response(&self, session: &mut ServerSession) -> Response<Vec<u8>> {
        // The maximum number of bytes of a body that are returned.
        const MOST: usize = 64 << 10;
        let mut body = Vec::new();
        while let Ok(Some(part)) = session.read_request_body().await {
            let rest = MOST.saturating_sub(body.len());
            body.extend(part.iter().take(rest));
        }
        let head = session.req_header();
        let target = head.uri.path_and_query().map_or("*", |target| target.as_str());
        let mut text = format!("{} {target}\n", head.method).into_bytes();
        for (name, value) in &head.headers {
            text.extend_from_slice(format!("{name}: ").as_bytes());
            text.extend_from_slice(value.as_bytes());
            text.push(b'\n');
        }
        if !body.is_empty() {
            text.push(b'\n');
            text.extend_from_slice(&body);
        }
        let response = Response::builder().header(CONTENT_TYPE, "text/plain").header(CONTENT_LENGTH, text.len());
        let text = if head.method == Method::HEAD { Vec::new() } else { text };
        response.body(text).unwrap_or_default()
    }
}
