//! API keys in several places of a request: which place counts, where tokens are too, and what the upstream gets.

use identity::api_key_file;
use request::identity::KnownKey;
use serde_json::json;

use crate::support::http2::Http2Client;
use crate::support::mint::{Signer, epoch};
use crate::support::{Gateway, Upstream, access_log, tollgate};

const KEY: &str = "sk-3fQk0bCz7LrYw1xA";
const OTHER: &str = "sk-ant-Zc5Gy6RtKo0iWq";
const UNKNOWN: &str = "sk-8aJd2LmPq7sVx4Bn";
/// A key with two dots, as some providers make them.
const DOTTED: &str = "SG.9aJd2LmPq7.sVx4Bn";
const SECRET: &str = "0123456789abcdef0123456789abcdef";

const RULES: &str = "
rules:
  - {name: token, limit_keys: [jwt:sub], algorithm_config: {rate: 1000/day}}
  - {name: key, limit_keys: [key:id], algorithm_config: {rate: 1000/day}}
  - {name: nobody, limit_keys: [ip:address], algorithm_config: {rate: 1000/day}}
access_log: {to: access.jsonl, when: all, values: [key:id]}";

type Fields<'f> = &'f [(&'f str, &'f str)];

fn jwt(settings: &str) -> String {
    format!("jwt: {{algorithms: [HS256], keys: {{secret: {SECRET}}}{settings}}}\n")
}

fn token() -> String {
    Signer::hs256(SECRET).token(&json!({"alg": "HS256"}), &json!({"sub": "alice", "exp": epoch() + 600}))
}

/// Starts a gateway for HTTP/1.1 and HTTP/2 with these settings of `api_keys`.
fn start(upstream: &Upstream, api_keys: &str, rest: &str) -> Gateway {
    let rules = match rest.contains("jwt:") {
        true => RULES.to_owned(),
        false => RULES.replace("  - {name: token, limit_keys: [jwt:sub], algorithm_config: {rate: 1000/day}}\n", ""),
    };
    let listeners = "listeners: [{address: 127.0.0.1:0, protocols: [h2c, http/1.1]}]";
    let text = format!("{listeners}\napi_keys: {{{api_keys}, file: keys.txt}}\n{rest}{rules}");
    let keys =
        [KEY, OTHER, DOTTED].map(|key| api_key_file::line(key.as_bytes(), &KnownKey::new("acme", "gold")) + "\n");
    Gateway::before(upstream).with(&text).file("keys.txt", &keys.concat()).start()
}

/// Returns the status, and the reason of a refusal or the limit that was charged. It is the same over HTTP/1.1 and HTTP/2.
#[track_caller]
fn ask(gateway: &Gateway, target: &str, fields: Fields<'_>) -> String {
    let one = gateway.client().get(target, fields);
    let told = |field: &dyn Fn(&str) -> String| {
        let limit = field("ratelimit-policy");
        let limit = limit.split(';').next().unwrap_or_default().trim_matches('"').to_owned();
        [field("x-tollgate-reason"), limit, field("www-authenticate")]
            .into_iter()
            .filter(|text| !text.is_empty())
            .collect::<Vec<_>>()
    };
    let over_http1 = format!("{} {}", one.status, told(&|name| one.field(name).unwrap_or_default()).join(" "));
    let two = Http2Client::connect(gateway.http).get(target, fields);
    let of_two = |name: &str| two.head.get(name).map_or("", |value| value.to_str().unwrap()).to_owned();
    assert_eq!(format!("{} {}", two.status, told(&of_two).join(" ")), over_http1, "{target} {fields:?}");
    over_http1
}

fn bearer(value: &str) -> String {
    format!("Bearer {value}")
}

const INVALID_KEY: &str = "401 key_invalid Bearer error=\"invalid_token\"";
const INVALID_TOKEN: &str = "401 token_invalid Bearer error=\"invalid_token\"";

#[test]
fn a_key_counts_in_every_place_of_the_list() {
    let upstream = Upstream::start();
    let gateway =
        start(&upstream, "from: [bearer, header:x-api-key, header:x-goog-api-key, \"query:key\", \"cookie:key\"]", "");
    let (known, unknown, dotted) = (bearer(KEY), bearer(UNKNOWN), bearer(DOTTED));
    let cases: [(&str, Fields<'_>, &str); 19] = [
        // A client of OpenAI's, of Anthropic's and of Gemini's.
        ("/", &[("authorization", &known)], "200 key"),
        ("/", &[("x-api-key", OTHER)], "200 key"),
        ("/", &[("x-goog-api-key", KEY)], "200 key"),
        ("/?a=b&key=sk-3fQk0bCz7LrYw1xA", &[], "200 key"),
        ("/", &[("cookie", "a=b; key=sk-3fQk0bCz7LrYw1xA")], "200 key"),
        ("/", &[("authorization", &format!("bEARER  {KEY}"))], "200 key"),
        // Without `jwt`, dots have no meaning.
        ("/", &[("authorization", &dotted)], "200 key"),
        ("/", &[("authorization", &unknown)], INVALID_KEY),
        ("/", &[("authorization", &format!("Bearer {KEY} {KEY}"))], INVALID_KEY),
        ("/", &[("x-api-key", UNKNOWN)], "401 key_invalid ApiKey"),
        ("/", &[("authorization", "Bearer")], "200 nobody"),
        ("/", &[("authorization", &format!("Basic {KEY}"))], "200 nobody"),
        ("/", &[("authorization", KEY)], "200 nobody"),
        ("/", &[("authorization", "Bearer"), ("x-api-key", KEY)], "200 key"),
        ("/", &[("authorization", &known), ("x-api-key", KEY)], "200 key"),
        ("/", &[("authorization", &unknown), ("x-api-key", UNKNOWN)], INVALID_KEY),
        ("/", &[("authorization", &known), ("x-api-key", OTHER)], "400 ambiguous_request"),
        ("/?key=other", &[("x-goog-api-key", KEY)], "400 ambiguous_request"),
        ("/", &[("authorization", &known), ("authorization", &known)], "400 ambiguous_request"),
    ];
    for (target, fields, expected) in cases {
        assert_eq!(ask(&gateway, target, fields), expected, "{target} {fields:?}");
    }
    // What is refused never reaches the upstream.
    let passed = cases.iter().filter(|(.., expected)| expected.starts_with("200")).count();
    assert_eq!(upstream.count(), 2 * passed);
    let lines = access_log::wait_for(&gateway, 2 * cases.len());
    assert!(lines.iter().any(|line| line["detail"] == "bearer, header:x-api-key"), "{lines:?}");
    assert!(
        lines.iter().any(|line| line["detail"] == "query:key, header:x-goog-api-key"
            || line["detail"] == "header:x-goog-api-key, query:key"),
        "{lines:?}"
    );
    let log = std::fs::read_to_string(gateway.file("access.jsonl")).unwrap();
    for secret in [KEY, OTHER, UNKNOWN, DOTTED] {
        assert!(!log.contains(secret) && !gateway.errors().contains(secret), "{secret}");
    }
}

#[test]
fn where_tokens_may_be_two_dots_tell_a_token_from_a_key() {
    let upstream = Upstream::start();
    let gateway = start(&upstream, "from: [bearer, header:x-api-key]", &jwt(""));
    let (known, unknown, token) = (bearer(KEY), bearer(UNKNOWN), bearer(&token()));
    let cases: [(Fields<'_>, &str); 9] = [
        (&[("authorization", &known)], "200 key"),
        (&[("authorization", &token)], "200 token"),
        (&[("authorization", &token), ("x-api-key", KEY)], "200 token"),
        (&[("authorization", &unknown)], INVALID_KEY),
        (&[("authorization", &bearer("a.b.c"))], INVALID_TOKEN),
        (&[("authorization", &bearer(DOTTED))], INVALID_TOKEN),
        (&[("authorization", &bearer("a.b.c.d.e"))], INVALID_TOKEN),
        (&[("authorization", "Bearer")], INVALID_TOKEN),
        // In a place without tokens, dots have no meaning.
        (&[("x-api-key", DOTTED)], "200 key"),
    ];
    for (fields, expected) in cases {
        assert_eq!(ask(&gateway, "/", fields), expected, "{fields:?}");
    }
    // Whatever the settings of the one say of the other: a token that does not verify is never looked up as a key.
    let anonymous = start(&upstream, "from: bearer", &jwt(", on_invalid: anonymous"));
    assert_eq!(ask(&anonymous, "/", &[("authorization", &bearer(DOTTED))]), "200 nobody");
    assert_eq!(ask(&anonymous, "/", &[("authorization", &unknown)]), INVALID_KEY);
    let required = start(&upstream, "from: bearer", &jwt(", on_missing: reject"));
    assert_eq!(ask(&required, "/", &[("authorization", &known)]), "401 token_missing Bearer");
}

#[test]
fn a_key_that_is_not_forwarded_is_taken_off_in_whatever_place_it_is() {
    let upstream = Upstream::start();
    let from = "from: [bearer, header:x-api-key, \"query:key\", \"cookie:key\"], forward: false";
    let gateway = start(&upstream, from, &jwt(""));
    let seen = |target: &str, fields: Fields<'_>| {
        let answers = ask(&gateway, target, fields);
        let requests = upstream.seen();
        let [.., one, two] = &requests[..] else { panic!("{answers}") };
        let [one, two] = [one, two].map(|request| {
            let fields = ["authorization", "x-api-key", "cookie"].map(|name| request.field(name).unwrap_or("-"));
            format!("{} {}", request.line.split(' ').nth(1).unwrap(), fields.join(" "))
        });
        assert_eq!(one, two);
        one
    };
    let (known, token) = (bearer(KEY), bearer(&token()));
    assert_eq!(seen("/?a", &[("authorization", &known)]), "/?a - - -");
    assert_eq!(seen("/", &[("x-api-key", KEY), ("cookie", "a=b")]), "/ - - a=b");
    assert_eq!(seen(&format!("/?a=%20&key={KEY}&b;c"), &[]), "/?a=%20&b;c - - -");
    assert_eq!(seen(&format!("/x?k%65y={KEY}"), &[]), "/x - - -");
    assert_eq!(seen("/", &[("cookie", &format!("a=\"b\"; key={KEY};c=d"))]), "/ - - a=\"b\";c=d");
    assert_eq!(seen("/", &[("cookie", &format!("key={KEY}"))]), "/ - - -");
    // The same key twice goes twice; a token, another scheme and other cookies stay.
    assert_eq!(seen("/", &[("authorization", &known), ("x-api-key", KEY)]), "/ - - -");
    assert_eq!(seen("/", &[("authorization", &token), ("x-api-key", KEY)]), format!("/ {token} - -"));
    assert_eq!(seen("/", &[("authorization", "Basic YTpi")]), "/ Basic YTpi - -");
}

#[test]
fn the_upstream_may_get_a_key_of_its_own_in_place_of_the_clients() {
    let upstream = Upstream::start();
    let text = format!(
        "listeners: [{{address: 127.0.0.1:0}}]\n\
         api_keys: {{from: [bearer, header:x-api-key], file: keys.txt, on_invalid: anonymous, forward: false}}\n\
         upstreams: {{api: {{endpoints: [\"http://{}\"]}}}}\n\
         routes: [{{name: all, upstream: api, request_headers: {{set: {{authorization: Bearer ours}}}}}}]\n",
        upstream.address
    );
    let line = api_key_file::line(KEY.as_bytes(), &KnownKey::new("acme", "gold"));
    let gateway = Gateway::before_url("").with(&text).file("keys.txt", &(line + "\n")).start();
    // An unknown key is no secret of this file, but perhaps another's.
    for key in [KEY, UNKNOWN] {
        assert_eq!(gateway.client().get("/", &[("authorization", &bearer(key))]).status, 200);
        assert_eq!(upstream.last().field("authorization"), Some("Bearer ours"));
        assert_eq!(gateway.client().get("/", &[("x-api-key", key)]).status, 200);
        assert_eq!(
            (upstream.last().field("x-api-key"), upstream.last().field("authorization")),
            (None, Some("Bearer ours"))
        );
    }
    let checked = tollgate(&["check", gateway.file("gateway.yaml").to_str().unwrap()]);
    assert!(!checked.out.contains("changed_identity") && !checked.err.contains("changed_identity"), "{}", checked.err);
}

#[test]
fn explain_says_in_which_place_a_key_is_and_which_keys_differ() {
    let upstream = Upstream::start();
    let gateway = start(&upstream, "from: [bearer, header:x-api-key]", "");
    let explain = |fields: &[String]| {
        let file = gateway.file("gateway.yaml");
        let mut arguments = vec!["explain", "-c", file.to_str().unwrap(), "http://a/"];
        fields.iter().for_each(|field| arguments.extend(["-H", field]));
        let explained = tollgate(&arguments);
        assert!(![KEY, OTHER, UNKNOWN].iter().any(|key| explained.out.contains(key)), "{}", explained.out);
        explained.out
    };
    let unknown = [format!("Authorization: Bearer {UNKNOWN}")];
    let both = [format!("Authorization: Bearer {KEY}"), format!("X-Api-Key: {OTHER}")];
    for (fields, words) in [
        (&[][..], "none in bearer, header:x-api-key"),
        (&both[..1], "known, id acme, plan gold"),
        (&unknown[..], "REFUSED 401 key_invalid: the key in bearer is not in"),
        (&both[..], "REFUSED 400 ambiguous_request: the keys in bearer and header:x-api-key differ"),
    ] {
        let explained = explain(fields);
        assert!(explained.contains(words), "{words} is not in {explained}");
    }
}
