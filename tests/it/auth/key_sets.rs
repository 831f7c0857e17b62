//! Key sets that are fetched from an issuer: changes of keys, and sets that cannot be used.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use super::tokens::{RULES, SECRET, ask, check, claims};
use crate::support::mint;
use crate::support::mint::{Signer, with};
use crate::support::{
    Certificates, Client, Gateway, SYSTEM_ROOTS, Upstream, eventually, https, now, shortened_or_real,
};

/// A server of keys. A test sets its response.
struct Issuer {
    server: Upstream,
    says: Arc<Mutex<String>>,
}

impl Issuer {
    fn start(says: &str) -> Issuer {
        let says = Arc::new(Mutex::new(says.to_owned()));
        let reported = Arc::clone(&says);
        let server = Upstream::answering(move |_, stream| {
            let answer = reported.lock().unwrap().clone();
            let _ = stream.write_all(answer.as_bytes());
        });
        Issuer { server, says }
    }

    fn set_answer(&self, answer: &str) {
        answer.clone_into(&mut self.says.lock().unwrap());
    }

    fn settings(&self, algorithms: &str, rest: &str) -> String {
        let url = format!("http://{}/keys", self.server.address);
        format!("jwt:\n  algorithms: [{algorithms}]\n  keys: {{jwks_url: \"{url}\"}}\n{rest}{RULES}")
    }

    fn gateway(&self, upstream: &Upstream, rest: &str) -> Gateway {
        Gateway::before(upstream)
            .with(&self.settings("ES256", rest))
            .short_interval("jwks_cooldown", cooldown())
            .start()
    }
}

/// Returns the shortest time between two fetches of a key set that unknown keys cause.
pub(super) fn cooldown() -> Duration {
    shortened_or_real(Duration::from_secs(1), Duration::from_secs(10))
}

fn answer(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
}

fn set(keys: &[Value]) -> String {
    answer("200 OK", &json!({"keys": keys}).to_string())
}

#[test]
fn a_new_key_is_fetched_for_the_first_token_and_an_old_one_expires_with_its_set() {
    let (upstream, old, new) = (Upstream::start(), mint::es256(), mint::es256());
    let issuer = Issuer::start(&set(&[old.jwk_as("old")]));
    let gateway = issuer.gateway(&upstream, "");
    let mut client = gateway.client();
    let sign = |minted: &mint::SigningKey, id: &str, sub: &str| {
        minted.signer.token(&json!({"alg": "ES256", "kid": id}), &claims(sub, "enterprise"))
    };
    let by_old = sign(&old, "old", "a");
    check(&ask(&mut client, &by_old), 200, "enterprise");
    check(&ask(&mut client, &by_old), 200, "enterprise");
    // Rotated: what was verified a moment ago dies with its key.
    issuer.set_answer(&set(&[new.jwk_as("new")]));
    std::thread::sleep(cooldown());
    let start = now();
    // A crowd finds so at the same moment: the set is fetched once for all of them.
    std::thread::scope(|scope| {
        for number in 0..32 {
            let token = sign(&new, &format!("crowd-{number}"), "a");
            let gateway = &gateway;
            scope.spawn(move || check(&ask(&mut gateway.client(), &token), 401, ""));
        }
        check(&ask(&mut client, &sign(&new, "new", "a")), 200, "enterprise");
    });
    check(&ask(&mut client, &by_old), 401, "");
    // At the start, and once in each cool-down that has begun since.
    let fetches_are_few = || {
        let most = 2 + start.elapsed().as_secs() / cooldown().as_secs();
        assert!(issuer.server.count() as u64 <= most, "{} fetches in {:?}", issuer.server.count(), start.elapsed());
    };
    fetches_are_few();
    // A flood of unknown keys causes no more than one fetch in each cool-down.
    for number in 0..200 {
        check(&ask(&mut client, &sign(&new, &format!("unknown-{number}"), "a")), 401, "");
    }
    fetches_are_few();
    assert!(gateway.metric("tollgate_jwks_last_success_timestamp_seconds", &["issuer=\"default\""]) > 1.7e9);
}

#[test]
fn before_the_first_keys_no_token_can_be_verified() {
    let (upstream, key) = (Upstream::start(), mint::es256());
    let issuer = Issuer::start(&answer("500 Internal Server Error", "{}"));
    let gateway = issuer.gateway(&upstream, "");
    let mut client = gateway.client();
    let token = key.signer.token(&json!({"alg": "ES256", "kid": "k"}), &claims("a", "enterprise"));
    let refused = ask(&mut client, &token);
    check(&refused, 503, "");
    assert_eq!(refused.field("X-Tollgate-Reason").unwrap(), "keys_unavailable");
    assert!(refused.field("Retry-After").is_some());
    // A request without a token, or with a malformed one, needs no keys.
    check(&client.get("/", &[]), 200, "anonymous");
    check(&ask(&mut client, "x.y.z"), 401, "");
    assert_eq!(Client::connect(gateway.admin).get("/readyz", &[]).status, 503);
    issuer.set_answer(&set(&[key.jwk_as("k")]));
    eventually("the keys are there", || ask(&mut client, &token).status == 200);
    assert_eq!(Client::connect(gateway.admin).get("/readyz", &[]).status, 200);
}

#[test]
fn a_set_without_a_key_for_any_listed_algorithm_is_as_no_set() {
    let (upstream, key, other) = (Upstream::start(), mint::es256(), mint::eddsa());
    let issuer = Issuer::start(&set(&[other.jwk_as("k")]));
    let gateway = issuer.gateway(&upstream, "");
    let ready = || Client::connect(gateway.admin).get("/readyz", &[]).status;
    let mut client = gateway.client();
    let token = key.signer.token(&json!({"alg": "ES256", "kid": "k"}), &claims("a", "enterprise"));
    let refused = ask(&mut client, &token);
    check(&refused, 503, "");
    assert_eq!(refused.field("X-Tollgate-Reason").unwrap(), "keys_unavailable");
    assert_eq!(ready(), 503);
    gateway.expect_logged("has no key for ES256, which `algorithms` lists");
    // One key that fits is enough.
    issuer.set_answer(&set(&[other.jwk_as("other"), key.jwk_as("k")]));
    eventually("the keys are there", || ask(&mut client, &token).status == 200);
    assert_eq!(ready(), 200);
    // A reload that lists another algorithm keeps the set if it fits, also while the issuer fails.
    issuer.set_answer(&answer("500 Internal Server Error", "{}"));
    gateway.reload(&upstream, &issuer.settings("RS256, ES256", ""));
    let fresh = key.signer.token(&json!({"alg": "ES256", "kid": "k"}), &claims("b", "enterprise"));
    check(&ask(&mut client, &fresh), 200, "enterprise");
    assert_eq!(ready(), 200);
}

#[test]
fn an_issuer_that_answers_wrongly_or_fails_changes_nothing() {
    let (upstream, key) = (Upstream::start(), mint::es256());
    let good = set(&[key.jwk_as("k")]);
    let secret = json!({"kty": "oct", "kid": "k", "k": mint::encode(SECRET), "alg": "HS256"});
    let lies = [
        answer("200 OK", "{\"keys\":[]}"),
        answer("200 OK", "<html>"),
        answer("200 OK", "{\"keys\":[{\"kty\":\"EC\"}]}"),
        answer("200 OK", &json!({"keys": [secret]}).to_string()),
        set(&[mint::eddsa().jwk_as("k")]),
        answer("200 OK", &format!("{{\"keys\":[],\"filler\":\"{}\"}}", "x".repeat(2 << 20))),
        answer("302 Found", ""),
        answer("404 Not Found", &json!({"keys": [mint::es256().jwk_as("k")]}).to_string()),
        "garbage\r\n\r\n".to_owned(),
        "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{".to_owned(),
        String::new(),
    ];
    for lie in &lies {
        // Each has a gateway that fetched the good set before, and asks again for an unknown key.
        let issuer = Issuer::start(&good);
        let gateway = issuer.gateway(&upstream, "");
        let mut client = gateway.client();
        let sign = |id: &str| key.signer.token(&json!({"alg": "ES256", "kid": id}), &claims("a", "enterprise"));
        check(&ask(&mut client, &sign("k")), 200, "enterprise");
        issuer.set_answer(lie);
        gateway.signal("HUP");
        eventually("the set is fetched again", || {
            gateway.has_logged("keys not fetched, the previous ones stay in force")
        });
        assert!(issuer.server.count() >= 2);
        check(&ask(&mut client, &sign("k")), 200, "enterprise");
        let fresh = key.signer.token(&json!({"alg": "ES256", "kid": "k"}), &claims("b", "enterprise"));
        check(&ask(&mut client, &fresh), 200, "enterprise");
        assert_eq!(Client::connect(gateway.admin).get("/readyz", &[]).status, 200);
        let hs256 = Signer::hs256(SECRET).token(&json!({"alg": "HS256", "kid": "k"}), &claims("a", "enterprise"));
        check(&ask(&mut client, &hs256), 401, "");
    }
}

#[test]
fn one_bad_key_does_not_spoil_a_set() {
    let (upstream, key) = (Upstream::start(), mint::es256());
    let sound = key.jwk_as("k");
    let keys = [
        json!({"kty": "EC", "crv": "P-256", "kid": "off", "x": mint::encode([1; 32]), "y": mint::encode([1; 32])}),
        json!({"kty": "RSA", "kid": "small", "n": mint::encode([0xff; 128]), "e": "AQAB"}),
        json!({"kty": "martian", "kid": "m"}),
        json!("not a key"),
        with(&key.jwk_as("encrypts"), "use", json!("enc")),
        with(&key.jwk_as("signs"), "key_ops", json!(["sign"])),
        with(&key.jwk_as("other"), "alg", json!("ES384")),
        with(&with(&sound, "use", json!("sig")), "alg", json!("ES256")),
    ];
    let issuer = Issuer::start(&set(&keys));
    let gateway = issuer.gateway(&upstream, "");
    let mut client = gateway.client();
    for (id, status) in [("k", 200), ("off", 401), ("encrypts", 401), ("signs", 401), ("other", 401)] {
        let token = key.signer.token(&json!({"alg": "ES256", "kid": id}), &claims("a", "enterprise"));
        assert_eq!(ask(&mut client, &token).status, status, "{id}");
    }
}

#[test]
fn keys_over_https_come_only_from_a_server_that_verifies() {
    let (upstream, key, certificates, others) =
        (Upstream::start(), mint::es256(), Certificates::new(), Certificates::new());
    let port = https::serve(&certificates, set(&[key.jwk_as("k")])).port();
    let token = key.signer.token(&json!({"alg": "ES256", "kid": "k"}), &claims("a", "enterprise"));
    let status = |host: &str, trusted: &Certificates| {
        let text =
            format!("jwt:\n  algorithms: [ES256]\n  keys: {{jwks_url: \"https://{host}:{port}/keys\"}}\n{RULES}");
        let gateway = Gateway::before(&upstream).with(&text).file(SYSTEM_ROOTS, &trusted.authority).start();
        (ask(&mut gateway.client(), &token).status, gateway)
    };
    assert_eq!(status("localhost", &certificates).0, 200);
    for (host, trusted) in [("localhost", &others), ("127.0.0.1", &certificates)] {
        let (status, gateway) = status(host, trusted);
        assert_eq!(status, 503, "{host}");
        gateway.expect_logged("keys not fetched, tokens are answered 503 until they are");
        gateway.expect_logged("certificate");
    }
}
