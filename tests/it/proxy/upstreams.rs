//! Several upstreams with several servers each: the server of a request, and the response if a server is faulty.

use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

use serde_json::Value;

use crate::support::{Gateway, Upstream, eventually};

/// Returns an address on which nothing listens.
fn nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn answering(status: u16) -> Upstream {
    Upstream::answering(move |_, stream| {
        let _ = write!(stream, "HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n");
    })
}

/// Starts an upstream that closes every connection after it has read a request.
fn closing() -> Upstream {
    Upstream::answering(|_, stream| {
        let _ = stream.shutdown(Shutdown::Both);
    })
}

/// Returns a configuration with one upstream that has these servers, and a route to it.
fn file(servers: &[SocketAddr], keys: &str, rest: &str) -> String {
    let endpoints: Vec<String> = servers.iter().map(|address| format!("http://{address}")).collect();
    format!(
        "upstreams: {{api: {{endpoints: [{}]{keys}}}}}\nroutes: [{{name: all, upstream: api}}]\n{rest}\n",
        endpoints.join(", ")
    )
}

pub(super) fn start(servers: &[SocketAddr], keys: &str, rest: &str) -> Gateway {
    Gateway::before_url("").with(&file(servers, keys, rest)).start()
}

#[track_caller]
pub(super) fn statuses(gateway: &Gateway, method: &str, requests: usize) -> Vec<u16> {
    let mut client = gateway.client();
    let mut send = |_| {
        let response = client.send(method, "/", &[], "");
        if response.field("connection").as_deref() == Some("close") {
            client = gateway.client();
        }
        response.status
    };
    (0..requests).map(&mut send).collect()
}

#[test]
fn a_request_goes_to_the_upstream_of_the_first_route_that_it_matches() {
    let [api, beta, other] = [(); 3].map(|()| Upstream::start());
    let text = format!(
        "upstreams:
  api: {{endpoints: [\"http://{}\"]}}
  beta: {{endpoints: [\"http://{}\"]}}
  other: {{endpoints: [\"http://{}\"]}}
routes:
  - {{name: beta, match: {{path: /v1/*, header:x-beta: \"1\"}}, upstream: beta}}
  - {{name: v1, match: {{path: /v1/*}}, upstream: api}}
  - {{name: tenants, match: {{host: \"*.example.com\", method: [GET, POST]}}, upstream: other}}
access_log: {{to: access.log, when: [allowed, refused, error], attributes: [route, upstream]}}
rules:
  - {{name: beta, match: {{route: beta}}, limit_keys: [upstream], algorithm_config: {{rps: 0.001, burst: 1}}, expose: true}}
",
        api.address, beta.address, other.address
    );
    let gateway = Gateway::before_url("").with(&text).start();
    let mut client = gateway.client();
    let mut get = |target: &str, fields: &[(&str, &str)]| client.send("GET", target, fields, "");
    assert_eq!(get("/v1/a", &[]).status, 200);
    assert_eq!(get("/v1/../v1", &[("X-Beta", "1")]).status, 200);
    assert_eq!(get("/v1/b", &[("X-Beta", "1")]).status, 429);
    assert_eq!(get("/", &[("Host", "A.Example.com:80")]).status, 200);
    assert_eq!([api.count(), beta.count(), other.count()], [1, 1, 1]);
    for (target, fields) in
        [("/", &[][..]), ("/", &[("Host", "a.b.example.com")]), ("/v1x", &[("Host", "example.com")])]
    {
        let response = get(target, fields);
        assert_eq!((response.status, response.field("x-tollgate-reason").as_deref()), (404, Some("no_route")));
    }
    // What a route reads must have one reading.
    let repeated = get("/v1", &[("X-Beta", "1"), ("X-Beta", "0")]);
    assert_eq!(repeated.field("x-tollgate-reason").as_deref(), Some("ambiguous_request"));
    assert_eq!([api.count(), beta.count(), other.count()], [1, 1, 1]);
    gateway.expect("tollgate_http_requests_total", &["route=\"v1\"", "200"], 1.0);
    gateway.expect("tollgate_http_requests_total", &["route=\"beta\"", "429"], 1.0);
    gateway.expect("tollgate_http_requests_total", &["route=\"none\"", "404"], 3.0);
    gateway.expect("tollgate_http_request_duration_seconds_count", &["route=\"tenants\"", "origin=\"upstream\""], 1.0);
    gateway.expect("tollgate_upstream_request_duration_seconds_count", &["upstream=\"beta\""], 1.0);
    eventually("the log is written", || log(&gateway).len() == 8);
    let lines = log(&gateway);
    let names =
        |line: &Value| (line["route"].as_str().unwrap().to_owned(), line["upstream"].as_str().map(str::to_owned));
    assert_eq!(names(&lines[0]), ("v1".to_owned(), Some("api".to_owned())));
    assert_eq!(lines[0]["endpoint"], api.address.to_string());
    assert_eq!(names(&lines[2]), ("beta".to_owned(), None));
    assert_eq!(names(&lines[4]), ("none".to_owned(), None));
    assert_eq!(lines[2]["attributes"].as_object().unwrap().len(), 2);
}

pub(super) fn log(gateway: &Gateway) -> Vec<Value> {
    let text = std::fs::read_to_string(gateway.file("access.log")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn requests_are_shared_by_weight() {
    let [one, two, three] = [(); 3].map(|()| Upstream::start());
    let text = format!(
        "upstreams: {{api: {{endpoints: [\"http://{}\", {{url: \"http://{}\", weight: 3}}, \"http://{}\"]}}}}
routes: [{{name: all, upstream: api}}]",
        one.address, two.address, three.address
    );
    let gateway = Gateway::before_url("").with(&text).start();
    assert_eq!(statuses(&gateway, "GET", 50), [200; 50]);
    assert_eq!([one.count(), two.count(), three.count()], [10, 30, 10]);
}

#[test]
fn least_requests_avoids_a_busy_server() {
    let (quick, busy) = (
        Upstream::start(),
        Upstream::answering(|_, stream| {
            std::thread::sleep(std::time::Duration::from_millis(400));
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        }),
    );
    let gateway = start(&[quick.address, busy.address], ", balance: least_requests", "");
    let clients: Vec<_> = (0..8)
        .map(|_| {
            let mut client = gateway.client();
            std::thread::spawn(move || (0..20).for_each(|_| assert_eq!(client.get("/", &[]).status, 200)))
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    // In turn it would have been half of them.
    assert!(busy.count() < 40 && quick.count() > 120, "{} {}", busy.count(), quick.count());
}

#[test]
fn requests_with_the_same_value_go_to_the_same_server() {
    let servers = [(); 3].map(|()| Upstream::start());
    let addresses = servers.each_ref().map(|server| server.address);
    let gateway = start(&addresses, ", balance: {hash: header:x-tenant}", "");
    let mut client = gateway.client();
    let mut had = [0; 3];
    for tenant in 0..30 {
        let before = servers.each_ref().map(Upstream::count);
        let tenant = format!("tenant-{tenant}");
        (0..4).for_each(|_| assert_eq!(client.get("/", &[("X-Tenant", &tenant)]).status, 200));
        let more = [0, 1, 2].map(|index| servers[index].count() - before[index]);
        let index = more.iter().position(|count| *count == 4).unwrap_or_else(|| panic!("{tenant}: {more:?}"));
        had[index] += 1;
    }
    assert!(had.iter().all(|tenants| *tenants > 2), "{had:?}");
    // Without a value they go in turn.
    let before = servers.each_ref().map(Upstream::count);
    (0..6).for_each(|_| assert_eq!(client.get("/", &[]).status, 200));
    assert_eq!([0, 1, 2].map(|index| servers[index].count() - before[index]), [2, 2, 2]);
}

#[test]
fn no_server_has_more_requests_than_it_may() {
    let (arrived, begun) = (Arc::new(AtomicUsize::new(0)), Arc::new(Barrier::new(5)));
    let waiting = || {
        let (arrived, begun) = (Arc::clone(&arrived), Arc::clone(&begun));
        Upstream::answering(move |request, stream| {
            if request.line.starts_with("GET /wait ") {
                arrived.fetch_add(1, Ordering::Relaxed);
                begun.wait();
            }
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        })
    };
    for servers in [vec![waiting(), waiting()], vec![waiting()]] {
        arrived.store(0, Ordering::Relaxed);
        let addresses: Vec<_> = servers.iter().map(|server| server.address).collect();
        let most = 4 / servers.len();
        let gateway = start(&addresses, &format!(", max_connections: {most}"), "");
        let client = |_| {
            let mut client = gateway.client();
            std::thread::spawn(move || assert_eq!(client.get("/wait", &[]).status, 200))
        };
        let clients: Vec<_> = (0..4).map(client).collect();
        eventually("four requests", || arrived.load(Ordering::Relaxed) == 4);
        assert!(servers.iter().all(|server| server.count() == most));
        let refused = gateway.client().get("/", &[]);
        assert_eq!((refused.status, refused.field("x-tollgate-reason").as_deref()), (503, Some("upstream_busy")));
        assert_eq!(refused.field("retry-after").as_deref(), Some("1"));
        gateway.expect("tollgate_refused_requests_total", &["upstream_busy"], 1.0);
        begun.wait();
        clients.into_iter().for_each(|client| client.join().unwrap());
        eventually("there is room again", || gateway.client().get("/", &[]).status == 200);
    }
}

#[test]
fn clients_do_not_notice_a_server_that_refuses_connections_and_it_is_ejected() {
    let (good, dead) = (Upstream::start(), nobody());
    let gateway = start(&[good.address, dead], "", "access_log: {to: access.log, when: [allowed]}");
    assert_eq!(statuses(&gateway, "POST", 40), [200; 40]);
    assert_eq!(good.count(), 40);
    gateway.expect("tollgate_upstream_retries_total", &["connect_failed"], 5.0);
    gateway.expect("tollgate_upstream_errors_total", &["connect_failed"], 0.0);
    gateway.expect_logged("endpoint ejected");
    eventually("the log is written", || log(&gateway).len() == 40);
    let failed: Vec<Value> = log(&gateway).into_iter().filter(|line| !line["failed_attempts"].is_null()).collect();
    assert_eq!(failed.len(), 5);
    let attempt = &failed[0]["failed_attempts"][0];
    assert_eq!((&attempt["endpoint"], &attempt["error"]), (&dead.to_string().into(), &"connect_failed".into()));
    assert!(attempt["failed_us"].as_u64() <= failed[0]["duration_us"].as_u64());
    assert_eq!(failed[0]["endpoint"], good.address.to_string());
}

#[test]
fn a_single_server_is_never_ejected() {
    let gateway = start(&[nobody()], ", ejection: {consecutive: 1, max_share: 99%}", "");
    assert_eq!(statuses(&gateway, "GET", 3), [502; 3]);
    assert!(!gateway.has_logged("endpoint ejected"));
    gateway.expect("tollgate_upstream_errors_total", &["connect_failed"], 3.0);
}

#[test]
fn a_server_that_answers_503_is_ejected_for_its_time_and_its_answers_pass() {
    let (good, ill) = (Upstream::start(), answering(503));
    let keys = ", ejection: {consecutive: 3, for: 3s}";
    let gateway = start(&[good.address, ill.address], keys, "");
    let statuses = statuses(&gateway, "GET", 30);
    assert_eq!(statuses.iter().filter(|status| **status == 503).count(), 3, "{statuses:?}");
    eventually("it is tried again", || gateway.client().get("/", &[]).status == 503);
    // One failure is enough then.
    let again = self::statuses(&gateway, "GET", 10);
    assert_eq!(again, [200; 10]);
}

#[test]
fn when_all_are_ejected_all_are_used() {
    let ill = [answering(503), answering(503)];
    let keys = ", ejection: {consecutive: 1, for: 1m, max_share: 100%}";
    let gateway = start(&[ill[0].address, ill[1].address], keys, "");
    assert_eq!(statuses(&gateway, "GET", 20), [503; 20]);
    assert!(ill.iter().all(|ill| ill.count() >= 5), "{} {}", ill[0].count(), ill[1].count());
}

#[test]
fn a_request_is_sent_again_only_if_that_cannot_do_harm_twice() {
    for (method, body, retried) in
        [("GET", "", true), ("DELETE", "", true), ("POST", "", false), ("PUT", "body", false), ("POST", "body", false)]
    {
        let (good, bad) = (Upstream::start(), closing());
        let gateway = start(&[good.address, bad.address], ", ejection: false", "");
        let mut client = gateway.client();
        let mut statuses: Vec<u16> = Vec::new();
        for _ in 0..6 {
            if statuses.last() == Some(&502) {
                client = gateway.client();
            }
            statuses.push(client.send(method, "/", &[], body).status);
        }
        let failed = statuses.iter().filter(|status| **status == 502).count();
        assert_eq!((failed, bad.count()), (if retried { 0 } else { 3 }, 3), "{method} {body}: {statuses:?}");
        assert_eq!(good.count(), if retried { 6 } else { 3 }, "{method} {body}");
    }
}

#[test]
fn a_silent_server_costs_an_idempotent_request_its_read_timeout_and_no_error() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let good = Upstream::start();
    let keys = ", timeouts: {read: 2s}, ejection: {consecutive: 2}";
    let gateway = start(&[good.address, silent.local_addr().unwrap()], keys, "");
    assert_eq!(statuses(&gateway, "GET", 12), [200; 12]);
    gateway.expect("tollgate_upstream_retries_total", &["read_timeout"], 2.0);
}

#[test]
fn one_decision_and_one_charge_cover_all_attempts() {
    let (good, bad) = (Upstream::start(), closing());
    let rest = "rules: [{name: all, limit_keys: [], algorithm_config: {rps: 0.001, burst: 10}, expose: true}]";
    let gateway = start(&[good.address, bad.address], ", ejection: false", rest);
    let statuses = statuses(&gateway, "GET", 12);
    assert_eq!((&statuses[..10], &statuses[10..]), (&[200; 10][..], &[429; 2][..]));
    assert_eq!((good.count(), bad.count()), (10, 5));
    gateway.expect("rate_limiter_decisions_total", &["allowed"], 10.0);
    // What the upstreams saw: each request once, and the attempts that were followed by another.
    gateway.expect("tollgate_http_requests_total", &["origin=\"upstream\""], 10.0);
    gateway.expect("tollgate_upstream_retries_total", &["closed"], 5.0);
}

#[test]
fn retries_stay_within_their_budget() {
    let (good, dead) = (Upstream::start(), nobody());
    let gateway = start(&[good.address, dead], ", ejection: false, retries: {max: 1, budget: 0%}", "");
    let mut failed = 0;
    for _ in 0..40 {
        failed += usize::from(gateway.client().get("/", &[]).status == 502);
    }
    // Ten are saved up.
    assert_eq!((failed, good.count()), (10, 30));
    gateway.expect("tollgate_upstream_retries_total", &["connect_failed"], 10.0);
}

#[test]
fn least_requests_shares_by_weight_among_equal_servers() {
    let [one, two, three] = [(); 3].map(|()| Upstream::start());
    let text = format!(
        "upstreams:
  api:
    endpoints: [\"http://{}\", {{url: \"http://{}\", weight: 2}}, \"http://{}\"]
    balance: least_requests
routes: [{{name: all, upstream: api}}]",
        one.address, two.address, three.address
    );
    let gateway = Gateway::before_url("").with(&text).start();
    let counts = || [&one, &two, &three].map(Upstream::count);
    let round = || {
        let before = counts();
        let clients: Vec<_> = (0..4)
            .map(|_| {
                let mut client = gateway.client();
                std::thread::spawn(move || (0..300).for_each(|_| assert_eq!(client.get("/", &[]).status, 200)))
            })
            .collect();
        clients.into_iter().for_each(|client| client.join().unwrap());
        let after = counts();
        [0, 1, 2].map(|index| after[index] - before[index])
    };
    // The bound that docs/configuration/upstreams.md states: a fifth from a share.
    let is_shared = |counts: [usize; 3]| {
        counts.iter().zip([300, 600, 300]).all(|(count, share)| count.abs_diff(share) <= share / 5)
    };
    // One that a busy machine does not run for a while is not equal to the others.
    let mut rounds = vec![round()];
    while !is_shared(rounds[rounds.len() - 1]) {
        assert!(rounds.len() < 6, "{rounds:?} in place of 300, 600, 300");
        rounds.push(round());
    }
}

#[test]
fn no_more_servers_are_ejected_than_may_be() {
    let ill = [(); 4].map(|()| answering(503));
    let keys = ", ejection: {consecutive: 1, for: 1m, max_share: 50%}";
    let gateway = start(&ill.each_ref().map(|ill| ill.address), keys, "");
    let ejected = || gateway.metric("tollgate_upstream_endpoints", &["state=\"ejected\""]);
    for _ in 0..10 {
        assert_eq!(statuses(&gateway, "GET", 4), [503; 4]);
        assert!(ejected() <= 2.0);
    }
    gateway.expect("tollgate_upstream_endpoints", &["state=\"ejected\""], 2.0);
    gateway.expect("tollgate_upstream_ejections_total", &[], 2.0);
    // The other two have them all since.
    let mut had = ill.each_ref().map(Upstream::count);
    had.sort_unstable();
    assert!(had[0] <= 2 && had[1] <= 2 && had[2] >= 17 && had[3] >= 17, "{had:?}");
}

#[test]
fn what_the_servers_saw_is_what_was_counted_over_all_attempts() {
    for on in ["connect, reset", "connect, reset, 502, 503, 504"] {
        compare_counts(on);
    }
}

fn compare_counts(on: &str) {
    let silent = Upstream::answering(|_, stream| drop(std::io::Read::read(stream, &mut [0])));
    let servers = [Upstream::start(), closing(), answering(503), answering(504), silent];
    let mut addresses: Vec<SocketAddr> = servers.iter().map(|server| server.address).collect();
    addresses.push(nobody());
    let keys = format!(", ejection: false, retries: {{max: 3, budget: 60%, on: [{on}]}}, timeouts: {{read: 300ms}}");
    let rest = "rules: [{name: all, limit_keys: [], algorithm_config: {rps: 0.001, burst: 1000}}]";
    let gateway = start(&addresses, &keys, rest);
    let requests: u32 = 60;
    for number in 0..requests {
        let (method, body) = [("GET", ""), ("POST", "x"), ("DELETE", "")][number as usize / 6 % 3];
        gateway.client().send(method, "/", &[], body);
    }
    let counted = |name: &str, labels: &[&str]| gateway.metric(name, labels);
    gateway.expect("rate_limiter_allowed_total", &[], f64::from(requests));
    gateway.expect("tollgate_http_requests_total", &[], f64::from(requests));
    // As docs/operations.md has it.
    let answered = counted("tollgate_http_requests_total", &["origin=\"upstream\""]);
    let failed: f64 = ["502", "504"]
        .map(|code| counted("tollgate_http_requests_total", &["origin=\"gateway\"", &format!("code=\"{code}\"")]))
        .iter()
        .sum();
    let of_kind = |name: &str, kinds: &[&str]| -> f64 {
        kinds.iter().map(|kind| counted(name, &[&format!("kind=\"{kind}\"")])).sum()
    };
    let unconnected = ["connect_failed", "connect_timeout", "certificate", "tls"];
    let never_sent = of_kind("tollgate_upstream_errors_total", &["unresolved"])
        + of_kind("tollgate_upstream_errors_total", &unconnected);
    let retries = counted("tollgate_upstream_retries_total", &[]);
    let retries = retries - of_kind("tollgate_upstream_retries_total", &unconnected);
    let seen = servers.iter().map(Upstream::count).sum::<usize>();
    assert_eq!(answered + failed - never_sent + retries, f64::from(u32::try_from(seen).unwrap()));
    // Each of the terms was something.
    assert!(failed > 0.0 && retries > 5.0, "{failed} {retries}");
    // By endpoint the same: every attempt is one there.
    let attempts = counted("tollgate_endpoint_requests_total", &[]);
    assert_eq!(
        attempts - of_kind("tollgate_endpoint_failures_total", &unconnected),
        f64::from(u32::try_from(seen).unwrap())
    );
}
