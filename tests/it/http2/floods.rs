//! Floods from hostile clients: each is limited, and another client is served at the same time.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::before;
use crate::support::http2_frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, FrameClient, GOAWAY, HEADERS, PING, PRIORITY, RST_STREAM, SETTINGS,
    WINDOW_UPDATE, block, fields_block, frame, get, request,
};
use crate::support::{
    Client, Gateway, Lateness, Upstream, eventually, now, print_measured, short_or_long, wait_for_nothing,
};

const CANCEL: [u8; 4] = [0, 0, 0, 8];

/// Runs `attack` while another client sends requests one by one. Returns the longest time of such a request.
fn beside<T>(address: SocketAddr, attack: impl FnOnce() -> T) -> (T, Duration) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut client = Client::connect(address);
            let mut longest = Duration::ZERO;
            while !done.load(Ordering::Relaxed) {
                let began = now();
                assert_eq!(client.get("/other", &[]).status, 200);
                longest = longest.max(began.elapsed());
            }
            longest
        });
        let result = attack();
        done.store(true, Ordering::Relaxed);
        (result, other.join().unwrap())
    })
}

/// The end of an attack's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Closed,
    /// All bytes were read.
    Served,
}

/// Sends these bytes on a new connection, as far as the server accepts them.
fn attack(gateway: &Gateway, name: &str, bytes: &[u8]) -> Outcome {
    let (cpu_before, late) = (gateway.cpu_time(), Lateness::measure());
    let memory_before = gateway.resident_bytes();
    let (frames, longest) = beside(gateway.http, || {
        let mut client = FrameClient::connect(gateway.http);
        let mut reading = client.reader();
        let reader = std::thread::spawn(move || reading.rest());
        // An error: the connection has been closed.
        let _ = bytes.chunks(16 << 10).try_for_each(|part| client.try_write(part));
        let _ = client.try_write(&frame(PING, 0, 0, b"the end."));
        client.finish_writing();
        reader.join().unwrap()
    });
    let cpu = gateway.cpu_time() - cpu_before;
    let grown = gateway.resident_bytes().saturating_sub(memory_before) >> 10;
    let is_served = frames.iter().any(|frame| frame.kind == PING && frame.payload == b"the end.");
    let outcome = if is_served { Outcome::Served } else { Outcome::Closed };
    // It may be lost, if the connection is closed before everything has been read.
    let goaway = frames.iter().rfind(|frame| frame.kind == GOAWAY).map(|frame| frame.error_code());
    print_measured(&format!(
        "{name}: {outcome:?} {goaway:?}, {cpu:?} CPU, {grown} KiB more, longest other request {longest:?}"
    ));
    assert!(longest < Duration::from_secs(2) + late.of_a_request(), "{name}: others waited {longest:?}");
    assert!(grown < 32 << 10, "{name}: {grown} KiB");
    outcome
}

/// Returns the ids of this many streams, in order.
fn streams(count: u32) -> impl Iterator<Item = u32> {
    (0..count).map(|number| 2 * number + 1)
}

#[test]
fn resets_beyond_those_of_an_impatient_reader_end_the_connection() {
    let upstream = Upstream::start();
    let gateway = before(&upstream).start();
    let rapid = |count| -> Vec<u8> {
        streams(count).flat_map(|id| [get(id, "/"), frame(RST_STREAM, 0, id, &CANCEL)].concat()).collect()
    };
    assert_eq!(attack(&gateway, "150 resets", &rapid(150)), Outcome::Served);
    assert_eq!(attack(&gateway, "rapid reset", &rapid(short_or_long(3000, 100_000))), Outcome::Closed);
    let reached = upstream.seen().iter().filter(|seen| seen.line.starts_with("GET / ")).count();
    print_measured(&format!("{reached} of the resets reached the upstream"));
    assert!(reached < 600, "{reached} requests reached the upstream");
    // Of a client that resets less than half of its streams, no number is too many.
    let mut client = FrameClient::connect(gateway.http);
    for id in streams(900) {
        client.write(&get(id, "/"));
        match id % 6 {
            1 => client.write(&frame(RST_STREAM, 0, id, &CANCEL)),
            _ => assert_eq!(client.outcome(id), Ok(200)),
        }
    }
    gateway.expect("tollgate_http_connections", &["h2c"], 1.0);
}

#[test]
fn trailers_do_not_hide_resets() {
    let upstream = Upstream::start();
    let gateway = before(&upstream).start();
    let mut client = FrameClient::connect(gateway.http);
    let mut reading = client.reader();
    let reader = std::thread::spawn(move || reading.rest());
    for id in streams(600) {
        let opened =
            [request(id, "POST", "/", &[], 0), frame(HEADERS, END_STREAM | END_HEADERS, id, &fields_block(&[]))];
        // A stream that is accepted before it is reset is not counted by the h2 crate.
        if client.try_write(&opened.concat()).is_err() || client.try_write(&frame(RST_STREAM, 0, id, &CANCEL)).is_err()
        {
            break;
        }
        wait_for_nothing(Duration::from_millis(1));
    }
    client.finish_writing();
    reader.join().unwrap();
    gateway.expect("tollgate_http2_errors_total", &["kind=\"flood\""], 1.0);
}

/// Fewer streams than the limit. A stream beyond the limit is refused, and this is written before more is read.
const UNREAD: u32 = 40;

/// Opens a connection on which nothing more can be written: its client requests as much as allowed, and reads nothing.
fn unread(gateway: &Gateway) -> FrameClient {
    let mut client = FrameClient::connect(gateway.http);
    client.write(&frame(SETTINGS, 0, 0, &[0, 4, 0x7f, 0xff, 0xff, 0xff]));
    client.write(&frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0, 0]));
    let flight: Vec<u8> = streams(UNREAD).flat_map(|id| get(id, "/large")).collect();
    client.write(&flight);
    client
}

#[test]
fn a_connection_that_fails_while_its_client_reads_nothing_stops_no_other() {
    let upstream = large_responses();
    let incomplete = frame(HEADERS, END_STREAM, 2 * UNREAD + 1, &block("GET", "/", &[]));
    let resets: Vec<u8> = streams(400)
        .skip(UNREAD as usize)
        .flat_map(|id| [get(id, "/"), frame(RST_STREAM, 0, id, &CANCEL)].concat())
        .collect();
    for (name, bytes, kind) in [("an incomplete head", incomplete, "header_timeout"), ("resets", resets, "flood")] {
        let gateway = before(&upstream).with("threads: 1\nlimits: {header_timeout: 1500ms}").start();
        let mut client = unread(&gateway);
        // What can be written is, meanwhile.
        wait_for_nothing(Duration::from_millis(2000));
        let late = Lateness::measure();
        let ((), longest) = beside(gateway.http, || {
            client.write(&bytes);
            let kind = format!("kind=\"{kind}\"");
            eventually("it fails", || gateway.metric("tollgate_http2_errors_total", &[&kind]) == 1.0);
            eventually("it is closed", || gateway.metric("tollgate_http_connections", &["h2c"]) == 0.0);
        });
        print_measured(&format!("{name} from a client that reads nothing: longest other request {longest:?}"));
        assert!(longest < Duration::from_secs(2) + late.of_a_request(), "{name}: others waited {longest:?}");
    }
}

#[test]
fn streams_that_the_gateway_is_made_to_reset_are_bounded() {
    let upstream = Upstream::start();
    let gateway = before(&upstream).start();
    // A body that is longer than its length is an error of its stream.
    let made: Vec<u8> = streams(short_or_long(2000, 50_000))
        .flat_map(|id| {
            [request(id, "POST", "/", &[("content-length", "1")], 0), frame(DATA, END_STREAM, id, b"xx")].concat()
        })
        .collect();
    assert_eq!(attack(&gateway, "made to reset", &made), Outcome::Closed);
    let malformed: Vec<u8> =
        streams(2000).flat_map(|id| request(id, "GET", "/", &[("connection", "close")], END_STREAM)).collect();
    assert_eq!(attack(&gateway, "malformed heads", &malformed), Outcome::Closed);
    assert!(upstream.seen().iter().filter(|seen| seen.line.starts_with("POST")).count() < 300);
}

#[test]
fn a_header_block_without_an_end_is_bounded() {
    let upstream = Upstream::start();
    let gateway = before(&upstream).start();
    let head = block("GET", "/", &[]);
    let filler = block("GET", "/", &[("x-a", &"x".repeat(10_000))]);
    for (name, part) in
        [("empty continuations", &filler[..0]), ("long continuations", &filler[filler.len() - 10_000..])]
    {
        let flood = [frame(HEADERS, END_STREAM, 1, &head), frame(CONTINUATION, 0, 1, part).repeat(2000)].concat();
        assert_eq!(attack(&gateway, name, &flood), Outcome::Closed);
    }
    // A short name that stands for a long value, many times.
    let mut bomb = vec![0x40, 3, b'x', b'-', b'a', 127, 0x81, 0x1f];
    bomb.resize(bomb.len() + 4096, b'y');
    let bomb = [block("GET", "/", &[]), bomb, vec![0xbe; 12_000]].concat();
    let bombs: Vec<u8> =
        streams(50).flat_map(|id| frame(HEADERS, END_STREAM | END_HEADERS, id, &bomb[..16_000])).collect();
    attack(&gateway, "header bombs", &bombs);
    assert!(upstream.seen().iter().all(|seen| seen.line.contains("/other")));
}

#[test]
fn frames_that_carry_nothing_end_the_connection() {
    let upstream = Upstream::start();
    let gateway = before(&upstream).start();
    let count = short_or_long(30_000, 300_000);
    for (name, one) in [
        ("pings", frame(PING, 0, 0, b"12345678")),
        ("settings", frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0xff, 0xff])),
        ("priorities", frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 1])),
        ("unknown frames", frame(99, 0, 0, b"x")),
    ] {
        assert_eq!(attack(&gateway, name, &one.repeat(count)), Outcome::Closed, "{name}");
    }
    let empty = [request(1, "POST", "/", &[], 0), frame(DATA, 0, 1, &[]).repeat(count)].concat();
    assert_eq!(attack(&gateway, "empty data", &empty), Outcome::Closed);
    gateway.expect("tollgate_http2_errors_total", &["kind=\"flood\""], 4.0);
    // So many as an honest client sends.
    assert_eq!(attack(&gateway, "1000 pings", &frame(PING, 0, 0, b"12345678").repeat(1000)), Outcome::Served);
}

/// Starts an upstream that answers `/large` with 1 MiB.
fn large_responses() -> Upstream {
    static PART: [u8; 16 << 10] = [b'x'; 16 << 10];
    Upstream::answering(|request, stream| {
        let parts = if request.line.contains("/large") { 64 } else { 1 };
        let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", parts * PART.len());
        let _ = (0..parts).try_for_each(|_| stream.write_all(&PART));
    })
}

#[test]
fn responses_that_nobody_reads_take_bounded_memory() {
    let upstream = large_responses();
    let gateway = before(&upstream).start();
    let before = gateway.resident_bytes();
    let (connections, late) = (short_or_long(2, 20), Lateness::measure());
    let ((), longest) = beside(gateway.http, || {
        let mut clients: Vec<_> = (0..connections).map(|_| FrameClient::connect(gateway.http)).collect();
        for client in &mut clients {
            let flight: Vec<u8> = streams(100).flat_map(|id| get(id, "/large")).collect();
            client.write(&flight);
        }
        gateway.expect("tollgate_http_connections", &["h2c"], f64::from(u32::try_from(connections).unwrap()));
        std::thread::sleep(Duration::from_millis(1500));
    });
    let grown = gateway.resident_bytes().saturating_sub(before) >> 10;
    print_measured(&format!(
        "{connections} x 100 unread responses of 1 MiB: {grown} KiB, longest other request {longest:?}"
    ));
    assert!(grown / u64::try_from(connections).unwrap() < 64 << 10, "{grown} KiB");
    assert!(longest < Duration::from_secs(2) + late.of_a_request(), "{longest:?}");
}
