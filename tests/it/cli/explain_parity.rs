//! `tollgate explain --live` predicts the gateway's answer, and charges nothing.

use serde_json::{Value, json};

use crate::support::mint::{Signer, epoch};
use crate::support::{Gateway, Redis, Upstream, now, tollgate};

const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// A request to the gateway and to `explain`, with the expected answer.
struct Row {
    method: &'static str,
    target: &'static str,
    fields: Vec<(&'static str, String)>,
    /// The status code that both must give. It is stated, so that each row tests what it is meant to test.
    code: u16,
    reason: &'static str,
}

fn row(target: &'static str, fields: &[(&'static str, &str)], code: u16, reason: &'static str) -> Row {
    let fields = fields.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    Row { method: "GET", target, fields, code, reason }
}

fn token(secret: &str, claims: &Value) -> String {
    format!("Bearer {}", Signer::hs256(secret).token(&json!({"alg": "HS256"}), claims))
}

const ORDER: &str = r#"
client_ip: {trusted_proxies: [127.0.0.0/8]}
jwt: {algorithms: [HS256], keys: {secret: 0123456789abcdef0123456789abcdef}}
api_keys: {from: header:x-api-key, file: keys.txt}
exempt: [{ip:address: {cidr: [10.20.0.0/16]}}]
limits: {header_bytes: 2KiB, target_bytes: 1KiB, headers: 20, body_bytes: 1KiB}
retry_after_jitter: {share: 0.5, max: 30s}
policies:
  - name: block
    rules:
      - {name: partner, match: {header:x-partner: bad}, action: deny}
  - name: plan
    rules:
      - {name: free, match: {jwt:plan: free}, limit_keys: [jwt:sub], algorithm_config: {rate: 2/day}}
      - {name: keyed, limit_keys: [key:id], overrides: {vip: {rate: 3/day}}, algorithm_config: {rate: 1/day}}
      - {name: anonymous, limit_keys: [ip:address], limits: {minute: {rate: 4/min}, day: {rate: 3/day}}}
  - name: costly
    match: {path: "/v1/export/*"}
    rules:
      - name: export
        limit_keys: ["jwt:sub|ip:address"]
        algorithm_config: {rate: 100/day, cost_source: header:x-cost, default_cost: 60}
  - name: ceiling
    match: {path: /shared}
    rules:
      - {name: everybody, limit_keys: [], status: 503, algorithm_config: {rate: 1/day}}
  - name: closed
    match: {path: /closed}
    otherwise: deny
    rules:
      - {name: open, match: {query:door: open}, action: allow}
"#;

#[test]
fn explain_predicts_the_answer_of_the_gateway() {
    let good = |sub: &str| token(SECRET, &json!({"sub": sub, "plan": "free", "exp": epoch() + 600}));
    let expired = token(SECRET, &json!({"sub": "ann", "plan": "free", "exp": epoch() - 600}));
    let forged =
        token("another secret, and just as long", &json!({"sub": "ann", "plan": "free", "exp": epoch() + 600}));
    let ann = good("ann");
    let limited = "token_bucket_exceeded";
    let mut rows = vec![
        // An invalid head.
        Row { method: "TRACE", ..row("/", &[], 405, "bad_request") },
        row("/", &[("Host", "a"), ("Host", "b")], 400, "bad_request"),
        row("/", &[("Content-Length", "5000")], 413, "bad_request"),
        row("/", &[("X-Long", &"x".repeat(3000))], 431, "bad_request"),
        // More than one reading.
        row("/a%2fb", &[], 400, "bad_request"),
        row("/", &[("X-Partner", "a"), ("X-Partner", "b")], 400, "ambiguous_request"),
        row("/?door=a&door=b", &[], 400, "ambiguous_request"),
        row("/closed?door[]=open", &[], 400, "ambiguous_request"),
        row("/closed?x=1;door=open", &[], 400, "ambiguous_request"),
        row("/", &[("Authorization", &ann), ("Connection", "authorization")], 400, "ambiguous_request"),
        // Credentials, before any rule.
        row("/", &[("Authorization", "Bearer nonsense"), ("X-Partner", "bad")], 401, "token_invalid"),
        row("/", &[("Authorization", &expired)], 401, "token_invalid"),
        row("/", &[("Authorization", &forged)], 401, "token_invalid"),
        row("/", &[("X-Api-Key", "no such key")], 401, "key_invalid"),
        // Rules that refuse.
        row("/", &[("X-Partner", "bad")], 403, "denied"),
        row("/", &[("X-Partner", "bad"), ("X-Forwarded-For", "10.20.0.1")], 403, "denied"),
        row("/closed", &[], 403, "denied"),
        row("/closed?door=open", &[("X-Forwarded-For", "10.20.0.1")], 200, ""),
        row("/v1/export/1", &[("X-Cost", "101"), ("Authorization", &ann)], 429, "cost_too_large"),
        // Limits.
        row("/", &[("Authorization", &ann)], 200, ""),
        row("/", &[("Authorization", &ann)], 200, ""),
        row("/", &[("Authorization", &ann)], 429, limited),
        row("/", &[("Authorization", &good("bob"))], 200, ""),
        row("/v1/%65xport/1", &[("Authorization", &good("eve"))], 200, ""),
        row("/v1/./export/1", &[("Authorization", &good("eve"))], 429, limited),
        row("/v1/export/1", &[("Authorization", &good("eve")), ("X-Cost", "40")], 200, ""),
        row("/", &[("X-Api-Key", "the key of acme")], 200, ""),
        row("/", &[("X-Api-Key", "the key of acme")], 429, limited),
        row("/", &[("X-Forwarded-For", "198.51.100.1, 203.0.113.7")], 200, ""),
        row("/shared", &[("X-Forwarded-For", "203.0.113.8")], 200, ""),
        row("/shared", &[("X-Forwarded-For", "203.0.113.9")], 503, limited),
        row("/", &[("X-Forwarded-For", "10.20.0.1")], 200, ""),
    ];
    for _ in 0..3 {
        rows.push(row("/", &[("X-Api-Key", "the key of the vip")], 200, ""));
        rows.push(row("/", &[("X-Forwarded-For", "203.0.113.77")], 200, ""));
    }
    rows.push(row("/", &[("X-Api-Key", "the key of the vip")], 429, limited));
    rows.push(row("/", &[("X-Forwarded-For", "203.0.113.77")], 429, limited));

    let line = |key: &str, id: &str| {
        use sha2::Digest;
        let hash: String = sha2::Sha256::digest(key).iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{hash} {id} gold\n")
    };
    let keys = line("the key of acme", "acme") + &line("the key of the vip", "vip");
    let redis = Redis::start();
    for store in ["", &redis.patient_store()] {
        let upstream = Upstream::start();
        let gateway = Gateway::before(&upstream).with(&format!("{ORDER}{store}")).file("keys.txt", &keys).start();
        let (file, admin) = (gateway.file("gateway.yaml").display().to_string(), gateway.admin.to_string());
        for Row { method, target, fields, code, reason } in &rows {
            let headers: Vec<String> = fields.iter().map(|(name, value)| format!("{name}: {value}")).collect();
            let mut arguments = vec!["explain", "-c", &file, "-X", method, "--live", "--admin", &admin, "--json"];
            headers.iter().for_each(|header| arguments.extend(["-H", header]));
            let url = format!("http://test{target}");
            arguments.push(&url);
            let asked = now();
            let reported = tollgate(&arguments);
            let what = format!("{method} {target} {fields:?}: {} {}", reported.out, reported.err);
            assert_eq!(reported.code, Some(0), "{what}");
            let answer = &reported.json()["answer"];
            let foretold = (answer["code"].as_u64().unwrap_or(200), answer["reason"].as_str().unwrap_or(""));

            let fields: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (*name, &**value)).collect();
            let response = gateway.client().send(method, target, &fields, "");
            let answered = response.field("x-tollgate-reason").unwrap_or_default();
            assert_eq!((u64::from(response.status), &*answered), foretold, "{what}");
            assert_eq!((response.status, &*answered), (*code, *reason), "{what}");
            let retry = response.field("retry-after").map(|seconds| seconds.parse::<u64>().unwrap());
            match (retry, answer["retry_after"].as_u64()) {
                // Seconds may have begun in between, and with each the share that is spread.
                (Some(reported), Some(foretold)) => {
                    let most = 2 + 2 * asked.elapsed().as_secs();
                    assert!(reported.abs_diff(foretold) <= most, "{reported}: {what}");
                }
                (reported, foretold) => assert_eq!(reported, foretold, "{what}"),
            }
        }
    }
}

#[test]
fn explain_shows_the_levels_of_the_fields_and_charges_nothing() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    let rules = "rules: [{name: few, limit_keys: [ip:address], algorithm_config: {rate: 5/day}}]\n";
    for store in ["", &redis.patient_store()] {
        let gateway = Gateway::start(&upstream, &format!("{rules}{store}"));
        let (file, admin) = (gateway.file("gateway.yaml").display().to_string(), gateway.admin.to_string());
        let level = || {
            let reported = tollgate(&["explain", "-c", &file, "--live", "--admin", &admin, "--json", "/"]);
            reported.json()["policies"][0]["rules"][0]["charges"][0]["level"].clone()
        };
        assert_eq!(level()["left"], 5);
        for left in [4, 3, 2, 1, 0] {
            assert_eq!(gateway.client().get("/", &[]).number("ratelimit-remaining"), left);
            for _ in 0..2 {
                // What came back meanwhile is far less than one.
                assert_eq!(level()["left"].as_f64().unwrap().floor(), f64::from(u32::try_from(left).unwrap()));
            }
        }
        assert_eq!(level()["pays"], false);
        let asked = now();
        let refused = gateway.client().get("/", &[]);
        let wait = level()["wait_us"].as_u64().unwrap().div_ceil(1_000_000);
        assert!(
            refused.number("ratelimit-reset").abs_diff(wait) <= 1 + asked.elapsed().as_secs(),
            "{refused:?} {wait}"
        );
    }
}
