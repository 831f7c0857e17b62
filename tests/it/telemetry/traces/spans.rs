//! The content of spans, and what they never contain.

use serde_json::json;

use super::{ALL, CALLER, CALLERS, TRACE, caller, start, the};
use crate::support::collector::{Collector, Span};
use crate::support::mint::{Signer, epoch};
use crate::support::{Client, Redis, Upstream, eventually};

/// A rule that grants one request.
const ONE: &str = "rules: [{name: one, limit_keys: [ip:address], algorithm_config: {rate: 1/day}}]\n";

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

    let reported =
        |span: &Span, keys: &[&str]| keys.iter().map(|key| span.get(key).unwrap_or_default()).collect::<Vec<_>>();
    let port = gateway.http.port().to_string();
    assert_eq!(request.name, "GET");
    assert_eq!(
        reported(request, &["http.request.method", "url.scheme", "http.response.status_code", "server.address"]),
        ["GET", "http", "200", "127.0.0.1"]
    );
    assert_eq!(
        reported(
            request,
            &["server.port", "tollgate.origin", "tollgate.request_id", "tollgate.policy", "tollgate.rule"]
        ),
        [&*port, "upstream", "its-name", "default", "one"]
    );
    assert_eq!(
        reported(
            decision,
            &["tollgate.outcome", "tollgate.source", "tollgate.rule", "tollgate.cost", "tollgate.remaining"]
        ),
        ["passed", "store", "one", "1", "0"]
    );
    assert_eq!(decision.get("tollgate.bucket").unwrap().len(), 16);
    let port = upstream.address.port().to_string();
    assert_eq!(
        reported(onward, &["http.request.method", "server.address", "server.port", "http.response.status_code"]),
        ["GET", "127.0.0.1", &*port, "200"]
    );

    let seen = upstream.last();
    assert_eq!(seen.field("traceparent"), Some(&*format!("00-{TRACE}-{}-01", onward.id())));
    assert_eq!(seen.field("tracestate"), Some("vendor=1"));
    assert!(spans.iter().all(|span| span.state.is_empty()), "what a client adds is not ours to tell");
    gateway.expect("tollgate_trace_spans_sent_total", &[], 3.0);
}

#[test]
fn a_delayed_request_has_a_span_between_its_decision_and_the_upstream() {
    let (collector, upstream) = (Collector::start(), Upstream::start());
    let line = "rules: [{name: line, limit_keys: [ip:address], algorithm: leaky_bucket, \
                algorithm_config: {rate: 20/min, queue: 1, max_wait: 5s}}]\n";
    let gateway = start(&collector, &upstream, line, &CALLERS);
    let mut client = gateway.client();
    assert_eq!(client.get("/", &[]).status, 200);
    assert_eq!(client.get("/", &[("traceparent", &caller("01"))]).status, 200);
    let spans = collector.await_spans(&["request", "decision", "wait", "upstream"]);
    let [request, decision, wait, onward] = ["request", "decision", "wait", "upstream"].map(|role| the(&spans, role));
    assert_eq!((wait.parent(), wait.get("tollgate.rule").as_deref()), (request.id(), Some("line")));
    assert!(decision.end == wait.start && wait.start < wait.end && wait.end == onward.start, "{spans:?}");
    assert!(onward.end == request.end);
}

#[test]
fn a_refused_request_names_the_limit_and_has_no_upstream_span() {
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
    let reported = ["tollgate.bucket", "tollgate.attribute.ip:address"].map(|key| decision.get(key).unwrap());
    assert_eq!(
        names.map(|name| name.as_str().unwrap()),
        [&*reported[0], &reported[1], &request.get("tollgate.request_id").unwrap()]
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
        assert_eq!((call.trace(), call.parent()), call.links()[0], "it is below the first");
        assert_eq!(call.get("tollgate.requests"), Some(call.links().len().to_string()));
        assert_eq!(call.get("db.system.name").as_deref(), Some("redis"));
        assert_eq!(call.get("server.port"), Some(redis.port.to_string()));
        assert!(!call.is_faulty() && call.dropped_links == 0);
    }
}

#[test]
fn a_failed_call_of_the_store_names_its_error() {
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
fn a_client_that_disconnects_before_the_decision_is_no_error() {
    let (collector, upstream, redis) = (Collector::start(), Upstream::start(), Redis::start());
    let rest = format!("threads: 1\n{}{ONE}", redis.patient_store());
    let gateway = start(&collector, &upstream, &rest, &CALLERS);
    redis.signal("STOP");
    // A call is under way, for which the next request waits. This one is not traced.
    let mut stays = gateway.client();
    stays.write("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
    eventually("a call is under way", || redis.has_unread_calls());
    let mut leaves = gateway.client();
    leaves.write(&format!("GET / HTTP/1.1\r\nHost: test\r\ntraceparent: {}\r\n\r\n", caller("01")));
    gateway.expect("tollgate_http_connections", &[], 2.0);
    drop(leaves);
    gateway.answers_without_the_store();
    redis.signal("CONT");
    let spans = collector.await_spans(&["request", "decision"]);
    let [request, decision] = ["request", "decision"].map(|role| the(&spans, role));
    assert_eq!(decision.get("tollgate.outcome").as_deref(), Some("gone"));
    assert_eq!(request.get("http.response.status_code").as_deref(), Some("499"));
    for span in [request, decision] {
        assert!(!span.is_faulty() && span.get("tollgate.reason").is_none(), "{span:?}");
    }
}

#[test]
fn an_upstream_failure_shows_in_the_upstream_span() {
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
fn every_attempt_has_a_span_that_its_endpoint_is_given() {
    let collector = Collector::start();
    let [bad, good] =
        [Upstream::answering(|_, stream| drop(stream.shutdown(std::net::Shutdown::Both))), Upstream::start()];
    let text = format!(
        "upstreams: {{api: {{endpoints: [\"http://{}\", \"http://{}\"], ejection: false}}}}
routes: [{{name: all, upstream: api}}]",
        bad.address, good.address
    );
    let gateway = start(&collector, &good, &text, &[ALL]);
    while bad.count() == 0 {
        assert_eq!(gateway.client().get("/", &[]).status, 200);
    }
    let of = |upstream: &Upstream| {
        let port = upstream.address.port().to_string();
        move |span: &Span| span.role() == "upstream" && span.get("server.port").as_deref() == Some(&*port)
    };
    let (is_bad, is_good) = (of(&bad), of(&good));
    eventually("the spans arrive", || {
        let spans = collector.spans();
        spans.iter().any(&is_bad) && spans.iter().filter(|span| is_good(span)).count() == good.count()
    });
    let spans = collector.spans();
    let failed = spans.iter().find(|span| is_bad(span)).unwrap();
    let retry = spans.iter().find(|span| is_good(span) && span.trace() == failed.trace()).unwrap();
    assert_eq!((failed.get("error.type").as_deref(), retry.get("error.type")), (Some("closed"), None));
    assert_eq!(failed.parent(), retry.parent());
    assert!(failed.start <= failed.end && failed.end <= retry.start);
    assert_eq!(
        (failed.get("http.request.resend_count"), retry.get("http.request.resend_count").as_deref()),
        (None, Some("1"))
    );
    for (upstream, span) in [(&bad, failed), (&good, retry)] {
        let traced = format!("00-{}-{}-01", span.trace(), span.id());
        assert!(upstream.seen().iter().any(|seen| seen.field("traceparent") == Some(&*traced)), "{traced}");
    }
}

#[test]
fn spans_contain_nothing_that_a_client_sent() {
    let (collector, upstream) = (Collector::start(), Upstream::start());
    let attributes = "jwt:sub, path, \"header:x-tenant\", \"query:q\", \"cookie:c\"";
    let rest = format!(
        "jwt: {{algorithms: [HS256], keys: {{secret: correct-horse-battery-staple-correct}}}}\n\
        access_log: {{to: stderr, when: all, attributes: [{attributes}, host, ip:address, \"header:x-api-key\"]}}\n\
        limits: {{extra_methods: [SECRETMETHOD]}}\n\
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
