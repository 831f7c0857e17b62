//! Plans by token: the places of tokens and keys, requests without a valid token, and changes of keys.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ring::signature;
use serde_json::{Value, json};

use crate::support::mint;
use crate::support::mint::{Signer, epoch, with};
use crate::support::{
    Certificates, Client, Gateway, Redis, Response, SYSTEM_ROOTS, Upstream, eventually, https, now, shortened_or_real,
};

const SECRET: &str = "0123456789abcdef0123456789abcdef";
const RULES: &str = "
rules:
  - {name: enterprise, match: {jwt:plan: enterprise}, limit_keys: [jwt:sub], algorithm_config: {rps: 100, burst: 200}}
  - {name: free, match: {jwt:plan: free}, limit_keys: [jwt:sub], algorithm_config: {rate: 3/day}}
  - {name: anonymous, limit_keys: [ip:address], algorithm_config: {rate: 1000/day}}
";

fn claims(sub: &str, plan: &str) -> Value {
    json!({"sub": sub, "plan": plan, "exp": epoch() + 600})
}

fn hs256(claims: &Value) -> String {
    Signer::hs256(SECRET).token(&json!({"alg": "HS256"}), claims)
}

fn secret() -> String {
    format!("  algorithms: [HS256]\n  keys: {{secret: {SECRET}}}\n")
}

#[track_caller]
fn ask(client: &mut Client, token: &str) -> Response {
    client.get("/", &[("Authorization", &format!("Bearer {token}"))])
}

/// Returns the status, and the name of the limit that was charged.
fn reported(response: &Response) -> (u16, String) {
    let policy = response.field("RateLimit-Policy").unwrap_or_default();
    (response.status, policy.split(';').next().unwrap_or_default().trim_matches('"').to_owned())
}

#[track_caller]
fn check(response: &Response, status: u16, limit: &str) {
    assert_eq!(reported(response), (status, limit.to_owned()), "{response:?}");
}

#[test]
fn plans_are_shared_by_two_gateways_on_one_redis() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    let text = format!("{}jwt:\n{}{RULES}", redis.patient_store(), secret());
    let (one, two) = (Gateway::start(&upstream, &text), Gateway::start(&upstream, &text));
    let (mut at_one, mut at_two) = (one.client(), two.client());
    let free = hs256(&claims("alice", "free"));
    check(&ask(&mut at_one, &free), 200, "free");
    check(&ask(&mut at_two, &free), 200, "free");
    check(&ask(&mut at_one, &free), 200, "free");
    check(&ask(&mut at_two, &free), 429, "free");
    // Another token of the same subject is the same customer; another subject is another.
    check(&ask(&mut at_one, &hs256(&with(&claims("alice", "free"), "jti", json!("2")))), 429, "free");
    check(&ask(&mut at_one, &hs256(&claims("bob", "free"))), 200, "free");
    for _ in 0..20 {
        check(&ask(&mut at_two, &hs256(&claims("carol", "enterprise"))), 200, "enterprise");
    }
    let forged = Signer::hs256("somebody else's secret, just as long")
        .token(&json!({"alg": "HS256"}), &claims("alice", "enterprise"));
    check(&ask(&mut at_one, &forged), 401, "");
    check(&at_one.get("/", &[]), 200, "anonymous");
}

#[test]
fn the_token_is_forwarded_to_the_upstream_and_nowhere_else() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, &format!("jwt:\n{}{RULES}log: {{level: debug}}\n", secret()));
    let token = hs256(&claims("alice", "free"));
    check(&ask(&mut gateway.client(), &token), 200, "free");
    assert_eq!(upstream.last().field("Authorization").unwrap(), format!("Bearer {token}"));
    ask(&mut gateway.client(), &format!("{token}x"));
    let metrics = Client::connect(gateway.admin).get("/metrics", &[]).body;
    for secret in [&*token, &token[..20], "alice", SECRET] {
        assert!(!gateway.errors().contains(secret) && !metrics.contains(secret), "{secret}");
    }
}

#[test]
fn a_token_is_read_from_the_configured_attribute() {
    let upstream = Upstream::start();
    let text = format!("jwt:\n{}  token_from: [header:x-token, cookie:session]\n{RULES}", secret());
    let gateway = Gateway::start(&upstream, &text);
    let (free, enterprise) = (hs256(&claims("a", "free")), hs256(&claims("b", "enterprise")));
    let mut client = gateway.client();
    check(&client.get("/", &[("X-Token", &enterprise)]), 200, "enterprise");
    check(&client.get("/", &[("X-Token", &format!("Bearer {enterprise}"))]), 200, "enterprise");
    check(&client.get("/", &[("Cookie", &format!("a=b; session={enterprise}"))]), 200, "enterprise");
    // The first place counts.
    check(&client.get("/", &[("Cookie", &format!("session={enterprise}")), ("X-Token", &free)]), 200, "free");
    check(&client.get("/", &[("Authorization", &format!("Bearer {enterprise}"))]), 200, "anonymous");
    check(&client.get("/", &[("X-Token", "x")]), 401, "");
    check(&client.get("/", &[("Cookie", &format!("session={enterprise}; session={free}"))]), 400, "");
}

#[test]
fn a_missing_token_can_be_required() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, &format!("jwt:\n{}  on_missing: reject\n{RULES}", secret()));
    let mut client = gateway.client();
    let response = client.get("/", &[]);
    check(&response, 401, "");
    assert_eq!(response.field("X-Tollgate-Reason").unwrap(), "token_missing");
    assert_eq!(response.field("WWW-Authenticate").unwrap(), "Bearer");
    check(&ask(&mut client, &hs256(&claims("a", "free"))), 200, "free");
    let grpc = client.get("/", &[("Content-Type", "application/grpc")]);
    assert_eq!((grpc.status, grpc.field("grpc-status").as_deref()), (200, Some("16")));
}

#[test]
fn several_issuers_have_separate_keys_and_buckets() {
    let (upstream, ec) = (Upstream::start(), mint::es256());
    let set = json!({"keys": [ec.jwk_as("1")]}).to_string();
    let issuers = format!(
        "jwt:\n  issuers:\n    - {{issuer: one, algorithms: [HS256], keys: {{secret: {SECRET}}}}}\n    - {{issuer: two, algorithms: [ES256], keys: {{jwks_file: keys.json}}}}\n"
    );
    let gateway = Gateway::before(&upstream).with(&(issuers + RULES)).file("keys.json", &set).start();
    let mut client = gateway.client();
    let (one, two) =
        (with(&claims("alice", "free"), "iss", json!("one")), with(&claims("alice", "free"), "iss", json!("two")));
    let es256 = |claims: &Value| ec.signer.token(&json!({"alg": "ES256", "kid": "1"}), claims);
    for left in [2, 1, 0] {
        assert_eq!(ask(&mut client, &hs256(&one)).number("RateLimit-Remaining"), left);
    }
    check(&ask(&mut client, &hs256(&one)), 429, "free");
    // Another issuer's alice is somebody else.
    check(&ask(&mut client, &es256(&two)), 200, "free");
    // One issuer's key does not make the other's tokens.
    check(&ask(&mut client, &hs256(&two)), 401, "");
    check(&ask(&mut client, &es256(&one)), 401, "");
    check(&ask(&mut client, &hs256(&claims("alice", "free"))), 401, "");
}

#[test]
fn every_algorithm_verifies_with_a_key_of_its_own() {
    let upstream = Upstream::start();
    let check_pem = |name: &str, minted: &mint::SigningKey| {
        let text = format!("jwt:\n  algorithms: [{name}]\n  keys: {{public_key_file: key.pem}}\n{RULES}");
        let gateway = Gateway::before(&upstream).with(&text).file("key.pem", &minted.pem).start();
        let token = minted.signer.token(&json!({"alg": name}), &claims("a", "enterprise"));
        check(&ask(&mut gateway.client(), &token), 200, "enterprise");
    };
    for (name, encoding) in [
        ("RS256", &signature::RSA_PKCS1_SHA256 as &'static dyn signature::RsaEncoding),
        ("RS384", &signature::RSA_PKCS1_SHA384),
        ("RS512", &signature::RSA_PKCS1_SHA512),
        ("PS256", &signature::RSA_PSS_SHA256),
        ("PS384", &signature::RSA_PSS_SHA384),
        ("PS512", &signature::RSA_PSS_SHA512),
    ] {
        check_pem(name, &mint::rsa(encoding));
    }
    check_pem("ES256", &mint::es256());
    check_pem("ES384", &mint::es384());
    check_pem("EdDSA", &mint::eddsa());
    let secret = "a secret of sixty-four bytes, as long as the hash of HS512 asks.";
    for (name, algorithm) in
        [("HS256", ring::hmac::HMAC_SHA256), ("HS384", ring::hmac::HMAC_SHA384), ("HS512", ring::hmac::HMAC_SHA512)]
    {
        let text = format!("jwt:\n  algorithms: [{name}]\n  keys: {{secret_file: secret}}\n{RULES}");
        let gateway = Gateway::before(&upstream).with(&text).file("secret", &format!("{secret}\n")).start();
        let signer = Signer::Hmac(algorithm, secret.as_bytes().to_vec());
        check(
            &ask(&mut gateway.client(), &signer.token(&json!({"alg": name}), &claims("a", "enterprise"))),
            200,
            "enterprise",
        );
    }
}

#[test]
fn tokens_that_do_not_verify_have_a_limit_of_their_own_for_each_client() {
    let upstream = Upstream::start();
    let limit = "  invalid_limit: {rps: 0.2, burst: 3}\nclient_ip: {trusted_proxies: [127.0.0.0/8]}\n";
    let gateway = Gateway::start(&upstream, &format!("jwt:\n{}{limit}{RULES}", secret()));
    let mut client = gateway.client();
    let good = hs256(&claims("alice", "enterprise"));
    check(&ask(&mut client, &good), 200, "enterprise");
    for number in 0..3 {
        check(&ask(&mut client, &hs256(&json!({"number": number}))), 401, "");
    }
    let refused = ask(&mut client, &hs256(&json!({"number": 3})));
    check(&refused, 429, "");
    assert_eq!(refused.field("X-Tollgate-Reason").unwrap(), "token_invalid");
    assert!((1..=7).contains(&refused.number("Retry-After")), "{refused:?}");
    // A client with a cached token is unaffected, as are requests without a token and other clients.
    check(&ask(&mut client, &good), 200, "enterprise");
    check(&client.get("/", &[]), 200, "anonymous");
    let bearer = format!("Bearer {}", hs256(&json!({})));
    check(&client.get("/", &[("Authorization", &bearer), ("X-Forwarded-For", "203.0.113.7")]), 401, "");
    eventually("it comes back", || ask(&mut client, "x").status == 401);
    gateway.expect("rate_limiter_requests_total", &["rule=\"free\""], 0.0);
    let counted = |result: &str| gateway.metric("tollgate_jwt_verifications_total", &[&format!("result=\"{result}\"")]);
    assert_eq!(counted("valid"), 1.0);
    assert_eq!(counted("known"), 1.0);
    assert!(counted("limited") >= 1.0 && counted("malformed") >= 4.0);
}

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

    fn gateway(&self, upstream: &Upstream, rest: &str) -> Gateway {
        let url = format!("http://{}/keys", self.server.address);
        Gateway::before(upstream)
            .with(&format!("jwt:\n  algorithms: [ES256]\n  keys: {{jwks_url: \"{url}\"}}\n{rest}{RULES}"))
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
fn an_issuer_that_answers_wrongly_or_fails_changes_nothing() {
    let (upstream, key) = (Upstream::start(), mint::es256());
    let good = set(&[key.jwk_as("k")]);
    let secret = json!({"kty": "oct", "kid": "k", "k": mint::encode(SECRET), "alg": "HS256"});
    let lies = [
        answer("200 OK", "{\"keys\":[]}"),
        answer("200 OK", "<html>"),
        answer("200 OK", "{\"keys\":[{\"kty\":\"EC\"}]}"),
        answer("200 OK", &json!({"keys": [secret]}).to_string()),
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
        eventually("the set is fetched again", || gateway.has_logged("keys not fetched"));
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
fn a_token_is_not_remembered_beyond_its_end() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, &format!("jwt:\n{}  leeway: 0s\n{RULES}", secret()));
    let mut client = gateway.client();
    let [short, early] = ["exp", "nbf"].map(|name| hs256(&with(&claims("a", "enterprise"), name, json!(epoch() + 6))));
    check(&ask(&mut client, &short), 200, "enterprise");
    check(&ask(&mut client, &short), 200, "enterprise");
    check(&ask(&mut client, &early), 401, "");
    eventually("it ends", || ask(&mut client, &short).status == 401);
    eventually("it begins", || ask(&mut client, &early).status == 200);
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
        gateway.expect_logged("keys not fetched");
        gateway.expect_logged("certificate");
    }
}

#[test]
fn a_named_key_is_found_after_any_number_of_unnamed_keys() {
    let upstream = Upstream::start();
    let (right, nameless): (_, Vec<_>) = (mint::eddsa(), (0..6).map(|_| mint::eddsa()).collect());
    let keys: Vec<Value> = nameless.iter().map(|minted| minted.jwk.clone()).chain([right.jwk_as("right")]).collect();
    let text = format!("jwt:\n  algorithms: [EdDSA]\n  keys: {{jwks_file: keys.json}}\n{RULES}");
    let gateway = Gateway::before(&upstream).with(&text).file("keys.json", &json!({"keys": keys}).to_string()).start();
    let mut client = gateway.client();
    let mut status = |minted: &mint::SigningKey, header: Value| {
        ask(&mut client, &minted.signer.token(&header, &claims("a", "enterprise"))).status
    };
    assert_eq!(status(&right, json!({"alg": "EdDSA", "kid": "right"})), 200);
    // Without a name four are tried, and those without one come in the order of the set.
    assert_eq!(status(&nameless[3], json!({"alg": "EdDSA"})), 200);
    assert_eq!(status(&nameless[5], json!({"alg": "EdDSA"})), 401);
    assert_eq!(status(&nameless[0], json!({"alg": "EdDSA", "kid": "right"})), 200);
}
