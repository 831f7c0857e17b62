//! The gateway finds its server by sentinels, some of which are down, hang or lie. Also tests reloads and commands.

use std::net::TcpListener;
use std::time::Duration;

use crate::redis::connection::says;
use crate::support::sentinel::{MASTER, SentinelGroup, SentinelSetup};
use crate::support::{Gateway, Lateness, Upstream, eventually, node_list, now, serve_fake_sentinel, tollgate};

pub const RULES: &str = "rules:\n  - {name: one, limit_keys: [header:x-user], algorithm_config: {rate: 1000/day}}\n";

/// The setup of sentinels that never move the master by themselves.
pub const STEADY: SentinelSetup<'_> =
    SentinelSetup { replicas: 1, sentinels: 2, down_after: 600_000, server: &[], sentinel: &[] };

/// Waits until Redis decides about a request.
#[track_caller]
pub fn is_decided(gateway: &Gateway) {
    let mut client = gateway.client();
    let decided = || client.get("/", &[("X-User", "a")]).field("RateLimit").is_some();
    eventually("a request is decided by Redis", decided);
}

/// Returns the `store` section with these sentinels, and these keys in `redis`.
pub fn store(sentinels: &str, rest: &str) -> String {
    format!("store: {{redis: {{{sentinels}{rest}}}}}\non_store_failure: deny\n{RULES}")
}

/// Starts a sentinel that names the server on this port as the master.
fn lying_sentinel(named: u16) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || serve_fake_sentinel(stream, named));
        }
    });
    port
}

#[test]
fn a_gateway_starts_while_the_master_is_away_and_finds_it_later() {
    let (mut group, upstream) = (SentinelGroup::with(&STEADY), Upstream::start());
    group.servers[0].kill();
    let late = Lateness::measure();
    let start = now();
    let gateway = Gateway::start(&upstream, &(group.store("deny") + RULES));
    assert!(start.elapsed() < Duration::from_secs(3) + late.of_a_request(), "{:?}", start.elapsed());
    assert_eq!(gateway.client().get("/", &[("X-User", "a")]).status, 503);
    says(&gateway, &["store is down", "unreachable", &group.servers[0].port.to_string(), "named by sentinel"]);
    group.servers[0].restart();
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    is_decided(&gateway);
    let server = format!("server=127.0.0.1:{}", group.servers[0].port);
    eventually("the log names the server", || gateway.has_logged(&server));
}

#[test]
fn a_sentinel_that_hangs_is_passed_over_and_the_one_that_answered_is_asked_first() {
    let (group, upstream) = (SentinelGroup::with(&STEADY), Upstream::start());
    group.sentinels[0].signal("STOP");
    let gateway = Gateway::start(&upstream, &(group.store("deny") + RULES));
    is_decided(&gateway);
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    // The other one was first to answer, so that no question to the one that hangs delays this by half a second: on a busy
    // machine something else may, once.
    let took = [(); 5].map(|()| {
        group.servers[0].command::<()>(&["CLIENT", "KILL", "TYPE", "normal"]);
        let killed = now();
        is_decided(&gateway);
        killed.elapsed()
    });
    assert!(took.iter().any(|took| *took < Duration::from_millis(450)), "{took:?}");
    group.sentinels[0].signal("CONT");
}

#[test]
fn a_sentinel_that_names_a_replica_is_not_believed() {
    let (group, upstream) = (SentinelGroup::with(&STEADY), Upstream::start());
    let liar = lying_sentinel(group.servers[1].port);
    let both = format!("sentinel: {{master: x, nodes: {}}}", node_list([liar]));
    let gateway = Gateway::start(&upstream, &store(&both, ""));
    says(&gateway, &["replica", "its role is `slave`", &format!("sentinel 127.0.0.1:{liar}")]);
    assert_eq!(gateway.client().get("/", &[("X-User", "a")]).status, 503);
    let both = group.section("").replace("nodes: [", &format!("nodes: [\"127.0.0.1:{liar}\", "));
    let gateway = Gateway::start(&upstream, &store(&both, ""));
    is_decided(&gateway);
    assert_eq!(group.servers[0].keys().len(), 1);
}

#[test]
fn a_master_that_no_sentinel_knows_is_named() {
    let (group, upstream) = (SentinelGroup::with(&STEADY), Upstream::start());
    let gateway = Gateway::start(&upstream, &store(&group.section("").replace(MASTER, "cache"), ""));
    says(&gateway, &["unreachable", "knows no master `cache`"]);
    // A server that is no sentinel says so.
    let node = format!("sentinel: {{master: cache, nodes: {}}}", node_list([group.servers[0].port]));
    let gateway = Gateway::start(&upstream, &store(&node, ""));
    says(&gateway, &["refused", "unknown command"]);
}

#[test]
fn other_sentinels_are_learnt_and_the_connection_outlives_them_all() {
    let (mut group, upstream) = (SentinelGroup::with(&STEADY), Upstream::start());
    let first = format!("sentinel: {{master: {MASTER}, nodes: {}}}", node_list([group.sentinels[0].port]));
    let gateway = Gateway::before(&upstream)
        .with(&store(&first, ", timeout: 5s"))
        .interval("sentinel_refresh", Duration::from_millis(50));
    let gateway = gateway.start();
    is_decided(&gateway);
    let clients = || group.sentinels[1].command(&["CLIENT", "LIST"]);
    // Two connections are those of the other sentinel, one is that of this question.
    eventually("the other sentinel is asked as well", || {
        format!("{:?}", clients()).matches("cmd=sentinel").count() > 0
    });
    group.sentinels[0].kill();
    group.servers[0].command::<()>(&["CLIENT", "KILL", "TYPE", "normal"]);
    is_decided(&gateway);
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    group.sentinels[1].kill();
    let before = gateway.metric("rate_limiter_fallback_decisions_total", &[]);
    let mut client = gateway.client();
    assert!((0..50).all(|_| client.get("/", &[("X-User", "a")]).field("RateLimit").is_some()));
    assert_eq!(gateway.metric("rate_limiter_fallback_decisions_total", &[]), before);
}

#[test]
fn a_reload_replaces_sentinels_but_not_the_master() {
    let (group, upstream) = (SentinelGroup::with(&STEADY), Upstream::start());
    let nodes = |sentinels: &[usize]| {
        let nodes = node_list(sentinels.iter().map(|index| group.sentinels[*index].port));
        format!("sentinel: {{master: {MASTER}, nodes: {nodes}}}")
    };
    let gateway = Gateway::start(&upstream, &store(&nodes(&[0]), ""));
    is_decided(&gateway);
    gateway.reload(&upstream, &store(&nodes(&[1, 0]), ""));
    gateway.reload(&upstream, &store(&nodes(&[1]), ""));
    assert!(!gateway.errors().contains("only after a restart"), "{}", gateway.errors());
    group.sentinels[0].signal("STOP");
    group.servers[0].command::<()>(&["CLIENT", "KILL", "TYPE", "normal"]);
    is_decided(&gateway);
    group.sentinels[0].signal("CONT");
    gateway.reload(&upstream, &store(&nodes(&[1]).replace(MASTER, "other"), ""));
    gateway.expect_logged("only after a restart");
    is_decided(&gateway);
}

#[test]
fn the_tools_ask_the_sentinels_as_well() {
    let (group, upstream) = (SentinelGroup::with(&STEADY), Upstream::start());
    let gateway = Gateway::start(&upstream, &store(&group.section(""), ", timeout: 5s"));
    assert_eq!(gateway.client().get("/", &[("X-User", "a")]).status, 200);
    let file = gateway.file("gateway.yaml").display().to_string();
    for command in [
        &["bucket", "show", "-c", &file, "default/one", "header:x-user=a"][..],
        &["explain", "-c", &file, "--live", "-H", "X-User: a", "/"][..],
    ] {
        let shown = tollgate(command);
        assert!(shown.code == Some(0) && shown.out.contains("999"), "{shown:?}");
        assert!(shown.out.contains("`mymaster` of the sentinels 127.0.0.1:"), "{shown:?}");
    }
    group.sentinels.iter().for_each(|sentinel| sentinel.signal("STOP"));
    let shown = tollgate(&["bucket", "show", "-c", &file, "default/one", "header:x-user=a"]);
    assert!(shown.code == Some(1) && shown.err.contains("unreachable: sentinel 127.0.0.1:"), "{shown:?}");
    group.sentinels.iter().for_each(|sentinel| sentinel.signal("CONT"));
}
