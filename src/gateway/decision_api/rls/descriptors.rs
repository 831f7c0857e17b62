//! Reads a call of the rate limit service, and converts the decision to the answer.

use crate::gateway::decision_api::grpc::messages::{
    Code, CurrentLimit, DescriptorStatus, Duration, RateLimitDescriptor, RateLimitRequest, Unit,
};
use base::time::Timestamp;
use decision::payment::{LimitAnswer, Payment};
use decision::ratelimit_numbers::{LevelNumbers, PolicyNumbers, ceiling};
use ledger::algorithm::Algorithm;
use ledger::algorithm::fixed_window::Window;
use ledger::calendar::CalendarUnit;
use ledger::outcome::most_restrictive;
use request::sent_descriptor::SentDescriptor;
use rules::descriptors_plan::{DescriptorPart, Hits};
use rules::rule::{Expose, OnStoreFailure};
use rules::rule_set::RuleSet;
use rules::settled_price;

/// A descriptor of a call, with the hits (the cost) that are to be charged for it.
#[derive(Debug)]
pub struct AskedDescriptor<'m> {
    pub sent: SentDescriptor<'m>,
    pub hits: Hits,
}

/// Returns the descriptors of a call, in their order. Bytes that are not UTF-8 become U+FFFD. They are not an error,
/// because Envoy lets a request pass after an error.
pub fn descriptors(message: &RateLimitRequest) -> Vec<AskedDescriptor<'_>> {
    message.descriptors.iter().map(|descriptor| asked(message, descriptor)).collect()
}

fn asked<'m>(message: &'m RateLimitRequest, descriptor: &'m RateLimitDescriptor) -> AskedDescriptor<'m> {
    let entries = descriptor.entries.iter().map(|entry| (&*entry.key, String::from_utf8_lossy(&entry.value))).collect();
    let sent = SentDescriptor::new(&message.domain, entries);
    let hits = match descriptor.hits_addend {
        // The call wants to give back hits. This is not supported, so the hits are ignored.
        _ if descriptor.is_negative_hits => Hits::Ignore,
        Some(0) => Hits::Check,
        Some(hits) => Hits::Charge(hits),
        None => Hits::Charge(u64::from(message.hits_addend).max(1)),
    };
    AskedDescriptor { sent, hits }
}

/// Returns the status of each descriptor, in their order. `payment` is `None` if no limit was checked.
pub fn statuses(
    rules: &RuleSet,
    payment: Option<&Payment>,
    parts: &[DescriptorPart],
    now: Timestamp,
) -> Vec<DescriptorStatus> {
    let answers = payment.map(|payment| payment.answers(rules)).unwrap_or_default();
    let is_away = matches!(payment, Some(Payment::StoreUnavailable(_)));
    let status = |part: &DescriptorPart| {
        let own = answers.get(part.charges.clone()).unwrap_or_default();
        let refuses = |answer: &LimitAnswer<'_>| match is_away {
            true => answer.limit.on_store_failure == OnStoreFailure::Deny,
            false => answer.verdict.is_refusal(),
        };
        if part.is_unlimited {
            // Envoy's own rate limit service sends the same maximum. 0 would mean that nothing is left.
            return DescriptorStatus {
                code: Code::Ok.into(),
                limit_remaining: u32::MAX,
                ..DescriptorStatus::default()
            };
        }
        let code = if part.denied_by.is_some() || own.iter().any(refuses) { Code::OverLimit } else { Code::Ok };
        DescriptorStatus { code: code.into(), ..numbers(own, now) }
    };
    parts.iter().map(status).collect()
}

/// Returns the numbers of the most restrictive limit among those that clients may see and whose level is known.
fn numbers(own: &[LimitAnswer<'_>], now: Timestamp) -> DescriptorStatus {
    let is_asked = |answer: &&LimitAnswer<'_>| answer.verdict.is_refusal() || !answer.charge.only_asks_for_ban();
    let shown = own.iter().filter(|answer| answer.limit.expose == Expose::Yes).filter(is_asked);
    let levels =
        shown.filter_map(|answer| Some((answer, answer.outcome?, ceiling(answer.charge, answer.outcome.as_ref()?))));
    let Some((answer, outcome)) = most_restrictive(levels) else { return DescriptorStatus::default() };
    let algorithm = &answer.charge.algorithm.raised(outcome.raised);
    let LevelNumbers { remaining, reset } = LevelNumbers::of(algorithm, settled_price::Unit::Requests, &outcome);
    DescriptorStatus {
        code: 0,
        current_limit: current_limit(algorithm, &answer.limit.name, now),
        limit_remaining: u32::try_from(remaining).unwrap_or(u32::MAX),
        duration_until_reset: reset
            .map(|reset| Duration { seconds: i64::try_from(reset).unwrap_or(i64::MAX), nanos: 0 }),
    }
}

/// Returns the limit in a unit of the protocol; `None` if no unit fits.
fn current_limit(algorithm: &Algorithm, name: &str, now: Timestamp) -> Option<CurrentLimit> {
    let PolicyNumbers { quota, window, .. } = PolicyNumbers::of(algorithm, settled_price::Unit::Requests, now);
    let unit = match (calendar_unit(algorithm), window) {
        // The unit of a calendar does not depend on the length of the current period, such as 28 or 31 days.
        (Some(CalendarUnit::Day), _) | (None, Some(86_400)) => Unit::Day,
        (Some(CalendarUnit::Week), _) | (None, Some(604_800)) => Unit::Week,
        // 30 and 365 days, as Envoy's own rate limit service counts a month and a year.
        (Some(CalendarUnit::Month), _) | (None, Some(2_592_000)) => Unit::Month,
        (Some(CalendarUnit::Year), _) | (None, Some(31_536_000)) => Unit::Year,
        (None, Some(1)) => Unit::Second,
        (None, Some(60)) => Unit::Minute,
        (None, Some(3_600)) => Unit::Hour,
        (None, _) => return None,
    };
    let requests_per_unit = u32::try_from(quota).ok()?;
    Some(CurrentLimit { requests_per_unit, unit: unit.into(), name: name.to_owned() })
}

fn calendar_unit(algorithm: &Algorithm) -> Option<CalendarUnit> {
    match algorithm {
        Algorithm::FixedWindow(_) | Algorithm::Purse(_) => match algorithm.window()? {
            Window::Calendar(calendar) => Some(calendar.unit()),
            Window::Epoch(_) | Window::FirstRequest(_) => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::decision_api::grpc::frame;
    use crate::gateway::decision_api::grpc::messages::DescriptorEntry;
    use base::time::Micros;
    use ledger::algorithm::fixed_window::FixedWindow;
    use ledger::calendar::{Anchor, Calendar, TimeOfDay, Zone};

    /// One hour before the end of October 2026 in Berlin. This month has 31 days and one hour.
    const OCTOBER: Timestamp = Timestamp(1_793_484_000_000_000);

    #[test]
    fn a_period_of_the_calendar_has_its_unit_whatever_its_length() {
        let calendar = |unit| {
            let zone = Zone::parse("Europe/Berlin").unwrap();
            Window::Calendar(Calendar::new(Anchor::default_of(unit), TimeOfDay::default(), zone))
        };
        let months = [0, 15, 40, 70, 100].map(|days| (calendar(CalendarUnit::Month), days, Some(Unit::Month)));
        let day = 86_400_000_000;
        let others = [
            (calendar(CalendarUnit::Day), 0, Some(Unit::Day)),
            // On this day the clocks are set back.
            (calendar(CalendarUnit::Day), -6, Some(Unit::Day)),
            (calendar(CalendarUnit::Week), -6, Some(Unit::Week)),
            (calendar(CalendarUnit::Year), 0, Some(Unit::Year)),
            // 2028 is a leap year.
            (calendar(CalendarUnit::Year), 500, Some(Unit::Year)),
            (Window::Epoch(Micros(30 * day)), 0, Some(Unit::Month)),
            (Window::Epoch(Micros(31 * day)), 0, None),
        ];
        for (window, days, unit) in months.into_iter().chain(others) {
            let now = Timestamp(OCTOBER.0.saturating_add_signed(days * i64::try_from(day).unwrap()));
            let algorithm = Algorithm::FixedWindow(FixedWindow::new(7, window).unwrap());
            let limit = current_limit(&algorithm, "one", now);
            assert_eq!(limit.as_ref().map(|limit| limit.unit), unit.map(i32::from), "{window:?} after {days} days");
            assert!(limit.is_none_or(|limit| limit.requests_per_unit == 7));
        }
    }

    #[test]
    fn a_value_that_is_no_text_is_a_value() {
        let entries = vec![DescriptorEntry { key: "key".to_owned(), value: b"a\xff".to_vec() }];
        let descriptors = vec![RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }];
        let sent = RateLimitRequest { domain: "edge".to_owned(), descriptors, hits_addend: 0 };
        let read = frame::read::<RateLimitRequest>(&frame::write(&sent)).unwrap();
        let asked = super::descriptors(&read);
        let [only] = &asked[..] else { panic!("{asked:?}") };
        assert_eq!(only.sent.value("key").as_deref(), Some("a\u{fffd}"));
    }
}
