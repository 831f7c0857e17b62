//! Homes and regions on every kind of store, with and without TLS: all regions together pass the limit to the request.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{REGIONS, ask, rules};
use crate::support::sentinel::{SentinelGroup, SentinelSetup};
use crate::support::{Certificates, Gateway, Postgres, Redis, RedisCluster, Replicas, Upstream, eventually};

/// The limit over all regions.
const LIMIT: u64 = 200;

fn on_postgres(postgres: &Postgres) -> String {
    postgres.settings();
    format!("postgres: {{url: \"postgres://tollgate@127.0.0.1:{}/limits\"}}", postgres.port)
}

fn on_redis(redis: &Redis) -> String {
    super::on_redis(redis.port)
}

fn on_cluster(cluster: &RedisCluster) -> String {
    format!("redis: {{cluster: {{nodes: [\"127.0.0.1:{}\"]}}}}", cluster.masters[1].port)
}

fn on_sentinel(group: &SentinelGroup) -> String {
    format!("redis: {{{}}}", group.section(""))
}

/// Starts a gateway whose region has this store, and this home.
fn start(region: &str, own: &str, home: &str, upstream: &Upstream) -> Gateway {
    start_with(&rules(LIMIT), region, own, home, upstream)
}

fn start_with(rules: &str, region: &str, own: &str, home: &str, upstream: &Upstream) -> Gateway {
    // The region's own store waits longer, for a busy machine.
    let (kind, settings) = own.split_once(": {").unwrap();
    let own = format!("{kind}: {{timeout: 5s, {settings}");
    let store = format!(
        "store:\n  {own}\n  gateways: 1\n  home:\n    {home}\n    timeout: 5s\n    return_after: 1s\n    region: \
         {region}\n    regions: [{}]\n",
        REGIONS.join(", ")
    );
    let certificates = Certificates::shared();
    let files =
        [("ca.pem", &*certificates.authority), ("gw.pem", &certificates.client.0), ("gw.key", &certificates.client.1)];
    let gateway = Gateway::before(upstream).with(&(store + rules)).files(&files).start();
    gateway.expect_logged("home is up");
    gateway
}

/// Lets two regions, with these stores, spend the whole limit at once. Each user has a bucket of its own, on any node of a cluster.
#[track_caller]
fn spend_all(home: &str, stores: [&str; 2]) {
    let upstream = Upstream::start();
    let regions = ["eu", "us"].into_iter().zip(stores);
    let gateways: Vec<Gateway> = regions.map(|(name, own)| start(name, own, home, &upstream)).collect();
    for user in ["a", "b", "c"] {
        let passed = AtomicU64::new(0);
        // What a region has not spent comes back after `return_after`.
        eventually("all of the limit has passed", || {
            std::thread::scope(|scope| {
                for gateway in &gateways {
                    let (mut client, passed) = (gateway.client(), &passed);
                    scope.spawn(move || {
                        while ask(&mut client, user).status == 200 {
                            passed.fetch_add(1, Ordering::SeqCst);
                        }
                    });
                }
            });
            passed.load(Ordering::SeqCst) >= LIMIT
        });
        std::thread::sleep(std::time::Duration::from_millis(1200));
        let more = gateways.iter().filter(|gateway| ask(&mut gateway.client(), user).status == 200).count();
        assert_eq!((passed.load(Ordering::SeqCst), more), (LIMIT, 0), "{user}, home on {home}");
    }
    for gateway in &gateways {
        gateway.expect("rate_limiter_stranded_total", &["rule=\"year\""], 0.0);
        assert!(gateway.metric("rate_limiter_leased_total", &["rule=\"year\""]) > 0.0);
    }
}

#[test]
fn a_home_in_a_cluster_serves_regions_with_sentinels_and_with_postgresql() {
    let (home, eu, us) = (
        RedisCluster::start(Replicas::None),
        SentinelGroup::with(&SentinelSetup::without_failover()),
        Postgres::start(),
    );
    spend_all(&on_cluster(&home), [&on_sentinel(&eu), &on_postgres(&us)]);
    // The buckets of three users are on several nodes.
    assert!(home.masters.iter().filter(|master| !master.keys().is_empty()).count() > 1);
}

#[test]
fn a_home_that_sentinels_watch_serves_regions_in_clusters_and_outlives_its_master() {
    let mut home = SentinelGroup::with(&SentinelSetup::default());
    let (eu, us) = (RedisCluster::start(Replicas::None), Redis::start());
    spend_all(&on_sentinel(&home), [&on_cluster(&eu), &on_redis(&us)]);
    let upstream = Upstream::start();
    let gateway = start("eu", &on_redis(&us), &on_sentinel(&home), &upstream);
    let mut client = gateway.client();
    let mut passed = 0;
    while passed < LIMIT / 2 {
        passed += u64::from(ask(&mut client, "d").status == 200);
    }
    // What has reached the replica is known to the next master. Without requests nothing follows but what comes back.
    std::thread::sleep(std::time::Duration::from_secs(2));
    let () = home.servers[0].command(&["WAIT", "1", "5000"]);
    home.servers[0].kill();
    eventually("the next master gives all that is left, and no more", || {
        passed += u64::from(ask(&mut client, "d").status == 200);
        passed >= LIMIT
    });
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert_eq!(ask(&mut client, "d").status, 429);
}

#[test]
fn the_way_home_is_encrypted_to_redis_and_to_postgresql() {
    let certificates = Certificates::shared();
    let (redis, port) = Redis::start_tls(certificates);
    let postgres = Postgres::start_tls(certificates);
    postgres.settings();
    // In the clear nobody but the administrator logs in.
    postgres.set_hba("hostssl all tollgate 127.0.0.1/32 trust\nhost all admin 127.0.0.1/32 trust\n");
    let (eu, us) = (Redis::start(), Redis::start());
    let homes = [
        format!(
            "redis: {{url: \"rediss://localhost:{port}\", tls: {{ca_file: ca.pem, cert_file: gw.pem, key_file: gw.key}}}}"
        ),
        format!(
            "postgres: {{url: \"postgres://tollgate@localhost:{}/limits\", tls: {{ca_file: ca.pem}}}}",
            postgres.port
        ),
    ];
    for home in &homes {
        spend_all(home, [&on_redis(&eu), &on_redis(&us)]);
        let () = eu.command(&["FLUSHALL"]);
        let () = us.command(&["FLUSHALL"]);
    }
    assert!(!redis.keys().is_empty());
}

#[test]
fn of_two_limits_on_several_nodes_the_one_that_refuses_costs_the_other_nothing() {
    let (home, eu, upstream) = (Redis::start(), RedisCluster::start(Replicas::None), Upstream::start());
    let rules = "usage: {path: /limits}\ncheck: {allow: [unverified_key, several_nodes]}\nrules:\n  - name: both\n    limit_keys: \
                 [header:x-user]\n    limits:\n      few: {algorithm: fixed_window, limit: 5, window: year, scope: global}\n      \
                 many: {algorithm: fixed_window, limit: 2000, window: year, scope: global}\n";
    let gateway = start_with(rules, "eu", &on_cluster(&eu), &on_redis(&home), &upstream);
    // Of some users the node with the larger limit is asked first.
    for user in ["a", "b", "c", "d", "e", "f"] {
        std::thread::scope(|scope| {
            for _ in 0..16 {
                let mut client = gateway.client();
                scope.spawn(move || {
                    for _ in 0..60 {
                        let status = ask(&mut client, user).status;
                        assert!(matches!(status, 200 | 429), "{status}");
                    }
                });
            }
        });
        // What was taken for the last refused requests is given back a moment later.
        std::thread::sleep(std::time::Duration::from_millis(200));
        let usage = gateway.client().get("/limits", &[("X-User", user)]).json();
        let used: Vec<u64> =
            usage["limits"].as_array().unwrap().iter().map(|limit| limit["used"].as_u64().unwrap()).collect();
        let [few, many] = used[..] else { panic!("{usage}") };
        assert!(few == 5 && many <= 15, "{user}: {usage}");
    }
    assert_eq!(upstream.count(), 30);
}
