//! Sends one health check to an endpoint, and judges the response.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use super::endpoint::Endpoint;
use super::tls::PeerTls;
use base::endpoint_address::EndpointAddress;
use base::time;
use base::tls::certificate_error;
use config::{Health, HealthCheck, Protocol, Scheme};

/// The maximum number of bytes that are read for a status line.
const LONGEST_STATUS_LINE: usize = 1 << 10;
/// The maximum number of bytes of a response body that are read.
const LONGEST_MESSAGE: usize = 1 << 10;

/// The reason why a health check of an endpoint has failed.
#[derive(Debug)]
pub(super) enum ProbeError {
    Timeout,
    Connect(io::Error),
    Tls(io::Error),
    /// The connection was made, but failed before the response was complete.
    Closed(io::Error),
    Http2(h2::Error),
    NotHttp,
    Status(u16),
    /// The response to a gRPC health check does not say that the service is serving.
    NotServing,
}

impl fmt::Display for ProbeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProbeError::Timeout => f.write_str("no response in time"),
            ProbeError::Connect(error) => write!(f, "cannot connect: {error}"),
            ProbeError::Tls(error) => write!(f, "TLS: {}", certificate_error::of_server(&error.to_string())),
            ProbeError::Closed(error) => write!(f, "connection lost: {error}"),
            ProbeError::Http2(error) => write!(f, "HTTP/2: {error}"),
            ProbeError::NotHttp => f.write_str("the response is not HTTP/1"),
            ProbeError::Status(status) => write!(f, "status {status}"),
            ProbeError::NotServing => f.write_str("the service is not serving"),
        }
    }
}

/// Sends one health check to an endpoint, and judges the response.
///
/// # Errors
/// Returns the reason why the endpoint is not healthy.
pub(super) async fn probe(
    endpoint: &Endpoint,
    upstream: &config::Upstream,
    settings: &Health,
) -> Result<(), ProbeError> {
    let checked = time::timeout(settings.timeout.into(), check(endpoint, upstream, settings));
    checked.await.map_err(|_| ProbeError::Timeout)?
}

async fn check(endpoint: &Endpoint, upstream: &config::Upstream, settings: &Health) -> Result<(), ProbeError> {
    let stream = match &endpoint.address {
        EndpointAddress::Inet(address) => {
            let address = SocketAddr::new(address.ip(), settings.port.unwrap_or(address.port()));
            TcpStream::connect(address).await.map_err(ProbeError::Connect)?
        }
        EndpointAddress::Unix(path) => {
            let stream = UnixStream::connect(path).await.map_err(ProbeError::Connect)?;
            return exchange(stream, upstream.protocol, endpoint, settings).await;
        }
    };
    match (endpoint.scheme, &upstream.tls) {
        (Scheme::Https, Some(client)) => {
            let name = PeerTls::server_name(client, &endpoint.host);
            let name = name.ok_or_else(|| ProbeError::Tls(io::Error::other("no certificate can have this name")))?;
            let mut tls = rustls::ClientConfig::clone(&client.last_config());
            tls.alpn_protocols = match upstream.protocol {
                Protocol::Http1 => vec![b"http/1.1".to_vec()],
                Protocol::H2 | Protocol::H2c => vec![b"h2".to_vec()],
            };
            let stream = TlsConnector::from(Arc::new(tls)).connect(name, stream).await.map_err(ProbeError::Tls)?;
            // A server without HTTP/2 gets its checks over HTTP/1.1, like its requests.
            let speaks_h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            let protocol = if speaks_h2 { upstream.protocol } else { Protocol::Http1 };
            exchange(stream, protocol, endpoint, settings).await
        }
        _ => exchange(stream, upstream.protocol, endpoint, settings).await,
    }
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    protocol: Protocol,
    endpoint: &Endpoint,
    settings: &Health,
) -> Result<(), ProbeError> {
    let host = settings.host.clone().unwrap_or_else(|| endpoint.authority());
    let (path, expect) = match &settings.check {
        HealthCheck::Grpc { service } => return grpc(stream, endpoint.scheme, &host, service).await,
        HealthCheck::Http { path, expect } => (path, expect),
    };
    let status = match protocol {
        Protocol::Http1 => http1_status(stream, path, &host).await?,
        Protocol::H2 | Protocol::H2c => {
            let request = request(Method::GET, endpoint.scheme, &host, path)?;
            http2(stream, request, None).await?.status
        }
    };
    if expect.contains(status) { Ok(()) } else { Err(ProbeError::Status(status)) }
}

fn user_agent() -> String {
    format!("tollgate/{} health check", env!("CARGO_PKG_VERSION"))
}

async fn http1_status(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    path: &str,
    host: &str,
) -> Result<u16, ProbeError> {
    let agent = user_agent();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: {agent}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.map_err(ProbeError::Closed)?;
    stream.flush().await.map_err(ProbeError::Closed)?;
    let mut head = Vec::with_capacity(256);
    while !head.contains(&b'\n') {
        if head.len() > LONGEST_STATUS_LINE {
            return Err(ProbeError::NotHttp);
        }
        if stream.read_buf(&mut head).await.map_err(ProbeError::Closed)? == 0 {
            return Err(ProbeError::Closed(io::ErrorKind::UnexpectedEof.into()));
        }
    }
    parse_status(&head).ok_or(ProbeError::NotHttp)
}

/// Returns the status of a response that begins with these bytes; `None` if they are no status line.
fn parse_status(head: &[u8]) -> Option<u16> {
    let rest = head.strip_prefix(b"HTTP/1.")?;
    let (b'0' | b'1', rest) = rest.split_first()? else { return None };
    let rest = rest.strip_prefix(b" ")?;
    let (digits, rest) = rest.split_at_checked(3)?;
    let ends = matches!(rest.first(), Some(b' ' | b'\r' | b'\n'));
    let status = std::str::from_utf8(digits).ok()?.parse().ok()?;
    (ends && digits.iter().all(u8::is_ascii_digit)).then_some(status)
}

fn request(method: Method, scheme: Scheme, host: &str, path: &str) -> Result<Request<()>, ProbeError> {
    let scheme = match scheme {
        Scheme::Http => "http",
        Scheme::Https => "https",
    };
    let request = Request::builder().method(method).uri(format!("{scheme}://{host}{path}"));
    let request = request.header(http::header::USER_AGENT, user_agent()).body(());
    // The configuration allows only hosts and paths that are valid in a URL, so this does not fail.
    request.map_err(|error| ProbeError::Closed(io::Error::other(error)))
}

/// The parts of an HTTP/2 response that a check reads.
struct Http2Response {
    status: u16,
    body: Vec<u8>,
}

async fn http2(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    request: Request<()>,
    message: Option<Bytes>,
) -> Result<Http2Response, ProbeError> {
    let (client, connection) = h2::client::handshake(stream).await.map_err(ProbeError::Http2)?;
    let exchange = async {
        let mut client = client.ready().await?;
        let (response, mut sender) = client.send_request(request, message.is_none())?;
        if let Some(message) = message {
            sender.send_data(message, true)?;
        }
        let (head, mut reader) = response.await?.into_parts();
        let mut body = Vec::new();
        while body.len() <= LONGEST_MESSAGE {
            let Some(part) = reader.data().await.transpose()? else { break };
            let _ = reader.flow_control().release_capacity(part.len());
            body.extend_from_slice(&part);
        }
        Ok(Http2Response { status: head.status.as_u16(), body })
    };
    tokio::select! {
        response = exchange => response.map_err(ProbeError::Http2),
        ended = connection => Err(match ended {
            Ok(()) => ProbeError::Closed(io::ErrorKind::UnexpectedEof.into()),
            Err(error) => ProbeError::Http2(error),
        }),
    }
}

/// Asks for the health of a service: `grpc.health.v1.Health/Check`.
async fn grpc(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    scheme: Scheme,
    host: &str,
    service: &str,
) -> Result<(), ProbeError> {
    let mut request = request(Method::POST, scheme, host, "/grpc.health.v1.Health/Check")?;
    let fields = request.headers_mut();
    fields.insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/grpc"));
    fields.insert(http::header::TE, http::HeaderValue::from_static("trailers"));
    let response = http2(stream, request, Some(check_request(service))).await?;
    if response.status != 200 {
        return Err(ProbeError::Status(response.status));
    }
    if is_serving(&response.body) { Ok(()) } else { Err(ProbeError::NotServing) }
}

/// Makes the gRPC message: no compression, the length, and field 1 with the name of the service.
fn check_request(service: &str) -> Bytes {
    let mut message = Vec::new();
    // The configuration allows only names whose length fits into one byte.
    if let (1.., Ok(length)) = (service.len(), u8::try_from(service.len())) {
        message.extend_from_slice(&[0x0a, length]);
        message.extend_from_slice(service.as_bytes());
    }
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    let mut framed = vec![0];
    framed.extend_from_slice(&length.to_be_bytes());
    framed.extend_from_slice(&message);
    framed.into()
}

/// Whether a response is one message whose field 1 is `SERVING`.
fn is_serving(body: &[u8]) -> bool {
    body == [0, 0, 0, 0, 2, 0x08, 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_read_from_a_status_line_only() {
        for (line, status) in
            [("HTTP/1.1 200 OK\r\n", 200), ("HTTP/1.0 503\n", 503), ("HTTP/1.1 404 \r\nServer: a\r\n", 404)]
        {
            assert_eq!(parse_status(line.as_bytes()), Some(status), "{line}");
        }
        for line in [
            "",
            "HTTP/1.1",
            "HTTP/2 200\r\n",
            "HTTP/1.1 2000\r\n",
            "HTTP/1.1 +20\r\n",
            "SSH-2.0-x\r\n",
            "HTTP/1.1  200\n",
        ] {
            assert_eq!(parse_status(line.as_bytes()), None, "{line}");
        }
    }

    #[test]
    fn the_message_of_a_grpc_check_has_the_name_of_the_service() {
        assert_eq!(&check_request("")[..], [0, 0, 0, 0, 0]);
        assert_eq!(&check_request("ab")[..], [0, 0, 0, 0, 4, 0x0a, 2, b'a', b'b']);
        assert_eq!(&check_request(&"x".repeat(127))[..8], [0, 0, 0, 0, 129, 0x0a, 127, b'x']);
        assert!(is_serving(&[0, 0, 0, 0, 2, 8, 1]));
        assert!(!is_serving(&[0, 0, 0, 0, 2, 8, 2]) && !is_serving(&[0, 0, 0, 0, 0]) && !is_serving(&[]));
    }
}
