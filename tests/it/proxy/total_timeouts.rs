//! Requests that exceed their total timeout: they are ended, wherever the time is spent.

use std::io::{Read, Write};
use std::time::Duration;

use crate::support::http2::Http2Client;
use crate::support::http2_frames::{FrameClient, RST_STREAM, SETTINGS, frame, get};
use crate::support::websocket::SWITCHED;
use crate::support::{Gateway, Lateness, Upstream, eventually, now};

const REQUESTS: [(&str, &str); 3] = [
    ("GET", "GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("POST", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"),
    (
        "GET",
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    ),
];

/// Starts an upstream that reads requests and never answers.
fn silent() -> Upstream {
    Upstream::answering(|_, stream| drop(stream.read(&mut [0])))
}

/// Starts a gateway with three endpoints. Each request is tried at up to three of them.
fn start(servers: &[Upstream], timeouts: &str) -> Gateway {
    let endpoints: Vec<String> = servers.iter().map(|server| format!("http://{}", server.address)).collect();
    let text = format!(
        "upstreams:
  api:
    endpoints: [{}]
    timeouts: {timeouts}
    retries: {{max: 2, budget: 100%}}
    ejection: false
routes: [{{name: all, upstream: api}}]
",
        endpoints.join(", ")
    );
    Gateway::before_url("").with(&text).start()
}

#[test]
fn a_request_without_a_response_is_ended_in_time() {
    let gateway = Gateway::start(&silent(), "upstream_timeouts: {total: 300ms}");
    for (method, request) in REQUESTS {
        let (mut client, begun) = (gateway.client(), now());
        client.write(request);
        assert_eq!(client.response(method).unwrap().status, 504, "{request:?}");
        let took = begun.elapsed();
        assert!((Duration::from_millis(290)..Duration::from_secs(5)).contains(&took), "{request:?}: {took:?}");
    }
    gateway.expect("tollgate_upstream_errors_total", &["total_timeout"], 3.0);
    gateway.expect("tollgate_upstream_errors_total", &["read_timeout"], 0.0);
}

#[test]
fn a_response_that_never_ends_is_cut_off_in_time() {
    let is_cut_off = |every: u64| {
        let upstream = Upstream::answering(move |_, stream| {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
            while stream.write_all(b"4\r\npart\r\n").is_ok() {
                std::thread::sleep(Duration::from_millis(every));
            }
        });
        let gateway = Gateway::start(&upstream, "upstream_timeouts: {total: 1500ms}");
        let (mut client, begun) = (gateway.client(), now());
        client.write(REQUESTS[0].1);
        assert!(client.response("GET").is_err());
        let took = begun.elapsed();
        assert!((Duration::from_millis(1490)..Duration::from_secs(8)).contains(&took), "{every}: {took:?}");
        gateway.expect("tollgate_upstream_errors_total", &["total_timeout"], 1.0);
        gateway.expect("tollgate_http_requests_total", &["origin=\"upstream\"", "200"], 1.0);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| is_cut_off(20));
        is_cut_off(10_000);
    });
}

/// Settings of a listener that also speaks HTTP/2.
const H2C: &str = "listeners: [{address: 127.0.0.1:0, protocols: [h2c, http/1.1]}]\n";

#[test]
fn a_stream_of_http2_is_ended_in_time_and_its_connection_goes_on() {
    let upstream = Upstream::answering(|request, stream| match &*request.line {
        "GET /silent HTTP/1.1" | "POST / HTTP/1.1" => drop(stream.read(&mut [0])),
        "GET /trickle HTTP/1.1" => {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n");
            std::thread::sleep(Duration::from_millis(2500));
            let _ = stream.write_all(b"4\r\npart\r\n");
            let _ = stream.read(&mut [0]);
        }
        _ => drop(stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")),
    });
    let gateway = Gateway::start(&upstream, &format!("{H2C}upstream_timeouts: {{total: 3s}}"));
    let mut client = Http2Client::connect(gateway.http);
    let late = Lateness::measure();
    let begun = now();
    let requests = [("GET", "/silent", true), ("GET", "/trickle", true), ("POST", "/", false)];
    let [silent, trickle, upload] = requests.map(|(method, target, whole)| client.begin(method, target, &[], whole));
    assert_eq!(silent.response().unwrap().status, 504);
    assert_eq!(trickle.response().unwrap_err().reason(), Some(h2::Reason::INTERNAL_ERROR));
    assert_eq!(upload.response().unwrap().status, 408);
    // A whole time after the last part it would be 5.5 seconds.
    let (took, most) = (begun.elapsed(), Duration::from_millis(5400) + late.of_a_request());
    assert!((Duration::from_millis(2990)..most).contains(&took), "{took:?}");
    gateway.expect("tollgate_upstream_errors_total", &["total_timeout"], 2.0);
    assert_eq!(client.get("/", &[]).status, 200);
}

#[test]
fn a_stream_of_http2_that_is_not_read_is_ended_in_time() {
    let gateway = Gateway::start(&Upstream::start(), &format!("{H2C}upstream_timeouts: {{total: 2s}}"));
    let mut client = FrameClient::connect(gateway.http);
    let begun = now();
    client.write(&[frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]), get(1, "/")].concat());
    assert_eq!(client.outcome(1), Ok(200));
    client.until(|frame| frame.kind == RST_STREAM);
    let took = begun.elapsed();
    assert!((Duration::from_millis(1990)..Duration::from_secs(8)).contains(&took), "{took:?}");
}

#[test]
fn all_attempts_share_the_time() {
    let servers = [(); 3].map(|()| silent());
    let gateway = start(&servers, "{read: 2s, total: 4s}");
    let begun = now();
    assert_eq!(gateway.client().get("/", &[]).status, 504);
    let took = begun.elapsed();
    assert!((Duration::from_millis(3990)..Duration::from_secs(10)).contains(&took), "{took:?}");
    // The second attempt had the rest of the time, and there was no third one.
    let arrived = || servers.iter().map(Upstream::count).sum::<usize>();
    eventually("both have arrived", || arrived() >= 2);
    assert_eq!(arrived(), 2);
    gateway.expect("tollgate_upstream_retries_total", &["read_timeout"], 1.0);
    gateway.expect("tollgate_upstream_errors_total", &["total_timeout"], 1.0);
    // Nor has it failed there.
    gateway.expect("tollgate_endpoint_failures_total", &[], 1.0);
}

#[test]
fn each_request_has_the_whole_time_and_a_websocket_more() {
    let upstream = Upstream::answering(|request, stream| {
        std::thread::sleep(Duration::from_millis(900));
        if request.field("upgrade").is_some() {
            let _ = stream.write_all(SWITCHED.as_bytes());
            std::thread::sleep(Duration::from_millis(3600));
            let _ = stream.write_all(b"late");
        } else {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let gateway = Gateway::start(&upstream, "upstream_timeouts: {total: 4s}");
    let (mut client, mut tunnel) = (gateway.client(), gateway.client());
    tunnel.write(REQUESTS[2].1);
    (0..5).for_each(|_| assert_eq!(client.get("/", &[]).status, 200));
    assert_eq!(tunnel.response("GET").unwrap().status, 101);
    assert_eq!(tunnel.until("late"), "late");
}

#[test]
fn a_client_that_is_slow_to_send_its_body_is_not_an_error_of_the_upstream() {
    let gateway = Gateway::start(&silent(), "upstream_timeouts: {total: 300ms}");
    let mut client = gateway.client();
    client.write("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhello");
    let response = client.response("POST").unwrap();
    assert_eq!((response.status, response.field("x-tollgate-reason").as_deref()), (408, Some("bad_request")));
    gateway.expect("tollgate_upstream_errors_total", &[], 0.0);
}

#[test]
fn a_route_may_have_another_total_or_none() {
    let slow = Upstream::answering(|request, stream| {
        if request.line.starts_with("GET / ") {
            return drop(stream.read(&mut [0]));
        }
        std::thread::sleep(Duration::from_millis(800));
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    });
    let text = format!(
        "upstreams: {{api: {{endpoints: [\"http://{}\"], timeouts: {{total: 200ms}}}}}}
routes:
  - {{name: free, match: {{path: /free}}, upstream: api, timeouts: {{total: none}}}}
  - {{name: long, match: {{path: /long}}, upstream: api, timeouts: {{total: 20s}}}}
  - {{name: rest, upstream: api}}
",
        slow.address
    );
    let gateway = Gateway::before_url("").with(&text).start();
    let statuses = ["/free", "/long", "/"].map(|path| gateway.client().get(path, &[]).status);
    assert_eq!(statuses, [200, 200, 504]);
}
