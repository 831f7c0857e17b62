//! Writes the body of an error response in the format of a provider of models, which that provider's libraries parse.
//!
//! docs/reasons.md has the table of types and codes.

use std::fmt::Write;

use base::rfc3339::format_seconds;
use base::time::Micros;
use base::waiting_time::WaitingTime;
use decision::ratelimit_numbers::Triple;
use decision::reason::Reason;
use decision::refusal::{Fits, ProblemType, Refusal};
use rules::route::error_format::ErrorFormat;
use rules::settled_price::Unit;

/// The longest `Retry-After`, in seconds, with which clients are asked to repeat the request. The providers' libraries
/// wait no longer than this.
const LONGEST_WAIT: u64 = 60;

/// OpenAI's type and code for a budget that has been spent.
const SPENT_BUDGET: &str = "insufficient_quota";

/// An error as it is reported in any format.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReportedError<'a> {
    pub status: u16,
    /// The refusal, or `None` for a fault.
    pub refusal: Option<&'a Refusal>,
    /// The numbers of the limit that refuses the request. `None` if no limit refuses it, or clients may not see the limit.
    pub limit: Option<Triple>,
}

impl ReportedError<'_> {
    /// Returns the body, a JSON object.
    pub(super) fn body(&self, format: ErrorFormat, request_id: &str) -> String {
        // No text here contains a character that JSON would escape: names of rules, ids and the messages below have none.
        let message = self.message();
        match format {
            ErrorFormat::OpenAi => {
                let (kind, code) = self.openai();
                format!(
                    "{{\"error\":{{\"message\":\"{message}\",\"type\":\"{kind}\",\"param\":null,\"code\":\"{code}\"}}}}\n"
                )
            }
            ErrorFormat::Anthropic => {
                let kind = self.anthropic();
                format!(
                    "{{\"type\":\"error\",\"error\":{{\"type\":\"{kind}\",\"message\":\"{message}\"}},\
                     \"request_id\":\"{request_id}\"}}\n"
                )
            }
        }
    }

    /// Returns whether the client should repeat the request, for `x-should-retry`. `None` leaves the choice to the
    /// client.
    pub(super) fn should_retry(&self) -> Option<bool> {
        match self.status {
            429 | 503 => Some(self.retry_after().is_some_and(|seconds| seconds <= LONGEST_WAIT)),
            400..=499 => Some(false),
            _ => None,
        }
    }

    pub(super) fn retry_after(&self) -> Option<u64> {
        self.refusal?.retry_after
    }

    /// Returns the type and the code for the format of OpenAI
    /// (<https://platform.openai.com/docs/guides/error-codes>).
    fn openai(&self) -> (&'static str, &'static str) {
        if self.status == 429 && self.refusal.is_some_and(|refusal| refusal.is_budget_spent) {
            return (SPENT_BUDGET, SPENT_BUDGET);
        }
        let code = match (self.status, self.refusal.map(|refusal| refusal.reason)) {
            (401, _) => "invalid_api_key",
            (429, _) => "rate_limit_exceeded",
            (404, _) => "not_found",
            (413, _) => "request_too_large",
            (_, Some(reason)) => reason.name(),
            (503, None) => "service_unavailable",
            (504, None) => "gateway_timeout",
            (500.., None) => "bad_gateway",
            (_, None) => "bad_request",
        };
        let kind = match self.status {
            429 => "rate_limit_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        };
        (kind, code)
    }

    /// Returns the type for the format of Anthropic (<https://docs.anthropic.com/en/api/errors>).
    fn anthropic(&self) -> &'static str {
        match self.status {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 => "overloaded_error",
            504 => "timeout_error",
            500.. => "api_error",
            _ => "invalid_request_error",
        }
    }

    /// Returns a text that says what happened. A limit is named only if clients may see it.
    fn message(&self) -> String {
        let mut message = match self.refusal {
            Some(refusal) => match &refusal.problem {
                ProblemType::QuotaExceeded { violated } | ProblemType::ReducedCapacity { violated } => {
                    self.of_limits(violated)
                }
                ProblemType::Blank => match &refusal.fits {
                    Some(fits) => too_large(fits),
                    None => of_reason(refusal.reason, self.status).to_owned(),
                },
            },
            None => of_status(self.status).to_owned(),
        };
        if let Some(seconds) = self.retry_after() {
            // A write to a text cannot fail.
            let _ = write!(message, " Please try again in {}.", self.wait(seconds));
        }
        message
    }

    /// Displays a wait in seconds, or in days with the date of its end: `864 s`, `12.4 days (2026-12-12T03:12:45Z)`.
    fn wait(&self, seconds: u64) -> String {
        let wait = Micros(seconds.saturating_mul(1_000_000));
        let long = WaitingTime(wait);
        match self.refusal.and_then(|refusal| refusal.refused_at).filter(|_| long.is_long()) {
            Some(moment) => format!("{long} ({})", format_seconds(moment.plus(wait))),
            None => format!("{seconds} s"),
        }
    }

    fn of_limits(&self, violated: &[String]) -> String {
        let is_held = self.refusal.is_some_and(|refusal| refusal.reason == Reason::BudgetHeld);
        let is_banned = self.refusal.is_some_and(|refusal| refusal.reason == Reason::Banned);
        let mut message = match violated {
            [] => "Too many requests.".to_owned(),
            [name] if is_banned => format!("The limit {name} bans further requests."),
            names if is_banned => {
                format!("The limits {} refuse further requests, and one of them bans.", names.join(", "))
            }
            [name] if is_held => format!("Requests in flight hold too much of the limit {name}."),
            names if is_held => format!("Requests in flight hold too much of the limits {}.", names.join(", ")),
            [name] => format!("The limit {name} is used up."),
            names => format!("The limits {} are used up.", names.join(", ")),
        };
        if let (Some(Triple { limit, remaining, reset, unit }), false) = (self.limit, violated.is_empty() || is_banned)
        {
            let held = self.refusal.and_then(|refusal| refusal.held).map(|held| unit.whole(held));
            let spent = limit.saturating_sub(remaining).saturating_sub(held.unwrap_or_default());
            let [limit, spent] = [limit, spent].map(|number| in_words(number, unit));
            let _ = write!(message, " Limit {limit}, spent {spent}");
            if let Some(held) = held {
                let _ = write!(message, ", held {}", in_words(held, unit));
            }
            let _ = match is_held {
                true => write!(message, "."),
                false => write!(message, ", reset in {}.", self.wait(reset)),
            };
        }
        message
    }
}

/// Returns why a request can never be admitted. What the limit has spent and held does not matter, and is not known: the store
/// was not asked.
fn too_large(Fits { limit, unit, most, cost }: &Fits) -> String {
    let [most, cost] = [most, cost].map(|amount| unit.amount(*amount));
    format!("The request may cost {cost}, more than the limit {limit} can ever have left. At most {most} fits.")
}

/// Returns a number of a limit as text. The number of a limit on money is in US cents.
fn in_words(number: u64, unit: Unit) -> String {
    match unit {
        Unit::Requests | Unit::Tokens => number.to_string(),
        Unit::Dollars => format!("{}.{:02} USD", number / 100, number % 100),
    }
}

fn of_reason(reason: Reason, status: u16) -> &'static str {
    match reason {
        Reason::Exceeded(_) | Reason::BudgetHeld => "Too many requests.",
        Reason::Banned => "Such requests are banned for some time.",
        Reason::CostTooLarge => "The request costs more than a limit can ever have left.",
        Reason::StoreUnavailable | Reason::HomeUnavailable | Reason::KeysUnavailable => {
            "The service is temporarily unavailable."
        }
        Reason::UpstreamBusy => "The service has too many requests at present.",
        Reason::Denied => "This request is not allowed.",
        Reason::TokenInvalid => "The token is not valid.",
        Reason::TokenMissing => "A token is required.",
        Reason::KeyInvalid => "The API key is not valid.",
        Reason::AmbiguousRequest => "The request can be read in more than one way, or has two different API keys.",
        Reason::Unpriced => "The cost of this request would not be known.",
        Reason::UsageRequired => {
            "The response would not tell its usage, and the gateway does not ask for it, or must not change a signed body: \
             set stream_options.include_usage, or leave out background."
        }
        Reason::NoRoute => "There is nothing at this address.",
        Reason::BadRequest => of_status(status),
    }
}

fn of_status(status: u16) -> &'static str {
    match status {
        408 => "The request did not arrive in time.",
        413 => "The request is too large.",
        502 => "The server for this request gave no valid answer.",
        503 => "The service is temporarily unavailable.",
        504 => "The server for this request did not answer in time.",
        500.. => "The request failed.",
        _ => "The request is not valid.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::time::Timestamp;

    /// The rows of the table in docs/reasons.md. The columns are the reasons, the status, OpenAI's type and code, and
    /// Anthropic's type.
    fn documented() -> Vec<Vec<String>> {
        let page = include_str!("../../../docs/reasons.md");
        let section = page.split("\n## Error formats\n").nth(1).unwrap().split("\n## ").next().unwrap();
        let rows = section.lines().filter(|line| line.starts_with("| ")).skip(1);
        let cells = |row: &str| row.trim_matches('|').split('|').map(|cell| cell.trim().replace('`', "")).collect();
        rows.map(cells).collect()
    }

    #[test]
    fn every_reason_and_status_has_the_type_and_code_of_the_table() {
        let mut named = Vec::new();
        for row in documented() {
            let [reasons, statuses, _, _, openai, anthropic, _] = &row[..] else { panic!("{row:?}") };
            for status in statuses.split(", ").map(|status| status.parse::<u16>().unwrap()) {
                for reason in reasons.split(", ") {
                    // In the rows of budgets, the reasons end with these words.
                    let (reason, is_budget_spent) = match reason.strip_suffix(" of a budget") {
                        Some(reason) => (reason, true),
                        None => (reason, false),
                    };
                    let refusal = Reason::all().find(|known| known.name() == reason).map(|reason| {
                        named.push(reason.name());
                        Refusal { reason, is_budget_spent, ..Refusal::bad_request(status) }
                    });
                    assert!(refusal.is_some() || reason == "none", "{reason}");
                    let error = ReportedError { status, refusal: refusal.as_ref(), limit: None };
                    let (kind, code) = error.openai();
                    assert_eq!(format!("{kind}, {code}").replace(reason, "the reason"), *openai, "{row:?}");
                    assert_eq!(error.anthropic(), anthropic, "{row:?}");
                    for format in [ErrorFormat::OpenAi, ErrorFormat::Anthropic] {
                        serde_json::from_str::<serde_json::Value>(&error.body(format, "a")).unwrap();
                    }
                }
            }
        }
        for reason in Reason::all() {
            assert!(named.contains(&reason.name()), "{} is not in the table", reason.name());
        }
    }

    #[test]
    fn a_wait_beyond_two_days_is_in_days_with_its_date() {
        let refusal = Refusal { retry_after: Some(172_801), ..Refusal::bad_request(429) };
        let message = |refusal: &Refusal| ReportedError { status: 429, refusal: Some(refusal), limit: None }.message();
        assert!(message(&refusal).ends_with(" Please try again in 172801 s."), "{}", message(&refusal));
        let refusal = Refusal { refused_at: Some(Timestamp(1_795_272_712_000_000)), ..refusal };
        assert!(message(&refusal).ends_with(" in 2.1 days (2026-11-23T14:51:53Z)."), "{}", message(&refusal));
        let refusal = Refusal { retry_after: Some(172_800), ..refusal };
        assert!(message(&refusal).ends_with(" in 172800 s."), "{}", message(&refusal));
    }

    #[test]
    fn a_client_is_told_to_retry_only_if_it_is_worth_the_wait() {
        let retry = |status, retry_after| {
            let refusal = Refusal { retry_after, ..Refusal::bad_request(status) };
            ReportedError { status, refusal: Some(&refusal), limit: None }.should_retry()
        };
        assert_eq!([retry(429, Some(60)), retry(503, Some(1))], [Some(true); 2]);
        assert_eq!([retry(429, Some(61)), retry(429, None), retry(503, None), retry(401, None)], [Some(false); 4]);
        assert_eq!(ReportedError { status: 504, refusal: None, limit: None }.should_retry(), None);
        assert_eq!(ReportedError { status: 503, refusal: None, limit: None }.should_retry(), Some(false));
    }
}
