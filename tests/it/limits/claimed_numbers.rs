//! Numbers of limits that come from tokens and from the file of keys, end to end.

use identity::api_key_file;
use request::identity::KnownKey;
use serde_json::{Value, json};

use crate::support::access_log::wait_for;
use crate::support::mint::{Signer, epoch, with};
use crate::support::{Client, Gateway, Redis, Response, Upstream, eventually, tollgate};

const SECRET: &str = "0123456789abcdef0123456789abcdef";
const JWT: &str = "jwt: {algorithms: [HS256], keys: {secret: 0123456789abcdef0123456789abcdef}}\n";
const CLAIMED: &str = "rate_limiter_claimed_numbers_total";

pub fn token(claims: &Value) -> String {
    let claims = with(claims, "exp", json!(epoch() + 600));
    format!("Bearer {}", Signer::hs256(SECRET).token(&json!({"alg": "HS256"}), &claims))
}

fn get(gateway: &Gateway, claims: &Value) -> Response {
    gateway.client().get("/", &[("Authorization", &token(claims))])
}

/// Returns the status, and `q` of the only limit.
fn answer(response: &Response) -> (u16, u64) {
    let policy = response.field("RateLimit-Policy").unwrap_or_default();
    let quota = policy.split(';').find_map(|part| part.strip_prefix("q=")).and_then(|quota| quota.parse().ok());
    (response.status, quota.unwrap_or(u64::MAX))
}

const CUSTOMER: &str = "
rules:
  - name: customer
    limit_keys: [jwt:sub]
    algorithm_config: {rate: 1/day, burst: {from: jwt:limits.burst, default: 2, max: 1000}}
";

#[test]
fn each_request_has_the_number_of_its_token_and_all_share_one_bucket() {
    let gateway = Gateway::start(&Upstream::start(), &format!("{JWT}{CUSTOMER}"));
    let of = |burst: u64| json!({"sub": "ann", "limits": {"burst": burst}});
    for result in ["read", "cut", "missing", "unreadable"] {
        gateway.expect(CLAIMED, &["rule=\"customer\"", &format!("result=\"{result}\"")], 0.0);
    }
    assert_eq!(answer(&get(&gateway, &of(3))), (200, 3));
    assert_eq!(answer(&get(&gateway, &of(3))), (200, 3));
    assert_eq!(answer(&get(&gateway, &of(2))), (429, 2));
    assert_eq!(answer(&get(&gateway, &of(4))), (200, 4));
    assert_eq!(answer(&get(&gateway, &of(3))), (429, 3));
    // A much larger number is cut; what was spent stays spent.
    let more = get(&gateway, &of(1_000_000));
    assert_eq!(answer(&more), (200, 1000));
    assert!(more.field("RateLimit").unwrap().contains("r=996;"), "{:?}", more.field("RateLimit"));
    // 0 is a limit that nothing fits.
    let nothing = get(&gateway, &of(0));
    assert_eq!(answer(&nothing), (429, 0));
    assert_eq!(nothing.field("x-tollgate-reason").as_deref(), Some("cost_too_large"));
    assert_eq!(nothing.field("Retry-After"), None);
    gateway.expect(CLAIMED, &["result=\"read\""], 6.0);
    gateway.expect(CLAIMED, &["result=\"cut\""], 1.0);
    gateway.expect("rate_limiter_rejected_total", &["rule=\"customer\"", "reason=\"cost_too_large\""], 1.0);
}

/// An issuer, or an attacker with its key, may write these values. A value is read as a number, limited, or replaced by the
/// default.
#[test]
fn a_number_that_cannot_be_read_is_the_default_and_is_counted() {
    let rules = CUSTOMER.replace("burst: {from", "burst: {min: 1, from").replace("rate: 1/day", "rps: 1");
    let gateway = Gateway::start(&Upstream::start(), &format!("{JWT}{rules}"));
    let deep = (0..100).fold(json!(5), |inner, _| json!({ "burst": inner }));
    let rows = [
        (json!(5), 5, "read"),
        (json!("5"), 5, "read"),
        (json!("005.000"), 5, "read"),
        (json!(5.0), 5, "read"),
        (json!(1000), 1000, "read"),
        (json!(0), 1, "cut"),
        (json!(1001), 1000, "cut"),
        (json!(u64::MAX), 1000, "cut"),
        (json!(1e300), 1000, "cut"),
        (json!("9".repeat(4000)), 1000, "cut"),
        (json!(-5), 2, "unreadable"),
        (json!(i64::MIN), 2, "unreadable"),
        (json!(5.5), 2, "unreadable"),
        (json!(1e-300), 2, "unreadable"),
        (json!("1e3"), 2, "unreadable"),
        (json!(" 5"), 2, "unreadable"),
        (json!("5 "), 2, "unreadable"),
        (json!("+5"), 2, "unreadable"),
        (json!("0x10"), 2, "unreadable"),
        (json!("٥"), 2, "unreadable"),
        (json!("NaN"), 2, "unreadable"),
        (json!("unlimited"), 2, "unreadable"),
        (json!(""), 2, "unreadable"),
        (json!("5\u{0}"), 2, "unreadable"),
        (json!(true), 2, "unreadable"),
        (json!([5]), 2, "unreadable"),
        (json!([]), 2, "unreadable"),
        (json!({"from": 5}), 2, "unreadable"),
        (deep, 2, "unreadable"),
        (json!(null), 2, "missing"),
    ];
    let mut counts = std::collections::HashMap::from([("missing", 1)]);
    assert_eq!(answer(&get(&gateway, &json!({"sub": "none"}))), (200, 2));
    for (number, (burst, quota, result)) in rows.iter().enumerate() {
        let claims = json!({"sub": format!("user-{number}"), "limits": {"burst": burst}});
        assert_eq!(answer(&get(&gateway, &claims)), (200, *quota), "{burst}");
        *counts.entry(result).or_default() += 1;
    }
    // The literal name comes first.
    let literal = json!({"sub": "literal", "limits": {"burst": 5}, "limits.burst": 7});
    assert_eq!(answer(&get(&gateway, &literal)), (200, 7));
    *counts.entry("read").or_default() += 1;
    for (result, count) in counts {
        gateway.expect(CLAIMED, &[&format!("result=\"{result}\"")], f64::from(count));
    }
    // A token that does not verify has no numbers: the rule does not apply.
    let forged = format!("{}x", token(&json!({"sub": "ann", "limits": {"burst": 500}})));
    assert_eq!(gateway.client().get("/", &[("Authorization", &forged)]).status, 401);
}

#[test]
fn a_rate_has_decimals_and_raises_the_burst() {
    let rules = "
rules:
  - name: customer
    limit_keys: [jwt:sub]
    algorithm_config: {rps: {from: jwt:rps, default: 0.001, max: 100}, burst: 2}
";
    let gateway = Gateway::start(&Upstream::start(), &format!("{JWT}{rules}"));
    let file = gateway.file("gateway.yaml").display().to_string();
    let numbers = |rps: &str| {
        let claims = format!(r#"{{"sub": "ann", "rps": {rps}}}"#);
        let explained = tollgate(&["explain", "-c", &file, "--claims", &claims, "--json", "/"]).json();
        let charge = &explained["policies"][0]["rules"][0]["charges"][0];
        (charge["numbers"].as_str().unwrap().to_owned(), charge["claimed"][0].as_str().unwrap().to_owned())
    };
    for (rps, is, claimed) in [
        ("1.5", "1.5/s burst 2", r#"rps 1.5: jwt:rps is "1.5""#),
        ("0.333", "0.333/s burst 2", r#"rps 0.333: jwt:rps is "0.333""#),
        (r#""12.5""#, "12.5/s burst 13", r#"rps 12.5: jwt:rps is "12.5""#),
        ("1e2", "100/s burst 100", r#"rps 100: jwt:rps is "100""#),
        ("100.001", "100/s burst 100", r#"rps 100: jwt:rps is "100.001", above the max of 100"#),
        (
            "0.0005",
            "0.001/s burst 2",
            r#"rps 0.001, the default: jwt:rps is "0.0005", which is not a number from 0 with at most 3 decimals"#,
        ),
        ("null", "0.001/s burst 2", "rps 0.001, the default: jwt:rps is missing"),
    ] {
        assert_eq!(numbers(rps), (is.to_owned(), claimed.to_owned()), "{rps}");
    }
    let page = tollgate(&["explain", "-c", &file, "--claims", r#"{"sub": "ann", "rps": 0}"#, "/"]).out;
    assert!(page.contains("REFUSED 429 cost_too_large: customer needs 1, and holds 0 at most"), "{page}");
    assert!(page.contains(r#"rps 0: jwt:rps is "0""#), "{page}");
}

const KEY: &str = "acme-3fQk0bCz7LrYw1xA";

fn keys(columns: &str, values: &str) -> String {
    let line = api_key_file::line(KEY.as_bytes(), &KnownKey::new("acme", "gold"));
    format!("#columns id plan {columns}\n{line} {values}\n")
}

#[test]
fn the_file_of_keys_has_numbers_and_other_columns() {
    let rules = "
api_keys: {from: header:x-api-key, file: api-keys.txt}
rules:
  - name: eu
    match: {key:region: eu}
    limit_keys: [key:org]
    algorithm: fixed_window
    algorithm_config: {limit: {from: key:quota, default: 1, max: 1000}, window: 366d}
  - {name: others, limit_keys: [key:id], algorithm_config: {rps: 1, burst: 9}}
";
    let file = keys("quota region org", "2 eu initech");
    let gateway = Gateway::before(&Upstream::start()).with(rules).file("api-keys.txt", &file).start();
    let get = || answer(&gateway.client().get("/", &[("X-API-Key", KEY)]));
    assert_eq!([get(), get(), get()], [(200, 2), (200, 2), (429, 2)]);
    let write = |text: &str| std::fs::write(gateway.file("api-keys.txt"), text).unwrap();
    // What was used stays used.
    write(&keys("region quota org", "eu 3 initech"));
    gateway.signal("HUP");
    eventually("the new quota", || get().1 == 3);
    eventually("the quota is used up", || get() == (429, 3));
    // A file that has lost a column which a rule reads changes nothing.
    write(&keys("region org", "us initech"));
    gateway.signal("HUP");
    eventually("the file is rejected", || {
        gateway.has_logged("must name every column that a rule reads, lacks `quota`")
    });
    assert_eq!(get(), (429, 3));
    // No value: the default. No region: another rule.
    write(&keys("quota region org", "- eu globex"));
    gateway.signal("HUP");
    eventually("the default", || get().1 == 1);
    write(&keys("quota region org", "- - globex"));
    gateway.signal("HUP");
    eventually("the other rule", || get().1 == 9);
}

/// Two gateways on one Redis charge the same bucket, whatever number a request brings.
#[test]
fn gateways_share_a_bucket_whose_numbers_change_from_request_to_request() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    let rules = "
rules:
  - name: customer
    limit_keys: [jwt:sub]
    limits:
      bucket: {rps: {from: jwt:rps, default: 0.001, max: 0.002}, burst: {from: jwt:burst, default: 5, max: 40}}
      window: {algorithm: fixed_window, limit: {from: jwt:limit, default: 5, max: 40}, window: 366d}
      sliding: {algorithm: sliding_window, limit: {from: jwt:limit, default: 5, max: 40}, window: 31d}
      log: {algorithm: sliding_log, limit: {from: jwt:limit, default: 5, max: 40}, window: 31d}
";
    let text = format!("{}{JWT}{rules}", redis.patient_store());
    let gateways = [Gateway::start(&upstream, &text), Gateway::start(&upstream, &text)];
    let mut granted = 0;
    for number in 0..120u64 {
        // Small numbers first, and again between larger ones.
        let burst = if number % 3 == 0 { 5 } else { 5 + number / 3 };
        let claims = json!({
            "sub": "ann",
            "rps": if number % 2 == 0 { json!(0.001) } else { json!("0.002") },
            "burst": burst,
            "limit": 45 - burst,
        });
        let response = get(&gateways[usize::try_from(number % 2).unwrap()], &claims);
        let fits = granted < burst.min(40) && granted < 45 - burst;
        assert_eq!(response.status, if fits { 200 } else { 429 }, "{number}: {granted} of {claims}");
        granted += u64::from(fits);
    }
    assert!(granted > 15, "{granted}");
}

/// The customer's plan and number are in the token. The counter is the customer's, with each algorithm.
#[test]
fn rules_of_one_meter_may_have_numbers_from_a_token() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    let number = "{from: jwt:limit, default: 2, max: 6}";
    let limit = |algorithm: &str, window: &str| match algorithm {
        "token_bucket" => format!("algorithm_config: {{rate: 1/day, burst: {number}}}"),
        _ => format!("algorithm: {algorithm}, algorithm_config: {{limit: {number}, window: {window}}}"),
    };
    for store in ["", &redis.patient_store()] {
        for (algorithm, window) in
            [("token_bucket", ""), ("fixed_window", "366d"), ("sliding_window", "31d"), ("sliding_log", "366d")]
        {
            let rule = |name: &str, matched: &str| {
                let limit = limit(algorithm, window);
                format!("  - {{name: {name}, {matched}limit_keys: [jwt:sub], meter: {algorithm}, {limit}}}\n")
            };
            let rules = rule("free", "match: {jwt:plan: free}, ") + &rule("pro", "");
            let gateway = Gateway::start(&upstream, &format!("{store}{JWT}rules:\n{rules}"));
            let ask = |plan: &str, limit: Value| {
                let claims = with(&json!({"sub": "ann", "limit": limit}), "plan", json!(plan));
                answer(&get(&gateway, &claims))
            };
            let free = [ask("free", json!(3)), ask("free", Value::Null), ask("free", json!(2))];
            assert_eq!(free, [(200, 3), (200, 2), (429, 2)], "{algorithm} {store}");
            // Two are spent, whichever rule and number comes; above `max` the number is cut.
            let pro = [ask("pro", json!(3)), ask("pro", json!("3")), ask("pro", json!(9)), ask("free", json!(5))];
            assert_eq!(pro, [(200, 3), (429, 3), (200, 6), (200, 5)], "{algorithm} {store}");
            assert_eq!([ask("free", json!(5)), ask("pro", json!(6))], [(429, 5), (200, 6)], "{algorithm} {store}");
            assert_eq!(ask("pro", json!(6)), (429, 6), "{algorithm} {store}");
        }
    }
}

#[test]
fn a_log_does_not_tell_the_numbers_of_a_token() {
    let log = "access_log: {to: access.jsonl, attributes: [jwt:sub]}\n";
    let gateway = Gateway::start(&Upstream::start(), &format!("{JWT}{log}{CUSTOMER}"));
    for _ in 0..3 {
        get(&gateway, &json!({"sub": "ann", "limits": {"burst": 3}}));
    }
    wait_for(&gateway, 3);
    let path = |name: &str| gateway.file(name).display().to_string();
    let (file, log) = (path("gateway.yaml"), path("access.jsonl"));
    let replay = |arguments: &[&str]| {
        let told = tollgate(&[&["replay", "-c", &file, "--json"], arguments, &[&log]].concat()).json();
        ["allowed", "refused", "undecided"].map(|key| told["files"][0][key].as_u64().unwrap())
    };
    assert_eq!(replay(&[]), [0, 0, 3]);
    // With the default of 2.
    assert_eq!(replay(&["--absent", "jwt:limits.burst"]), [2, 1, 0]);
}

#[test]
fn the_series_of_a_claimed_number_go_with_its_rule() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, &format!("{JWT}{CUSTOMER}"));
    gateway.expect(CLAIMED, &["rule=\"customer\""], 0.0);
    get(&gateway, &json!({"sub": "ann"}));
    gateway.expect(CLAIMED, &["rule=\"customer\"", "result=\"missing\""], 1.0);
    // Fixed numbers: the same bucket, and nothing left to count.
    gateway.reload(
        &upstream,
        &format!("{JWT}{}", CUSTOMER.replace("{from: jwt:limits.burst, default: 2, max: 1000}", "2")),
    );
    assert_eq!(answer(&get(&gateway, &json!({"sub": "ann"}))), (200, 2));
    assert_eq!(answer(&get(&gateway, &json!({"sub": "ann"}))), (429, 2));
    let page = || Client::connect(gateway.admin).get("/metrics", &[("Connection", "close")]).body;
    eventually("its series go", || !page().contains(&format!("{CLAIMED}{{")));
}
