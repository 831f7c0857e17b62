//! Questions that are refused: bad tokens, other methods, too many questions. Browsers, logs and metrics.

use serde_json::{Value, json};

use super::{PATH, USAGE, ask, ask_with, books, limits, send};
use crate::support::mint::{Signer, epoch};
use crate::support::{Gateway, Upstream, eventually, now, tollgate};

const RULE: &str = "rules: [{name: all, limit_keys: [header:x-user], algorithm_config: {rate: 9/day}}]\n";
const SECRET: &str = "0123456789abcdef0123456789abcdef";

#[test]
fn credentials_are_checked_first() {
    let config = format!(
        "jwt: {{algorithms: [HS256], keys: {{secret: {SECRET}}}}}
usage: {{path: {PATH}, limit: {{rate: 2/day}}}}
rules:
  - {{name: user, limit_keys: [jwt:sub], algorithm_config: {{rate: 9/day}}}}
  - {{name: address, limit_keys: [ip:address], algorithm_config: {{rate: 5/day}}}}
"
    );
    let gateway = Gateway::start(&Upstream::start(), &config);
    for method in ["GET", "POST"] {
        let invalid = gateway.client().send(method, PATH, &[("Authorization", "Bearer x")], "");
        assert_eq!((invalid.status, invalid.field("x-tollgate-reason").as_deref()), (401, Some("token_invalid")));
    }
    let claims = json!({"sub": "ann", "exp": epoch() + 600});
    let token = format!("Bearer {}", Signer::hs256(SECRET).token(&json!({"alg": "HS256"}), &claims));
    let own = ask_with(&gateway, "", &[("Authorization", &token)]);
    assert_eq!((&limits(&own)[0]["name"], &limits(&own)[0]["limit"]), (&json!("user"), &json!(9)));
    let anonymous = ask_with(&gateway, "", &[]);
    assert_eq!(limits(&anonymous)[0]["name"], "address");
    // Invalid tokens have spent nothing of the two questions.
    assert_eq!(ask_with(&gateway, "", &[]).status, 429);
}

#[test]
fn other_methods_are_405() {
    let gateway = Gateway::start(&Upstream::start(), &format!("{USAGE}{RULE}"));
    let mut client = gateway.client();
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"] {
        let refused = client.send(method, PATH, &[("X-User", "ann")], "");
        assert_eq!((refused.status, refused.field("allow").as_deref()), (405, Some("GET, HEAD")), "{method}");
        assert_eq!(refused.field("x-tollgate-reason").as_deref(), Some("bad_request"));
    }
    assert_eq!(books(&ask(&gateway, "", "ann")), (0, 0, 9));
}

#[test]
fn questions_have_a_limit_of_their_own_for_each_address() {
    let upstream = Upstream::start();
    let config = format!(
        "usage: {{path: {PATH}, limit: {{rate: 3/day}}}}
client_ip: {{trusted_proxies: [127.0.0.1]}}
access_log: {{to: access.log, when: all}}
check: {{allow: [guessable_names]}}
{RULE}"
    );
    let gateway = Gateway::start(&upstream, &config);
    let log = gateway.file("access.log");
    let logged = || std::fs::read_to_string(&log).unwrap_or_default().lines().count();
    // Each connection may have another thread, so the next request waits until the line of this one is written.
    let from = |address: &str| {
        let before = logged();
        let answer = ask_with(&gateway, "", &[("X-User", "ann"), ("X-Forwarded-For", address)]);
        eventually("the request is logged", || logged() > before);
        answer
    };
    let begun = now();
    let statuses: Vec<u16> = (0..5).map(|_| from("198.51.100.1").status).collect();
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
    let refused = from("198.51.100.1");
    assert_eq!(refused.field("x-tollgate-reason").as_deref(), Some("token_bucket_exceeded"));
    // A third of a day, less the time since the first question.
    let least = 28_800 - begun.elapsed().as_secs();
    assert!(refused.number("retry-after") >= least && refused.field("ratelimit").is_none(), "{refused:?}");
    assert_eq!(refused.json()["violated-policies"], json!([]));
    assert_eq!(from("198.51.100.2").status, 200);
    assert_eq!(send(&gateway, 1, "/", "ann"), [200], "no limit of a rule was charged");
    // A reload keeps the buckets.
    gateway.reload(&upstream, &config.replace("9/day", "8/day"));
    assert_eq!(from("198.51.100.1").status, 429);

    gateway.expect("rate_limiter_decisions_total", &["result=\"unlimited\""], 4.0);
    gateway.expect("rate_limiter_decisions_total", &["result=\"refused\""], 4.0);
    gateway.expect("tollgate_http_requests_total", &["code=\"200\"", "origin=\"gateway\""], 4.0);
    eventually("all are logged", || logged() == 9);
    let text = std::fs::read_to_string(&log).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |line: &Value| json!([line["kind"], line["code"], line["origin"], line["decision_us"]]);
    assert_eq!(of(&lines[0]), json!(["allowed", 200, "gateway", null]));
    assert_eq!(of(&lines[3]), json!(["refused", 429, "gateway", null]));
    // The rules decided one request, and only that is replayed.
    let file = gateway.file("gateway.yaml");
    let replayed = tollgate(&["replay", "-c", file.to_str().unwrap(), "--json", log.to_str().unwrap()]);
    assert_eq!(replayed.json()["requests"], 1, "{replayed:?}");
}

#[test]
fn pages_of_listed_origins_may_ask() {
    let cors = "cors: [{origins: [\"https://app.example\"], methods: [GET], headers: [x-user], credentials: true}]\n";
    let gateway = Gateway::start(&Upstream::start(), &format!("{USAGE}{cors}{RULE}"));
    let origin = ("Origin", "https://app.example");
    let preflight = [origin, ("Access-Control-Request-Method", "GET"), ("Access-Control-Request-Headers", "x-user")];
    let answer = gateway.client().send("OPTIONS", PATH, &preflight, "");
    assert_eq!((answer.status, answer.field("access-control-allow-headers").as_deref()), (204, Some("x-user")));
    let asked = ask_with(&gateway, "", &[origin, ("X-User", "ann")]);
    assert_eq!(limits(&asked)[0]["remaining"], 9);
    assert_eq!(asked.field("access-control-allow-origin").as_deref(), Some("https://app.example"));
    assert!(asked.field("access-control-expose-headers").unwrap().contains("RateLimit"), "{asked:?}");
    let refused = gateway.client().send("POST", PATH, &[origin], "");
    assert_eq!(refused.field("access-control-allow-origin").as_deref(), Some("https://app.example"));
}
