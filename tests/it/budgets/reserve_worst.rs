//! Budgets of tokens that hold the most that a request to a language model can cost.

use super::upstream;
use crate::support::{Gateway, Response, eventually};

const LIMIT: u64 = 100_000;

/// Limits with each form of a reserve of which the input is a part. Output weighs twice as much as input, and what is written to a
/// cache three times as much. A token has one byte.
fn rules(reserve: &str) -> String {
    let numbers = format!("limit: {LIMIT}, window: 366d, cost_source: llm_tokens, default_cost: 0");
    format!(
        "
llm: {{bytes_per_token: 1, media: 500}}
rules:
  - {{name: spend, limit_keys: [header:x-user], algorithm: fixed_window, algorithm_config: {{{numbers}, {reserve}}}}}"
    )
}

const WEIGHTS: &str = "weights: {output: 2, cache_write: 3}";

fn post(gateway: &Gateway, path: &str, user: &str, body: &str) -> Response {
    let fields = [("X-User", user), ("Content-Type", "application/json")];
    gateway.client().send("POST", path, &fields, body)
}

/// Each request reserves so much, with a budget of its own.
#[track_caller]
fn reserve(gateway: &Gateway, requests: &[(&str, &str, u64)]) {
    for (index, (path, body, reserved)) in requests.iter().enumerate() {
        let response = post(gateway, path, &format!("user-{index}"), body);
        assert_eq!(response.status, 200, "{body}: {response:?}");
        let level = response.field("ratelimit").unwrap();
        let left = level.split(";r=").nth(1).unwrap().split(';').next().unwrap();
        assert_eq!(LIMIT - left.parse::<u64>().unwrap(), *reserved, "{path} {body}");
    }
}

#[test]
fn the_maximum_of_the_request_and_its_input_are_held() {
    let (upstream, _finish) = upstream::start();
    let gateway =
        Gateway::start(&upstream, &rules(&format!("reserve: {{worst: {{default_output: 1000}}}}, {WEIGHTS}")));
    let chat = "/v1/chat/completions";
    // The input is all names, texts and numbers: `model`, `m`, `max_tokens`, `10`.
    reserve(
        &gateway,
        &[
            (chat, r#"{"model":"m"}"#, 6 * 3 + 2000),
            (chat, r#"{"model":"m","max_tokens":10}"#, 18 * 3 + 20),
            (chat, r#"{"model":"m","max_completion_tokens":10,"max_tokens":5}"#, 40 * 3 + 20),
            (chat, r#"{"model":"m","max_tokens":10,"n":3}"#, 20 * 3 + 60),
            (chat, r#"{"model":"m","n":3}"#, 8 * 3 + 6000),
            (chat, r#"{"model":"m","max_tokens":"many"}"#, 20 * 3 + 2000),
            ("/v1/responses", r#"{"model":"m","max_output_tokens":10}"#, 25 * 3 + 20),
            // The whole conversation before may be input.
            ("/v1/responses", r#"{"max_output_tokens":10,"previous_response_id":"r"}"#, (19 + 20 + 1 + 1000) * 3 + 20),
            ("/v1/messages", r#"{"max_tokens":10}"#, 12 * 3 + 20),
            ("/v1/models/m:generateContent", r#"{"generationConfig":{"maxOutputTokens":10}}"#, 33 * 3 + 20),
            ("/v1/embeddings", r#"{"input":"four"}"#, 9 * 3),
        ],
    );
}

#[test]
fn the_input_is_added_to_what_the_request_names() {
    let (upstream, _finish) = upstream::start();
    let reserve_from = "reserve: {from: \"request_json:/max_tokens\", plus: input, default: 700, min: 50, max: 800}";
    let gateway = Gateway::start(&upstream, &rules(&format!("{reserve_from}, {WEIGHTS}")));
    let chat = "/v1/chat/completions";
    reserve(
        &gateway,
        &[
            (chat, r#"{"max_tokens":100}"#, 13 * 3 + 100),
            (chat, r#"{"model":"m"}"#, 6 * 3 + 700),
            (chat, r#"{"model":"m","n":0}"#, 8 * 3 + 700),
            (chat, r#"{"max_tokens":1}"#, 50),
            (chat, r#"{"max_tokens":790}"#, 800),
            ("/v1/responses", r#"{"max_tokens":1,"previous_response_id":"r"}"#, 32 * 3 + 1 + 700),
        ],
    );
}

/// A request that names no maximum has no bound but those of the limit.
#[test]
fn what_is_learned_is_not_more_than_the_request_can_cost() {
    let (upstream, _finish) = upstream::start();
    let learned = "reserve: {learn: 95%, min: 30, max: 20000, default: 900}";
    let gateway = Gateway::start(&upstream, &rules(&format!("{learned}, {WEIGHTS}")));
    let chat = "/v1/chat/completions";
    reserve(
        &gateway,
        &[
            (chat, r#"{"model":"m"}"#, 900),
            (chat, r#"{"max_tokens":10}"#, 12 * 3 + 20),
            (chat, r#"{"n":1,"max_tokens":1000}"#, 900),
            ("/v1/embeddings", r#"{"input":"a"}"#, 30),
        ],
    );
}

#[test]
fn a_request_that_can_cost_more_than_the_budget_learns_what_fits() {
    let (upstream, _finish) = upstream::start();
    let gateway =
        Gateway::start(&upstream, &rules(&format!("reserve: {{worst: {{default_output: 1000}}}}, {WEIGHTS}")));
    let refused = post(&gateway, "/v1/chat/completions", "ann", r#"{"max_tokens":60000}"#);
    assert_eq!((refused.status, refused.field("x-tollgate-reason").as_deref()), (429, Some("cost_too_large")));
    assert_eq!(refused.json()["fits"].as_u64(), Some(LIMIT), "{refused:?}");
    assert_eq!(
        (&refused.json()["policy"], &refused.json()["unit"]),
        (&"spend".into(), &"tokens".into()),
        "{refused:?}"
    );
    assert_eq!(upstream.count(), 0);
    // Nothing is held afterwards.
    eventually("all is free", || {
        post(&gateway, "/v1/chat/completions", "ann", r#"{"max_tokens":49900}"#).status == 200
    });
}

/// Limits in tokens and in money that are both too small: what fits belongs to the limit that is named, in its unit.
#[test]
fn what_fits_is_in_the_unit_of_the_limit_that_is_named() {
    let (upstream, _finish) = upstream::start();
    let limit = |name: &str, numbers: &str| {
        format!(
            "{name}: {{algorithm: fixed_window, window: 366d, {numbers}, reserve: {{worst: {{default_output: 50}}}}}}"
        )
    };
    let [money, many, few] = [
        limit("money", "limit: 0.25, cost_source: llm_cost"),
        limit("many", "limit: 900, cost_source: llm_tokens"),
        limit("few", "limit: 100, cost_source: llm_tokens"),
    ];
    for (limits, policy, unit, fits, words) in [
        (
            [&money, &many, &few].map(String::as_str).join(", "),
            "spend.money",
            "usd",
            0.25,
            "The request may cost 4.02 USD, more than the limit spend.money can ever have left. At most 0.25 USD fits.",
        ),
        (
            [&many, &money, &few].map(String::as_str).join(", "),
            "spend.few",
            "tokens",
            100.0,
            "The request may cost 2010, more than the limit spend.few can ever have left. At most 100 fits.",
        ),
    ] {
        for format in ["", "error_format: openai, "] {
            let rule = format!("name: spend, limit_keys: [header:x-user], expose: true, limits: {{{limits}}}");
            let config =
                format!("llm: {{{format}bytes_per_token: 2}}\nprices: {{file: prices.csv}}\nrules: [{{{rule}}}]");
            let gateway =
                Gateway::before(&upstream).with(&config).file("prices.csv", "model,input,output\nm,2000,2000\n");
            let body = r#"{"model":"m","max_tokens":2000}"#;
            let refused = post(&gateway.start(), "/v1/chat/completions", "ann", body);
            assert_eq!(refused.field("x-tollgate-reason").as_deref(), Some("cost_too_large"));
            let json = refused.json();
            if format.is_empty() {
                let named = (json["policy"].as_str(), json["unit"].as_str(), json["fits"].as_f64());
                assert_eq!(named, (Some(policy), Some(unit), Some(fits)), "{json}");
            } else {
                assert_eq!(json["error"]["message"], words);
            }
        }
    }
}
