//! Tests the stages with another application than the proxy, over a connection in memory.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderValue;
use metrics::Gauge;
use pingora::apps::ServerApp;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;

use super::connection::ConnectionServer;
use super::connection_limits::ConnectionLimits;
use super::http1::Http1Server;
use super::http1::application::{Http1Application, ReceivedRequest};
use super::http1::client::{Client, ClientRequest};
use super::http1::downstream_stream::DownstreamStream;
use super::http1::exchange_io::BodyRead;
use super::http2::application::{Http2Application, Http2Request};
use super::request_client::{AnsweredRequest, RequestClient, Rest, Reuse};
use super::server_state::tests::state;
use crate::gateway::response::own_response::OwnResponse;
use crate::gateway::runtime::fd_limit::FdBudget;
use crate::gateway::runtime::write_backpressure::WriteBackpressure;
use crate::gateway::state::lifecycle::Lifecycle;
use crate::gateway::telemetry::metrics::Metrics;
use crate::gateway::telemetry::metrics::registry::Reader;

/// Answers with the path of the request, and its body.
struct Echo(Lifecycle);

impl Http1Application for Echo {
    async fn serve(&self, stream: Box<DownstreamStream>, request: ReceivedRequest) -> Option<Box<DownstreamStream>> {
        let ClientRequest { mut client, head, .. } = Client::begin(stream, request, &self.0);
        let head = head.unwrap();
        let mut body = format!("[{}]", head.uri.path()).into_bytes();
        while let BodyRead::Data = client.read_body(&mut body, &mut Vec::new()).await.ok()? {}
        let mut response = OwnResponse { body: Bytes::from(body), ..OwnResponse::new(200) };
        response.fields.add("Content-Length", response.body.len().to_string().as_bytes());
        let request_id = &HeaderValue::from_static("");
        let request = AnsweredRequest { head: &head, request_id, reuse: Reuse::Kept };
        let written = client.write_own(request, response, Rest::Drained).await;
        let reuse = if written.reuse == Reuse::Kept { client.read_rest().await } else { written.reuse };
        client.end(reuse)
    }
}

impl Http2Application for Echo {
    async fn serve(&self, _: Http2Request) {
        panic!("a request of HTTP/2 on a listener without it");
    }
}

type EchoServer = ConnectionServer<Echo>;

/// The server of one listener, with an application that is not the proxy, and its metrics.
fn server(config: &str) -> (Arc<EchoServer>, Metrics) {
    let (state, metrics) = state(config);
    let http1 = Http1Server {
        app: Arc::new(Echo(Lifecycle::default())),
        state: state.clone(),
        write_backpressure: WriteBackpressure::default(),
    };
    let limits = Arc::new(ConnectionLimits::new(FdBudget::here()));
    (
        Arc::new(ConnectionServer {
            state,
            listener: 0,
            limits,
            gauge: Gauge::noop(),
            proxy_protocol: None,
            decision_clients: None,
            tls: None,
            http1,
            http2: None,
        }),
        metrics,
    )
}

/// Sends these parts of requests one after the other, and returns all bytes that the server sends until it closes the
/// connection.
async fn converse(server: &Arc<EchoServer>, parts: &[&str]) -> String {
    let (mut client, stream) = tokio::io::duplex(64 << 10);
    let (_leave, shutdown) = watch::channel(false);
    let server = Arc::clone(server);
    let serving = tokio::spawn(async move { server.process_new(Box::new(stream), &shutdown).await.is_none() });
    for part in parts {
        client.write_all(part.as_bytes()).await.unwrap();
        tokio::task::yield_now().await;
    }
    client.shutdown().await.unwrap();
    let mut read = String::new();
    let whole = client.read_to_string(&mut read);
    tokio::time::timeout(Duration::from_secs(10), whole).await.expect("the connection stays open").unwrap();
    assert!(serving.await.unwrap());
    read
}

/// The bodies of the 200 responses in the bytes that a client has read.
fn bodies(read: &str) -> Vec<&str> {
    let responses = read.split("HTTP/1.1 200 OK\r\n").skip(1);
    responses.map(|response| response.split_once("\r\n\r\n").unwrap().1).collect()
}

#[tokio::test]
async fn an_application_other_than_the_proxy_gets_every_request_of_a_connection() {
    let (server, _) = server("");
    let read = converse(
        &server,
        &[
            "GET /one HTTP/1.1\r\nHost: a\r\n\r\n",
            "POST /two HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhe",
            "llo",
            // A body in chunks, and the next request in the same part.
            "POST /three HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n",
            "3\r\nllo\r\n0\r\n\r\nGET /four HTTP/1.1\r\nHost: a\r\n\r\nGET /fi",
            "ve HTTP/1.1\r\nHost: a\r\n\r\n",
        ],
    )
    .await;
    assert_eq!(bodies(&read), ["[/one]", "[/two]hello", "[/three]hello", "[/four]", "[/five]"], "{read}");
    assert_eq!(server.limits.open(), 0);
}

#[tokio::test]
async fn an_invalid_head_is_answered_by_the_server_and_never_reaches_the_application() {
    let (server, metrics) = server("");
    let read = converse(&server, &["GET /one HTTP/1.1\r\nHost: a\r\n\r\n", "GET /two HTTP/1.1\nHost: a\r\n\r\n"]).await;
    let (first, second) = read.split_once("HTTP/1.1 400 Bad Request\r\n").unwrap();
    assert_eq!(bodies(first), ["[/one]"]);
    for field in ["X-Request-Id: ", "X-Tollgate-Reason: bad_request\r\n", "Connection: close\r\n"] {
        assert!(second.contains(field), "{second}");
    }
    let metrics = metrics.registry.render(Reader::Scrape, String::new);
    assert!(metrics.contains("tollgate_refused_requests_total{reason=\"bad_request\"} 1\n"), "{metrics}");
}

#[tokio::test]
async fn a_body_longer_than_the_limit_is_rejected_before_the_application_sees_its_request() {
    let (server, _) = server("limits:\n  body_bytes: 4B\n");
    let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: ";
    let (fits, too_long) = (format!("{head}4\r\n\r\nbody"), format!("{head}5\r\n\r\nbody!"));
    let read = converse(&server, &[&fits, &too_long]).await;
    assert_eq!(bodies(read.split("HTTP/1.1 413 ").next().unwrap()), ["[/]body"], "{read}");
    assert!(read.contains("HTTP/1.1 413 Content Too Large\r\n"), "{read}");
}

#[tokio::test]
async fn the_first_request_of_a_connection_is_answered_although_it_comes_after_the_shutdown() {
    let (server, _) = server("");
    let (mut client, stream) = tokio::io::duplex(64 << 10);
    let (leave, shutdown) = watch::channel(false);
    let serving = tokio::spawn(async move { server.process_new(Box::new(stream), &shutdown).await.is_none() });
    for step in 0..40 {
        tokio::task::yield_now().await;
        if step == 20 {
            leave.send_replace(true);
        }
    }
    assert!(!serving.is_finished());
    client.write_all(b"GET /late HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    // No second request is waited for.
    let mut read = String::new();
    let whole = client.read_to_string(&mut read);
    tokio::time::timeout(Duration::from_secs(10), whole).await.expect("the connection stays open").unwrap();
    assert_eq!(bodies(&read), ["[/late]"], "{read}");
    assert!(serving.await.unwrap());
}

#[tokio::test]
async fn a_connection_beyond_the_limit_is_answered_503_and_those_before_it_stay_open() {
    let (server, _) = server("limits:\n  connections: 1\n");
    let (mut first, stream) = tokio::io::duplex(64 << 10);
    let (_leave, shutdown) = watch::channel(false);
    let serving = Arc::clone(&server);
    tokio::spawn(async move { serving.process_new(Box::new(stream), &shutdown).await });
    tokio::task::yield_now().await;
    let read = converse(&server, &["GET / HTTP/1.1\r\nHost: a\r\n\r\n"]).await;
    assert!(read.starts_with("HTTP/1.1 503 Service Unavailable\r\n"), "{read}");
    first.write_all(b"GET /one HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut read = String::new();
    first.read_to_string(&mut read).await.unwrap();
    assert_eq!(bodies(&read), ["[/one]"], "{read}");
}
