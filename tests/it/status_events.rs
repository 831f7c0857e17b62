//! What has happened to a gateway, as its status page tells it.

use serde_json::Value;

use super::status::{document, eventually_told};
use super::support::{Client, Gateway, Redis, Upstream};

const RULES: &str = "rules: [{name: one, limit_keys: [query:user], algorithm_config: {rate: 1000/s}}]\n";

/// How often it happened, and the last detail of it.
fn event(document: &Value, what: &str) -> Option<(u64, String)> {
    let event = document["events"].as_array().unwrap().iter().find(|event| event["what"] == what)?;
    Some((event["times"].as_u64().unwrap(), event["detail"].as_str().unwrap_or_default().to_owned()))
}

#[track_caller]
fn happens(gateway: &Gateway, what: &str) -> String {
    let told = eventually_told(gateway, what, |told| event(told, what).is_some());
    event(&told, what).unwrap().1
}

#[test]
fn reloads_are_told_and_a_wrong_file_with_its_place_and_not_what_stands_there() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, RULES);
    let first = document(&gateway);
    let hash = first["config"]["hash"].as_str().unwrap();
    assert_eq!(event(&first, "started").unwrap(), (1, format!("{}, configuration {hash}", env!("CARGO_PKG_VERSION"))));
    gateway.reload(&upstream, &format!("{RULES}drain: {{timeout: 9s}}\n"));
    assert_eq!(happens(&gateway, "configuration taken up").len(), hash.len());
    let wrong = Gateway::text(&format!("http://{}", upstream.address), &format!("{RULES}threads: the-secret\nx: 1\n"));
    std::fs::write(gateway.file("gateway.yaml"), wrong.replace("threads: 2\n", "")).unwrap();
    gateway.signal("HUP");
    let detail = happens(&gateway, "configuration not taken up");
    assert!(detail.starts_with("gateway.yaml:5:10 threads, and 1 more problem"), "{detail}");
    let events = document(&gateway)["events"].clone();
    assert!(!events.to_string().contains("the-secret"), "{events}");
    let order: Vec<_> = events.as_array().unwrap().iter().map(|event| event["what"].as_str().unwrap()).collect();
    assert_eq!(order, ["configuration not taken up", "configuration taken up", "started"]);
}

#[test]
fn an_outage_of_the_store_is_told_from_its_beginning_to_its_end() {
    let (mut redis, upstream) = (Redis::start(), Upstream::start());
    let gateway =
        Gateway::start(&upstream, &format!("{RULES}store: {{redis: {{url: \"redis://127.0.0.1:{}\"}}}}\n", redis.port));
    happens(&gateway, "store is up");
    redis.kill();
    assert!(["closed", "unreachable"].contains(&&*happens(&gateway, "store is down")));
    assert_eq!(gateway.client().get("/?user=a", &[]).status, 200);
    assert_eq!(happens(&gateway, "limits decide without the store"), "default/one");
    redis.restart();
    eventually_told(&gateway, "it is up again", |told| {
        event(told, "store is up").unwrap().0 == 2 && told["events"][0]["what"] == "store is up"
    });
    // Ten seconds without such a decision end it.
    let deadline = super::support::now() + std::time::Duration::from_secs(20);
    while event(&document(&gateway), "the store decides again").is_none() {
        assert!(super::support::now() < deadline, "{}", document(&gateway)["events"]);
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

#[test]
fn draining_and_a_handover_are_told() {
    let upstream = Upstream::start();
    let mut gateway = Gateway::start(&upstream, &format!("{RULES}drain: {{delay: 30s}}\n"));
    // One that is open already, because the listener may close.
    let mut admin = Client::connect(gateway.admin);
    assert_eq!(admin.get("/livez", &[]).status, 200);
    gateway.signal("TERM");
    assert_eq!(happens(&gateway, "draining"), "");
    assert_eq!(document(&gateway)["status"], "draining");
    gateway.signal("TERM");
    gateway.wait();
}

#[test]
fn dropped_lines_of_the_access_log_are_told() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, &format!("{RULES}access_log: {{to: /dev/full, when: [allowed]}}\n"));
    assert_eq!(gateway.client().get("/?user=the-name-of-a-client", &[]).status, 200);
    let detail = happens(&gateway, "lines of the access log dropped");
    assert!(detail.contains("No space left"), "{detail}");
    assert!(!document(&gateway).to_string().contains("the-name-of-a-client"));
}
