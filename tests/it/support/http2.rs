//! An HTTP/2 client over one connection, which can send several requests at a time.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request, Response};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Runtime;
use tokio_rustls::TlsConnector;

use super::tls_client::TlsSettings;

/// The longest time for any wait.
const TIMEOUT: Duration = Duration::from_secs(15);

pub(crate) struct Http2Client {
    // In this order: the connection ends before its runtime.
    sender: SendRequest<Bytes>,
    authority: String,
    closed: tokio::sync::watch::Receiver<bool>,
    runtime: Arc<Runtime>,
}

/// A response that was received completely.
#[derive(Clone, Debug)]
pub(crate) struct Http2Response {
    pub status: u16,
    pub head: HeaderMap,
    pub body: Vec<u8>,
    pub trailers: Option<HeaderMap>,
}

impl Http2Response {
    #[track_caller]
    pub(crate) fn field(&self, name: &str) -> &str {
        self.head.get(name).unwrap_or_else(|| panic!("no {name} in {self:?}")).to_str().unwrap()
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }
}

/// A request whose head, and perhaps a part of the body, has been sent.
pub(crate) struct Http2Request {
    response: ResponseFuture,
    body: SendStream<Bytes>,
    runtime: Arc<Runtime>,
}

impl Http2Client {
    /// Connects over TCP.
    pub(crate) fn connect(address: SocketAddr) -> Http2Client {
        let runtime = runtime();
        let stream = runtime.block_on(tokio::net::TcpStream::connect(address)).unwrap();
        stream.set_nodelay(true).unwrap();
        Http2Client::over(runtime, stream, "a.test")
    }

    /// Connects over TCP, with a window for this many unread bytes of all responses.
    pub(crate) fn connect_wide(address: SocketAddr, window: u32) -> Http2Client {
        let runtime = runtime();
        let stream = runtime.block_on(tokio::net::TcpStream::connect(address)).unwrap();
        stream.set_nodelay(true).unwrap();
        Http2Client::with_window(runtime, stream, "a.test", Some(window))
    }

    /// Connects over TLS, with this server name.
    pub(crate) fn connect_tls(settings: &TlsSettings, address: SocketAddr, name: &str) -> Http2Client {
        Http2Client::over_tls(settings, TcpStream::connect(address).unwrap(), name)
    }

    /// Makes a TLS handshake on a connection on which something was already sent.
    pub(crate) fn over_tls(settings: &TlsSettings, stream: TcpStream, name: &str) -> Http2Client {
        let runtime = runtime();
        let mut config = settings.config();
        config.alpn_protocols = vec![b"h2".to_vec()];
        stream.set_nonblocking(true).unwrap();
        stream.set_nodelay(true).unwrap();
        let server = name.to_owned().try_into().unwrap();
        let stream = runtime.block_on(async {
            let stream = tokio::net::TcpStream::from_std(stream).unwrap();
            TlsConnector::from(Arc::new(config)).connect(server, stream).await.unwrap()
        });
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        Http2Client::over(runtime, stream, name)
    }

    fn over(
        runtime: Arc<Runtime>,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        authority: &str,
    ) -> Http2Client {
        Http2Client::with_window(runtime, stream, authority, None)
    }

    fn with_window(
        runtime: Arc<Runtime>,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        authority: &str,
        window: Option<u32>,
    ) -> Http2Client {
        let mut options = h2::client::Builder::new();
        if let Some(window) = window {
            options.initial_connection_window_size(window);
        }
        // It may leave any number of small parts unread.
        options.data_frame_budget(1 << 30);
        let (sender, connection) = runtime.block_on(options.handshake(stream)).unwrap();
        let (closes, closed) = tokio::sync::watch::channel(false);
        runtime.spawn(async move {
            // What it fails with, its requests fail with too.
            let _ = connection.await;
            closes.send_replace(true);
        });
        Http2Client { sender, authority: authority.to_owned(), closed, runtime }
    }

    pub(crate) fn get(&mut self, target: &str, fields: &[(&str, &str)]) -> Http2Response {
        self.send("GET", target, fields, &[])
    }

    /// Requests a target from another host.
    pub(crate) fn get_of(&mut self, authority: &str, target: &str) -> Http2Response {
        let own = std::mem::replace(&mut self.authority, authority.to_owned());
        let response = self.get(target, &[]);
        self.authority = own;
        response
    }

    /// Sends a request with a body of these parts, and waits for its response.
    #[track_caller]
    pub(crate) fn send(
        &mut self,
        method: &str,
        target: &str,
        fields: &[(&str, &str)],
        parts: &[&[u8]],
    ) -> Http2Response {
        let mut request = self.begin(method, target, fields, parts.is_empty());
        for (index, part) in parts.iter().enumerate() {
            request.write(part, index + 1 == parts.len()).unwrap();
        }
        request.response().unwrap()
    }

    /// Sends the head of a request.
    #[track_caller]
    pub(crate) fn begin(
        &mut self,
        method: &str,
        target: &str,
        fields: &[(&str, &str)],
        is_whole: bool,
    ) -> Http2Request {
        let uri = format!("http://{}{target}", self.authority);
        let request = Request::builder().method(method).uri(uri).version(http::Version::HTTP_2);
        let request = fields.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let sender = self.sender.clone();
        let mut sender = self.runtime.block_on(sender.ready()).unwrap();
        let (response, body) = sender.send_request(request.body(()).unwrap(), is_whole).unwrap();
        Http2Request { response, body, runtime: Arc::clone(&self.runtime) }
    }

    /// Sends the head of a request without a body, while the server may be closing the connection. `None` if it accepts no
    /// more.
    pub(crate) fn try_begin(&mut self, method: &str, target: &str) -> Option<Http2Request> {
        let uri = format!("http://{}{target}", self.authority);
        let request = Request::builder().method(method).uri(uri).version(http::Version::HTTP_2).body(()).unwrap();
        let sender = self.sender.clone();
        let mut sender = self.runtime.block_on(sender.ready()).ok()?;
        let (response, body) = sender.send_request(request, true).ok()?;
        Some(Http2Request { response, body, runtime: Arc::clone(&self.runtime) })
    }

    /// Whether the server closes the connection.
    pub(crate) fn is_closed(&mut self) -> bool {
        let closed = self.closed.wait_for(|closed| *closed);
        self.runtime.block_on(async { tokio::time::timeout(TIMEOUT, closed).await.is_ok() })
    }

    /// Whether another request can be sent, as far as the client knows.
    pub(crate) fn accepts_requests(&self) -> bool {
        let sender = self.sender.clone();
        self.runtime.block_on(async { tokio::time::timeout(TIMEOUT, sender.ready()).await }).is_ok_and(|r| r.is_ok())
    }
}

impl Http2Request {
    /// Writes a part of the body, as fast as the server accepts it.
    ///
    /// # Errors
    /// If the stream is closed.
    pub(crate) fn write(&mut self, part: &[u8], end: bool) -> Result<(), h2::Error> {
        write(&self.runtime, &mut self.body, part, end)
    }

    /// Queues a part of the body, which is sent as the server accepts it.
    pub(crate) fn write_ahead(&mut self, part: &[u8], end: bool) {
        self.body.send_data(Bytes::copy_from_slice(part), end).unwrap();
    }

    /// Ends the body with trailers.
    pub(crate) fn end_with(&mut self, trailers: HeaderMap) {
        self.body.send_trailers(trailers).unwrap();
    }

    /// Waits for an interim response.
    ///
    /// # Errors
    /// If the stream is reset, or the connection closed.
    pub(crate) fn interim(&mut self) -> Result<Response<()>, h2::Error> {
        let interim = std::future::poll_fn(|cx| self.response.poll_informational(cx));
        let interim = async { tokio::time::timeout(TIMEOUT, interim).await.expect("no interim response") };
        self.runtime.block_on(interim).expect("no interim response")
    }

    pub(crate) fn reset(mut self) {
        self.body.send_reset(h2::Reason::CANCEL);
    }

    /// Waits for the head of the response. The caller reads the body.
    ///
    /// # Errors
    /// If the stream is reset, or the connection closed.
    pub(crate) fn head(self) -> Result<(Response<()>, RecvStream, SendStream<Bytes>), h2::Error> {
        let Http2Request { response, body, runtime } = self;
        let response = runtime.block_on(async { tokio::time::timeout(TIMEOUT, response).await.expect("no response") });
        let (head, received) = response?.into_parts();
        Ok((Response::from_parts(head, ()), received, body))
    }

    /// Waits for the head of the response, while the request continues.
    ///
    /// # Errors
    /// If the stream is reset, or the connection closed.
    pub(crate) fn streaming(self) -> Result<Http2Streaming, h2::Error> {
        let runtime = Arc::clone(&self.runtime);
        let (_, received, body) = self.head()?;
        Ok(Http2Streaming { received, body, runtime })
    }

    /// Waits for the whole response.
    ///
    /// # Errors
    /// If the stream is reset, or the connection closed.
    pub(crate) fn response(self) -> Result<Http2Response, h2::Error> {
        let runtime = Arc::clone(&self.runtime);
        let (head, mut received, _body) = self.head()?;
        let whole = async {
            let mut body = Vec::new();
            while let Some(part) = received.data().await {
                let part = part?;
                body.extend_from_slice(&part);
                received.flow_control().release_capacity(part.len())?;
            }
            let trailers = received.trailers().await?;
            let (head, ()) = head.into_parts();
            Ok(Http2Response { status: head.status.as_u16(), head: head.headers, body, trailers })
        };
        runtime.block_on(async { tokio::time::timeout(TIMEOUT, whole).await.expect("the response does not end") })
    }
}

/// A request and a response that are both not complete.
pub(crate) struct Http2Streaming {
    received: RecvStream,
    body: SendStream<Bytes>,
    runtime: Arc<Runtime>,
}

impl Http2Streaming {
    /// Returns the next part of the response; empty at its end.
    ///
    /// # Errors
    /// If the stream is reset, or the connection closed.
    pub(crate) fn part(&mut self) -> Result<Vec<u8>, h2::Error> {
        let received = &mut self.received;
        let next = async { tokio::time::timeout(TIMEOUT, received.data()).await.expect("no further part") };
        let part = self.runtime.block_on(next).transpose()?.unwrap_or_default();
        self.received.flow_control().release_capacity(part.len())?;
        Ok(part.to_vec())
    }

    /// Returns the rest of the response.
    ///
    /// # Errors
    /// If the stream is reset, or the connection closed.
    pub(crate) fn rest(&mut self) -> Result<Vec<u8>, h2::Error> {
        let mut rest = Vec::new();
        loop {
            let part = self.part()?;
            if part.is_empty() {
                return Ok(rest);
            }
            rest.extend(part);
        }
    }

    /// Queues a further part of the request, which is sent as the server accepts it.
    pub(crate) fn write_ahead(&mut self, part: &[u8], end: bool) {
        self.body.send_data(Bytes::copy_from_slice(part), end).unwrap();
    }

    /// Writes a further part of the request.
    ///
    /// # Errors
    /// If the stream is closed.
    pub(crate) fn write(&mut self, part: &[u8], end: bool) -> Result<(), h2::Error> {
        write(&self.runtime, &mut self.body, part, end)
    }
}

fn write(runtime: &Runtime, body: &mut SendStream<Bytes>, part: &[u8], end: bool) -> Result<(), h2::Error> {
    let mut rest = Bytes::copy_from_slice(part);
    if rest.is_empty() {
        return body.send_data(rest, end);
    }
    runtime.block_on(async {
        while !rest.is_empty() {
            body.reserve_capacity(rest.len());
            let capacity = std::future::poll_fn(|cx| body.poll_capacity(cx)).await;
            let Some(capacity) = capacity.transpose()? else { return Err(h2::Error::from(h2::Reason::CANCEL)) };
            let part = rest.split_to(capacity.min(rest.len()));
            body.send_data(part, end && rest.is_empty())?;
        }
        Ok(())
    })
}

fn runtime() -> Arc<Runtime> {
    Arc::new(tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap())
}
