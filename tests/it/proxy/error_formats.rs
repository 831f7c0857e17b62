//! The gateway's own errors in the formats of providers of models, over HTTP/1.1 and HTTP/2.

use std::net::SocketAddr;

use identity::api_key_file;
use request::identity::KnownKey;
use serde_json::{Value, json};

use crate::support::http2::Http2Client;
use crate::support::{Client, Gateway, Upstream, free_port, tollgate};

const KEY: &str = "sk-3fQk0bCz7LrYw1xA";

type Fields<'f> = &'f [(&'f str, &'f str)];

/// Starts a gateway whose routes have the format of Anthropic, of OpenAI, or that of the file.
fn start(upstream: &Upstream, of_file: &str) -> Gateway {
    let nobody = free_port();
    let text = format!(
        "listeners: [{{address: 127.0.0.1:0, protocols: [h2c, http/1.1]}}]
{of_file}
api_keys: {{from: [bearer, header:x-api-key], file: keys.txt}}
upstreams:
  models: {{endpoints: [\"http://{}\"], timeouts: {{first_byte: 500ms}}, retries: {{max: 0}}}}
  gone: {{endpoints: [\"http://127.0.0.1:{nobody}\"], retries: {{max: 0}}}}
routes:
  - {{name: messages, match: {{path: /v1/messages/*}}, upstream: models, body_bytes: 5B, llm: {{error_format: anthropic}}}}
  - {{name: gone, match: {{path: /v1/gone}}, upstream: gone, llm: {{error_format: openai}}}}
  - {{name: chat, match: {{path: /v1/*}}, upstream: models, llm: {{error_format: openai}}}}
  - {{name: plain, match: {{path: /plain/*}}, upstream: models}}
policies:
  - {{name: closed, rules: [{{name: closed, match: {{header:x-closed: yes}}, limit_keys: [], action: deny}}]}}
  - name: month
    rules: [{{name: month, match: {{key:id: acme, method: PUT}}, limit_keys: [key:id], algorithm: fixed_window, algorithm_config: {{limit: 1, window: month}}}}]
  - name: minute
    rules: [{{name: minute, match: {{key:id: acme, method: PATCH}}, limit_keys: [key:id], algorithm: token_bucket, algorithm_config: {{rate: 2/min, burst: 2}}}}]
  - name: shared
    rules: [{{name: shared, match: {{method: DELETE}}, limit_keys: [], expose: false, status: 503, algorithm_config: {{rate: 2/min, burst: 2}}}}]
error_pages: [{{body_file: page.txt, content_type: text/plain, headers: {{X-Page: '1'}}}}]
cors: [{{origins: [\"https://app.example\"]}}]
",
        upstream.address
    );
    let line = api_key_file::line(KEY.as_bytes(), &KnownKey::new("acme", "gold")) + "\n";
    let builder = Gateway::before_url("").with(&text).file("keys.txt", &line);
    builder.file("page.txt", "a page").start()
}

/// Returns the value of a field of a response.
type FieldReader = Box<dyn Fn(&str) -> Option<String>>;

/// An answer, whatever the protocol.
struct Answer {
    status: u16,
    fields: FieldReader,
    body: String,
}

fn over_http1(address: SocketAddr, method: &str, path: &str, fields: Fields<'_>, body: &str) -> Answer {
    let response = Client::connect(address).send(method, path, fields, body);
    let (status, body) = (response.status, response.body.clone());
    Answer { status, body, fields: Box::new(move |name| response.field(name)) }
}

fn over_http2(address: SocketAddr, method: &str, path: &str, fields: Fields<'_>, body: &str) -> Answer {
    let mut client = Http2Client::connect(address);
    let mut request = client.begin(method, path, fields, body.is_empty());
    if !body.is_empty() {
        let _ = request.write(body.as_bytes(), true);
    }
    let response = request.response().unwrap();
    let head = response.head.clone();
    let text = move |name: &str| head.get(name).map(|value| value.to_str().unwrap().to_owned());
    Answer { status: response.status, body: response.text(), fields: Box::new(text) }
}

type Ask = fn(SocketAddr, &str, &str, Fields<'_>, &str) -> Answer;

/// Returns the status, the type and the code of an error, and whether the library should try again. The message must
/// say something.
#[track_caller]
fn told(answer: &Answer) -> (u16, String, String, String) {
    let field = |name: &str| (answer.fields)(name).unwrap_or_default();
    assert_eq!((field("content-type"), field("x-page")), ("application/json".to_owned(), String::new()));
    assert_eq!(field("cache-control"), "no-store");
    let body: Value = serde_json::from_str(&answer.body).unwrap();
    let error = &body["error"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    assert!(text(&error["message"]).len() > 10, "{body}");
    assert!(!answer.body.contains("127.0.0.1") && !answer.body.to_lowercase().contains("tollgate"), "{body}");
    if body["type"] == "error" {
        assert_eq!(text(&body["request_id"]), field("x-request-id"));
        assert!(error.get("code").is_none());
    } else {
        assert_eq!(error["param"], Value::Null);
    }
    (answer.status, text(&error["type"]), text(&error["code"]), field("x-should-retry"))
}

#[test]
fn every_own_error_has_the_format_of_its_route() {
    let upstream = Upstream::answering(|_, stream| {
        // Until the gateway closes the connection.
        let _ = std::io::Read::read(stream, &mut [0]);
    });
    for ask in [over_http1 as Ask, over_http2] {
        let gateway = start(&upstream, "");
        let key: (&str, &str) = ("x-api-key", KEY);
        let check = |method: &str, path: &str, fields: Fields<'_>, body: &str, expected: (u16, &str, &str, &str)| {
            let answer = ask(gateway.http, method, path, fields, body);
            let (status, kind, code, retry) = told(&answer);
            assert_eq!((status, &*kind, &*code, &*retry), expected, "{method} {path} {fields:?} {}", answer.body);
            answer
        };
        let unknown = ("authorization", "Bearer sk-nobody");
        check("GET", "/v1/chat", &[unknown], "", (401, "invalid_request_error", "invalid_api_key", "false"));
        check("GET", "/v1/messages", &[unknown], "", (401, "authentication_error", "", "false"));
        let both: Fields<'_> = &[unknown, key];
        check("GET", "/v1/chat", both, "", (400, "invalid_request_error", "ambiguous_request", "false"));
        check("GET", "/v1/messages", both, "", (400, "invalid_request_error", "", "false"));
        let closed: Fields<'_> = &[("x-closed", "yes")];
        check("GET", "/v1/chat", closed, "", (403, "invalid_request_error", "denied", "false"));
        check("GET", "/v1/messages", closed, "", (403, "permission_error", "", "false"));
        check("POST", "/v1/messages", &[], "too long", (413, "request_too_large", "", "false"));
        check("GET", "/v1/gone", &[], "", (502, "server_error", "bad_gateway", ""));
        check("GET", "/v1/chat", &[], "", (504, "server_error", "gateway_timeout", ""));
        check("GET", "/v1/messages", &[], "", (504, "timeout_error", "", ""));
        // A month is no wait for a library, a minute is.
        let _ = ask(gateway.http, "PUT", "/v1/chat", &[key], "");
        let spent = check("PUT", "/v1/chat", &[key], "", (429, "rate_limit_error", "rate_limit_exceeded", "false"));
        assert!(spent.body.contains("The limit month is used up. Limit 1, spent 1, reset in "), "{}", spent.body);
        for _ in 0..2 {
            let _ = ask(gateway.http, "PATCH", "/v1/messages", &[key], "");
        }
        let origin = ("origin", "https://app.example");
        let soon = check("PATCH", "/v1/messages", &[key, origin], "", (429, "rate_limit_error", "", "true"));
        let number = |name: &str| (soon.fields)(name).unwrap().parse::<u64>().unwrap();
        assert_eq!(number("retry-after-ms"), number("retry-after") * 1000);
        assert!(soon.body.contains("The limit minute is used up. Limit 2, spent 2, reset in "), "{}", soon.body);
        let exposed = (soon.fields)("access-control-expose-headers").unwrap();
        assert!(exposed.ends_with("Retry-After, X-Request-Id, Retry-After-Ms, X-Should-Retry"), "{exposed}");
        // A limit that clients may not see is not named.
        for _ in 0..2 {
            let _ = ask(gateway.http, "DELETE", "/v1/messages", &[], "");
        }
        let busy = check("DELETE", "/v1/messages", &[], "", (503, "overloaded_error", "", "true"));
        assert!(busy.body.contains("\"message\":\"Too many requests. Please try again in "), "{}", busy.body);
        // Without a format: an error page, without the fields of the formats.
        let plain = ask(gateway.http, "DELETE", "/plain/x", &[], "");
        assert_eq!((plain.status, &*plain.body), (503, "a page"));
        assert_eq!([(plain.fields)("x-should-retry"), (plain.fields)("retry-after-ms")], [None, None]);
        // A client of gRPC gets what it understands, and no route no format.
        let grpc = ask(gateway.http, "DELETE", "/v1/messages", &[("content-type", "application/grpc")], "");
        assert_eq!(((grpc.fields)("grpc-status").as_deref(), (grpc.fields)("x-should-retry")), (Some("14"), None));
        assert_eq!(ask(gateway.http, "GET", "/", &[], "").body, "a page");
    }
}

#[test]
fn the_format_of_the_file_is_for_all_that_has_no_other() {
    let upstream = Upstream::start();
    let gateway = start(&upstream, "llm: {error_format: anthropic}");
    for ask in [over_http1 as Ask, over_http2] {
        let told_of = |path: &str, fields: Fields<'_>| told(&ask(gateway.http, "GET", path, fields, "")).1;
        let unknown: Fields<'_> = &[("x-api-key", "sk-nobody")];
        assert_eq!(told_of("/plain/x", unknown), "authentication_error");
        assert_eq!(told_of("/v1/chat", unknown), "invalid_request_error");
        assert_eq!(told_of("/", &[]), "not_found_error");
    }
    // A head that is not read has no route.
    let mut client = gateway.client();
    client.write("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n");
    let refused = client.response("GET").unwrap();
    assert_eq!((refused.status, &refused.json()["error"]["type"]), (400, &json!("invalid_request_error")));
    assert_eq!(refused.field("x-should-retry").as_deref(), Some("false"));
    let file = gateway.file("gateway.yaml");
    let explained =
        tollgate(&["explain", "-c", file.to_str().unwrap(), "-H", "X-Api-Key: sk-nobody", "http://a/v1/chat"]);
    assert!(explained.out.contains("the body has the error format of openai"), "{}", explained.out);
    // After a reload without it, the page is back.
    let text = std::fs::read_to_string(&file).unwrap();
    gateway.replace("gateway.yaml", &text.replace("llm: {error_format: anthropic}\n", ""));
    crate::support::eventually("the page is back", || gateway.client().get("/", &[]).body == "a page");
}
