//! Tests the words for what limits do while a shared store gives no answer: in `check`, `explain`, the log and the status document.

use crate::status::document::document;
use crate::support::{Gateway, Redis, Upstream, tollgate};

/// Returns a file whose three rules differ in what they do without the store. `store` is its value.
fn file(store: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = format!(
        "upstream: http://127.0.0.1:9000
store: {store}
rules:
  - {{name: login, match: {{path: /login}}, limit_keys: [], on_store_failure: deny, limits: {{minute: {{rate: 5/min}}, day: {{rate: 50/day}}}}}}
  - {{name: help, match: {{path: /help}}, limit_keys: [], on_store_failure: allow, algorithm_config: {{rate: 5/min}}}}
  - {{name: rest, limit_keys: [], algorithm_config: {{rate: 5/min}}}}
  - {{name: tried, mode: shadow, limit_keys: [], on_store_failure: deny, algorithm_config: {{rate: 5/min}}}}
"
    );
    std::fs::write(file.path(), text).unwrap();
    file
}

const SHARED: &str = "{redis: {url: \"redis://127.0.0.1:1\"}, gateways: 2}";

#[test]
fn check_names_the_limits_that_answer_503_without_the_store() {
    let shared = file(SHARED);
    let path = shared.path().to_str().unwrap();
    let line = "while the store is away: login.minute and login.day answer 503 (on_store_failure: deny)\nok\n";
    let checked = tollgate(&["check", path]);
    assert_eq!((checked.code, &*checked.out), (Some(0), line), "{}", checked.err);
    let listed = &tollgate(&["check", "--json", path]).json()["denied_without_store"];
    assert_eq!(*listed, serde_json::json!(["login.minute", "login.day"]));
    // The store in memory never fails.
    let memory = file("{memory: {}}");
    assert_eq!(tollgate(&["check", memory.path().to_str().unwrap()]).out, "ok\n");
}

#[test]
fn explain_says_what_becomes_of_a_request_without_the_store() {
    let shared = file(SHARED);
    let path = shared.path().to_str().unwrap();
    let last = |url: &str, path: &str| {
        let explained = tollgate(&["explain", "-c", path, url]);
        assert_eq!(explained.code, Some(0), "{}", explained.err);
        explained.out.lines().last().unwrap_or_default().to_owned()
    };
    for (url, done) in [
        ("/login", "login.minute and login.day answer 503 (on_store_failure: deny)"),
        ("/help", "help lets requests pass without a charge (on_store_failure: allow)"),
        ("/", "rest decides by this gateway's share (on_store_failure: local)"),
    ] {
        assert_eq!(last(url, path), format!("while the store is away: {done}"));
    }
    let memory = file("{memory: {}}");
    assert!(last("/login", memory.path().to_str().unwrap()).contains("the store was not read"));
}

#[test]
fn check_and_explain_say_what_limits_over_several_regions_do_without_home() {
    let home = |on_failure: &str| {
        let home = format!(
            "{{redis: {{url: \"redis://127.0.0.1:2\"}}, region: eu, regions: [eu, us], on_failure: {on_failure}}}"
        );
        let file = file(&SHARED.replace("gateways: 2", &format!("gateways: 2, home: {home}")));
        let text = std::fs::read_to_string(file.path()).unwrap().replace("{name: help,", "{name: help, scope: global,");
        std::fs::write(file.path(), text).unwrap();
        file
    };
    for (on_failure, checked, explained) in [
        (
            "deny",
            "while home is away: help answers 503 beyond its lease (store.home.on_failure: deny)\n",
            "help answers 503 beyond its lease (store.home.on_failure: deny)",
        ),
        ("local", "", "help decides by this region's share (store.home.on_failure: local)"),
    ] {
        let file = home(on_failure);
        let path = file.path().to_str().unwrap();
        let found = tollgate(&["check", path]).out;
        let after_store = found.split_once("(on_store_failure: deny)\n").unwrap().1;
        assert_eq!(after_store, format!("{checked}ok\n"));
        let explained_help = tollgate(&["explain", "-c", path, "/help"]).out;
        assert_eq!(explained_help.lines().last(), Some(&*format!("while home is away: {explained}")));
        assert!(!tollgate(&["explain", "-c", path, "/"]).out.contains("while home is away"));
    }
}

#[test]
fn the_log_and_the_status_page_say_what_limits_do_without_the_store() {
    let (mut redis, upstream) = (Redis::start(), Upstream::start());
    let rules = "rules:
  - {name: one, limit_keys: [], on_store_failure: deny, limits: {minute: {rate: 5/min}, day: {rate: 50/day}}}
  - {name: two, limit_keys: [], algorithm_config: {rate: 5/min}}
";
    let store = format!("store: {{redis: {{url: \"redis://127.0.0.1:{}\"}}, gateways: 1}}\n", redis.port);
    let gateway = Gateway::start(&upstream, &(store + rules));
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    redis.kill();
    let words = "2 limits answer 503, 1 limit decides by this gateway's share";
    gateway.expect_logged(&format!("meanwhile={words:?}"));
    assert_eq!(document(&gateway)["store"]["meanwhile"], words);
}
