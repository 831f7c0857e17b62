//! `llm:model`: the model that a request to a language model asks for, in its path or in its body.

use super::json_bodies::{JSON, post_json};
use crate::support::{Gateway, Upstream};

#[test]
fn each_model_has_a_bucket_of_its_own() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream)
        .with("rules: [{name: per-model, limit_keys: [\"llm:model\"], algorithm_config: {rate: 1/day}}]")
        .start();
    let post = |target: &str, body: &str| gateway.client().send("POST", target, &[JSON], body).status;
    let small = "{\"messages\":[],\"model\":\"small\"}";
    for (target, body, status) in [
        ("/v1/chat/completions", small, 200),
        ("/v1/chat/completions", small, 429),
        // The upstream unescapes its path, and parameters do not matter to it.
        ("/v1/chat/%63ompletions?x=1", small, 429),
        ("/proxy/v1/responses", "{\"model\":\"small\",\"input\":\"hello\"}", 429),
        ("/v1/messages", "{\"model\":\"large\"}", 200),
        // The path has the model, so what the body has does not count.
        ("/openai/deployments/large/chat/completions", small, 429),
        ("/v1beta/models/gemini-2.5:generateContent", "{\"contents\":[]}", 200),
        ("/v1beta/models/gemini%2D2.5:streamGenerateContent?alt=sse", "no JSON", 429),
        ("/v1/models", small, 200),
        ("/v1/chat/completions", "{\"messages\":[]}", 200),
        ("/v1/chat/completions", "{\"model\":\"a\",\"model\":\"b\"}", 400),
        ("/v1/chat/completions", "{\"model\":", 400),
    ] {
        assert_eq!(post(target, body), status, "{target} {body}");
    }
    assert_eq!(gateway.client().get("/v1/chat/completions", &[]).status, 200);
}

#[test]
fn a_model_in_the_path_is_known_without_the_body() {
    let upstream = Upstream::start();
    let gateway =
        Gateway::before(&upstream).with("rules: [{name: off, match: {\"llm:model\": retired}, action: deny}]").start();
    let mut client = gateway.client();
    client.write(
        "POST /openai/deployments/retired/embeddings HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n\
         Expect: 100-continue\r\nContent-Length: 20\r\n\r\n",
    );
    assert!(client.until("\r\n\r\n").starts_with("HTTP/1.1 403 "));
    assert_eq!(post_json(&gateway, "{\"model\":\"retired\"}").status, 200);
}
