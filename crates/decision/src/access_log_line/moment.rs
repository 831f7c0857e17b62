//! Writes and reads a moment in the format of RFC 3339, in UTC, with microseconds.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serializer, de};

use base::rfc3339;
use base::time::Timestamp;

/// The end of the year 9999, in microseconds since the epoch. The format has only four digits for a year.
const LAST: u64 = 253_402_300_799_999_999;

/// Writes a moment as a text in the format of RFC 3339.
///
/// # Errors
/// When the serializer fails.
pub(super) fn serialize<S: Serializer>(moment: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&rfc3339::format_micros(*moment))
}

/// Reads a moment from a text in the format of RFC 3339.
///
/// # Errors
/// When the text is not a moment of RFC 3339 between 1970 and 9999.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
    let text = Cow::<str>::deserialize(deserializer)?;
    let moment = rfc3339::parse(&text).ok_or_else(|| de::Error::custom("not a date and time of RFC 3339"))?;
    let micros = u64::try_from(moment).ok().filter(|micros| *micros <= LAST);
    micros.map(Timestamp).ok_or_else(|| de::Error::custom("a time before 1970 or after 9999"))
}
