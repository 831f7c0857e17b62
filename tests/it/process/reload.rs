//! A changed gateway.yaml comes into force while requests continue.

use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;

use crate::support::mint::Signer;
use crate::support::{Client, Gateway, Lateness, Upstream, eventually, mint, now, print_measured, short_or_long};

/// Returns a rule with one bucket of this size for each `u`. Nothing is refilled during a test.
pub fn burst(burst: u64) -> String {
    format!("rules: [{{name: r, limit_keys: [\"query:u\"], algorithm_config: {{rate: 1/day, burst: {burst}}}}}]\n")
}

fn url(upstream: &Upstream) -> String {
    format!("http://{}", upstream.address)
}

pub fn remaining(gateway: &Gateway, target: &str) -> u64 {
    gateway.client().get(target, &[]).number("ratelimit-remaining")
}

/// The interval at which the files are checked, where a test shortens it.
const WATCH: Duration = Duration::from_millis(50);

/// Returns how often the gateway has logged this.
pub fn occurrences(gateway: &Gateway, line: &str) -> usize {
    gateway.errors().matches(line).count()
}

#[test]
fn a_changed_file_is_in_force_within_two_seconds_however_it_is_changed() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, &burst(10));
    let file = gateway.file("gateway.yaml");
    let text = |tokens| Gateway::text(&url(&upstream), &burst(tokens));
    let late = Lateness::measure();
    let mut limit = 10;
    let mut check = |how: &str, change: &dyn Fn(String)| {
        limit += 1;
        change(text(limit));
        let start = now();
        eventually(how, || gateway.client().get("/?u=a", &[]).number("ratelimit-limit") == limit);
        assert!(start.elapsed() < Duration::from_secs(2) + late.of_a_request(), "{how}: {:?}", start.elapsed());
    };
    check("written in place", &|text| std::fs::write(&file, text).unwrap());
    let in_place_of = |new: &Path| std::fs::rename(new, &file).unwrap();
    check("renamed over", &|text| {
        std::fs::write(gateway.file("new"), text).unwrap();
        in_place_of(&gateway.file("new"));
    });
    // As Kubernetes does: the file is a link through `..data`, which is a link to a folder.
    let folder = |name: &str, text: String| {
        std::fs::create_dir(gateway.file(name)).unwrap();
        std::fs::write(gateway.file(name).join("gateway.yaml"), text).unwrap();
    };
    check("made a link", &|text| {
        folder("..1", text);
        symlink("..1", gateway.file("..data")).unwrap();
        symlink("..data/gateway.yaml", gateway.file("link")).unwrap();
        in_place_of(&gateway.file("link"));
    });
    check("its folder swapped", &|text| {
        folder("..2", text);
        symlink("..2", gateway.file("..data_tmp")).unwrap();
        std::fs::rename(gateway.file("..data_tmp"), gateway.file("..data")).unwrap();
        std::fs::remove_dir_all(gateway.file("..1")).unwrap();
    });
    check("removed and made again", &|text| {
        std::fs::remove_file(&file).unwrap();
        std::fs::write(&file, text).unwrap();
    });
    gateway.expect("tollgate_config_reloads_total", &["success"], 5.0);
    gateway.expect("tollgate_config_reloads_total", &["failure"], 0.0);
}

#[test]
fn sighup_reloads_a_change_at_once() {
    let upstream = Upstream::start();
    // Nothing but the signal has it look at the file.
    let hour = Duration::from_secs(3600);
    let gateway = Gateway::before(&upstream).with(&burst(10)).interval("watch", hour).start();
    let loaded = gateway.metric("tollgate_config_loaded_timestamp_seconds", &[]);
    gateway.signal("HUP");
    eventually("it is logged", || occurrences(&gateway, "INFO configuration is unchanged") == 1);
    assert_eq!(gateway.metric("tollgate_config_loaded_timestamp_seconds", &[]), loaded);
    gateway.reload(&upstream, &burst(11));
    assert!(gateway.metric("tollgate_config_loaded_timestamp_seconds", &[]) > loaded);
    gateway.expect("tollgate_config_reloads_total", &["success"], 1.0);
}

#[test]
fn the_hash_of_the_file_in_force_is_the_only_one() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, &burst(1));
    let hashes = || {
        let text = Client::connect(gateway.admin).get("/metrics", &[("Connection", "close")]).body;
        let series = text.lines().filter(|line| line.starts_with("tollgate_config_info"));
        series.map(str::to_owned).collect::<Vec<_>>()
    };
    let first = hashes();
    gateway.reload(&upstream, &burst(2));
    let second = hashes();
    assert!(first.len() == 1 && second.len() == 1 && first != second, "{first:?} {second:?}");
    assert!(first[0].ends_with("\"} 1"), "{first:?}");
    gateway.reload(&upstream, &burst(1));
    assert_eq!(hashes(), first);
}

#[test]
fn an_invalid_file_changes_nothing_and_is_reported_once() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream).with(&burst(10)).short_interval("watch", WATCH).start();
    let (file, not) = (gateway.file("gateway.yaml"), "WARN configuration rejected");
    let right = std::fs::read_to_string(&file).unwrap();
    let state = |failures: f64, good: f64| {
        gateway.expect("tollgate_config_reloads_total", &["failure"], failures);
        gateway.expect("tollgate_config_last_reload_successful", &[], good);
        assert_eq!(gateway.client().get("/?u=a", &[]).number("ratelimit-limit"), 10);
    };
    // Renamed over, since the watch would see a file that is written in place while it is empty.
    let wrong = "upstream: http://127.0.0.1:9\nlisen: 1\nthreads: none\n";
    gateway.replace("gateway.yaml", wrong);
    eventually("it is logged", || occurrences(&gateway, not) == 1);
    gateway.expect_logged("problems=2");
    gateway.expect_logged("gateway.yaml:2:1: lisen: unknown key; ");
    gateway.expect_logged("gateway.yaml:3:10: threads: must be auto or");
    state(1.0, 0.0);
    // That the same wrong file is not reported again, a test of the watch shows without waiting; here the numbers below do.
    gateway.replace("gateway.yaml", wrong);
    gateway.signal("HUP");
    eventually("it is logged again at a signal", || occurrences(&gateway, not) == 2);
    std::fs::remove_file(&file).unwrap();
    eventually("it is gone", || occurrences(&gateway, "must be a readable file") == 1);
    state(3.0, 0.0);
    gateway.replace("gateway.yaml", &right);
    eventually("it is back", || occurrences(&gateway, "INFO configuration is unchanged") == 1);
    state(3.0, 1.0);
    assert_eq!((gateway.successful_reloads(), occurrences(&gateway, not)), (0, 3));
}

#[test]
fn a_report_of_many_problems_is_one_short_line() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    let wrong: String = (0..500).map(|number| format!("unknown{number}: 1\n")).collect();
    std::fs::write(gateway.file("gateway.yaml"), wrong).unwrap();
    gateway.signal("HUP");
    eventually("it is logged", || occurrences(&gateway, "problems=501") == 1);
    let errors = gateway.errors();
    let line = errors.lines().find(|line| line.contains("problems=501")).unwrap();
    assert!(line.len() < 2_000 && line.contains("; …"), "{line}");
}

#[test]
fn keys_that_need_a_restart_are_named_and_the_rest_is_reloaded() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, &burst(10));
    let text = format!(
        "listen: 127.0.0.1:1\nthreads: 7\nupstream: {}\nstore: {{memory: {{max_buckets: 9}}}}\n{}",
        url(&upstream),
        burst(11)
    );
    std::fs::write(gateway.file("gateway.yaml"), text).unwrap();
    gateway.signal("HUP");
    eventually("it is in force", || gateway.successful_reloads() == 1);
    let warning = "WARN these keys take effect only after a restart keys=\"listen, admin, threads, store\"";
    eventually("it is logged", || occurrences(&gateway, warning) == 1);
    assert_eq!(gateway.client().get("/?u=a", &[]).number("ratelimit-limit"), 11);
    gateway.expect("tollgate_config_last_reload_successful", &[], 1.0);
}

#[test]
fn the_next_request_on_a_connection_uses_the_new_file() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, &burst(10));
    let mut client = gateway.client();
    let response = client.get("/?u=a", &[("X-Forwarded-For", "192.0.2.1")]);
    assert_eq!((response.status, response.field("x-ratelimit-limit")), (200, None));
    gateway.reload(&upstream, &format!("headers: [x-ratelimit]\n{}", burst(3)));
    let response = client.get("/?u=a", &[]);
    assert_eq!((response.number("x-ratelimit-limit"), response.field("ratelimit-limit")), (3, None));
    let by_client = "client_ip: {trusted_proxies: [127.0.0.1]}\nretry_after_jitter: {share: 0}\n\
                     rules: [{name: d, match: {ip:address: 192.0.2.1}, action: deny}]";
    gateway.reload(&upstream, by_client);
    let forwarded = [("X-Forwarded-For", "192.0.2.1")];
    assert_eq!((client.get("/", &[]).status, client.get("/", &forwarded).status), (200, 403));
    gateway.reload(&upstream, "limits: {target_bytes: 64B}");
    assert_eq!(client.get(&format!("/{}", "a".repeat(100)), &[]).status, 414);
    gateway.expect("rate_limiter_requests_total", &["rule=\"r\""], 2.0);
}

#[test]
fn a_new_upstream_gets_the_next_request_and_the_old_one_finishes_its_own() {
    let slow = Upstream::answering(|_, stream| {
        std::thread::sleep(Duration::from_millis(2500));
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nold");
    });
    let new = Upstream::answering(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nnew");
    });
    let gateway = Gateway::start(&slow, "");
    let mut waiting = gateway.client();
    waiting.write("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    eventually("it arrives", || slow.count() == 1);
    gateway.reload(&new, "upstream_timeouts: {read: 1500ms}");
    assert_eq!(gateway.client().get("/", &[]).body, "new");
    let response = waiting.response("GET").unwrap();
    assert_eq!((response.status, &*response.body), (200, "old"));
    gateway.reload(&slow, "upstream_timeouts: {read: 200ms}");
    assert_eq!(gateway.client().get("/", &[]).status, 504);
    // By a name, which is looked up for the first time.
    let text = Gateway::text(&format!("http://localhost:{}", new.address.port()), "");
    std::fs::write(gateway.file("gateway.yaml"), text).unwrap();
    gateway.signal("HUP");
    eventually("it is in force", || gateway.successful_reloads() == 3);
    assert_eq!(gateway.client().get("/", &[]).body, "new");
}

#[test]
fn a_rotated_secret_is_in_force_without_a_change_of_the_file_that_names_it() {
    let upstream = Upstream::start();
    let (old, new) = ("old".repeat(11), "new".repeat(11));
    let jwt = "jwt: {algorithms: [HS256], keys: {secret_file: secret}}\n\
               rules: [{name: r, limit_keys: [\"jwt:sub\"], algorithm_config: {rate: 1/day, burst: 10}}]";
    let gateway = Gateway::before(&upstream).with(jwt).file("secret", &old).start();
    let get = |secret: &str| {
        let token =
            Signer::hs256(secret).token(&json!({"alg": "HS256"}), &json!({"sub": "a", "exp": mint::epoch() + 60}));
        gateway.client().get("/", &[("Authorization", &format!("Bearer {token}"))])
    };
    assert_eq!((get(&old).number("ratelimit-remaining"), get(&new).status), (9, 401));
    std::fs::write(gateway.file("secret"), &new).unwrap();
    eventually("the new one is known", || get(&new).status == 200);
    assert_eq!(get(&old).status, 401);
    // The same client's bucket goes on.
    assert_eq!(get(&new).number("ratelimit-remaining"), 7);
    std::fs::write(gateway.file("secret"), "short").unwrap();
    eventually("it is logged", || occurrences(&gateway, "a secret must have at least 32 bytes") == 1);
    assert!(!gateway.errors().contains("short\n") && get(&new).status == 200);
}

#[test]
fn the_key_file_that_a_new_file_names_is_watched() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream).file("keys", "# none yet\n").start();
    let (key, other) = ("a-key-of-sixteen-characters", "another-key-of-sixteen-characters");
    let status = |key: &str| gateway.client().get("/", &[("X-API-Key", key)]).status;
    let line = |key: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(["key", "acme", "gold"]).stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(key.as_bytes()).unwrap();
        child.wait_with_output().unwrap().stdout
    };
    std::fs::write(gateway.file("keys"), line(key)).unwrap();
    gateway.reload(&upstream, "api_keys: {from: \"header:x-api-key\", file: keys}");
    assert_eq!((status(key), status(other)), (200, 401));
    std::fs::write(gateway.file("keys"), line(other)).unwrap();
    eventually("the other is known", || status(other) == 200);
    assert_eq!(status(key), 401);
    // A wrong file of keys shows in the same gauge, which a good gateway.yaml that is only looked at does not turn back.
    std::fs::write(gateway.file("keys"), "wrong").unwrap();
    eventually("it is logged", || occurrences(&gateway, "API keys rejected") == 1);
    gateway.expect("tollgate_config_last_reload_successful", &[], 0.0);
    gateway.reload(&upstream, "");
    assert_eq!(status(key), 200);
    gateway.expect("tollgate_config_last_reload_successful", &[], 1.0);
}

#[test]
fn diagnostics_and_draining_follow_the_file() {
    let upstream = Upstream::start();
    let mut gateway = Gateway::start(&upstream, "log: {level: error}");
    let file = gateway.file("gateway.yaml");
    let text = Gateway::text(&url(&upstream), "log: {format: json}\ndrain: {delay: 600ms}");
    std::fs::write(file, text).unwrap();
    gateway.signal("HUP");
    eventually("it is logged", || gateway.successful_reloads() == 1);
    assert!(gateway.errors().starts_with('{'), "{}", gateway.errors());
    let start = now();
    gateway.signal("TERM");
    assert_eq!(gateway.wait().0.code(), Some(0));
    let took = start.elapsed();
    assert!((Duration::from_millis(600)..Duration::from_secs(10)).contains(&took), "{took:?}");
}

/// Returns a configuration with many rules, whose numbers depend on `round`. The first rule counts what is granted.
fn many_rules(rules: usize, round: usize) -> String {
    let mut text = burst(500);
    text = text.trim_end().trim_end_matches(']').to_owned();
    for number in 0..rules {
        text += &format!(
            ", {{name: r{number}, match: {{path: /p{number}}}, limit_keys: [ip:address], \
             algorithm_config: {{rps: {}, burst: 1000000}}}}",
            1 + round
        );
    }
    text + "]\n"
}

#[test]
fn reloads_under_load_fail_no_request_leak_nothing_and_grant_no_more() {
    let (rules, rounds) = (1000, short_or_long(20, 200));
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, &many_rules(rules, 0));
    let threads = gateway.metric("process_threads", &[]);
    let (stop, granted, refused) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    let (mut early, mut late) = (0.0, 0.0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = gateway.client();
                while !stop.load(Ordering::Relaxed) {
                    match client.get("/?u=a", &[]).status {
                        200 => granted.fetch_add(1, Ordering::Relaxed),
                        429 => refused.fetch_add(1, Ordering::Relaxed),
                        status => panic!("{status}"),
                    };
                    assert_eq!(client.get("/p7", &[]).status, 200);
                }
            });
        }
        for round in 1..=rounds {
            gateway.reload(&upstream, &many_rules(rules, round));
            if round == rounds / 2 {
                early = gateway.metric("process_resident_memory_bytes", &[]);
            }
        }
        late = gateway.metric("process_resident_memory_bytes", &[]);
        eventually("the bucket is empty", || refused.load(Ordering::Relaxed) > 0);
        stop.store(true, Ordering::Relaxed);
    });
    let (granted, refused) = (granted.into_inner(), refused.into_inner());
    print_measured(&format!(
        "{rounds} reloads of {rules} rules: granted {granted}, refused {refused}, RSS {early} then {late}"
    ));
    assert_eq!(granted, 500);
    gateway.expect("tollgate_config_reloads_total", &["success"], f64::from(u32::try_from(rounds).unwrap()));
    // Blocking threads come and go; those that proxy do not.
    assert!(gateway.metric("process_threads", &[]) <= threads + 4.0);
    assert!(late < early * 1.5 + 10e6, "{early} then {late}");
}
