//! Connections to Redis: users and permissions, TLS, roles, and the log lines about failures.

use std::path::Path;
use std::time::Duration;

use crate::support::{Answers, Certificates, Gateway, Lateness, Redis, Relay, Upstream, eventually, now};

const RULES: &str = "
rules:
  - {name: one, limit_keys: [header:x-user], algorithm_config: {rate: 2/day}}
";

/// Returns a `store` section with these lines, and a long timeout unless the lines set one.
pub fn store(url: &str, rest: &str) -> String {
    let timeout = if rest.contains("timeout:") { "" } else { "    timeout: 5s\n" };
    format!("store:\n  redis:\n    url: {url}\n{timeout}{rest}\non_store_failure: deny\n{RULES}")
}

/// Returns the user of docs/stores.md, as an ACL command.
pub fn documented_user() -> Vec<String> {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/stores.md")).unwrap();
    let line = page.lines().find(|line| line.starts_with("ACL SETUSER ")).expect("the page has the line");
    line.split(' ').map(str::to_owned).collect()
}

pub fn make_user(redis: &Redis, words: &[String]) {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    redis.command::<()>(&words);
}

#[track_caller]
pub fn statuses(gateway: &Gateway) -> [u16; 3] {
    let mut client = gateway.client();
    [(); 3].map(|()| client.get("/", &[("X-User", "a")]).status)
}

/// Waits until the log has a line about a store that is down, with all of these words.
#[track_caller]
pub fn says(gateway: &Gateway, words: &[&str]) {
    let said = |line: &str| line.contains("store is down") && words.iter().all(|word| line.contains(word));
    let deadline = now() + Duration::from_secs(20);
    while !gateway.errors().lines().any(said) {
        assert!(now() < deadline, "{words:?} not in the log:\n{}", gateway.errors());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_documented_user_is_enough() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    make_user(&redis, &documented_user());
    redis.command::<()>(&["ACL", "SETUSER", "default", "off"]);
    let gateway = Gateway::start(
        &upstream,
        &store(&format!("redis://127.0.0.1:{}", redis.port), "    username: tollgate\n    password: SECRET"),
    );
    assert_eq!(statuses(&gateway), [200, 200, 429]);
    gateway.expect("rate_limiter_store_up", &[], 1.0);
}

#[test]
fn each_permission_of_the_documented_user_is_needed_and_named_if_missing() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    let user = documented_user();
    let needed: Vec<&String> = user.iter().filter(|word| word.starts_with('+') || word.starts_with('~')).collect();
    assert_eq!(needed.len(), 7, "{needed:?}");
    for missing in needed {
        let words: Vec<String> = user.iter().filter(|word| *word != missing).cloned().collect();
        make_user(&redis, &words);
        let url = format!("redis://tollgate:SECRET@127.0.0.1:{}", redis.port);
        let gateway = Gateway::start(&upstream, &store(&url, ""));
        assert_eq!(statuses(&gateway), [503; 3], "without {missing}");
        let named = match missing.trim_start_matches('+') {
            "~tollgate:*" => "key".to_owned(),
            command @ ("get" | "set" | "time") => command.to_uppercase(),
            command => command.to_owned(),
        };
        says(&gateway, &["forbidden", &named]);
        assert!(!gateway.errors().contains("SECRET"), "{}", gateway.errors());
    }
}

#[test]
fn a_wrong_password_is_reported_and_can_be_corrected_without_a_restart() {
    let (redis, upstream) = (Redis::start_with(&["--requirepass", "right"]), Upstream::start());
    let url = format!("redis://127.0.0.1:{}", redis.port);
    let gateway = Gateway::start(&upstream, &store(&url, "    password: wrong-one"));
    assert_eq!(statuses(&gateway), [503; 3]);
    says(&gateway, &["unauthorized"]);
    assert!(!gateway.errors().contains("wrong-one"), "{}", gateway.errors());
    let mut connection =
        redis::Client::open(format!("redis://:right@127.0.0.1:{}", redis.port)).unwrap().get_connection().unwrap();
    redis::cmd("CONFIG").arg("SET").arg("requirepass").arg("wrong-one").exec(&mut connection).unwrap();
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    assert_eq!(statuses(&gateway), [200, 200, 429]);
    eventually("the log says it", || gateway.has_logged("store is up"));
}

#[test]
fn a_missing_password_is_reported() {
    let (redis, upstream) = (Redis::start_with(&["--requirepass", "right"]), Upstream::start());
    let gateway = Gateway::start(&upstream, &store(&format!("redis://127.0.0.1:{}", redis.port), ""));
    assert_eq!(statuses(&gateway), [503; 3]);
    says(&gateway, &["unauthorized", "NOAUTH"]);
}

#[test]
fn a_password_is_read_from_a_file_next_to_gateway_yaml() {
    let (redis, upstream) = (Redis::start_with(&["--requirepass", "from a file"]), Upstream::start());
    let files = [("redis-password", "from a file\n")];
    let text = store(&format!("redis://127.0.0.1:{}", redis.port), "    password_file: redis-password");
    let gateway = Gateway::before(&upstream).with(&text).files(&files).start();
    assert_eq!(statuses(&gateway), [200, 200, 429]);
}

#[test]
fn buckets_go_to_the_database_and_under_the_prefix_that_the_file_names() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    let text = store(&format!("redis://127.0.0.1:{}/3", redis.port), "    prefix: other");
    let gateway = Gateway::start(&upstream, &text);
    assert_eq!(statuses(&gateway), [200, 200, 429]);
    assert!(redis.keys().is_empty());
    let mut connection = redis.connection();
    redis::cmd("SELECT").arg(3).exec(&mut connection).unwrap();
    let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query(&mut connection).unwrap();
    let own = |key: &&Vec<u8>| [&b"gateways"[..], b"running", b"formats"].contains(&&key[6..]);
    let buckets: Vec<_> = keys.iter().filter(|key| !own(key)).collect();
    assert_eq!(buckets.len(), 1);
    assert!(buckets[0].starts_with(b"other:") && buckets[0].len() == 6 + 16, "{buckets:?}");
}

#[test]
fn a_replica_is_never_called() {
    let (primary, replica, upstream) = (Redis::start(), Redis::start(), Upstream::start());
    replica.command::<()>(&["REPLICAOF", "127.0.0.1", &primary.port.to_string()]);
    let gateway = Gateway::start(&upstream, &store(&format!("redis://127.0.0.1:{}", replica.port), ""));
    assert_eq!(statuses(&gateway), [503; 3]);
    says(&gateway, &["replica", "slave"]);
    // Not even one that may be written to: what it decides is lost.
    replica.command::<()>(&["CONFIG", "SET", "replica-read-only", "no"]);
    assert_eq!(statuses(&gateway), [503; 3]);
    replica.command::<()>(&["REPLICAOF", "NO", "ONE"]);
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    assert_eq!(statuses(&gateway), [200, 200, 429]);
}

fn tls_files(certificates: &Certificates) -> [(&'static str, &str); 3] {
    [("ca.pem", &certificates.authority), ("gw.pem", &certificates.client.0), ("gw.key", &certificates.client.1)]
}

const TLS: &str = "    tls: {ca_file: ca.pem, cert_file: gw.pem, key_file: gw.key}";

#[test]
fn tls_with_an_authority_and_a_client_certificate() {
    let certificates = Certificates::new();
    let ((_redis, port), upstream) = (Redis::start_tls(&certificates), Upstream::start());
    let text = store(&format!("rediss://localhost:{port}"), TLS);
    let gateway = Gateway::before(&upstream).with(&text).files(&tls_files(&certificates)).start();
    assert_eq!(statuses(&gateway), [200, 200, 429], "{}", gateway.errors());
}

#[test]
fn tls_that_cannot_be_verified_is_refused_and_never_goes_on_in_the_clear() {
    let (certificates, others) = (Certificates::new(), Certificates::new());
    let ((redis, port), upstream) = (Redis::start_tls(&certificates), Upstream::start());
    // Another authority; another name; no certificate of ours; a server that speaks no TLS at all.
    let check = |url: String, rest: &str, files: &Certificates, said: &str| {
        let gateway = Gateway::before(&upstream).with(&store(&url, rest)).files(&tls_files(files)).start();
        assert_eq!(statuses(&gateway), [503; 3], "{url} {rest}");
        says(&gateway, &[said]);
    };
    check(format!("rediss://localhost:{port}"), TLS, &others, "invalid peer certificate");
    check(format!("rediss://127.0.0.1:{port}"), TLS, &certificates, "it is not for `127.0.0.1`, but for localhost");
    check(format!("rediss://localhost:{port}"), "    tls: {ca_file: ca.pem}", &certificates, "down");
    check(format!("rediss://localhost:{}", redis.port), TLS, &certificates, "TLS");
    assert!(redis.keys().is_empty());
}

/// Makes a relay in which every reply takes this long, as between regions. This includes the replies to the login.
fn long_way_to(port: u16, way: Duration) -> Relay {
    let relay = Relay::start(port);
    relay.set(Answers::Late(way));
    relay
}

#[test]
fn a_login_over_a_long_way_succeeds_with_every_step_that_it_can_have() {
    let certificates = Certificates::new();
    let ((redis, port), upstream) = (Redis::start_tls(&certificates), Upstream::start());
    make_user(&redis, &documented_user());
    let relay = long_way_to(port, Duration::from_millis(150));
    let rest = format!("    username: tollgate\n    password: SECRET\n    timeout: 5s\n{TLS}");
    let text = store(&format!("rediss://localhost:{}", relay.port), &rest);
    let gateway = Gateway::before(&upstream).with(&text).files(&tls_files(&certificates)).start();
    assert_eq!(statuses(&gateway), [200, 200, 429], "{}", gateway.errors());
    gateway.expect("rate_limiter_store_errors_total", &[], 0.0);
}

#[test]
fn a_long_way_makes_no_decision_wait_longer_than_the_timeout() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    let way = Duration::from_millis(500);
    let relay = long_way_to(redis.port, way);
    let gateway = Gateway::start(&upstream, &store(&format!("redis://127.0.0.1:{}", relay.port), "    timeout: 20ms"));
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    let late = Lateness::measure();
    let sent = now();
    assert_eq!(statuses(&gateway), [503; 3]);
    assert!(sent.elapsed() < 3 * way + late.of_a_request(), "{:?}", sent.elapsed());
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    eventually("a late call is counted", || gateway.metric("rate_limiter_store_errors_total", &["timeout"]) > 0.0);
}
