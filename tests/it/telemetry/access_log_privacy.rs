//! The access log contains no text from a client: attributes have pseudonyms, and hostile values do not appear.

use base::pseudonym::PseudonymKey;
use serde_json::{Value, json};

use crate::support::access_log::{SECRET, token, wait_for};
use crate::support::mint::epoch;
use crate::support::{Gateway, Upstream, tollgate};

#[test]
fn attribute_values_are_logged_as_pseudonyms_of_the_key() {
    let upstream = Upstream::start();
    let text = |key: &str| {
        format!(
            "{key}
jwt: {{algorithms: [HS256], keys: {{secret: {SECRET}}}}}
access_log: {{to: access.jsonl, attributes: [jwt:plan, jwt:sub, header:X-Team, ip:address, path, method]}}\n"
        )
    };
    let gateway = Gateway::start(&upstream, &text(&format!("hash_key: {SECRET}")));
    let authorization = token(&json!({"sub": "ann", "plan": "free", "exp": epoch() + 600}));
    let fields = [("Authorization", &*authorization), ("X-Team", "red")];
    let names = |key: &PseudonymKey, pairs: &[(&str, &str)]| -> Value {
        pairs.iter().map(|(name, value)| (*name, key.value(name, value.as_bytes()).to_string())).collect()
    };
    let all = [
        ("jwt:plan", "free"),
        ("jwt:sub", "ann"),
        ("header:x-team", "red"),
        ("ip:address", "127.0.0.1"),
        ("path", "/a/b"),
        ("method", "GET"),
    ];
    // On one connection, whose lines have its order.
    let mut client = gateway.client();
    client.get("/a/./b?c=d", &fields);
    client.get("/a/b", &[]);
    let lines = wait_for(&gateway, 2);
    let key = PseudonymKey::secret(SECRET.as_bytes());
    assert_eq!(lines[0]["attributes"], names(&key, &all));
    assert_eq!(lines[1]["attributes"], names(&key, &all[3..]));
    // Another key makes other names.
    gateway.reload(&upstream, &text(""));
    gateway.client().get("/a/b", &fields);
    assert_eq!(wait_for(&gateway, 3)[2]["attributes"], names(&PseudonymKey::default(), &all));
}

#[test]
fn nothing_that_a_client_sends_is_in_the_log() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        "
log: {level: debug}
rules:
  - {name: user, limit_keys: [\"header:x-user|query:canary|cookie:canary|ip:address\"], algorithm_config: {rate: 2/day}}
access_log: {to: access.jsonl, attributes: [header:x-user, query:canary, cookie:canary, path, host, header:authorization]}",
    );
    const CANARY: &str = "canary-7f3a";
    let hostile =
        [CANARY.to_owned(), format!("{CANARY}\x1b[31m"), format!("\"{CANARY}\\"), format!("{CANARY}\u{9b}2J\u{2028}")];
    let mut sent = 0;
    for value in &hostile {
        for field in
            ["X-User", "Authorization", "Cookie", "X-API-Key", "User-Agent", "X-Request-Id", "Host", "X-Forwarded-For"]
        {
            for repeat in 0..3 {
                let id = format!("{CANARY}-{repeat} {value}");
                let value = if field == "Cookie" { format!("canary={value}") } else { value.clone() };
                let target = format!("/{CANARY}/{repeat}?canary={CANARY}");
                let mut client = gateway.client();
                let fields = [(field, &*value), ("X-Request-Id", &*id)];
                client.get(&target, if field == "X-Request-Id" { &fields[..1] } else { &fields });
                sent += 1;
            }
        }
    }
    for head in [
        format!("{CANARY} / HTTP/1.1\r\nHost: a\r\n\r\n"),
        format!("GET /{CANARY}\r\nHost: a\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nHost: a\r\n{CANARY}\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nHost: a\r\nX-User: a\r\n {CANARY}\r\n\r\n"),
        format!("GET / HTTP/1.1\nHost: a\nX-User: {CANARY}\r{{\"time\":1}}\n\n"),
        format!(
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\nContent-Length: 9\r\nX-User: {CANARY}\r\n\r\n{CANARY}"
        ),
    ] {
        let mut client = gateway.client();
        client.write(&head);
        let _ = client.response("GET");
        sent += 1;
    }
    // The first id is one that anybody may send.
    let harmless = |line: &Value| line["request_id"] == CANARY;
    let lines = wait_for(&gateway, sent);
    assert_eq!(lines.iter().filter(|line| harmless(line)).count(), 3);
    for line in lines.iter().filter(|line| !harmless(line)) {
        assert!(!line.to_string().contains("canary-"), "{line}");
    }
    let text = std::fs::read(gateway.file("access.jsonl")).unwrap();
    assert!(text.iter().all(|byte| *byte == b'\n' || (b' '..=b'~').contains(byte)), "a byte that a terminal obeys");
    assert!(!gateway.errors().lines().any(|line| line.contains(CANARY) && !line.contains("request_id=canary-7f3a ")));
}

#[test]
fn a_claim_that_is_listed_as_clear_is_logged_as_it_is_and_explain_shows_it() {
    let upstream = Upstream::start();
    let text = format!(
        "hash_key: {SECRET}
jwt: {{algorithms: [HS256], keys: {{secret: {SECRET}}}}}
access_log: {{to: access.jsonl, when: [refused], values: [clear(jwt:sub), clear(jwt:roles), path]}}
rules: [{{name: few, limit_keys: [jwt:sub], algorithm_config: {{rate: 1/day}}}}]\n"
    );
    let gateway = Gateway::start(&upstream, &text);
    let customer = "acme\u{1b}[31m";
    let authorization = token(&json!({"sub": customer, "roles": ["a", "b"], "exp": epoch() + 600}));
    let fields = [("Authorization", &*authorization), ("X-Request-Id", "r-1")];
    let statuses = [0; 2].map(|_| gateway.client().get("/a", &fields).status);
    assert_eq!(statuses, [200, 429]);
    let line = &wait_for(&gateway, 1)[0];
    assert_eq!(line["values"], json!({"jwt:sub": customer, "jwt:roles": ["a", "b"], "path": "/a"}));
    let file = gateway.file("gateway.yaml").display().to_string();
    let explained = tollgate(&["explain", "-c", &file, "--id", "r-1"]);
    assert!(explained.out.contains("jwt:sub  \"acme\\u{1b}[31m\"\njwt:roles  \"a\""), "{explained:?}");
    let warned = tollgate(&["check", &file]);
    assert_eq!(warned.err.matches("warning clear_claim").count(), 1, "{warned:?}");
    gateway.expect_logged("clear_claim");
}
