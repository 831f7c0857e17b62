//! The events on the status page.

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use super::document::{document, eventually_reported};
use crate::support::mint::es256;
use crate::support::{Gateway, Redis, Upstream, eventually, now};

const RULES: &str = "rules: [{name: one, limit_keys: [query:user], algorithm_config: {rate: 1000/s}}, \
                     {name: two, limit_keys: [query:team], algorithm_config: {rate: 1000/s}}]\n";

/// Returns how often an event has happened, and its last detail.
fn event(document: &Value, what: &str) -> Option<(u64, String)> {
    let event = document["events"].as_array().unwrap().iter().find(|event| event["what"] == what)?;
    Some((event["times"].as_u64().unwrap(), event["detail"].as_str().unwrap_or_default().to_owned()))
}

#[track_caller]
fn happens(gateway: &Gateway, what: &str) -> String {
    let reported = eventually_reported(gateway, what, |reported| event(reported, what).is_some());
    event(&reported, what).unwrap().1
}

#[test]
fn reloads_are_shown_and_an_invalid_file_with_its_position_only() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, RULES);
    let first = document(&gateway);
    let hash = first["config"]["hash"].as_str().unwrap();
    assert_eq!(event(&first, "started").unwrap(), (1, format!("{}, configuration {hash}", env!("CARGO_PKG_VERSION"))));
    gateway.reload(&upstream, &format!("{RULES}drain: {{timeout: 9s}}\n"));
    assert_eq!(happens(&gateway, "configuration reloaded").len(), hash.len());
    let wrong = Gateway::text(&format!("http://{}", upstream.address), &format!("{RULES}threads: the-secret\nx: 1\n"));
    std::fs::write(gateway.file("gateway.yaml"), wrong.replace("threads: 2\n", "")).unwrap();
    gateway.signal("HUP");
    let detail = happens(&gateway, "configuration rejected");
    assert!(detail.starts_with("gateway.yaml:5:10 threads, and 1 more problem"), "{detail}");
    let events = document(&gateway)["events"].clone();
    assert!(!events.to_string().contains("the-secret"), "{events}");
    let order: Vec<_> = events.as_array().unwrap().iter().map(|event| event["what"].as_str().unwrap()).collect();
    assert_eq!(order, ["configuration rejected", "configuration reloaded", "started"]);
}

#[test]
fn an_outage_of_the_store_is_shown_from_its_beginning_to_its_end() {
    let (mut redis, upstream) = (Redis::start(), Upstream::start());
    let store = format!("store: {{redis: {{url: \"redis://127.0.0.1:{}\", timeout: 5s}}}}\n", redis.port);
    // Ten sweeps without such a decision end the outage: ten seconds.
    let sweep = Duration::from_millis(100);
    let gateway = Gateway::before(&upstream).with(RULES).with(&store).short_interval("sweep", sweep).start();
    happens(&gateway, "store is up");
    redis.kill();
    assert!(["closed", "unreachable"].contains(&&*happens(&gateway, "store is down")));
    assert_eq!(gateway.client().get("/?user=a", &[]).status, 200);
    let began = "limits are decided without the store";
    assert_eq!(happens(&gateway, began), "default/one (local)");
    // Another limit joins the event.
    let both = "default/one (local), default/two (local)";
    eventually("both are named", || {
        for target in ["/?user=a", "/?team=b"] {
            assert_eq!(gateway.client().get(target, &[]).status, 200);
        }
        event(&document(&gateway), began).unwrap().1 == both
    });
    // Its row says how often, and what was done.
    eventually_reported(&gateway, "what was done", |reported| {
        let done = reported["rows"][0]["fallback"].as_object().unwrap();
        done.len() == 1 && done["local"].as_u64() > Some(1)
    });
    redis.restart();
    eventually_reported(&gateway, "it is up again", |reported| {
        event(reported, "store is up").unwrap().0 == 2 && reported["events"][0]["what"] == "store is up"
    });
    let deadline = now() + Duration::from_secs(20);
    while event(&document(&gateway), "limits are decided by the store again").is_none() {
        assert!(now() < deadline, "{}", document(&gateway)["events"]);
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(happens(&gateway, "limits are decided by the store again"), both);
}

#[test]
fn draining_and_a_failed_upgrade_are_shown() {
    let upstream = Upstream::start();
    let mut gateway = Gateway::start(&upstream, &format!("{RULES}drain: {{delay: 30s}}\n"));
    std::fs::write(gateway.file("gateway.yaml"), "upstream: nowhere\n").unwrap();
    gateway.signal("USR2");
    happens(&gateway, "starting the next process");
    happens(&gateway, "the next process gave up");
    gateway.signal("TERM");
    assert_eq!(happens(&gateway, "draining"), "");
    assert_eq!(document(&gateway)["status"], "draining");
    gateway.signal("TERM");
    gateway.wait();
}

#[test]
fn dropped_access_log_lines_are_shown() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, &format!("{RULES}access_log: {{to: /dev/full, when: [allowed]}}\n"));
    assert_eq!(gateway.client().get("/?user=the-name-of-a-client", &[]).status, 200);
    let detail = happens(&gateway, "access log lines dropped");
    assert!(detail.contains("No space left"), "{detail}");
    assert!(!document(&gateway).to_string().contains("the-name-of-a-client"));
}

#[test]
fn failed_and_recovered_key_fetches_are_shown() {
    let upstream = Upstream::start();
    let (key, requests) = (es256(), AtomicUsize::new(0));
    let issuer = Upstream::answering(move |_, stream| {
        let body = json!({"keys": [key.jwk]}).to_string();
        let code = if requests.fetch_add(1, Ordering::Relaxed) == 0 { "500 No" } else { "200 OK" };
        let _ = write!(stream, "HTTP/1.1 {code}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    });
    let url = format!("http://{}/keys", issuer.address);
    let gateway =
        Gateway::start(&upstream, &format!("{RULES}jwt: {{algorithms: [ES256], keys: {{jwks_url: \"{url}\"}}}}\n"));
    let named = happens(&gateway, "keys of an issuer not fetched");
    gateway.signal("HUP");
    assert_eq!(happens(&gateway, "keys of an issuer fetched again"), named);
}

#[test]
fn the_breaker_is_shown_when_it_opens_and_when_it_closes() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    let store = format!("store: {{redis: {{url: \"redis://127.0.0.1:{}\"}}}}\n", redis.port);
    let gateway = Gateway::start(&upstream, &format!("{RULES}{store}"));
    happens(&gateway, "store is up");
    let mut client = gateway.client();
    redis.signal("STOP");
    eventually("it opens", || {
        client.get("/?user=a", &[]);
        event(&document(&gateway), "breaker opened").is_some()
    });
    redis.signal("CONT");
    let end = now() + Duration::from_secs(20);
    while event(&document(&gateway), "breaker closed").is_none() {
        assert!(now() < end, "{}", document(&gateway)["events"]);
        client.get("/?user=a", &[]);
    }
}
