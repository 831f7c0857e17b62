//! Implements Pingora's interface of a session with calls of [`Http2Session`]; some methods have no meaning in HTTP/2.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_core::Stream;
use http::HeaderMap;
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::Digest;
use pingora::protocols::http::HttpTask;
use pingora::protocols::http::custom::CustomMessageWrite;
use pingora::protocols::http::custom::server::Session;
use pingora::protocols::l4::socket::SocketAddr;
use pingora::{Error, ErrorType, Result};

use super::session::Http2Session;

type MessageReader = Box<dyn Stream<Item = Result<Bytes>> + Unpin + Send + Sync + 'static>;

#[async_trait]
impl Session for Http2Session {
    fn req_header(&self) -> &RequestHeader {
        self.head()
    }

    fn req_header_mut(&mut self) -> &mut RequestHeader {
        self.head_mut()
    }

    async fn read_body_bytes(&mut self) -> Result<Option<Bytes>> {
        self.read_body().await
    }

    /// Does nothing: the end of the session discards the rest, and nothing waits for it.
    async fn drain_request_body(&mut self) -> Result<()> {
        Ok(())
    }

    async fn write_response_header(&mut self, header: Box<ResponseHeader>, end: bool) -> Result<()> {
        self.write_head(*header, end)
    }

    async fn write_response_header_ref(&mut self, header: &ResponseHeader, end: bool) -> Result<()> {
        self.write_head(header.clone(), end)
    }

    async fn write_body(&mut self, body: Bytes, end: bool) -> Result<()> {
        Http2Session::write_body(self, body, end).await
    }

    async fn write_trailers(&mut self, trailers: HeaderMap) -> Result<()> {
        Http2Session::write_trailers(self, trailers)
    }

    async fn response_duplex_vec(&mut self, tasks: Vec<HttpTask>) -> Result<bool> {
        let mut ended = false;
        for task in tasks {
            ended |= match task {
                HttpTask::Header(header, end) => {
                    self.write_head(*header, end)?;
                    end
                }
                HttpTask::Body(body, end) => {
                    if let Some(body) = body.filter(|body| !body.is_empty()) {
                        Http2Session::write_body(self, body, end).await?;
                    }
                    end
                }
                HttpTask::UpgradedBody(..) => {
                    return Err(Error::explain(ErrorType::InternalError, "upgraded body in HTTP/2"));
                }
                HttpTask::Trailer(trailers) => {
                    if let Some(trailers) = trailers {
                        Http2Session::write_trailers(self, *trailers)?;
                    }
                    true
                }
                HttpTask::Done => true,
                HttpTask::Failed(error) => return Err(error),
            };
        }
        if ended {
            Http2Session::finish(self)?;
        }
        Ok(ended)
    }

    /// Does nothing: the timeouts of the client are the limits of the listener.
    fn set_read_timeout(&mut self, _: Option<Duration>) {}

    fn get_read_timeout(&self) -> Option<Duration> {
        None
    }

    /// Sets the timeout of the client, in both directions: longer than the limits of the listener, for streaming responses.
    fn set_write_timeout(&mut self, timeout: Option<Duration>) {
        if let Some(timeout) = timeout {
            self.set_client_timeout(timeout);
        }
    }

    fn get_write_timeout(&self) -> Option<Duration> {
        None
    }

    fn set_total_drain_timeout(&mut self, _: Option<Duration>) {}

    fn get_total_drain_timeout(&self) -> Option<Duration> {
        None
    }

    fn request_summary(&self) -> String {
        String::new()
    }

    fn response_written(&self) -> Option<&ResponseHeader> {
        self.response()
    }

    async fn shutdown(&mut self, _: u32, _: &str) {
        self.reset();
    }

    fn is_body_done(&mut self) -> bool {
        Http2Session::is_body_done(self)
    }

    async fn finish(&mut self) -> Result<()> {
        Http2Session::finish(self)
    }

    fn is_body_empty(&mut self) -> bool {
        Http2Session::is_body_empty(self)
    }

    async fn read_body_or_idle(&mut self, no_body_expected: bool) -> Result<Option<Bytes>> {
        if no_body_expected || Http2Session::is_body_done(self) {
            Err(self.watch_reset().await)
        } else {
            self.read_body().await
        }
    }

    fn body_bytes_sent(&self) -> usize {
        self.body_sent()
    }

    fn body_bytes_read(&self) -> usize {
        self.body_read()
    }

    fn digest(&self) -> Option<&Digest> {
        Some(Http2Session::digest(self))
    }

    /// Returns `None`, because all streams of the connection share the digest.
    fn digest_mut(&mut self) -> Option<&mut Digest> {
        None
    }

    fn client_addr(&self) -> Option<&SocketAddr> {
        Http2Session::digest(self).socket_digest.as_ref()?.peer_addr()
    }

    fn server_addr(&self) -> Option<&SocketAddr> {
        Http2Session::digest(self).socket_digest.as_ref()?.local_addr()
    }

    /// Returns nothing: only for requests that a proxy makes itself, which this one does not.
    fn pseudo_raw_h1_request_header(&self) -> Bytes {
        Bytes::new()
    }

    /// Does nothing: a body is never sent twice.
    fn enable_retry_buffering(&mut self) {}

    fn retry_buffer_truncated(&self) -> bool {
        false
    }

    fn get_retry_buffer(&self) -> Option<Bytes> {
        None
    }

    async fn finish_custom(&mut self) -> Result<()> {
        Ok(())
    }

    fn take_custom_message_reader(&mut self) -> Option<MessageReader> {
        None
    }

    fn restore_custom_message_reader(&mut self, _: MessageReader) -> Result<()> {
        Ok(())
    }

    fn take_custom_message_writer(&mut self) -> Option<Box<dyn CustomMessageWrite>> {
        None
    }

    fn restore_custom_message_writer(&mut self, _: Box<dyn CustomMessageWrite>) -> Result<()> {
        Ok(())
    }
}
