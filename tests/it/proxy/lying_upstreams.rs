//! Upstreams that lie about the end of their responses, in some 300 ways. No client gets a response to another request or two
//! responses to one, and no connection in a wrong state is used again.

use std::io::Write;
use std::net::Shutdown;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::byte_lists::{entries, unescaped};
use crate::support::{Client, Gateway, Upstream};

/// A response that must never reach a client.
const EVIL: &str = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nX-Smuggled: 1\r\n\r\nevil";

/// The behaviour of the upstream, and what its client gets.
#[derive(Clone, Debug)]
struct Lie {
    name: String,
    method: &'static str,
    /// The bytes that are sent at once, and the bytes that are sent after the client has its response.
    first: String,
    later: String,
    then: Then,
    expected: Expected,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Stays,
    Closes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// The valid part of the response, complete.
    Whole(u16, &'static str),
    /// A 502 response, or a response that is visibly cut off.
    Failure,
}

/// Valid responses, each with the method of its request and what the client gets.
const RIGHT: [(&str, &str, Expected); 9] = [
    ("GET", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", Expected::Whole(200, "ok")),
    ("GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", Expected::Whole(200, "")),
    ("GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", Expected::Whole(200, "ok")),
    ("GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: y\r\n\r\n", Expected::Whole(200, "")),
    ("GET", "HTTP/1.1 204 No Content\r\n\r\n", Expected::Whole(204, "")),
    ("GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", Expected::Whole(304, "")),
    ("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 63\r\n\r\n", Expected::Whole(200, "")),
    ("HEAD", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", Expected::Whole(200, "")),
    ("GET", "HTTP/1.1 103 Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", Expected::Whole(200, "ok")),
];

/// Bytes after a valid response that are part of no response.
fn surplus() -> [(&'static str, String); 9] {
    [
        ("a response", EVIL.to_owned()),
        ("two responses", EVIL.repeat(2)),
        ("an interim response and another", format!("HTTP/1.1 100 Continue\r\n\r\n{EVIL}")),
        ("an empty line", "\r\n".to_owned()),
        ("a last chunk", "0\r\n\r\n".to_owned()),
        ("the beginning of a head", "HTTP/1.1 200 OK\r\nX-Smuggled: 1\r\nX: ".to_owned()),
        ("a body", "evil".to_owned()),
        ("an upgrade", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\nevil".to_owned()),
        ("a long body", "evil".repeat(50_000)),
    ]
}

fn lies() -> Vec<Lie> {
    let mut lies = Vec::new();
    let mut add = |name: String, method, first: String, later: String, then, expected| {
        lies.push(Lie { name, method, first, later, then, expected });
    };
    for (method, right, expected) in RIGHT {
        for (name, surplus) in surplus() {
            let name = format!("{name} behind {method} {right:?}");
            add(format!("at once: {name}"), method, format!("{right}{surplus}"), String::new(), Then::Stays, expected);
            add(format!("later: {name}"), method, right.to_owned(), surplus, Then::Stays, expected);
        }
    }
    let mut wrong = |name: &str, text: String| {
        for then in [Then::Stays, Then::Closes] {
            add(format!("{name}, {then:?}"), "GET", text.clone(), String::new(), then, Expected::Failure);
        }
    };
    for (_, text) in entries(include_str!("../../responses.txt")) {
        wrong(text, String::from_utf8(unescaped(text)).unwrap() + EVIL);
    }
    add(
        "33 hints".into(),
        "GET",
        format!("{}{EVIL}", "HTTP/1.1 103 Hints\r\n\r\n".repeat(33)),
        String::new(),
        Then::Stays,
        Expected::Failure,
    );
    add(
        "less than its length".into(),
        "GET",
        "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok".into(),
        String::new(),
        Then::Closes,
        Expected::Failure,
    );
    lies
}

/// Starts a gateway with one thread, so that all its requests share the kept connections, and an upstream that lies at
/// `/NUMBER`. The receiver gets a message when the last bytes of a lie are sent. The sender asks for these bytes.
fn gateway(lies: &Arc<Vec<Lie>>) -> (Gateway, std::sync::mpsc::Sender<()>, Receiver<()>) {
    let ((go_on, told), (said, last)) = (channel::<()>(), channel());
    let (told, said, lies) = (Mutex::new(told), Mutex::new(said), Arc::clone(lies));
    let upstream = Upstream::answering(move |request, stream| {
        let number = request.line.split(['/', ' ']).nth(2).and_then(|number| number.parse::<usize>().ok());
        let Some(lie) = number.and_then(|number| lies.get(number)) else {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood");
            return;
        };
        let _ = stream.write_all(lie.first.as_bytes());
        if !lie.later.is_empty() {
            let _ = told.lock().unwrap().recv_timeout(Duration::from_secs(20));
            let _ = stream.write_all(lie.later.as_bytes());
            let _ = said.lock().unwrap().send(());
        }
        if lie.then == Then::Closes {
            let _ = stream.shutdown(Shutdown::Both);
        }
    });
    (Gateway::start(&upstream, "threads: 1\nupstream_timeouts: {read: 5s}"), go_on, last)
}

fn is_good(client: &mut Client) -> Result<(), String> {
    client.write_bytes(b"GET /good HTTP/1.1\r\nHost: a\r\n\r\n").map_err(|error| error.to_string())?;
    match client.response("GET") {
        Ok(response) if response.body == "good" && response.field("x-smuggled").is_none() => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

/// Sends the request of a lie and some requests after it. Returns what is wrong with the responses.
fn try_lie(
    number: usize,
    lie: &Lie,
    gateway: &Gateway,
    go_on: &std::sync::mpsc::Sender<()>,
    said: &Receiver<()>,
) -> Result<(), String> {
    let mut client = gateway.client();
    // The lie then comes on a kept connection.
    is_good(&mut client)?;
    client.write(&format!("{} /{number} HTTP/1.1\r\nHost: a\r\n\r\n", lie.method));
    let response = client.response(lie.method);
    if let Ok(response) = &response
        && (response.field("x-smuggled").is_some() || response.body.contains("evil"))
    {
        return Err(format!("{response:?}"));
    }
    match (&response, lie.expected) {
        (Ok(response), Expected::Whole(status, body)) if response.status == status && response.body == body => {}
        (Ok(response), Expected::Failure) if response.status == 502 => {}
        (Err(_), Expected::Failure) => {}
        _ => return Err(format!("{response:?}")),
    }
    if !lie.later.is_empty() {
        go_on.send(()).unwrap();
        said.recv_timeout(Duration::from_secs(20)).map_err(|error| error.to_string())?;
    }
    is_good(&mut gateway.client()).map_err(|error| format!("the next client: {error}"))?;
    if response.is_ok_and(|response| response.field("connection").as_deref() == Some("keep-alive")) {
        is_good(&mut client).map_err(|error| format!("the next request: {error}"))?;
    } else if !client.is_closed() {
        return Err("more follows on its connection".to_owned());
    }
    Ok(())
}

#[test]
fn no_lie_reaches_a_client_as_a_response() {
    let lies = Arc::new(lies());
    assert!(lies.len() >= 200, "{}", lies.len());
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let parts: Vec<_> = (0..4)
            .map(|first| {
                let lies = Arc::clone(&lies);
                scope.spawn(move || {
                    let (gateway, go_on, said) = gateway(&lies);
                    let part = lies.iter().enumerate().skip(first).step_by(4);
                    let wrong: Vec<String> = part
                        .filter_map(|(number, lie)| {
                            let error = try_lie(number, lie, &gateway, &go_on, &said).err()?;
                            Some(format!("{}: {error}", lie.name))
                        })
                        .collect();
                    gateway.expect("tollgate_http_connections", &[], 0.0);
                    wrong
                })
            })
            .collect();
        parts.into_iter().flat_map(|part| part.join().unwrap()).collect()
    });
    assert!(wrong.is_empty(), "{} of {} are wrong:\n{}", wrong.len(), lies.len(), wrong.join("\n"));
}
