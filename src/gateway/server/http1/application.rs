//! Defines the application that answers the requests of a connection, one after the other.

use std::time::Duration;

use pingora::apps::HttpServerApp;
use pingora::protocols::http::ServerSession;
use pingora::server::ShutdownWatch;

use super::downstream_stream::DownstreamStream;
use super::request_body::BodyFraming;
use super::request_head::Head;

/// A request with a valid head, which is at the beginning of the unparsed bytes of its connection.
#[derive(Clone, Copy, Debug)]
pub struct ReceivedRequest {
    pub head: Head,
    pub framing: BodyFraming,
    /// The longest time in which the client neither sends nor reads anything.
    pub client_timeout: Duration,
}

/// Answers requests of HTTP/1.0 and HTTP/1.1.
pub trait Http1Application: Send + Sync + 'static {
    /// Answers a request. Returns its connection if another may follow on it.
    fn serve(
        &self,
        stream: Box<DownstreamStream>,
        request: ReceivedRequest,
        shutdown: &ShutdownWatch,
    ) -> impl Future<Output = Option<Box<DownstreamStream>>> + Send;

    /// Called when the process leaves.
    fn cleanup(&self) -> impl Future<Output = ()> + Send;
}

/// An application that is served by sessions of Pingora.
#[expect(missing_debug_implementations, reason = "applications of Pingora have none")]
pub struct SessionApplication<A>(pub std::sync::Arc<A>);

impl<A: HttpServerApp + Send + Sync + 'static> Http1Application for SessionApplication<A> {
    async fn serve(
        &self,
        stream: Box<DownstreamStream>,
        request: ReceivedRequest,
        shutdown: &ShutdownWatch,
    ) -> Option<Box<DownstreamStream>> {
        serve_session(&self.0, stream, request, shutdown).await
    }

    async fn cleanup(&self) {
        self.0.http_cleanup().await;
    }
}

/// Answers a request with a session of Pingora.
pub async fn serve_session<A: HttpServerApp>(
    app: &std::sync::Arc<A>,
    mut stream: Box<DownstreamStream>,
    ReceivedRequest { head, framing, client_timeout }: ReceivedRequest,
    shutdown: &ShutdownWatch,
) -> Option<Box<DownstreamStream>> {
    let prefix = stream.begin(head.length, framing, client_timeout);
    let handle = stream.handle();
    let mut session = ServerSession::new_http1(stream);
    session.set_connection_user_context(Some(Box::new(handle)));
    // A complete head: Pingora does not read for it, and sets no timer.
    session.set_pipelined_prefix(prefix);
    let (inner, _) = app.process_new_http(session, shutdown).await?.consume();
    let stream = inner.into_any().downcast::<DownstreamStream>().ok()?;
    stream.is_between_requests().then_some(stream)
}
