//! The delivery of spans. No request waits for it.

use std::io::Write;
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::{ALL, is_well, start};
use crate::support::collector::Collector;
use crate::support::{Gateway, Lateness, Orphan, Upstream, eventually, free_port, now};

/// The time within which an export is repeated. It is longer than a first attempt on a busy machine.
const TIMEOUT: (&str, &str) = ("OTEL_EXPORTER_OTLP_TIMEOUT", "2000");

#[test]
fn an_unreachable_or_wrong_collector_is_logged_once_and_so_is_its_recovery() {
    let upstream = Upstream::start();
    let answers = [
        ("HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n", "answered 500"),
        // Such an answer is a reason to try again.
        ("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n", "answered 503"),
        ("HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n", "answered 302"),
        ("\u{0}garbage\r\n\r\n", "protocol"),
        ("", "Peer disconnected"),
    ];
    let is_logged_once = |answer: &'static str, said: &str| {
        let posts = Upstream::answering(move |seen, stream| {
            let good = seen.line.starts_with("POST /v1/traces ") && seen.field("x-good").is_some();
            let answer = if good { "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n" } else { answer };
            let _ = stream.write_all(answer.as_bytes());
            let _ = stream.shutdown(std::net::Shutdown::Both);
        });
        let collector = Collector::over(posts);
        let gateway = start(&collector, &upstream, "", &[ALL, TIMEOUT]);
        for _ in 0..3 {
            let before = collector.posts().len();
            is_well(&gateway, 5);
            eventually("it is tried", || collector.posts().len() > before);
        }
        eventually("it is counted", || gateway.metric("tollgate_trace_spans_dropped_total", &["not_taken"]) >= 15.0);
        gateway.expect_logged(said);
        let errors = gateway.errors();
        assert_eq!(errors.matches("traces not sent").count(), 1, "{errors}");
        gateway.expect("tollgate_trace_spans_sent_total", &[], 0.0);
    };
    // All at once, since an export is tried again until its timeout.
    std::thread::scope(|scope| {
        for (answer, said) in answers {
            scope.spawn(move || is_logged_once(answer, said));
        }
    });

    // Away altogether, and back.
    let port = free_port();
    let url = format!("http://127.0.0.1:{port}");
    let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", &*url), ("OTEL_BSP_SCHEDULE_DELAY", "20"), ALL, TIMEOUT];
    let gateway = Gateway::before(&upstream).variables(&variables).start();
    is_well(&gateway, 5);
    eventually("it is reported", || gateway.has_logged("traces not sent"));
    let _collector = Collector::on(TcpListener::bind(("127.0.0.1", port)).unwrap());
    eventually("it is sent again", || {
        is_well(&gateway, 1);
        gateway.errors().contains("traces are sent again")
    });
    assert_eq!(gateway.errors().matches("traces not sent").count(), 1);
}

#[test]
fn a_batch_that_is_accepted_at_a_later_attempt_is_no_failure() {
    let upstream = Upstream::start();
    let attempts = AtomicUsize::new(0);
    let collector = Collector::over(Upstream::answering(move |_, stream| {
        let code = if attempts.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) { "503 Not Yet" } else { "200 OK" };
        let _ = write!(stream, "HTTP/1.1 {code}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    }));
    let gateway = start(&collector, &upstream, "", &[ALL]);
    for batches in 1..=3 {
        is_well(&gateway, 1);
        gateway.expect("tollgate_trace_spans_sent_total", &[], f64::from(batches * 3));
    }
    assert!(collector.posts().len() >= 6, "{}", collector.posts().len());
    gateway.expect("tollgate_trace_spans_dropped_total", &[], 0.0);
    let errors = gateway.errors();
    assert!(!errors.contains("traces not sent") && !errors.contains("traces are sent again"), "{errors}");
}

#[test]
fn a_slow_collector_costs_spans_and_delays_no_request() {
    let upstream = Upstream::start();
    let collector = Collector::over(Upstream::answering(|_, _| std::thread::sleep(Duration::from_secs(60))));
    let queue = [("OTEL_BSP_MAX_QUEUE_SIZE", "30"), ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "10")];
    let mut gateway = start(&collector, &upstream, "", &[ALL, queue[0], queue[1]]);
    is_well(&gateway, 1);
    eventually("it is called", || !collector.posts().is_empty());
    let begun = now();
    is_well(&gateway, 100);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    // Three spans each; thirty wait.
    gateway.expect("tollgate_trace_spans_dropped_total", &["queue_full"], 270.0);
    // With a call under way that will not end, it leaves in time all the same.
    let late = Lateness::measure();
    gateway.signal("TERM");
    let (status, took) = gateway.wait();
    assert_eq!(status.code(), Some(0));
    assert!(took < Duration::from_secs(4) + late.of_a_request(), "{took:?}");
    gateway.expect_logged("traces not all sent");
}

#[test]
fn queued_spans_are_sent_before_the_process_exits() {
    let (collector, upstream) = (Collector::start(), Upstream::start());
    let mut gateway = start(&collector, &upstream, "", &[ALL, ("OTEL_BSP_SCHEDULE_DELAY", "60000")]);
    is_well(&gateway, 3);
    assert_eq!(collector.posts().len(), 0);
    let late = Lateness::measure();
    gateway.signal("TERM");
    let (status, took) = gateway.wait();
    assert_eq!(status.code(), Some(0));
    assert!(took < Duration::from_secs(2) + late.of_a_request(), "{took:?}");
    assert_eq!(collector.spans().len(), 9);
}

#[test]
fn waiting_spans_are_sent_at_the_end_of_the_drain() {
    let (collector, upstream) = (Collector::start(), Upstream::answering(|_, _| {}));
    let delay = ("OTEL_BSP_SCHEDULE_DELAY", "60000");
    let rest = "drain: {timeout: 3s}\nrules: [{name: none, match: {path: /no}, action: deny}]\n";
    let mut gateway = start(&collector, &upstream, rest, &[ALL, delay]);
    assert_eq!(gateway.client().get("/no", &[]).status, 403);
    // One that is never answered keeps the process until the end.
    let mut stuck = gateway.client();
    stuck.write("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
    eventually("it is under way", || upstream.count() == 1);
    let late = Lateness::measure();
    gateway.signal("TERM");
    let (status, took) = gateway.wait();
    assert_eq!(status.code(), Some(0));
    assert!(took < Duration::from_secs(4) + late.of_a_request(), "{took:?}");
    collector.await_spans(&["request", "decision"]);
}

#[test]
fn after_an_upgrade_both_processes_have_sent_their_spans() {
    let (collector, upstream) = (Collector::start(), Upstream::start());
    let mut gateway = start(&collector, &upstream, "", &[ALL, ("OTEL_BSP_SCHEDULE_DELAY", "60000")]);
    is_well(&gateway, 2);
    gateway.signal("USR2");
    let next = Orphan::of(&gateway, 1);
    gateway.wait();
    assert_eq!(collector.spans().len(), 6);
    is_well(&gateway, 2);
    next.signal("TERM");
    eventually("the next leaves", || collector.spans().len() == 12);
}
