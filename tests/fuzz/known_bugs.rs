//! Shows that each target can find a bug. The parser of the target gets a planted bug, and the target must fail.

use super::mutation::finds;
use super::{
    answers, certificates, descriptions, frames, grpc, imports, llm_requests, protocols, request_bodies, responses,
    semantics, take_calls,
};

#[track_caller]
fn check(target: fn()) {
    assert!(finds(target), "the bug was not found");
}

#[test]
fn of_a_head() {
    check(protocols::head);
}

#[test]
fn of_chunks() {
    check(protocols::chunks);
}

#[test]
fn of_a_response() {
    check(responses::response);
}

#[test]
fn of_frames() {
    check(frames::frames);
}

#[test]
fn of_forwarded_addresses() {
    check(protocols::forwarded);
}

#[test]
fn of_a_proxy_header() {
    check(protocols::proxy_header);
}

#[test]
fn of_a_rate_limit_call() {
    check(grpc::rate_limit_call);
}

#[test]
fn of_an_authorization_call() {
    check(grpc::authorization_call);
}

#[test]
fn of_a_take_call() {
    check(take_calls::take_call);
}

#[test]
fn of_an_original_request() {
    check(descriptions::original_request);
}

#[test]
fn of_a_path() {
    check(protocols::path);
}

#[test]
fn of_a_file() {
    check(semantics::config);
}

#[test]
fn of_a_token() {
    check(semantics::token);
}

#[test]
fn of_a_cost() {
    check(semantics::cost);
}

#[test]
fn of_a_key() {
    check(semantics::key);
}

#[test]
fn of_a_reply() {
    check(semantics::reply);
}

#[test]
fn of_a_client_certificate() {
    check(certificates::client_certificate);
}

#[test]
fn of_an_answer() {
    check(answers::answer);
}

#[test]
fn of_json() {
    check(answers::json);
}

#[test]
fn of_a_request_to_a_language_model() {
    check(llm_requests::llm_request);
}

#[test]
fn of_json_in_a_request() {
    check(request_bodies::request_json);
}

#[test]
fn of_a_form() {
    check(request_bodies::request_form);
}

#[test]
fn of_an_event_stream() {
    check(answers::event_stream);
}

#[test]
fn of_a_usage_event() {
    check(answers::usage_event);
}

#[test]
fn of_an_import_from_nginx() {
    check(imports::import_nginx_file);
}

#[test]
fn of_an_import_from_kong() {
    check(imports::import_kong_file);
}

#[test]
fn of_an_import_from_ratelimit() {
    check(imports::import_ratelimit_file);
}
