//! Connections to an HTTP/1.1 upstream: which are kept, which are used again, and which requests are sent twice.

use std::io::Write;
use std::net::Shutdown;
use std::sync::{Arc, Barrier};

use super::upstreams::start;
use crate::support::{Gateway, Upstream};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

/// Makes the gateway keep this many idle connections. The upstream answers `/together` when it has this many requests.
fn keep_idle(gateway: &Gateway, count: usize, target: &str) {
    let mut clients: Vec<_> = (0..count).map(|_| gateway.client()).collect();
    for client in &mut clients {
        client.write(&format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
    }
    for client in &mut clients {
        assert_eq!(client.response("GET").unwrap().status, 200);
    }
}

#[test]
fn a_request_that_a_stale_connection_has_lost_is_sent_on_a_new_one() {
    let barrier = Barrier::new(2);
    let upstream = Upstream::answering(move |request, stream| {
        if request.line.contains("/together") {
            barrier.wait();
        } else if request.connection < 2 {
            // As if what was between had forgotten the connection.
            let _ = stream.shutdown(Shutdown::Both);
            return;
        }
        let _ = stream.write_all(OK);
    });
    let gateway = start(&[upstream.address], "", "threads: 1");
    keep_idle(&gateway, 2, "/together");
    assert_eq!(gateway.client().get("/", &[]).status, 200);
    assert_eq!(upstream.last().connection, 2);
    gateway.expect("tollgate_upstream_retries_total", &[], 1.0);
    gateway.expect("tollgate_upstream_errors_total", &["kind=\"closed\""], 1.0);
}

#[test]
fn a_response_without_a_body_keeps_its_connection() {
    let upstream = Upstream::answering(|request, stream| {
        let _ = stream.write_all(match request.line.split(' ').nth(1).unwrap() {
            "/204" => b"HTTP/1.1 204 No Content\r\n\r\n",
            "/304" => b"HTTP/1.1 304 Not Modified\r\n\r\n",
            _ => &b"HTTP/1.1 200 OK\r\n\r\n"[..],
        });
    });
    let gateway = start(&[upstream.address], "", "threads: 1");
    let mut client = gateway.client();
    for (method, target) in [("GET", "/204"), ("GET", "/304"), ("HEAD", "/200"), ("DELETE", "/204"), ("GET", "/304")] {
        let response = client.send(method, target, &[], "");
        assert_eq!(response.status.to_string(), target[1..], "{method}");
    }
    assert!(upstream.seen().iter().all(|request| request.connection == 0), "{:?}", upstream.seen());
}

#[test]
fn a_request_that_the_upstream_has_begun_to_answer_is_not_sent_again() {
    for begun in ["HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", "HTTP/1.1 100 Continue\r\n\r\n", "HTTP/1.1 20"] {
        let upstream = Upstream::answering(move |request, stream| {
            if request.line.contains("/begun") {
                let _ = stream.write_all(begun.as_bytes());
                let _ = stream.shutdown(Shutdown::Both);
            } else {
                let _ = stream.write_all(OK);
            }
        });
        let others = Upstream::answering(|_, stream| drop(stream.write_all(OK)));
        // With another endpoint, to which what has failed may go.
        let gateway = start(&[upstream.address, others.address], "", "threads: 1");
        let mut client = gateway.client();
        (0..2).for_each(|_| assert_eq!(client.get("/", &[]).status, 200));
        let statuses = [(); 2].map(|()| gateway.client().send("DELETE", "/begun", &[], "").status);
        assert!(statuses == [502, 200] || statuses == [200, 502], "{begun:?}: {statuses:?}");
        gateway.expect("tollgate_upstream_retries_total", &[], 0.0);
        gateway.expect("tollgate_upstream_errors_total", &["kind=\"closed\""], 1.0);
    }
}

#[test]
fn a_request_whose_trailers_have_been_read_is_not_sent_again() {
    let upstream = Upstream::answering(|request, stream| {
        if request.line.starts_with("PUT") {
            let _ = stream.shutdown(Shutdown::Both);
        } else {
            let _ = stream.write_all(OK);
        }
    });
    let gateway = start(&[upstream.address], "", "threads: 1");
    let mut client = gateway.client();
    assert_eq!(client.get("/", &[]).status, 200);
    client.write("PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Sum: 1\r\n\r\n");
    assert_eq!(client.response("PUT").unwrap().status, 502);
    assert_eq!((upstream.count(), upstream.last().trailers.len()), (2, 1));
}

#[test]
fn a_retry_beyond_the_budget_is_counted_once() {
    let [one, two] = [(); 2].map(|()| {
        Upstream::answering(|request, stream| {
            if request.line.contains("/lost") {
                let _ = stream.shutdown(Shutdown::Both);
            } else {
                let _ = stream.write_all(OK);
            }
        })
    });
    let keys = ", retries: {max: 1, budget: 0%}, ejection: false";
    let gateway = start(&[one.address, two.address], keys, "threads: 1");
    let mut client = gateway.client();
    let count = |name: &str| gateway.metric(name, &[]);
    // Ten are saved up.
    for lost in 1..100 {
        (0..2).for_each(|_| assert_eq!(client.get("/", &[]).status, 200));
        let before = count("tollgate_upstream_retries_total");
        assert_eq!(gateway.client().get("/lost", &[]).status, 502);
        if count("tollgate_upstream_retries_total") == before {
            assert!(lost > 1);
            gateway.expect("tollgate_upstream_retries_over_budget_total", &[], 1.0);
            return;
        }
    }
    panic!("the budget is never used up");
}

#[test]
fn the_idle_connections_of_one_upstream_do_not_displace_those_of_another() {
    const MOST: usize = 256;
    let barrier = Arc::new(Barrier::new(MOST));
    let [many, few] = [(); 2].map(|()| {
        let barrier = Arc::clone(&barrier);
        Upstream::answering(move |request, stream| {
            if request.line.contains("/together") {
                barrier.wait();
            }
            let _ = stream.write_all(OK);
        })
    });
    let text = format!(
        "threads: 1
upstreams:
  many: {{endpoints: [\"http://{}\"], timeouts: {{idle: 60s}}}}
  few: {{endpoints: [\"http://{}\"], timeouts: {{idle: 60s}}}}
routes: [{{name: many, match: {{path: /together}}, upstream: many}}, {{name: few, upstream: few}}]",
        many.address, few.address
    );
    let gateway = Gateway::before_url("").with(&text).start();
    keep_idle(&gateway, MOST, "/together");
    let mut client = gateway.client();
    for _ in 0..3 {
        assert_eq!(client.get("/few", &[]).status, 200);
    }
    let used: Vec<_> = few.seen().iter().map(|request| request.connection).collect();
    assert_eq!(used, [0; 3]);
}

#[test]
fn a_connection_keeps_no_timeout_of_a_request_before_a_reload() {
    let [slow, other] = [(); 2].map(|()| {
        Upstream::answering(|request, stream| {
            if request.line.contains("/slow") {
                std::thread::sleep(std::time::Duration::from_secs(1));
            }
            let _ = stream.write_all(OK);
        })
    });
    let text = |timeouts: &str, others: &str| {
        format!(
            "upstreams:
  api: {{endpoints: [\"http://{}\"], timeouts: {{{timeouts}}}}}
  {others}
routes: [{{name: all, upstream: api}}]",
            slow.address
        )
    };
    let h2c = format!("other: {{endpoints: [\"http://{}\"], protocol: h2c}}", other.address);
    let gateway = Gateway::before_url("").with(&text("read: 300ms", &h2c)).start();
    let mut client = gateway.client();
    assert_eq!(client.get("/", &[]).status, 200);
    gateway.reload_text(&text("read: 10s", ""));
    assert_eq!(client.get("/slow", &[]).status, 200);
}
