//! Explains the effect of `cors`, `error_pages` and `llm.error_format` on the gateway's own responses.

use http::Method;
use http::header::ORIGIN;

use super::answer::BEFORE_RULES;
use super::report::{Answer, Verdict};
use config::Config;
use decision::cors::CorsAnswer;
use decision::order_of_answers::choose_route;
use decision::refusal::Refusal;
use request::asked_request::asked_request;
use request::door::Door;
use request::grpc_timeout::is_grpc;
use request::matcher::QuotedText;
use request::request::Request;

/// Returns the index of the entry of `cors` that answers the request as a preflight. `None` if no entry does.
pub(super) fn preflight(config: &Config, request: &Request<'_>) -> Option<usize> {
    let answer = config.cors.as_ref()?.answer(request)?;
    answer.preflight.map(|_| answer.entry)
}

/// Makes the gateway's answer to a preflight. `entry` is the index of an entry of `cors`.
pub(super) fn preflight_answer(entry: usize) -> Answer {
    let words = vec![format!("ANSWERED 204: a preflight, by cors[{entry}]"), BEFORE_RULES.to_owned()];
    Answer { verdict: Verdict::Passes, code: Some(204), reason: None, retry_after: None, words }
}

/// Makes the gateway's answer to a request to the path of `usage`.
pub(super) fn usage_answer(request: &Request<'_>) -> Answer {
    let refused = |refusal: &Refusal, detail: &str| Answer {
        verdict: Verdict::Refused,
        code: Some(refusal.status),
        reason: Some(refusal.reason.name()),
        retry_after: None,
        words: vec![format!("REFUSED {} {}: {detail}", refusal.status, refusal.reason.name()), BEFORE_RULES.to_owned()],
    };
    if !matches!(request.head.method, Method::GET | Method::HEAD) {
        return refused(&Refusal::usage_method(), "the path of `usage` accepts GET and HEAD");
    }
    let Ok(asked) = asked_request(request.head) else {
        return refused(&Refusal::bad_request(400), "`method`, `path` or `host` in the query is repeated or invalid");
    };
    let target = asked.uri.path_and_query().map_or("", |target| target.as_str());
    let words = vec![
        format!(
            "ANSWERED 200 by `usage`: what the limits of {} {} have left",
            asked.method,
            QuotedText(target.as_bytes())
        ),
        "nothing is charged but the limit of such requests; explain that request for its limits".to_owned(),
    ];
    Answer { verdict: Verdict::Passes, code: Some(200), reason: None, retry_after: None, words }
}

/// Adds to the answer which entry of `error_pages` gives the text of a refusal. Also adds whether a web page can read
/// the response.
pub(super) fn describe(answer: &mut Answer, config: &Config, request: &Request<'_>) {
    let route = (request.door == Door::Proxy).then(|| choose_route(&config.routes, request, |_| 0).ok()).flatten();
    let (route, upstream) = route.map_or(("", ""), |choice| config.destination(choice));
    let routed = request.with_destination(route, upstream);
    let is_plain = request.door != Door::Proxy || !is_grpc(request.head);
    let refused = answer.code.filter(|_| answer.verdict == Verdict::Refused && is_plain);
    let page = refused.and_then(|code| config.error_pages.as_ref()?.find(Some(&routed), code));
    let format = refused.filter(|_| request.door == Door::Proxy);
    match format.and_then(|_| config.error_formats.of(request, &config.routes)) {
        Some(format) => answer.words.push(format!("the body has the error format of {}", format.name())),
        None => answer.words.extend(page.map(|(index, _)| format!("the text is that of error_pages[{index}]"))),
    }
    let (Some(origin), Some(cors)) = (request.head.headers.get(ORIGIN), &config.cors) else { return };
    let origin = QuotedText(origin.as_bytes());
    answer.words.push(match cors.answer(request) {
        Some(CorsAnswer { entry, origin: Some(_), .. }) => {
            format!("pages of {origin} may read the answer: cors[{entry}]")
        }
        Some(CorsAnswer { entry, origin: None, .. }) => {
            format!("cors[{entry}] does not list {origin}: the gateway allows its pages nothing")
        }
        None => format!("no entry of cors matches: the gateway allows pages of {origin} nothing"),
    });
}
