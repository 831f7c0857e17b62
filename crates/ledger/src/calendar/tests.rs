//! Tests calendars against fixed examples, and at random moments in all zones.

use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::*;

/// Makes a calendar from the texts of its parts in gateway.yaml. An empty text stands for the default.
fn calendar(unit: &str, zone: &str, at: &str, anchor: &str) -> Calendar {
    let unit = CalendarUnit::parse(unit).unwrap();
    let at = if at.is_empty() { TimeOfDay::default() } else { TimeOfDay::parse(at).unwrap() };
    let anchor = if anchor.is_empty() { Anchor::default_of(unit) } else { Anchor::parse(unit, anchor).unwrap() };
    Calendar::new(anchor, at, Zone::parse(zone).unwrap())
}

fn moment(text: &str) -> Timestamp {
    let instant: jiff::Timestamp = text.parse().unwrap();
    Timestamp(instant.as_microsecond().try_into().unwrap())
}

/// A calendar, a moment, and the beginnings of the period around the moment and of the next two periods.
type Vector = ([&'static str; 4], &'static str, [&'static str; 3]);

#[rustfmt::skip]
const VECTORS: &[Vector] = &[
    // The clocks change, so these days have 25, 23 and 24.5 hours.
    (["day", "Europe/Berlin", "", ""], "2026-10-25T12:00:00Z",
        ["2026-10-25T00:00:00+02:00", "2026-10-26T00:00:00+01:00", "2026-10-27T00:00:00+01:00"]),
    (["day", "Europe/Berlin", "", ""], "2027-03-28T12:00:00Z",
        ["2027-03-28T00:00:00+01:00", "2027-03-29T00:00:00+02:00", "2027-03-30T00:00:00+02:00"]),
    (["day", "Australia/Lord_Howe", "", ""], "2027-04-04T06:00:00Z",
        ["2027-04-04T00:00:00+11:00", "2027-04-05T00:00:00+10:30", "2027-04-06T00:00:00+10:30"]),
    // The clocks skip midnight, so the day begins at one o'clock.
    (["day", "Africa/Cairo", "", ""], "2027-04-29T22:00:00Z",
        ["2027-04-30T01:00:00+03:00", "2027-05-01T00:00:00+03:00", "2027-05-02T00:00:00+03:00"]),
    (["day", "America/Santiago", "", ""], "2027-09-05T04:00:00Z",
        ["2027-09-05T01:00:00-03:00", "2027-09-06T00:00:00-03:00", "2027-09-07T00:00:00-03:00"]),
    // Midnight happens twice, and the day begins at the first midnight.
    (["day", "America/Havana", "", ""], "2027-11-07T05:30:00Z",
        ["2027-11-07T00:00:00-04:00", "2027-11-08T00:00:00-05:00", "2027-11-09T00:00:00-05:00"]),
    // At 00:01 the clocks were set to 23:01 of the previous day.
    (["day", "America/St_Johns", "", ""], "2010-11-07T03:00:00Z",
        ["2010-11-07T00:00:00-02:30", "2010-11-08T00:00:00-03:30", "2010-11-09T00:00:00-03:30"]),
    (["day", "Asia/Kathmandu", "", ""], "2026-11-22T12:00:00Z",
        ["2026-11-22T00:00:00+05:45", "2026-11-23T00:00:00+05:45", "2026-11-24T00:00:00+05:45"]),
    // The zone skipped 30 December 2011.
    (["day", "Pacific/Apia", "", ""], "2011-12-30T09:59:59Z",
        ["2011-12-29T00:00:00-10:00", "2011-12-31T00:00:00+14:00", "2012-01-01T00:00:00+14:00"]),
    (["day", "Pacific/Apia", "", ""], "2011-12-28T12:00:00Z",
        ["2011-12-28T00:00:00-10:00", "2011-12-29T00:00:00-10:00", "2011-12-31T00:00:00+14:00"]),
    // The clocks show the time of day twice, or never.
    (["day", "Europe/Berlin", "02:30", ""], "2026-10-25T00:30:00Z",
        ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00", "2026-10-27T02:30:00+01:00"]),
    (["day", "Europe/Berlin", "02:30", ""], "2027-03-28T01:00:00Z",
        ["2027-03-28T03:00:00+02:00", "2027-03-29T02:30:00+02:00", "2027-03-30T02:30:00+02:00"]),
    (["day", "America/New_York", "23:59", ""], "2026-11-22T04:58:59Z",
        ["2026-11-20T23:59:00-05:00", "2026-11-21T23:59:00-05:00", "2026-11-22T23:59:00-05:00"]),
    // Periods of a week.
    (["week", "UTC", "", ""], "2026-11-22T23:59:59Z",
        ["2026-11-16T00:00:00Z", "2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z"]),
    (["week", "UTC", "06:00", "sunday"], "2026-11-22T05:59:59Z",
        ["2026-11-15T06:00:00Z", "2026-11-22T06:00:00Z", "2026-11-29T06:00:00Z"]),
    (["week", "Europe/Berlin", "", "thursday"], "2027-03-28T12:00:00Z",
        ["2027-03-25T00:00:00+01:00", "2027-04-01T00:00:00+02:00", "2027-04-08T00:00:00+02:00"]),
    // Periods of a month. With the anchor 31, each begins on a month's last day.
    (["month", "Europe/Berlin", "", ""], "2026-10-31T22:59:59Z",
        ["2026-10-01T00:00:00+02:00", "2026-11-01T00:00:00+01:00", "2026-12-01T00:00:00+01:00"]),
    (["month", "UTC", "", "31"], "2027-02-01T00:00:00Z",
        ["2027-01-31T00:00:00Z", "2027-02-28T00:00:00Z", "2027-03-31T00:00:00Z"]),
    (["month", "UTC", "", "31"], "2026-12-30T23:59:59Z",
        ["2026-11-30T00:00:00Z", "2026-12-31T00:00:00Z", "2027-01-31T00:00:00Z"]),
    (["month", "UTC", "", "31"], "2028-02-29T00:00:00Z",
        ["2028-02-29T00:00:00Z", "2028-03-31T00:00:00Z", "2028-04-30T00:00:00Z"]),
    (["month", "Europe/Berlin", "06:00", "15"], "2026-11-15T04:59:59Z",
        ["2026-10-15T06:00:00+02:00", "2026-11-15T06:00:00+01:00", "2026-12-15T06:00:00+01:00"]),
    // Periods of a year. Without 29 February, a period begins on 28 February.
    (["year", "UTC", "", ""], "2026-11-22T00:00:00Z",
        ["2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z", "2028-01-01T00:00:00Z"]),
    (["year", "Europe/London", "", "04-01"], "2027-03-31T22:59:59Z",
        ["2026-04-01T00:00:00+01:00", "2027-04-01T00:00:00+01:00", "2028-04-01T00:00:00+01:00"]),
    (["year", "UTC", "", "02-29"], "2027-03-01T00:00:00Z",
        ["2027-02-28T00:00:00Z", "2028-02-29T00:00:00Z", "2029-02-28T00:00:00Z"]),
];

#[test]
fn periods_begin_where_the_clocks_of_the_zone_say() {
    for ([unit, zone, at, anchor], now, beginnings) in VECTORS {
        let calendar = calendar(unit, zone, at, anchor);
        let Periods { begin, end, next_end } = calendar.around(moment(now));
        let found = [begin, end, next_end].map(|moment| calendar.zone().rfc3339(moment));
        assert_eq!(found, *beginnings, "{calendar} at {now}");
        // The first and the last moment of the period give the same result.
        for now in [begin, Timestamp(end.0 - 1)] {
            assert_eq!(calendar.around(now), Periods { begin, end, next_end }, "{calendar} at {now:?}");
        }
    }
}

#[test]
fn a_day_is_as_long_as_the_clocks_make_it() {
    for (zone, now, minutes) in [
        ("Europe/Berlin", "2026-10-25T12:00:00Z", 25 * 60),
        ("Europe/Berlin", "2027-03-28T12:00:00Z", 23 * 60),
        ("Africa/Cairo", "2027-04-30T12:00:00Z", 23 * 60),
        ("America/Santiago", "2027-09-05T12:00:00Z", 23 * 60),
        ("Australia/Lord_Howe", "2027-04-04T06:00:00Z", 24 * 60 + 30),
        ("America/Havana", "2027-11-07T12:00:00Z", 25 * 60),
        ("Asia/Kathmandu", "2026-11-22T12:00:00Z", 24 * 60),
    ] {
        let length = calendar("day", zone, "", "").around(moment(now)).length();
        assert_eq!(length, Micros(minutes * 60 * SECOND), "{zone} at {now}");
    }
}

#[test]
fn no_moment_panics() {
    for unit in CalendarUnit::ALL {
        for zone in ["UTC", "Pacific/Kiritimati", "Pacific/Pago_Pago", "Africa/Monrovia"] {
            let calendar = calendar(unit.name(), zone, "23:59", "");
            let first = calendar.around(Timestamp(0));
            assert!(first.begin == Timestamp(0) && first.contains(Timestamp(0)), "{first:?}");
            assert!(calendar.around(LATEST).contains(LATEST));
            let last = calendar.around(LATEST);
            assert_eq!(calendar.around(Timestamp(u64::MAX)), last);
            // These moments are multiples of 64, so they are exact in a double.
            for beginning in [last.begin, last.end, last.next_end] {
                assert!(beginning.0.is_multiple_of(64) && beginning.0 < 1 << 54, "{beginning:?}");
            }
            for moment in [Timestamp(0), LATEST, Timestamp(u64::MAX)] {
                assert!(!calendar.zone().rfc3339(moment).is_empty());
            }
        }
    }
}

#[test]
fn equal_definitions_are_one_calendar() {
    let first = calendar("month", "Europe/Berlin", "06:00", "15");
    assert_eq!(first, calendar("month", "Europe/Berlin", "06:00", "15"));
    for other in [
        calendar("month", "Europe/Berlin", "06:00", "16"),
        calendar("month", "Europe/Berlin", "06:01", "15"),
        calendar("month", "Europe/Paris", "06:00", "15"),
        calendar("week", "Europe/Berlin", "06:00", ""),
    ] {
        assert_ne!(first, other);
    }
}

#[test]
fn a_calendar_is_printed_as_an_operator_would_write_it() {
    for (parts, expected) in [
        (["day", "UTC", "", ""], "day UTC"),
        (["day", "Asia/Kathmandu", "00:00", ""], "day Asia/Kathmandu"),
        (["week", "UTC", "", "monday"], "week UTC"),
        (["week", "UTC", "", "sunday"], "week UTC from sunday"),
        (["month", "Europe/Berlin", "06:00", "15"], "month Europe/Berlin at 06:00 from the 15th"),
        (["month", "UTC", "", "31"], "month UTC from the 31st"),
        (["month", "UTC", "", "11"], "month UTC from the 11th"),
        (["year", "Europe/London", "", "04-01"], "year Europe/London from 04-01"),
    ] {
        let [unit, zone, at, anchor] = parts;
        assert_eq!(calendar(unit, zone, at, anchor).to_string(), expected);
    }
}

#[test]
fn what_is_invalid_is_an_error_that_says_what_must_hold() {
    for zone in ["", "Berlin", "europe/berlin", "Europe/Berlin ", "CEST", "+02:00", "/usr/share/zoneinfo/UTC", "../UTC"]
    {
        assert_eq!(Zone::parse(zone), Err(InvalidCalendar::Zone), "{zone}");
    }
    for at in ["", "6:00", "06", "06:0", "24:00", "23:60", "06:00:00", "+6:00", "06-00", "６:00", " 06:00", "-1:00"] {
        assert_eq!(TimeOfDay::parse(at), Err(InvalidCalendar::TimeOfDay), "{at}");
    }
    for (unit, anchors, expected) in [
        (CalendarUnit::Day, &["1", "monday", ""][..], InvalidCalendar::DayAnchor),
        (CalendarUnit::Week, &["", "1", "Monday", "mon", "04-01"], InvalidCalendar::WeekAnchor),
        (CalendarUnit::Month, &["", "0", "32", "-1", "01", "+1", "1.0", "monday", "256"], InvalidCalendar::MonthAnchor),
        (
            CalendarUnit::Year,
            &["", "1", "4-1", "02-30", "04-31", "13-01", "00-01", "01-00", "04-01-2027", "0401"],
            InvalidCalendar::YearAnchor,
        ),
    ] {
        for anchor in anchors {
            assert_eq!(Anchor::parse(unit, anchor), Err(expected), "{unit} {anchor}");
        }
    }
    assert_eq!(InvalidCalendar::TimeOfDay.to_string(), "must be a time from `00:00` to `23:59`");
    assert_eq!(CalendarUnit::parse("30d"), None);
}

#[test]
fn every_bundled_zone_can_be_read() {
    let names: Vec<_> = Zone::names().collect();
    assert!(names.len() > 500 && names.contains(&"Europe/Berlin"), "{}", names.len());
    for name in names {
        assert_eq!(Zone::parse(name).unwrap().name(), name);
    }
    assert!(zone_data_version().starts_with("20"), "{}", zone_data_version());
}

fn any_calendar() -> impl Strategy<Value = Calendar> {
    let anchor = prop_oneof![
        Just((CalendarUnit::Day, String::new())),
        select(&["monday", "wednesday", "sunday"][..]).prop_map(|day| (CalendarUnit::Week, day.to_owned())),
        (1..=31_u8).prop_map(|day: u8| (CalendarUnit::Month, day.to_string())),
        (1..=12_u8, 1..=28_u8).prop_map(|(month, day)| (CalendarUnit::Year, format!("{month:02}-{day:02}"))),
        Just((CalendarUnit::Year, "02-29".to_owned())),
    ];
    let at = prop_oneof![Just((0, 0)), (0..24_u8, 0..60_u8)];
    (any::<Index>(), at, anchor).prop_map(
        |(zone, (hour, minute), (unit, anchor)): (Index, (u8, u8), (CalendarUnit, String))| {
            let names: Vec<_> = Zone::names().collect();
            let zone: &&str = zone.get(&names);
            calendar(unit.name(), zone, &format!("{hour:02}:{minute:02}"), &anchor)
        },
    )
}

fn any_moment() -> impl Strategy<Value = Timestamp> {
    // Most moments are in the years for which the database lists every change.
    prop_oneof![3 => 0..2_500_000_000 * SECOND, 1 => 0..=LATEST.0].prop_map(Timestamp)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    #[test]
    fn periods_tile_time(calendar in any_calendar(), start in any_moment(), within in any::<u64>()) {
        let first = calendar.around(start);
        prop_assert!(first.contains(start), "{first:?}");
        let mut last = first;
        for _ in 0..40 {
            if last.end > LATEST {
                break;
            }
            let next = calendar.around(last.end);
            prop_assert_eq!((next.begin, next.end), (last.end, last.next_end));
            prop_assert!(next.begin < next.end && next.end < next.next_end, "{:?}", next);
            // Any moment of the period gives this period, with and without the cache.
            let now = Timestamp(next.begin.0 + within % next.length().0).min(LATEST);
            prop_assert_eq!(calendar.0.periods(now), next);
            prop_assert_eq!(calendar.around(now), next);
            last = next;
        }
        if first.begin > Timestamp(0) {
            let before = calendar.around(Timestamp(first.begin.0 - 1));
            prop_assert_eq!((before.end, before.next_end), (first.begin, first.end));
        }
    }

    /// When a period begins, the zone's clocks show the anchor's day and time, or have just skipped this time.
    #[test]
    fn a_period_begins_at_its_local_time(calendar in any_calendar(), now in any_moment()) {
        let Definition { anchor, at, zone, .. } = calendar.0;
        let begin = calendar.around(now).begin;
        prop_assume!(begin > Timestamp(0));
        let shown = |moment: Timestamp| {
            let text = zone.rfc3339(moment);
            text.get(..19).unwrap().parse::<jiff::civil::DateTime>().unwrap()
        };
        // A gap may move the beginning of a period to the next day, but not further.
        let candidates = [-1, 0, 1].map(|units| {
            let first = anchor.first_day(shown(begin).date());
            at.on(anchor.anchored(anchor.later(first, units)))
        });
        let met = candidates.into_iter().any(|local| shown(begin) >= local && shown(Timestamp(begin.0 - 1)) < local);
        prop_assert!(met, "{calendar}: {}", zone.rfc3339(begin));
    }

    #[test]
    fn no_text_panics(text in "[0-9:+ a-z-]{0,8}|.{0,8}") {
        for unit in CalendarUnit::ALL {
            if let Ok(anchor) = Anchor::parse(unit, &text) {
                prop_assert!(anchor.to_string().contains(&text), "{anchor} {text}");
            }
        }
        if let Ok(at) = TimeOfDay::parse(&text) {
            prop_assert_eq!(at.to_string(), text.clone());
        }
        prop_assert!(Zone::parse(&text).is_err() || Zone::names().any(|name| name == text));
    }
}

#[test]
fn threads_that_ask_about_two_periods_get_whole_answers() {
    let calendar = calendar("day", "Europe/Berlin", "12:34", "");
    let moments = [moment("2026-10-25T12:00:00Z"), moment("2027-03-28T12:00:00Z")];
    let expected = moments.map(|now| calendar.0.periods(now));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for turn in 0..20_000 {
                    let index = turn / 3 % 2;
                    assert_eq!(calendar.around(moments[index]), expected[index]);
                }
            });
        }
    });
}
