//! The details in access log lines: the cause of a refusal, and the values that the configuration lists.

use serde_json::json;

use crate::support::access_log::{SECRET, TO_FILE, token, wait_for};
use crate::support::mint::epoch;
use crate::support::{Gateway, Upstream, tollgate};

#[test]
fn listed_values_are_logged_as_they_are_and_only_those() {
    let text = "
rules: [{name: user, limit_keys: [header:x-user], algorithm_config: {rate: 2/day}}]
access_log: {to: access.jsonl, attributes: [header:x-user], values: [host, path, header:user-agent, query:page]}";
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, text);
    let agent = format!("curl\u{9b}31m {}", "x".repeat(300));
    let mut client = gateway.client();
    let fields = [("Host", "Api.Example:80"), ("User-Agent", &*agent), ("X-User", "canary-1"), ("X-Other", "canary-2")];
    assert_eq!(client.get("/a/./b?page=2&other=canary-3", &fields).status, 200);
    assert_eq!(client.get("/", &[]).status, 200);
    let lines = wait_for(&gateway, 2);
    let shown = &lines[0]["values"];
    assert_eq!(
        (&shown["host"], &shown["path"], &shown["query:page"]),
        (&json!("api.example"), &json!("/a/b"), &json!("2"))
    );
    let expected: String = agent.chars().take(255).collect();
    assert_eq!(shown["header:user-agent"], format!("{expected}…"));
    assert_eq!(shown.as_object().unwrap().len(), 4);
    assert_eq!(lines[1]["values"], json!({"host": "test", "path": "/"}));
    let log = std::fs::read_to_string(gateway.file("access.jsonl")).unwrap();
    assert!(!log.contains("canary") && !log.contains('\u{9b}'), "{log}");
    let (id, file) = (lines[0]["request_id"].as_str().unwrap(), gateway.file("gateway.yaml").display().to_string());
    let explained = tollgate(&["explain", "-c", &file, "--id", id]);
    assert!(explained.out.contains("path  \"/a/b\"") && !explained.out.contains('\u{9b}'), "{explained:?}");
    // A file without the key logs no value.
    gateway.reload(&upstream, "access_log: {to: access.jsonl}");
    assert_eq!(gateway.client().get("/c", &[]).status, 200);
    assert!(wait_for(&gateway, 3)[2].get("values").is_none());
}

/// The response has only the reason; the log has the details.
#[test]
fn a_line_says_why_a_token_does_not_verify_and_which_attribute_is_ambiguous() {
    let text = format!(
        "jwt: {{issuer: https://a.example, audience: [api], algorithms: [HS256], keys: {{secret: {SECRET}}}}}
rules: [{{name: user, limit_keys: [\"header:x-user|query:user\"], algorithm_config: {{rate: 2/day}}}}]
{TO_FILE}"
    );
    let gateway = Gateway::start(&Upstream::start(), &text);
    let claims = |issuer: &str, audience: &str, left: i64| {
        token(&json!({"iss": issuer, "aud": audience, "exp": i64::try_from(epoch()).unwrap() + left}))
    };
    let good = claims("https://a.example", "api", 600);
    let expected = [
        (claims("https://a.example", "api", -600), "expired"),
        (claims("https://b.example", "api", 600), "issuer"),
        (claims("https://a.example", "web", 600), "audience"),
        (format!("{good}x"), "signature"),
        ("Bearer a.b.c".to_owned(), "malformed"),
    ];
    let mut client = gateway.client();
    for (token, _) in &expected {
        let answer = client.get("/", &[("Authorization", token)]);
        assert_eq!(answer.status, 401);
    }
    for (target, fields) in [
        ("/?user=a&user=b", &[][..]),
        ("/", &[("X-User", "a"), ("X-User", "b")]),
        ("/", &[("X_User", "a")]),
        ("/", &[("Connection", "authorization"), ("Authorization", &good)]),
    ] {
        assert_eq!(gateway.client().get(target, fields).status, 400, "{target} {fields:?}");
    }
    let lines = wait_for(&gateway, expected.len() + 4);
    let mut details: Vec<_> = lines.iter().map(|line| line["detail"].as_str().unwrap_or("none")).collect();
    details.sort_unstable();
    let mut all: Vec<_> = expected.iter().map(|(_, detail)| *detail).collect();
    // The header of a token is read as well, and so must not be removed on the way.
    all.extend(["query:user", "header:x-user", "header:x-user", "header:authorization"]);
    all.sort_unstable();
    assert_eq!(details, all, "{lines:#?}");
    let expired = lines.iter().find(|line| line["detail"] == "expired").unwrap();
    let (id, file) = (expired["request_id"].as_str().unwrap(), gateway.file("gateway.yaml").display().to_string());
    let explained = tollgate(&["explain", "-c", &file, "--id", &id[..12]]);
    assert!(explained.out.contains("REFUSED 401 token_invalid (expired); GET"), "{explained:?}");
}
