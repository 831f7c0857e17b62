//! Traces: who is traced, what a span holds and never holds, and that nobody waits for a collector.

use std::io::Write;
use std::net::TcpListener;
use std::process::Stdio;
use std::time::Duration;

use serde_json::json;

use crate::support::collector::{Collector, Span};
use crate::support::mint::{Signer, epoch};
use crate::support::{Certificates, Client, Gateway, Redis, Upstream, eventually, free_port, https, now};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";
/// One that is granted, and no more.
const ONE: &str = "rules: [{name: one, limit_keys: [ip:address], algorithm_config: {rate: 1/day}}]\n";

fn caller(flags: &str) -> String {
    format!("00-{TRACE}-{CALLER}-{flags}")
}

/// Traces to this collector, and soon.
fn start(collector: &Collector, upstream: &Upstream, rest: &str, variables: &[(&str, &str)]) -> Gateway {
    let url = collector.url();
    let ours = [("OTEL_EXPORTER_OTLP_ENDPOINT", &*url), ("OTEL_BSP_SCHEDULE_DELAY", "20")];
    let all: Vec<_> = ours.into_iter().chain(variables.iter().copied()).collect();
    Gateway::start_in(upstream, rest, &all)
}

const ALL: (&str, &str) = ("OTEL_TRACES_SAMPLER", "always_on");
/// Those alone whose callers say so.
const CALLERS: [(&str, &str); 2] =
    [("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", "0")];

#[track_caller]
fn the<'s>(spans: &'s [Span], role: &str) -> &'s Span {
    spans.iter().find(|span| span.role() == role).unwrap_or_else(|| panic!("no {role} in {spans:#?}"))
}

#[test]
fn a_granted_request_is_one_tree_and_the_upstream_is_called_from_it() {
    let (collector, upstream) = (Collector::start(), Upstream::start());
    let gateway = start(&collector, &upstream, ONE, &CALLERS);
    let fields = [("traceparent", &*caller("01")), ("tracestate", "vendor=1"), ("X-Request-Id", "its-name")];
    assert_eq!(gateway.client().get("/a", &fields).status, 200);
    let spans = collector.await_spans(&["request", "decision", "upstream"]);
    let [request, decision, onward] = ["request", "decision", "upstream"].map(|role| the(&spans, role));
    assert!(spans.iter().all(|span| span.trace() == TRACE && span.start <= span.end && !span.is_faulty()));
    assert_eq!(request.parent(), CALLER);
    assert_eq!((decision.parent(), onward.parent()), (request.id(), request.id()));
    assert!(decision.start == request.start && decision.end <= onward.start && onward.end == request.end);
    let wall = u128::from(epoch()) * 1_000_000_000;
    assert!(wall.abs_diff(u128::from(request.start)) < 60_000_000_000, "{}", request.start);

    let told =
        |span: &Span, keys: &[&str]| keys.iter().map(|key| span.get(key).unwrap_or_default()).collect::<Vec<_>>();
    let port = gateway.http.port().to_string();
    assert_eq!(request.name, "GET");
    assert_eq!(
        told(request, &["http.request.method", "url.scheme", "http.response.status_code", "server.address"]),
        ["GET", "http", "200", "127.0.0.1"]
    );
    assert_eq!(
        told(request, &["server.port", "tollgate.origin", "tollgate.request_id", "tollgate.policy", "tollgate.rule"]),
        [&*port, "upstream", "its-name", "default", "one"]
    );
    assert_eq!(
        told(
            decision,
            &["tollgate.outcome", "tollgate.source", "tollgate.rule", "tollgate.cost", "tollgate.remaining"]
        ),
        ["passed", "store", "one", "1", "0"]
    );
    assert_eq!(decision.get("tollgate.bucket").unwrap().len(), 16);
    let port = upstream.address.port().to_string();
    assert_eq!(
        told(onward, &["http.request.method", "server.address", "server.port", "http.response.status_code"]),
        ["GET", "127.0.0.1", &*port, "200"]
    );

    let seen = upstream.last();
    assert_eq!(seen.field("traceparent"), Some(&*format!("00-{TRACE}-{}-01", onward.id())));
    assert_eq!(seen.field("tracestate"), Some("vendor=1"));
    assert!(spans.iter().all(|span| span.state.is_empty()), "what a client adds is not ours to tell");
    gateway.expect("tollgate_trace_spans_sent_total", &[], 3.0);
}

#[test]
fn a_refused_request_says_by_whom_and_calls_nobody() {
    let (collector, upstream) = (Collector::start(), Upstream::start());
    let rest = "access_log: {to: stderr, attributes: [ip:address]}\npolicies:\n\
        - {name: all, rules: [{name: wide, limit_keys: [ip:address], algorithm_config: {rps: 100, burst: 100}}]}\n\
        - {name: plan, rules: [{name: free, limit_keys: [ip:address], algorithm_config: {rate: 1/day}}]}\n";
    let gateway = start(&collector, &upstream, rest, &CALLERS);
    let mut client = gateway.client();
    assert_eq!(client.get("/", &[]).status, 200);
    assert_eq!(client.get("/", &[("traceparent", &caller("01"))]).status, 429);
    let spans = collector.await_spans(&["request", "decision"]);
    let [request, decision] = ["request", "decision"].map(|role| the(&spans, role));
    for span in [request, decision] {
        assert_eq!(span.get("tollgate.reason").as_deref(), Some("token_bucket_exceeded"));
        assert_eq!(span.get("http.response.status_code").as_deref(), Some("429"));
        assert_eq!(span.get("tollgate.policy").as_deref(), Some("plan"));
        assert_eq!(span.get("tollgate.rule").as_deref(), Some("free"));
        // A refusal is what a gateway is for.
        assert!(!span.is_faulty());
    }
    assert_eq!(request.get("tollgate.origin").as_deref(), Some("gateway"));
    assert_eq!(decision.get("tollgate.outcome").as_deref(), Some("refused"));
    let limits = decision.get("tollgate.limits");
    assert_eq!(limits.as_deref(), Some("all/wide enforce allow, plan/free enforce deny"));
    assert!(decision.get("tollgate.retry_after").unwrap().parse::<u64>().unwrap() > 80_000);

    // The same names as in the log, so that one leads to the other.
    let refused = |line: &&str| line.contains("\"kind\":\"refused\"");
    eventually("it is written", || gateway.errors().lines().any(|line| refused(&line)));
    let errors = gateway.errors();
    let line = errors.lines().find(refused).unwrap();
    let line: serde_json::Value = serde_json::from_str(line).unwrap();
    let names = [&line["bucket"], &line["attributes"]["ip:address"], &line["request_id"]];
    let told = ["tollgate.bucket", "tollgate.attribute.ip:address"].map(|key| decision.get(key).unwrap());
    assert_eq!(
        names.map(|name| name.as_str().unwrap()),
        [&*told[0], &told[1], &request.get("tollgate.request_id").unwrap()]
    );
}

#[test]
fn a_call_of_the_store_is_one_span_that_links_to_each_decision_it_served() {
    let (collector, upstream, redis) = (Collector::start(), Upstream::start(), Redis::start());
    let rest = redis.patient_store()
        + "rules: [{name: all, limit_keys: [ip:address], algorithm_config: {rps: 1000, burst: 1000}}]\n";
    let gateway = start(&collector, &upstream, &rest, &[ALL]);
    let clients: Vec<_> = (0..16)
        .map(|_| {
            let address = gateway.http;
            std::thread::spawn(move || {
                let mut client = Client::connect(address);
                (0..10).for_each(|_| assert_eq!(client.get("/", &[]).status, 200));
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    let of = |role: &str| collector.spans().into_iter().filter(|span| span.role() == role).collect::<Vec<_>>();
    let links = || of("store").iter().map(|call| call.links().len()).sum::<usize>();
    eventually("all have come", || of("request").len() == 160 && links() == 160);
    let (decisions, calls) = (of("decision"), of("store"));
    let mut linked: Vec<_> = calls.iter().flat_map(Span::links).collect();
    let mut decided: Vec<_> = decisions.iter().map(|decision| (decision.trace(), decision.id())).collect();
    linked.sort();
    decided.sort();
    assert_eq!(linked, decided);
    assert!(calls.len() < 160, "no call served two");
    for call in &calls {
        assert_eq!((call.trace(), call.parent()), call.links()[0], "it stands below the first");
        assert_eq!(call.get("tollgate.requests"), Some(call.links().len().to_string()));
        assert_eq!(call.get("db.system.name").as_deref(), Some("redis"));
        assert_eq!(call.get("server.port"), Some(redis.port.to_string()));
        assert!(!call.is_faulty() && call.dropped_links == 0);
    }
}

#[test]
fn a_call_that_fails_says_how() {
    let (collector, upstream, redis) = (Collector::start(), Upstream::start(), Redis::start());
    let rest = redis.store("deny")
        + "rules: [{name: all, limit_keys: [ip:address], algorithm_config: {rps: 1000, burst: 1000}}]\n";
    let gateway = start(&collector, &upstream, &rest, &[ALL]);
    redis.signal("STOP");
    let refused = gateway.client().get("/", &[]).status;
    redis.signal("CONT");
    assert_eq!(refused, 503);
    eventually("the call ends", || collector.spans().iter().any(|span| span.role() == "store"));
    let spans = collector.spans();
    let call = the(&spans, "store");
    assert_eq!((call.get("error.type").as_deref(), call.is_faulty()), (Some("timeout"), true));
    let decision = the(&spans, "decision");
    assert_eq!(decision.get("tollgate.reason").as_deref(), Some("store_unavailable"));
    assert_eq!(decision.get("tollgate.source").as_deref(), Some("fallback"));
    assert!(the(&spans, "request").is_faulty(), "a 503");
}

#[test]
fn an_upstream_that_fails_is_seen_in_its_span() {
    let collector = Collector::start();
    let away = Upstream::answering(|_, stream| drop(stream.shutdown(std::net::Shutdown::Both)));
    let gateway = start(&collector, &away, "", &[ALL]);
    assert_eq!(gateway.client().get("/", &[]).status, 502);
    let spans = collector.await_spans(&["request", "decision", "upstream"]);
    let onward = the(&spans, "upstream");
    assert_eq!(onward.get("error.type").as_deref(), Some("closed"));
    assert_eq!(onward.get("http.response.status_code"), None);
    assert!(onward.is_faulty() && the(&spans, "request").is_faulty());
}

#[test]
fn the_flag_of_a_caller_is_obeyed_so_often_and_no_more() {
    let (collector, upstream) = (Collector::start(), Upstream::start());
    let variables = [CALLERS[0], CALLERS[1], ("TOLLGATE_TRACES_FROM_CLIENTS", "2")];
    let gateway = start(&collector, &upstream, "", &variables);
    let mut client = gateway.client();
    let begun = now();
    for _ in 0..40 {
        assert_eq!(client.get("/", &[("traceparent", &caller("01"))]).status, 200);
    }
    let seconds = usize::try_from(begun.elapsed().as_secs()).unwrap() + 2;
    let ours = upstream.seen().iter().filter(|seen| seen.field("traceparent") != Some(&*caller("01"))).count();
    assert!(ours >= 2 && ours <= 2 * seconds, "{ours} in {seconds} s");
    eventually("they come", || collector.spans().iter().filter(|span| span.role() == "request").count() == ours);
    gateway.expect("tollgate_traces_declined_total", &[], f64::from(40 - u32::try_from(ours).unwrap()));
}

#[test]
fn what_is_not_traced_leaves_nothing_and_is_passed_on_as_it_was_sent() {
    let (collector, upstream) = (Collector::start(), Upstream::start());
    for variables in [&CALLERS[..], &[("OTEL_TRACES_SAMPLER", "always_off")]] {
        let mut gateway = start(&collector, &upstream, "", variables);
        let mut client = gateway.client();
        let bad = [&caller("01")[..54], "00-0-0-01", &caller("01").to_uppercase(), ""];
        for sent in bad.into_iter().chain([&*caller("00"), "ff-0-0-0"]) {
            assert_eq!(client.get("/", &[("traceparent", sent), ("tracestate", "vendor=1")]).status, 200);
            let seen = upstream.last();
            assert_eq!((seen.field("traceparent"), seen.field("tracestate")), (Some(sent), Some("vendor=1")));
        }
        assert_eq!(client.get("/", &[]).status, 200);
        assert_eq!(upstream.last().field("traceparent"), None);
        gateway.signal("TERM");
        gateway.wait();
    }
    assert_eq!(collector.posts().len(), 0);
}

#[test]
fn a_caller_that_cannot_be_read_is_none() {
    let (collector, upstream) = (Collector::start(), Upstream::start());
    let gateway = start(&collector, &upstream, "", &[ALL]);
    let fields = [("traceparent", &caller("01")[..54]), ("tracestate", "vendor=1")];
    assert_eq!(gateway.client().get("/", &fields).status, 200);
    let spans = collector.await_spans(&["request", "decision", "upstream"]);
    let (request, onward) = (the(&spans, "request"), the(&spans, "upstream"));
    assert_eq!(request.parent(), "");
    assert_ne!(request.trace(), TRACE);
    let seen = upstream.last();
    assert_eq!(seen.field("traceparent"), Some(&*format!("00-{}-{}-01", request.trace(), onward.id())));
    // It belongs to a trace that there is not.
    assert_eq!(seen.field("tracestate"), None);
}

#[test]
fn nothing_that_a_client_sent_is_told_in_the_clear() {
    let (collector, upstream) = (Collector::start(), Upstream::start());
    let attributes = "jwt:sub, path, \"header:x-tenant\", \"query:q\", \"cookie:c\"";
    let rest = format!(
        "jwt: {{algorithms: [HS256], keys: {{secret: correct-horse-battery-staple-correct}}}}\n\
        access_log: {{to: stderr, when: all, attributes: [{attributes}, host, ip:address, \"header:x-api-key\"]}}\n\
        rules: [{{name: all, limit_keys: [{attributes}], algorithm_config: {{rate: 1/day}}}}]\n"
    );
    let gateway = start(&collector, &upstream, &rest, &[ALL]);
    let claims = json!({"sub": "secret-subject", "exp": epoch() + 60});
    let token = Signer::hs256("correct-horse-battery-staple-correct").token(&json!({"alg": "HS256"}), &claims);
    let bearer = format!("Bearer {token}");
    let fields = [
        ("Host", "secret-host.example"),
        ("Authorization", &*bearer),
        ("X-Api-Key", "secret-key"),
        ("X-Tenant", "secret-tenant"),
        ("Cookie", "c=secret-cookie"),
        ("User-Agent", "secret-agent"),
        ("Referer", "http://secret-referer/"),
        ("X-Forwarded-For", "198.51.100.77"),
        ("traceparent", &caller("01")),
        ("tracestate", "vendor=secret-state"),
        ("baggage", "user=secret-baggage"),
    ];
    let mut client = gateway.client();
    for (method, status) in [("GET", 200), ("GET", 429), ("SECRETMETHOD", 429)] {
        assert_eq!(client.send(method, "/secret-path?q=secret-query", &fields, "").status, status);
    }
    collector.await_spans(&["request", "decision", "upstream", "request", "decision", "request", "decision"]);
    for post in collector.posts() {
        let text = String::from_utf8_lossy(&post.body).to_lowercase();
        assert!(text.contains("tollgate.attribute.jwt:sub"), "the names are there");
        for secret in ["secret", "198.51.100.77", &token.to_lowercase()] {
            assert!(!text.contains(secret), "{secret} in {text}");
        }
    }
}

/// Requests and readiness do not change, whatever becomes of spans.
#[track_caller]
fn is_well(gateway: &Gateway, requests: usize) {
    let mut client = gateway.client();
    for _ in 0..requests {
        assert_eq!(client.get("/", &[]).status, 200);
    }
    assert_eq!(Client::connect(gateway.admin).get("/readyz", &[]).status, 200);
}

#[test]
fn a_collector_that_is_away_or_wrong_is_told_once_and_so_is_its_return() {
    let upstream = Upstream::start();
    for (answer, said) in [
        ("HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n", "answered 500"),
        ("HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n", "answered 302"),
        ("\u{0}garbage\r\n\r\n", "protocol"),
        ("", ""),
    ] {
        let posts = Upstream::answering(move |seen, stream| {
            let good = seen.line.starts_with("POST /v1/traces ") && seen.field("x-good").is_some();
            let answer = if good { "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n" } else { answer };
            let _ = stream.write_all(answer.as_bytes());
            let _ = stream.shutdown(std::net::Shutdown::Both);
        });
        let collector = Collector::over(posts);
        let gateway = start(&collector, &upstream, "", &[ALL, ("OTEL_EXPORTER_OTLP_TIMEOUT", "200")]);
        for _ in 0..3 {
            let before = collector.posts().len();
            is_well(&gateway, 5);
            eventually("it is tried", || collector.posts().len() > before);
        }
        eventually("it is counted", || gateway.metric("tollgate_trace_spans_dropped_total", &["not_taken"]) >= 15.0);
        let errors = gateway.errors();
        assert_eq!(errors.matches("traces not sent").count(), 1, "{errors}");
        assert!(errors.contains(said), "{errors}");
        gateway.expect("tollgate_trace_spans_sent_total", &[], 0.0);
    }

    // Away altogether, and back.
    let port = free_port();
    let url = format!("http://127.0.0.1:{port}");
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &*url),
        ("OTEL_BSP_SCHEDULE_DELAY", "20"),
        ALL,
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "200"),
    ];
    let gateway = Gateway::start_in(&upstream, "", &variables);
    is_well(&gateway, 5);
    eventually("it is told", || gateway.errors().contains("traces not sent"));
    let _collector = Collector::on(TcpListener::bind(("127.0.0.1", port)).unwrap());
    eventually("it is sent again", || {
        is_well(&gateway, 1);
        gateway.errors().contains("traces are sent again")
    });
    assert_eq!(gateway.errors().matches("traces not sent").count(), 1);
}

#[test]
fn a_slow_collector_costs_spans_and_nobody_waits() {
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
    gateway.signal("TERM");
    let (status, took) = gateway.wait();
    assert_eq!(status.code(), Some(0));
    assert!(took < Duration::from_secs(4), "{took:?}");
    assert!(gateway.errors().contains("traces not all sent"), "{}", gateway.errors());
}

#[test]
fn what_waits_is_sent_before_the_process_leaves() {
    let (collector, upstream) = (Collector::start(), Upstream::start());
    let mut gateway = start(&collector, &upstream, "", &[ALL, ("OTEL_BSP_SCHEDULE_DELAY", "60000")]);
    is_well(&gateway, 3);
    assert_eq!(collector.posts().len(), 0);
    gateway.signal("TERM");
    let (status, took) = gateway.wait();
    assert_eq!(status.code(), Some(0));
    assert!(took < Duration::from_secs(2), "{took:?}");
    assert_eq!(collector.spans().len(), 9);
}

#[test]
fn at_the_drains_end_what_waits_has_been_sent() {
    let (collector, upstream) = (Collector::start(), Upstream::answering(|_, _| {}));
    let delay = ("OTEL_BSP_SCHEDULE_DELAY", "60000");
    let rest = "drain: {timeout: 3s}\nrules: [{name: none, match: {path: /no}, action: deny}]\n";
    let mut gateway = start(&collector, &upstream, rest, &[ALL, delay]);
    assert_eq!(gateway.client().get("/no", &[]).status, 403);
    // One that is never answered keeps the process until the end.
    let mut stuck = gateway.client();
    stuck.write("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
    eventually("it is under way", || upstream.count() == 1);
    gateway.signal("TERM");
    let (status, took) = gateway.wait();
    assert_eq!(status.code(), Some(0));
    assert!(took < Duration::from_secs(4), "{took:?}");
    collector.await_spans(&["request", "decision"]);
}

#[test]
fn the_next_process_traces_too_and_the_first_leaves_nothing_behind() {
    let (collector, upstream) = (Collector::start(), Upstream::start());
    let mut gateway = start(&collector, &upstream, "", &[ALL, ("OTEL_BSP_SCHEDULE_DELAY", "60000")]);
    is_well(&gateway, 2);
    gateway.signal("USR2");
    eventually("it hands over", || gateway.errors().contains("handed over"));
    let errors = gateway.errors();
    let next: String =
        errors.split("handed over pid=").nth(1).unwrap().chars().take_while(char::is_ascii_digit).collect();
    gateway.wait();
    assert_eq!(collector.spans().len(), 6);
    is_well(&gateway, 2);
    let kill = std::process::Command::new("kill").arg(&next).status().unwrap();
    assert!(kill.success());
    eventually("the next leaves", || collector.spans().len() == 12);
}

#[test]
fn the_collector_gets_what_the_environment_says() {
    let (collector, upstream) = (Collector::start(), Upstream::start());
    let url = format!("{}/elsewhere", collector.url());
    let variables = [
        ALL,
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", &*url),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=blue%20one, authorization=Basic Zm9v"),
        ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,service.namespace=edge"),
    ];
    let gateway = start(&collector, &upstream, "", &variables);
    is_well(&gateway, 1);
    collector.await_spans(&["request", "decision", "upstream"]);
    let post = &collector.posts()[0];
    assert_eq!(post.line, "POST /elsewhere HTTP/1.1");
    assert_eq!((post.field("x-tenant"), post.field("authorization")), (Some("blue one"), Some("Basic Zm9v")));
    assert_eq!(post.field("content-type"), Some("application/x-protobuf"));
    let resource = ["service.name", "service.version", "deployment.environment.name", "service.namespace"];
    let said = resource.map(|key| collector.resource(key).unwrap());
    assert_eq!(said, ["tollgate", env!("CARGO_PKG_VERSION"), "test", "edge"]);
    assert!(!gateway.errors().contains("Zm9v"), "{}", gateway.errors());

    let named = Collector::start();
    let gateway = start(&named, &upstream, "", &[ALL, ("OTEL_SERVICE_NAME", "front")]);
    is_well(&gateway, 1);
    named.await_spans(&["request", "decision", "upstream"]);
    assert_eq!(named.resource("service.name").as_deref(), Some("front"));
    assert!(named.posts()[0].line.starts_with("POST /v1/traces "));
}

#[test]
fn a_collector_behind_tls_has_to_be_vouched_for() {
    let (certificates, upstream) = (Certificates::get(), Upstream::start());
    let address = https::serve(certificates, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_owned());
    let url = format!("https://localhost:{}", address.port());
    let directory = tempfile::tempdir().unwrap();
    let authority = directory.path().join("authority.pem");
    std::fs::write(&authority, &certificates.authority).unwrap();
    let path = authority.display().to_string();
    let variables = [ALL, ("OTEL_EXPORTER_OTLP_ENDPOINT", &*url), ("OTEL_BSP_SCHEDULE_DELAY", "20")];
    let trusting = [&variables[..], &[("OTEL_EXPORTER_OTLP_CERTIFICATE", &*path)]].concat();
    let gateway = Gateway::start_in(&upstream, "", &trusting);
    is_well(&gateway, 1);
    gateway.expect("tollgate_trace_spans_sent_total", &[], 3.0);
    // The machine does not know that authority.
    let gateway =
        Gateway::start_in(&upstream, "", &[&variables[..], &[("OTEL_EXPORTER_OTLP_TIMEOUT", "200")]].concat());
    is_well(&gateway, 1);
    gateway.expect("tollgate_trace_spans_dropped_total", &["not_taken"], 3.0);
    assert!(gateway.errors().contains("UnknownIssuer"), "{}", gateway.errors());
}

#[test]
fn without_a_collector_or_disabled_nothing_is_traced_or_told() {
    let (collector, upstream) = (Collector::start(), Upstream::start());
    let url = collector.url();
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", &*url);
    for variables in [
        &[ALL][..],
        &[ALL, ("OTEL_EXPORTER_OTLP_ENDPOINT", "")],
        &[ALL, endpoint, ("OTEL_SDK_DISABLED", "TRUE")],
        &[ALL, endpoint, ("OTEL_TRACES_EXPORTER", "none")],
    ] {
        let mut gateway = Gateway::start_in(&upstream, "", variables);
        let fields = [("traceparent", &*caller("01"))];
        assert_eq!(gateway.client().get("/", &fields).status, 200);
        assert_eq!(upstream.last().field("traceparent"), Some(&*caller("01")));
        let metrics = Client::connect(gateway.admin).get("/metrics", &[]).body;
        assert!(!metrics.contains("tollgate_trace"), "{metrics}");
        gateway.signal("TERM");
        gateway.wait();
        assert!(!gateway.errors().contains("trace"), "{}", gateway.errors());
    }
    assert_eq!(collector.posts().len(), 0);
}

#[test]
fn a_variable_that_is_wrong_is_a_reason_not_to_start() {
    let upstream = Upstream::start();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("gateway.yaml");
    std::fs::write(&file, Gateway::text(&format!("http://{}", upstream.address), "")).unwrap();
    let check = |variables: &[(&str, &str)], said: &[&str]| {
        let mut command = Gateway::command(&file);
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318").envs(variables.iter().copied());
        let output = command.stdin(Stdio::null()).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        let lines: Vec<_> = errors.lines().filter(|line| !line.contains("INFO") && !line.contains("WARN")).collect();
        assert_eq!((output.status.code(), &lines[..]), (Some(1), said), "{errors}");
    };
    let url = "must be a URL with http or https and a host, and no user in it";
    for endpoint in ["collector:4318", "ftp://collector", "http://", "http://me:secret@collector"] {
        check(&[("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)], &[&format!("OTEL_EXPORTER_OTLP_ENDPOINT: {url}")]);
    }
    check(
        &[
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_TRACES_SAMPLER", "sometimes"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "0"),
        ],
        &[
            "OTEL_EXPORTER_OTLP_PROTOCOL: must be http/protobuf, is `grpc`",
            "OTEL_BSP_MAX_QUEUE_SIZE: must be a number from 1 to 1000000, is `0`",
            "OTEL_TRACES_SAMPLER: must be always_on, always_off, traceidratio, or one of these behind parentbased_, is `sometimes`",
        ],
    );
    check(
        &[("OTEL_BSP_MAX_QUEUE_SIZE", "10"), ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "11")],
        &["OTEL_BSP_MAX_EXPORT_BATCH_SIZE: must be a number from 1 to 10, is `11`"],
    );
    for (name, value, must) in [
        ("OTEL_TRACES_SAMPLER_ARG", "2", "must be a number from 0 to 1, is `2`"),
        ("OTEL_TRACES_SAMPLER_ARG", "NaN", "must be a number from 0 to 1, is `NaN`"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "5s", "must be a number from 1 to 3600000, is `5s`"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip", "must be none, is `gzip`"),
        ("OTEL_TRACES_EXPORTER", "zipkin", "must be otlp or none, is `zipkin`"),
        ("OTEL_SDK_DISABLED", "yes", "must be true or false, is `yes`"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "secret", "must be a list of name=value, with commas between them"),
        ("OTEL_RESOURCE_ATTRIBUTES", "a=b,c", "must be a list of name=value, is `a=b,c`"),
        ("TOLLGATE_TRACES_FROM_CLIENTS", "-1", "must be a number from 0 to 16777215, is `-1`"),
    ] {
        check(&[(name, value)], &[&format!("{name}: {must}")]);
    }
    let missing = directory.path().join("missing.pem").display().to_string();
    check(
        &[("OTEL_EXPORTER_OTLP_CERTIFICATE", &missing)],
        &[&format!("{missing}: No such file or directory (os error 2)")],
    );
}
