//! Plans by token: the places of tokens and keys, and requests without a valid token.

use ring::signature;
use serde_json::{Value, json};

use crate::support::mint;
use crate::support::mint::{Signer, epoch, with};
use crate::support::{Client, Gateway, Redis, Response, Upstream, eventually};

pub(super) const SECRET: &str = "0123456789abcdef0123456789abcdef";
pub(super) const RULES: &str = "
rules:
  - {name: enterprise, match: {jwt:plan: enterprise}, limit_keys: [jwt:sub], algorithm_config: {rps: 100, burst: 200}}
  - {name: free, match: {jwt:plan: free}, limit_keys: [jwt:sub], algorithm_config: {rate: 3/day}}
  - {name: anonymous, limit_keys: [ip:address], algorithm_config: {rate: 1000/day}}
";

pub(super) fn claims(sub: &str, plan: &str) -> Value {
    json!({"sub": sub, "plan": plan, "exp": epoch() + 600})
}

fn hs256(claims: &Value) -> String {
    Signer::hs256(SECRET).token(&json!({"alg": "HS256"}), claims)
}

fn secret() -> String {
    format!("  algorithms: [HS256]\n  keys: {{secret: {SECRET}}}\n")
}

#[track_caller]
pub(super) fn ask(client: &mut Client, token: &str) -> Response {
    client.get("/", &[("Authorization", &format!("Bearer {token}"))])
}

/// Returns the status, and the name of the limit that was charged.
fn reported(response: &Response) -> (u16, String) {
    let policy = response.field("RateLimit-Policy").unwrap_or_default();
    (response.status, policy.split(';').next().unwrap_or_default().trim_matches('"').to_owned())
}

#[track_caller]
pub(super) fn check(response: &Response, status: u16, limit: &str) {
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
