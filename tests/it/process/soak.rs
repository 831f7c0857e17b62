//! Mixed traffic for some time: memory and open files do not grow. `benches/soak.py` does this with a release build, for
//! longer.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::authority::Authority;
use crate::support::http2::Http2Client;
use crate::support::tls_client::TlsSettings;
use crate::support::{Gateway, Upstream, eventually, now, print_measured, short_or_long};
use crate::tls::BOTH;

const CLIENTS: usize = 4;

fn config(burst: usize) -> String {
    format!(
        "listeners:
  - {{address: 127.0.0.1:0, protocols: [h2c, http/1.1]}}
  - {{address: 127.0.0.1:0, tls: {{certificates: [{{cert_file: a.pem, key_file: a.key}}]}}}}
store: {{memory: {{max_buckets: 1000}}}}
rules: [{{name: key, limit_keys: [query:k], algorithm_config: {{rps: 1, burst: {burst}}}}}]"
    )
}

fn open_files(gateway: &Gateway) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", gateway.id())).unwrap().count()
}

/// Ends the traffic, also when the test panics, because the scope waits for its threads.
struct StopWhenDropped<'s>(&'s AtomicBool);

impl Drop for StopWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends the same requests over HTTP/2 with and without TLS and over HTTP/1.1 with TLS. Some streams are reset.
fn send_otherwise(gateway: &Gateway, settings: &TlsSettings, number: usize) {
    let is_expected = |status: u16| assert!(matches!(status, 200 | 429), "{status}");
    if number.is_multiple_of(3) {
        let mut client = settings.connect(gateway.listeners[1], "a.test").unwrap();
        (0..10).for_each(|request| is_expected(client.get("a.test", &format!("/?k=tls-{number}-{request}"))));
        return;
    }
    let mut client = match number % 3 {
        1 => Http2Client::connect(gateway.http),
        _ => Http2Client::connect_tls(settings, gateway.listeners[1], "a.test"),
    };
    let targets = (0..20).map(|request| format!("/?k=again-{}", request % 10));
    let requests: Vec<_> = targets.map(|target| client.begin("GET", &target, &[], true)).collect();
    for (index, request) in requests.into_iter().enumerate() {
        if index % 7 == 6 {
            request.reset();
        } else {
            is_expected(request.response().unwrap().status);
        }
    }
}

/// Sends new and repeated keys, refused requests and invalid heads, on connections that end in various ways.
fn send(gateway: &Gateway, number: usize) {
    let mut client = gateway.client();
    for request in 0..50 {
        let key = if request % 3 == 0 { format!("once-{number}-{request}") } else { format!("again-{}", request % 10) };
        let status = client.get(&format!("/?k={key}"), &[]).status;
        assert!(matches!(status, 200 | 429), "{status}");
    }
    match number % 4 {
        0 => assert_eq!(client.send("GET", "/?k=last", &[("X Y", "z")], "").status, 400),
        1 => assert!(client.get("/?k=last", &[("Connection", "close")]).field("connection").is_some()),
        // A head that never ends.
        2 => client.write("GET /?k=half HTTP/1.1\r\nHost:"),
        _ => {}
    }
}

#[test]
fn mixed_traffic_and_reloads_leave_memory_and_files_as_they_are() {
    let lasting = short_or_long(Duration::from_secs(8), Duration::from_secs(300));
    let upstream = Upstream::start();
    let authority = Authority::new("ca");
    let issued = authority.issue(&["a.test"]);
    let files = [("a.pem", &*issued.certificate), ("a.key", &issued.key)];
    let gateway = Gateway::before(&upstream).with(&config(5)).files(&files).start();
    let settings = TlsSettings::new(&authority.pem(), None, &BOTH);
    let before = open_files(&gateway);
    let (stop, number) = (AtomicBool::new(false), AtomicUsize::new(0));
    let samples: Vec<u64> = std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let number = number.fetch_add(1, Ordering::Relaxed);
                    send(&gateway, number);
                    send_otherwise(&gateway, &settings, number);
                }
            });
        }
        let stop_when_dropped = StopWhenDropped(&stop);
        let (start, mut samples) = (now(), Vec::new());
        while start.elapsed() < lasting {
            gateway.reload(&upstream, &config(6 - samples.len() % 2));
            samples.push(gateway.resident_bytes());
        }
        drop(stop_when_dropped);
        samples
    });
    let (early, late) = samples.split_at(samples.len() / 2);
    let [early, late] = [early, late].map(|samples| samples.iter().max().copied().unwrap());
    let (requests, reloads) = (60 * number.into_inner(), samples.len());
    print_measured(&format!(
        "soak: more than {requests} requests, {reloads} reloads, at most {early} bytes early and {late} late"
    ));
    assert!(late < early + (8 << 20), "{early} bytes, then {late}, after {requests} requests and {reloads} reloads");
    // Those to the upstream stay for a while.
    eventually("the files are closed", || open_files(&gateway) <= before + 4 * CLIENTS);
}
