//! `reset_on`: a right password forgets the wrong ones before it, in every store.

use super::{reason, send, upstream};
use crate::support::sentinel::{SentinelGroup, SentinelSetup};
use crate::support::{Gateway, Orphan, Postgres, Redis, RedisCluster, Replicas, eventually, tollgate};

/// Five wrong passwords of each user, of which a right one forgets those before.
fn rules(algorithm: &str, ban: &str) -> String {
    format!(
        "
rules:
  - name: guesses
    limit_keys: [header:x-user]
    {algorithm}, count_on: [401], reset_on: [2xx, 302]}}
    {ban}
"
    )
}

const WINDOW: &str = "algorithm: fixed_window\n    algorithm_config: {limit: 5, window: 366d";
const BUCKET: &str = "algorithm_config: {rate: 5/366d";

/// Waits until so much is spent of the bucket of a user, and nothing is held.
#[track_caller]
fn becomes(gateway: &Gateway, user: &str, spent: u64) {
    let (file, admin) = (gateway.file("gateway.yaml"), gateway.admin.to_string());
    let is_in_memory = !std::fs::read_to_string(&file).unwrap().contains("store:");
    let from = if is_in_memory { ["--admin", &admin] } else { ["-c", file.to_str().unwrap()] };
    let key = format!("header:x-user={user}");
    let expected = format!("{spent} spent, 0 held");
    eventually(&expected, || tollgate(&["bucket", "show", from[0], from[1], "guesses", &key]).out.contains(&expected));
}

fn guess(gateway: &Gateway, user: &str, times: usize) {
    for _ in 0..times {
        assert_eq!(send(gateway, user, 401).status, 401);
    }
}

/// Four wrong passwords, a right one, four wrong ones, and so on, with two gateways on one store.
fn play(store: &str) {
    for algorithm in [WINDOW, BUCKET] {
        let upstream = upstream();
        let config = format!("{store}{}", rules(algorithm, "ban: {for: [1h]}"));
        let [one, two] = [(); 2].map(|()| Gateway::start(&upstream, &config));
        let user = if algorithm == WINDOW { "ann" } else { "eve" };
        guess(&one, user, 2);
        guess(&two, user, 2);
        becomes(&one, user, 4);
        assert_eq!(send(&one, user, 200).status, 200);
        becomes(&two, user, 0);
        guess(&two, user, 3);
        guess(&one, user, 1);
        becomes(&two, user, 4);
        // Another result neither counts nor resets.
        assert_eq!(send(&one, user, 404).status, 404);
        becomes(&two, user, 4);
        assert_eq!(send(&two, user, 302).status, 302);
        becomes(&one, user, 0);
        guess(&one, user, 4);
        becomes(&two, user, 4);
        guess(&two, user, 1);
        becomes(&one, user, 5);
        for gateway in [&one, &two] {
            let banned = send(gateway, user, 200);
            assert_eq!((banned.status, reason(&banned).as_deref()), (429, Some("banned")));
        }
        one.expect("rate_limiter_resets_total", &["rule=\"guesses\""], 1.0);
        two.expect("rate_limiter_resets_total", &["rule=\"guesses\""], 1.0);
    }
}

#[test]
fn a_right_password_forgets_the_wrong_ones_on_one_redis() {
    let redis = Redis::start();
    play(&redis.patient_store());
}

#[test]
fn a_right_password_forgets_the_wrong_ones_on_one_postgresql() {
    let postgres = Postgres::start();
    postgres.settings();
    play(&postgres.store_with(", timeout: 10s", "deny"));
}

#[test]
fn a_right_password_forgets_the_wrong_ones_behind_sentinels() {
    let group = SentinelGroup::with(&SentinelSetup::without_failover());
    play(&group.patient_store());
}

#[test]
fn a_right_password_forgets_the_wrong_ones_on_a_cluster() {
    let cluster = RedisCluster::start(Replicas::None);
    play(&cluster.store("deny", ""));
}

#[test]
fn a_right_password_forgets_the_wrong_ones_in_memory_and_in_the_next_process() {
    let upstream = upstream();
    for ban in ["", "ban: {for: [1h]}"] {
        let mut gateway = Gateway::start(&upstream, &rules(WINDOW, ban));
        guess(&gateway, "ann", 4);
        // A response may pass before the request has settled.
        becomes(&gateway, "ann", 4);
        assert_eq!(send(&gateway, "ann", 204).status, 204);
        becomes(&gateway, "ann", 0);
        guess(&gateway, "ann", 4);
        becomes(&gateway, "ann", 4);
        gateway.signal("USR2");
        let next = Orphan::of(&gateway, 1);
        becomes(&gateway, "ann", 4);
        assert_eq!(gateway.wait().0.code(), Some(0));
        assert_eq!(send(&gateway, "ann", 200).status, 200);
        becomes(&gateway, "ann", 0);
        guess(&gateway, "ann", 5);
        assert_eq!(send(&gateway, "ann", 200).status, 429);
        drop(next);
    }
}

#[test]
fn a_killed_gateway_loses_a_reset_at_most_and_repeats_none() {
    let redis = Redis::start();
    let upstream = upstream();
    let config = format!("{}{}", redis.patient_store(), rules(WINDOW, ""));
    let [mut one, two] = [(); 2].map(|()| Gateway::start(&upstream, &config));
    guess(&one, "ann", 2);
    guess(&two, "ann", 2);
    becomes(&two, "ann", 4);
    assert_eq!(send(&one, "ann", 200).status, 200);
    becomes(&two, "ann", 0);
    guess(&two, "ann", 3);
    becomes(&two, "ann", 3);
    one.signal("KILL");
    one.wait();
    one.start_again();
    guess(&one, "ann", 1);
    becomes(&two, "ann", 4);
    assert_eq!(send(&one, "ann", 200).status, 200);
    becomes(&two, "ann", 0);
}

/// While the store is away, the gateway's share forgets what was spent too. With several threads, a reset that the store
/// hears late also forgets what other threads have settled since.
#[test]
fn a_right_password_counts_in_a_share_without_the_store_and_when_it_is_back() {
    let mut redis = Redis::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let upstream = upstream();
    let gateway = Gateway::start(&upstream, &format!("threads: 1\n{}{}", redis.store("local"), rules(WINDOW, "")));
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    guess(&gateway, "ann", 4);
    becomes(&gateway, "ann", 4);
    redis.kill();
    eventually("the store is away", || gateway.metric("rate_limiter_store_up", &[]) < 1.0);
    assert_eq!(send(&gateway, "ann", 200).status, 200);
    guess(&gateway, "ann", 4);
    assert_eq!(send(&gateway, "ann", 200).status, 200);
    guess(&gateway, "ann", 5);
    eventually("the share is spent", || send(&gateway, "ann", 404).status == 429);
    redis.restart();
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    becomes(&gateway, "ann", 5);
}
