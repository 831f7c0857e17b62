//! Reads `expires`: the time at which a rule with an `action` ends.

use crate::language::reader::Section;
use crate::language::shape::{Scalars, Shape, Text};
use crate::language::value_kind::{ParseText, ValueKind};
use base::rfc3339;
use base::time::Timestamp;

/// The kind of value of `expires`: a date and time with an offset from UTC, so that the time zone of the host does not
/// matter.
pub(crate) const EXPIRES: ValueKind<ParseText<Timestamp>> = ValueKind::new(
    "date and time",
    Shape::Text(Text::new(
        Scalars::Spelling,
        &[
            r"^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])[Tt ]([01][0-9]|2[0-3]):[0-5][0-9]:[0-6][0-9](\.[0-9]+)?([Zz]|[+-][0-9]{2}:[0-9]{2})$",
        ],
        "be a date and time like 2026-12-01T00:00:00+01:00 or 2026-11-30T23:00:00Z",
    )),
    |text| {
        // A time before 1970 becomes 0, because it has passed in any case.
        Some(Timestamp(u64::try_from(rfc3339::parse(text)?).unwrap_or(0)))
    },
);

pub(crate) fn expires(rule: &Section<'_>) -> Option<Option<Timestamp>> {
    let until = rule.optional("expires", |field| EXPIRES.read(field));
    if rule.has("expires") && !rule.has("action") {
        rule.unwanted("expires", "must stand beside `action`: a limit does not end");
        return None;
    }
    until
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::rules::RULE;
    use crate::language::problem::Report;
    use crate::language::reader::Field;
    use crate::language::tree;

    #[track_caller]
    fn check(text: &str, microseconds: Option<u64>) {
        let report = Report::default();
        let tree = tree::read(format!("{{expires: {text}, action: deny}}").as_bytes(), &report).unwrap();
        let section = Field::root(&tree, &report).section(&RULE).unwrap();
        assert_eq!(expires(&section).flatten(), microseconds.map(Timestamp), "{text}");
    }

    #[test]
    fn a_moment_is_a_date_a_time_and_an_offset() {
        check("2026-12-01T00:00:00+01:00", Some(1_796_079_600_000_000));
        check("2026-11-30T23:00:00Z", Some(1_796_079_600_000_000));
        check("'2026-11-30T23:00:00.25z'", Some(1_796_079_600_250_000));
        check("1969-12-31T23:59:59Z", Some(0));
        for text in ["2026-12-01", "2026-12-01T00:00:00", "2026-13-01T00:00:00Z", "1796079600", "tomorrow", "''", "[]"]
        {
            check(text, None);
        }
    }
}
