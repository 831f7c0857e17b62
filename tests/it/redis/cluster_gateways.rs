//! Gateways on a Redis Cluster: limits are shared, operators find buckets, and a lost node is named.

use std::time::Duration;

use crate::redis::connection::says;
use crate::support::{
    Certificates, Client, Gateway, Lateness, RedisCluster, Replicas, Upstream, eventually, now, tollgate,
};

const RULES: &str = "rules:\n  - {name: one, limit_keys: [header:x-user], algorithm_config: {rate: 10/day}}\n";

/// The permissions that gateways need according to docs/stores.md, and those that operators need in addition.
const USER: &str =
    "reset on >secret ~tollgate:* resetchannels -@all +evalsha +script|load +get +set +time +role +asking";

/// Waits until the gateway is connected to every node.
#[track_caller]
fn is_up(gateway: &Gateway, cluster: &RedisCluster) {
    for node in cluster.addresses() {
        gateway.expect("rate_limiter_store_up", &[&format!("node=\"{node}\"")], 1.0);
    }
}

fn set_user(cluster: &RedisCluster, more: &str) {
    for master in &cluster.masters {
        let words: Vec<&str> = ["ACL", "SETUSER", "tollgate"].into_iter().chain(USER.split(' ')).collect();
        let () = master.command(&[&words[..], &more.split(' ').collect::<Vec<_>>()].concat());
    }
}

#[test]
fn gateways_share_limits_and_operators_find_their_buckets() {
    let (cluster, upstream) = (RedisCluster::start(Replicas::None), Upstream::start());
    set_user(&cluster, "+cluster|slots +del +scan");
    let file = cluster.store("deny", ", username: tollgate, password: secret") + RULES;
    let gateways = [0, 1].map(|_| Gateway::before(&upstream).with(&file).short_heartbeats().start());
    gateways.iter().for_each(|gateway| is_up(gateway, &cluster));
    let mut clients = gateways.each_ref().map(|gateway| gateway.client());
    for user in ["a", "b", "c", "d", "e", "f"] {
        let statuses: Vec<u16> =
            (0..12).map(|number| clients[number % 2].get("/", &[("X-User", user)]).status).collect();
        assert_eq!(statuses, [[200; 10].as_slice(), &[429; 2]].concat(), "{user}");
    }
    assert!(cluster.masters.iter().filter(|master| !master.keys().is_empty()).count() > 1);
    gateways.iter().for_each(|gateway| gateway.expect("rate_limiter_live_gateways", &[], 2.0));
    let status = Client::connect(gateways[0].admin).get("/status.json", &[("Connection", "close")]).body;
    assert!(status.contains("\"nodes\":3,\"nodes_down\":[]"), "{status}");

    let file = gateways[0].file("gateway.yaml");
    let bucket = |words: &[&str]| {
        let output = tollgate(&[&["bucket"], words, &["-c", file.to_str().unwrap()]].concat());
        assert_eq!(output.code, Some(0), "{} {}", output.err, gateways[0].errors());
        output.out
    };
    let shown = bucket(&["show", "one", "header:x-user=a"]);
    assert!(shown.contains("Redis cluster at 127.0.0.1"), "{shown}");
    for user in ["a", "b", "c", "d", "e", "f"] {
        bucket(&["grant", "one", &format!("header:x-user={user}"), "3"]);
    }
    // What a gateway knows of an empty bucket counts for a second.
    std::thread::sleep(Duration::from_millis(1100));
    for user in ["a", "b", "c"] {
        let granted = (0..5).filter(|_| clients[0].get("/", &[("X-User", user)]).status == 200).count();
        assert_eq!(granted, 3, "{user}");
    }
    let before: usize = cluster.masters.iter().map(|master| master.keys().len()).sum();
    for user in ["a", "b", "c", "d"] {
        bucket(&["reset", "one", &format!("header:x-user={user}")]);
    }
    let after: usize = cluster.masters.iter().map(|master| master.keys().len()).sum();
    assert_eq!((before, after), (6, 2));
    let arguments = ["explain", "--live", "-c", file.to_str().unwrap(), "-H", "X-User: a", "http://example.com/"];
    let explained = tollgate(&arguments);
    assert!(explained.code == Some(0) && explained.out.contains("10"), "{} {}", explained.out, explained.err);

    let counts = || cluster.masters.iter().map(|master| master.keys().len()).collect::<Vec<_>>();
    let before = counts();
    let together = cluster.store("deny", "").replace("\"]}", "\"], place: together}") + RULES;
    let gateway = Gateway::start(&upstream, &together);
    eventually("a request is decided", || gateway.client().get("/", &[("X-User", "a")]).status == 200);
    for user in ["b", "c", "d", "e", "f"] {
        assert_eq!(gateway.client().get("/", &[("X-User", user)]).status, 200);
    }
    let grown: Vec<usize> = counts().iter().zip(before).map(|(after, before)| after - before).collect();
    assert_eq!(grown, [0, 6, 0], "all are on the master that has the middle of the slots");
}

/// The refusal that this gateway has seen may come from a charge of another gateway that is then given back.
#[test]
fn a_gateway_with_several_limits_in_its_file_knows_of_a_short_bucket_for_a_moment_only() {
    let (cluster, upstream) = (RedisCluster::start(Replicas::None), Upstream::start());
    let policy = |name: &str| {
        format!(
            "  - {{name: {name}s, rules: [{{name: {name}, limit_keys: [header:x-{name}], algorithm_config: {{rate: 2/day}}}}]}}\n"
        )
    };
    let file = format!("{}policies:\n{}{}", cluster.store("deny", ""), policy("user"), policy("org"));
    let gateway = Gateway::start(&upstream, &file);
    is_up(&gateway, &cluster);
    let mut client = gateway.client();
    // It charges no two buckets at once itself.
    let mut ask = || client.get("/", &[("X-User", "a")]).status;
    assert_eq!([ask(), ask(), ask()], [200, 200, 429]);
    cluster.masters.iter().for_each(|master| master.command::<()>(&["FLUSHALL"]));
    // Less than the second for which it would have known of the bucket of a file with a single limit.
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(ask(), 200);
}

#[test]
fn a_missing_permission_is_named() {
    let (cluster, upstream) = (RedisCluster::start(Replicas::None), Upstream::start());
    set_user(&cluster, "-asking");
    let file = cluster.store("deny", ", username: tollgate, password: secret") + RULES;
    // A node that is not there, until a reload names another one.
    let gateway = Gateway::start(&upstream, &file.replace(&cluster.addresses()[2].to_string(), "127.0.0.1:1"));
    says(&gateway, &["store is down", "unreachable", "127.0.0.1:1"]);
    gateway.reload(&upstream, &file.replace("\"]}", "\", \"127.0.0.1:1\"]}"));
    says(&gateway, &["store is down", "forbidden", "cluster|slots"]);
    assert_eq!(gateway.client().get("/", &[("X-User", "a")]).status, 503);
    set_user(&cluster, "-asking +cluster|slots");
    says(&gateway, &["store is down", "forbidden", "asking", "127.0.0.1:"]);
    set_user(&cluster, "+cluster|slots");
    is_up(&gateway, &cluster);
    eventually("a request is decided", || gateway.client().get("/", &[("X-User", "a")]).status == 200);
}

#[test]
fn every_node_is_reached_by_tls_and_a_reload_changes_the_login() {
    let certificates = Certificates::shared();
    let (cluster, port) = RedisCluster::start_tls(certificates);
    let upstream = Upstream::start();
    set_user(&cluster, "+cluster|slots");
    let store = |password: &str| {
        let tls = "tls: {ca_file: ca.pem, server_name: localhost, cert_file: gw.pem, key_file: gw.key}";
        format!(
            "store: {{redis: {{cluster: {{nodes: [\"127.0.0.1:{port}\"]}}, username: tollgate, password: {password}, {tls}}}}}\n\
             on_store_failure: deny\n{RULES}"
        )
    };
    let (authority, client) = (&certificates.authority, &certificates.client);
    let files = [("ca.pem", &**authority), ("gw.pem", &*client.0), ("gw.key", &*client.1)];
    let gateway = Gateway::before(&upstream).with(&store("wrong")).files(&files).start();
    says(&gateway, &["store is down", "unauthorized"]);
    gateway.reload(&upstream, &store("secret"));
    eventually("a request is decided", || gateway.client().get("/", &[("X-User", "a")]).status == 200);
    gateway.expect("rate_limiter_store_up", &[&format!("node=\"127.0.0.1:{port}\"")], 1.0);
}

#[test]
fn a_dead_master_stops_its_own_buckets_and_is_named() {
    let (mut cluster, upstream) = (RedisCluster::start(Replicas::None), Upstream::start());
    let rules = |org: &str| {
        format!(
            "policies:
  - {{name: users, rules: [{{name: user, limit_keys: [header:x-user], algorithm_config: {{rate: 10/day}}}}]}}
  - {{name: orgs, rules: [{{name: org, limit_keys: [header:x-org], algorithm_config: {{rate: 1000/day}}, on_store_failure: {org}}}]}}\n"
        )
    };
    // For as long it looks for another node that has the slots of the dead one.
    let store = cluster.store("deny", "").replace("timeout: 10s", "timeout: 2s");
    let [denies, allows] = ["deny", "allow"].map(|org| Gateway::start(&upstream, &format!("{store}{}", rules(org))));
    [&denies, &allows].into_iter().for_each(|gateway| is_up(gateway, &cluster));
    let mut client = denies.client();
    // A user whose bucket is not on the first master, and an org whose bucket is.
    let mut on_first = |field: &str, name: &str| {
        let before = cluster.masters[0].keys().len();
        assert_eq!(client.get("/", &[(field, name)]).status, 200);
        cluster.masters[0].keys().len() > before
    };
    let names: Vec<String> = (0..40).map(|number| format!("n{number}")).collect();
    let user = names.iter().find(|name| !on_first("X-User", name)).unwrap();
    let org = names.iter().find(|name| on_first("X-Org", name)).unwrap();
    let lost = names.iter().rev().find(|name| on_first("X-User", name)).unwrap();
    cluster.masters[0].kill();
    let [first, other] = [0, 1].map(|index| format!("node=\"{}\"", cluster.addresses()[index]));
    for gateway in [&denies, &allows] {
        gateway.expect("rate_limiter_store_up", &[&first], 0.0);
        gateway.expect("rate_limiter_store_up", &[&other], 1.0);
    }
    let (both, late) = ([("X-User", &**user), ("X-Org", &**org)], Lateness::measure());
    // Refused because of the org, and the user gets back what it paid.
    let statuses: Vec<u16> = (0..15).map(|_| client.get("/", &both).status).collect();
    assert_eq!(statuses, [503; 15]);
    // What was given back is there a moment later.
    std::thread::sleep(Duration::from_millis(200) + late.of_a_request());
    let statuses: Vec<u16> = (0..5).map(|_| client.get("/", &[("X-User", user)]).status).collect();
    assert_eq!(statuses, [200; 5]);
    assert_eq!(client.get("/", &[("X-User", lost)]).status, 503);
    // The org lets everything pass, and the user is charged where its bucket is: 4 are left.
    let mut client = allows.client();
    let statuses: Vec<u16> = (0..6).map(|_| client.get("/", &both).status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 429, 429]);
    assert!(denies.metric("rate_limiter_store_errors_total", &[&first]) > 0.0);
    eventually("the whole has counted what its nodes have", || {
        let errors = |labels: &[&str]| denies.metric("rate_limiter_store_errors_total", labels);
        let (of_nodes, all) = (errors(&["node=\""]), errors(&[]));
        of_nodes > 0.0 && all == 2.0 * of_nodes && errors(&["node=\""]) == of_nodes
    });
    assert_eq!(denies.metric("rate_limiter_store_errors_total", &[&other]), 0.0);
    assert_eq!(denies.metric("rate_limiter_breaker_open", &[&other]), 0.0);
    assert!(denies.metric("rate_limiter_fallback_decisions_total", &["rule=\"org\"", "action=\"deny\""]) >= 15.0);
    assert_eq!(denies.metric("rate_limiter_fallback_decisions_total", &["rule=\"user\"", "action=\"deny\""]), 1.0);
    says(&denies, &["store is down", &format!("server={}", cluster.addresses()[0])]);
}

#[test]
fn a_dead_master_keeps_no_operator_from_the_buckets_on_the_others() {
    let (mut cluster, upstream) = (RedisCluster::start(Replicas::None), Upstream::start());
    let gateway = Gateway::start(&upstream, &(cluster.store("deny", "") + RULES));
    is_up(&gateway, &cluster);
    let mut client = gateway.client();
    let mut is_on_first = |user: &str| {
        let before = cluster.masters[0].keys().len();
        assert_eq!(client.get("/", &[("X-User", user)]).status, 200);
        cluster.masters[0].keys().len() > before
    };
    let names: Vec<String> = (0..40).map(|number| format!("n{number}")).collect();
    let lost = names.iter().find(|name| is_on_first(name)).unwrap();
    let kept = names.iter().rev().find(|name| !is_on_first(name)).unwrap();
    let first = cluster.addresses()[0].to_string();
    cluster.masters[0].kill();
    let file = gateway.file("gateway.yaml");
    let show = |words: &[&str]| tollgate(&[&["bucket", "show"], words, &["-c", file.to_str().unwrap()]].concat());
    let shown = show(&["one", &format!("header:x-user={kept}")]);
    assert!(shown.code == Some(0) && shown.out.contains("left of 10"), "{} {}", shown.out, shown.err);
    // The bucket on the dead node is unknown, and a search has to ask every node.
    for words in [&["one", &format!("header:x-user={lost}")][..], &["--hash", "0123456789abcdef"]] {
        let failed = show(words);
        assert!(failed.code == Some(1) && failed.err.contains(&first), "{} {}", failed.out, failed.err);
    }
}

/// Each request pays only one of two rules, so nothing is ever given back.
#[test]
fn a_bucket_that_is_charged_alone_is_asked_once_a_second_whatever_else_the_file_limits() {
    let (cluster, upstream) = (RedisCluster::start(Replicas::None), Upstream::start());
    let rules = "rules:
  - {name: pro, match: {header:x-plan: pro}, limit_keys: [header:x-user], algorithm_config: {rate: 1000/day}}
  - {name: free, limit_keys: [header:x-user], algorithm_config: {rate: 10/day}}
";
    let gateway = Gateway::start(&upstream, &(cluster.store("deny", "") + rules));
    is_up(&gateway, &cluster);
    let calls = || gateway.metric("rate_limiter_store_calls_total", &[]);
    let mut client = gateway.client();
    eventually("the bucket is empty", || client.get("/", &[("X-User", "a")]).status == 429);
    let (begun, before) = (now(), calls());
    let mut refused = 0.0;
    while refused < 300.0 || begun.elapsed() < Duration::from_millis(500) {
        assert_eq!(client.get("/", &[("X-User", "a")]).status, 429);
        refused += 1.0;
    }
    // The first may be made at once.
    let (made, most) = (calls() - before, 2.0 + begun.elapsed().as_secs_f64());
    assert!(made <= most, "{made} calls for {refused} refusals in {:?}", begun.elapsed());
}
