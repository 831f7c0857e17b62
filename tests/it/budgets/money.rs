//! Costs in money: what is refused, reserved, settled and shown, and what a change of the table of prices changes.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use crate::support::{Client, Gateway, GatewayBuilder, Postgres, Redis, Response, Upstream, eventually, tollgate};

/// A token of input of the model `m` costs 0.50 USD, and one of output 1 USD. Tokens of dear models cost 1 USD.
const PRICES: &str = "model,input,output\nm,500000,1000000\ndear*,1000000,1000000\n";

/// An answer with 3 tokens of input and 2 of output, which cost 3.50 USD.
const ANSWER: &str =
    r#"{"model":"m","choices":[{"message":{"content":"hi"}}],"usage":{"prompt_tokens":3,"completion_tokens":2}}"#;

fn config(keys: &str) -> String {
    format!(
        "prices: {{file: prices.csv}}
rules:
  - name: spend
    limit_keys: [header:x-user]
    expose: true
    algorithm: fixed_window
    algorithm_config: {{limit: 250.00, window: 366d, cost_source: llm_cost, reserve: 4.50{keys}}}"
    )
}

/// An upstream whose response the field `X-Mode` chooses.
fn model() -> Upstream {
    Upstream::answering(|request, stream| {
        let json = |stream: &mut TcpStream, body: &str| {
            let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n";
            let _ = stream.write_all(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes());
        };
        match request.field("x-mode").unwrap_or_default() {
            "dear" => json(stream, &ANSWER.replace("\"m\"", "\"dear-2\"")),
            "unknown" => json(stream, &ANSWER.replace("\"m\"", "\"other\"")),
            "missing" => {
                let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnone");
            }
            "without" => json(stream, r#"{"model":"m","choices":[{"message":{"content":"12345678"}}]}"#),
            "cut" => {
                let event = "data: {\"model\":\"m\",\"choices\":[{\"delta\":{\"content\":\"12345678\"}}]}\n\n";
                let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
                let _ = stream.write_all(format!("{head}{:x}\r\n{event}\r\n", event.len()).as_bytes());
                let _ = stream.shutdown(Shutdown::Both);
            }
            _ => json(stream, ANSWER),
        }
    })
}

/// An upstream that answers each request when the test has sent a message.
fn answering_when_told() -> (Upstream, mpsc::Sender<()>) {
    let (finish, told) = mpsc::channel();
    let told = Mutex::new(told);
    let upstream = Upstream::answering(move |_, stream| {
        told.lock().unwrap().recv_timeout(Duration::from_secs(60)).unwrap();
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n";
        let _ = stream.write_all(format!("{head}Content-Length: {}\r\n\r\n{ANSWER}", ANSWER.len()).as_bytes());
    });
    (upstream, finish)
}

fn before(upstream: &Upstream, config: &str) -> GatewayBuilder {
    Gateway::before(upstream).with(config).file("prices.csv", PRICES)
}

fn begin(gateway: &Gateway, mode: &str, body: &str) -> Client {
    let mut client = gateway.client();
    let length = body.len();
    client.write(&format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nX-User: ann\r\nX-Mode: {mode}\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    ));
    client
}

/// A request for this model with 40 bytes of names and texts, whose estimate is 10 tokens.
fn request(model: &str) -> String {
    let rest = "x".repeat(40 - "modeluser".len() - model.len());
    format!(r#"{{"model":"{model}","user":"{rest}"}}"#)
}

fn ask(gateway: &Gateway, mode: &str) -> Response {
    begin(gateway, mode, &request("m")).response("POST").unwrap()
}

/// Returns what `bucket show` says of the user, once it says that nothing is held.
#[track_caller]
fn becomes(gateway: &Gateway, spent: &str) {
    let admin = gateway.admin.to_string();
    let command = ["bucket", "show", "--admin", &admin, "spend", "header:x-user=ann"];
    let mut shown = String::new();
    eventually(&format!("{spent} is spent"), || {
        shown = tollgate(&command).out;
        shown.contains(&format!("{spent} USD spent, 0.00 USD held, "))
    });
    assert!(shown.contains(".00 USD/366d"), "{shown}");
}

#[test]
fn a_request_costs_what_the_model_that_answered_costs() {
    let upstream = model();
    let gateway = before(&upstream, &config("")).start();
    assert_eq!(ask(&gateway, "").status, 200);
    becomes(&gateway, "3.50");
    assert_eq!(ask(&gateway, "dear").status, 200);
    becomes(&gateway, "8.50");
    gateway.expect("rate_limiter_model_unpriced_total", &["rule=\"spend\""], 0.0);
    // A model without a price that only the response names costs the price of the one that was asked for.
    assert_eq!(ask(&gateway, "unknown").status, 200);
    becomes(&gateway, "12.00");
    gateway.expect("rate_limiter_model_unpriced_total", &["rule=\"spend\"", "unit=\"usd\""], 1.0);
    gateway.expect("rate_limiter_overrun_total", &["rule=\"spend\"", "unit=\"usd\""], 1.0);
}

#[test]
fn an_estimate_is_money_too() {
    let upstream = model();
    let gateway = before(&upstream, &config("")).start();
    // 10 tokens of input and 2 of output.
    assert_eq!(ask(&gateway, "without").status, 200);
    becomes(&gateway, "7.00");
    assert!(begin(&gateway, "cut", &request("m")).response("POST").is_err());
    becomes(&gateway, "14.00");
    // A failed response costs one token of input of the model that was asked for.
    assert_eq!(ask(&gateway, "missing").status, 404);
    becomes(&gateway, "14.50");
    gateway.expect("rate_limiter_usage_missing_total", &["rule=\"spend\"", "unit=\"usd\""], 3.0);
    // By `default_cost` a whole response without usage costs this.
    let gateway = before(&upstream, &config(", default_cost: 0.25")).start();
    assert_eq!(ask(&gateway, "without").status, 200);
    becomes(&gateway, "0.25");
    assert_eq!(ask(&gateway, "missing").status, 404);
    becomes(&gateway, "0.50");
}

/// The request of 10 tokens may have 7 tokens of output: at the prices of `m`, 12 USD.
#[test]
fn the_most_that_a_request_can_cost_is_held_at_the_price_of_its_model() {
    let (upstream, finish) = answering_when_told();
    let reserves = |reserve: &str| config("").replace("reserve: 4.50", &format!("reserve: {reserve}"));
    for (reserve, held) in [
        ("{worst: {default_output: 7}}", "12.00 USD"),
        ("{learn: 95%, min: 0.5, default: 100, max: 200.25}", "100.00 USD"),
        ("{learn: 95%, min: 0.000000001, default: 0.000000002}", "0.000000002 USD"),
    ] {
        let gateway = before(&upstream, &reserves(reserve)).start();
        let mut running = begin(&gateway, "", &request("m"));
        let admin = gateway.admin.to_string();
        let command = ["bucket", "show", "--admin", &admin, "spend", "header:x-user=ann"];
        let shown = format!("{held} held");
        eventually("it is held", || tollgate(&command).out.contains(&shown));
        finish.send(()).unwrap();
        assert_eq!(running.response("POST").unwrap().status, 200);
        becomes(&gateway, "3.50");
    }
    // More than the limit of 250 USD.
    let gateway = before(&upstream, &reserves("{worst: {default_output: 240}}")).start();
    let refused =
        begin(&gateway, "", &request("m").replace("\"user\"", "\"max_tokens\":246,\"user\"")).response("POST");
    assert_eq!(refused.unwrap().field("x-tollgate-reason").as_deref(), Some("cost_too_large"));
}

#[test]
fn a_model_without_a_price_is_refused_before_it_is_sent() {
    let upstream = model();
    let gateway = before(&upstream, &config("")).start();
    for body in [&*request("other"), &*request("M"), "{}", r#"{"model":7}"#] {
        let response = begin(&gateway, "", body).response("POST").unwrap();
        assert_eq!(
            (response.status, response.field("x-tollgate-reason").as_deref()),
            (400, Some("unpriced")),
            "{body}"
        );
    }
    assert_eq!(upstream.count(), 0);
    let with_default = config("").replace("prices.csv", "prices.csv, default: dear*");
    let gateway = before(&upstream, &with_default).start();
    let response = begin(&gateway, "unknown", &request("other")).response("POST").unwrap();
    assert_eq!(response.status, 200);
    becomes(&gateway, "5.00");
}

#[test]
fn clients_see_cents_if_the_rule_says_so() {
    let upstream = model();
    let config = config("").replace("250.00", "25.00");
    let gateway = before(&upstream, &format!("llm: {{error_format: openai}}\n{config}")).start();
    let response = ask(&gateway, "");
    assert_eq!(response.field("ratelimit-policy").as_deref(), Some("\"spend\";q=2500;w=31622400;qu=\"usd-cents\""));
    let level = response.field("ratelimit").unwrap();
    assert!(level.starts_with("\"spend\";r=2050;t="), "{level}");
    // The older fields count requests.
    assert_eq!(response.field("ratelimit-remaining"), None);
    for _ in 0..3 {
        assert_eq!(ask(&gateway, "dear").status, 200);
    }
    becomes(&gateway, "18.50");
    assert_eq!(ask(&gateway, "dear").status, 200);
    becomes(&gateway, "23.50");
    let refused = ask(&gateway, "");
    assert_eq!((refused.status, refused.field("x-tollgate-reason").as_deref()), (429, Some("fixed_window_exceeded")));
    let error = &refused.json()["error"];
    assert_eq!(error["code"], "insufficient_quota");
    let message = error["message"].as_str().unwrap();
    assert!(message.starts_with("The limit spend is used up. Limit 25.00 USD, spent 23.50 USD, "), "{message}");
    assert_eq!(refused.number("ratelimit-limit"), 2_500);
    let hidden = before(&upstream, &config.replace("    expose: true\n", "")).start();
    let response = ask(&hidden, "");
    assert_eq!((response.field("ratelimit-policy"), response.field("ratelimit-limit")), (None, None));
}

#[test]
fn a_changed_table_holds_for_requests_that_begin_after_it() {
    let (upstream, finish) = answering_when_told();
    let gateway = before(&upstream, &config("")).start();
    let running = begin(&gateway, "", &request("m"));
    eventually("the request runs", || upstream.count() == 1);
    gateway.replace("prices.csv", "model,input,output\nm,1000000,1000000\nnew,1,1\n");
    eventually("the table is reloaded", || gateway.successful_reloads() > 0);
    finish.send(()).unwrap();
    let mut running = running;
    assert_eq!(running.response("POST").unwrap().status, 200);
    becomes(&gateway, "3.50");
    let mut next = begin(&gateway, "", &request("m"));
    eventually("the request runs", || upstream.count() == 2);
    finish.send(()).unwrap();
    assert_eq!(next.response("POST").unwrap().status, 200);
    becomes(&gateway, "8.50");
    // A table with a mistake changes nothing.
    gateway.replace("prices.csv", "model,input,output\nm,cheap,1\n");
    gateway.expect_logged("prices.csv:2:1: prices.file: input must be USD for a million tokens");
    let mut last = begin(&gateway, "", &request("m"));
    eventually("the request runs", || upstream.count() == 3);
    finish.send(()).unwrap();
    assert_eq!(last.response("POST").unwrap().status, 200);
    becomes(&gateway, "13.50");
}

#[test]
fn two_gateways_on_one_redis_share_what_is_spent_to_the_last_part_of_a_dollar() {
    share(&Redis::start().patient_store());
}

#[test]
fn two_gateways_on_one_postgresql_share_what_is_spent_to_the_last_part_of_a_dollar() {
    let postgres = Postgres::start();
    postgres.settings();
    share(&postgres.store_with(", timeout: 10s", "deny"));
}

fn share(store: &str) {
    let upstream = model();
    let prices = "model,input,output\nm,0.000000001,0.000000001\ndear*,1000000,0.5\n";
    let config = format!("{store}\n{}", config(""));
    let [one, two] = [(); 2].map(|()| Gateway::before(&upstream).with(&config).file("prices.csv", prices).start());
    assert_eq!(ask(&one, "").status, 200);
    becomes(&two, "0.000000001");
    assert_eq!(ask(&two, "dear").status, 200);
    becomes(&one, "3.000001001");
    assert_eq!(ask(&one, "").status, 200);
    becomes(&two, "3.000001002");
}
