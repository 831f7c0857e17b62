//! Defines the lines that `records` writes for billing: CloudEvents 1.0 about what a customer has used, thresholds and bans.
//!
//! The gateway writes these lines, and `tollgate records check` reads them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::Value;

use base::printable;
use base::rfc3339;
use base::time::Timestamp;
use ledger::cost::{Cost, ExtraDecimals};
use ledger::money;
use llm::usage::Usage;
use rules::settled_price::Unit;

/// The `type` of a line about what a subject has used of a meter.
pub const USAGE: &str = "tollgate.usage";
/// The `type` of a line about a threshold that a subject has reached in a period.
pub const THRESHOLD: &str = "tollgate.threshold";
/// The `type` of a line about a ban that has begun.
pub const BAN: &str = "tollgate.ban";

const SPEC_VERSION: &str = "1.0";

/// One line: an event of CloudEvents 1.0 in JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RecordLine<'a, D> {
    #[serde(borrow)]
    pub specversion: Cow<'a, str>,
    /// The same for every copy of this line, and for no other line.
    #[serde(borrow)]
    pub id: Cow<'a, str>,
    #[serde(borrow)]
    pub source: Cow<'a, str>,
    #[serde(borrow, rename = "type")]
    pub kind: Cow<'a, str>,
    pub time: Moment,
    pub data: D,
}

/// What one subject has used of a meter under one rule in one interval.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UsageData<'a> {
    #[serde(borrow)]
    pub meter: Cow<'a, str>,
    #[serde(borrow)]
    pub rule: Cow<'a, str>,
    /// The value of the attribute `subject_from`. `None` if the requests had none of the attributes.
    #[serde(borrow)]
    pub subject: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub subject_from: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub unit: Cow<'a, str>,
    pub quantity: Quantity,
    /// The requests that were charged.
    pub requests: u64,
    /// The requests that the limit has refused.
    pub refused: u64,
    pub from: Moment,
    pub to: Moment,
    /// The period of a fixed window in which the quantity counts. `None` for other algorithms, and if it is not known.
    pub period_begin: Option<Moment>,
    pub period_end: Option<Moment>,
    /// The tokens by model. Empty for limits that do not count language models.
    #[serde(borrow, default, skip_serializing_if = "BTreeMap::is_empty")]
    pub by: BTreeMap<Cow<'a, str>, ModelUse>,
}

/// A share of a limit that a subject has used in a period.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ThresholdData<'a> {
    #[serde(borrow)]
    pub meter: Cow<'a, str>,
    #[serde(borrow)]
    pub rule: Cow<'a, str>,
    #[serde(borrow)]
    pub subject: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub subject_from: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub unit: Cow<'a, str>,
    /// The share, such as `80%`.
    #[serde(borrow)]
    pub threshold: Cow<'a, str>,
    /// The share as an amount. At least so much is spent.
    pub quantity: Quantity,
    /// The limit, with its raises.
    pub limit: Quantity,
    pub period_begin: Option<Moment>,
    pub period_end: Option<Moment>,
}

/// A ban that has begun.
#[derive(Clone, Debug, Serialize)]
pub struct BanData<'a> {
    pub policy: &'a str,
    pub rule: &'a str,
    pub subject: Option<Cow<'a, str>>,
    pub subject_from: Option<&'a str>,
    /// The number of the ban, from 1.
    pub step: u32,
    pub from: Moment,
    pub to: Moment,
}

/// The tokens that a model has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelUse {
    /// The tokens that were sent and not read from a cache.
    pub input: u64,
    pub output: u64,
    /// The tokens that were sent and read from a cache.
    pub cached: u64,
}

impl ModelUse {
    /// Adds what one response has used.
    pub fn add(&mut self, usage: &Usage) {
        self.input = self.input.saturating_add(usage.input).saturating_add(usage.cache_write);
        self.output = self.output.saturating_add(usage.output);
        self.cached = self.cached.saturating_add(usage.cached);
    }
}

/// An amount as a line writes it: a JSON integer, or a decimal text for money and for amounts that are not whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Quantity {
    Whole(u64),
    Decimal(String),
}

impl Quantity {
    pub fn of(unit: Unit, amount: Cost) -> Quantity {
        match unit {
            Unit::Dollars => Quantity::Decimal(money::decimal(amount)),
            Unit::Requests | Unit::Tokens if amount.ceil() == amount => Quantity::Whole(amount.whole()),
            Unit::Requests | Unit::Tokens => Quantity::Decimal(amount.to_string()),
        }
    }

    /// Returns the amount as a limit counts it. `unit` is the name of its unit. `None` for a text that is no amount.
    pub fn amount(&self, unit: &str) -> Option<Cost> {
        match self {
            Quantity::Whole(whole) if unit == Unit::Dollars.name() => money::parse(&whole.to_string()),
            Quantity::Whole(whole) => Some(Cost::from_tokens(*whole)),
            Quantity::Decimal(text) if unit == Unit::Dollars.name() => money::parse(text),
            Quantity::Decimal(text) => Cost::parse(text.as_bytes(), ExtraDecimals::Refuse),
        }
    }
}

/// A moment, which is written in the format of RFC 3339 in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(pub Timestamp);

impl Moment {
    pub fn text(self) -> String {
        match self.0.0 % 1_000_000 {
            0 => rfc3339::format_seconds(self.0),
            _ => rfc3339::format_micros(self.0),
        }
    }
}

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text())
    }
}

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Moment, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        let micros = rfc3339::parse(&text).and_then(|micros| u64::try_from(micros).ok());
        micros
            .map(|micros| Moment(Timestamp(micros)))
            .ok_or_else(|| de::Error::custom("must be a date and time of RFC 3339"))
    }
}

impl<'a, D: Serialize> RecordLine<'a, D> {
    pub fn new(kind: &'a str, id: String, source: &'a str, time: Timestamp, data: D) -> RecordLine<'a, D> {
        let specversion = Cow::Borrowed(SPEC_VERSION);
        RecordLine { specversion, id: id.into(), source: source.into(), kind: kind.into(), time: Moment(time), data }
    }

    /// Returns the line, with its end. Hidden characters are escaped.
    pub fn text(&self) -> Vec<u8> {
        let mut text = Vec::with_capacity(512);
        // Such a value can always be written.
        if printable::write_json(&mut text, self).is_ok() {
            text.push(b'\n');
        }
        text
    }
}

/// A line that was read.
#[derive(Debug)]
pub enum ReadLine<'a> {
    Usage {
        id: Cow<'a, str>,
        data: Box<UsageData<'a>>,
    },
    Threshold(Box<ThresholdData<'a>>),
    /// A line of another type.
    Other,
}

/// Reads a line.
///
/// # Errors
/// If the line is no CloudEvent, or not the whole of one.
pub fn read(line: &[u8]) -> serde_json::Result<ReadLine<'_>> {
    let head: RecordLine<'_, Value> = serde_json::from_slice(line)?;
    if head.kind == THRESHOLD {
        let RecordLine { data, .. } = serde_json::from_slice::<RecordLine<'_, ThresholdData<'_>>>(line)?;
        return Ok(ReadLine::Threshold(Box::new(data)));
    }
    if head.kind != USAGE {
        return Ok(ReadLine::Other);
    }
    let RecordLine { id, data, .. } = serde_json::from_slice::<RecordLine<'_, UsageData<'_>>>(line)?;
    Ok(ReadLine::Usage { id, data: Box::new(data) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(unit: Unit, quantity: Cost) -> UsageData<'static> {
        UsageData {
            meter: "api-month".into(),
            rule: "pro".into(),
            subject: Some("a\"b\u{202e}\n".into()),
            subject_from: Some("key:id".into()),
            unit: unit.name().into(),
            quantity: Quantity::of(unit, quantity),
            requests: 3,
            refused: 1,
            from: Moment(Timestamp(1_793_484_000_000_000)),
            to: Moment(Timestamp(1_793_484_060_500_000)),
            period_begin: None,
            period_end: Some(Moment(Timestamp(1_796_083_200_000_000))),
            by: BTreeMap::new(),
        }
    }

    #[test]
    fn a_line_is_a_cloud_event_that_is_read_back() {
        let line = RecordLine::new(USAGE, "0a".to_owned(), "tollgate/h", Timestamp(0), data(Unit::Requests, Cost::ONE));
        let text = String::from_utf8(line.text()).unwrap();
        assert_eq!(
            text,
            "{\"specversion\":\"1.0\",\"id\":\"0a\",\"source\":\"tollgate/h\",\"type\":\"tollgate.usage\",\
             \"time\":\"1970-01-01T00:00:00Z\",\"data\":{\"meter\":\"api-month\",\"rule\":\"pro\",\
             \"subject\":\"a\\\"b\\u202e\\n\",\"subject_from\":\"key:id\",\"unit\":\"requests\",\"quantity\":1,\
             \"requests\":3,\"refused\":1,\"from\":\"2026-10-31T22:00:00Z\",\"to\":\"2026-10-31T22:01:00.500000Z\",\
             \"period_begin\":null,\"period_end\":\"2026-12-01T00:00:00Z\"}}\n"
        );
        let Ok(ReadLine::Usage { id, data }) = read(text.trim_end().as_bytes()) else { panic!("{text}") };
        assert_eq!((&*id, data.subject.as_deref()), ("0a", Some("a\"b\u{202e}\n")));
        assert_eq!(data.period_end, Some(Moment(Timestamp(1_796_083_200_000_000))));
        assert!(read(&text.as_bytes()[..100]).is_err());
    }

    #[test]
    fn amounts_are_integers_or_decimal_text_and_are_read_back() {
        for (unit, thousandths, json) in [
            (Unit::Requests, 12_000, "12"),
            (Unit::Tokens, 9_007_199_254_740_993_000, "9007199254740993"),
            (Unit::Requests, 1_500, "\"1.5\""),
            (Unit::Dollars, 4_500_000, "\"0.0045\""),
            (Unit::Dollars, 250_000_000_000, "\"250.00\""),
        ] {
            let quantity = Quantity::of(unit, Cost::from_thousandths(thousandths));
            assert_eq!(serde_json::to_string(&quantity).unwrap(), json);
            let read: Quantity = serde_json::from_str(json).unwrap();
            assert_eq!(read.amount(unit.name()), Some(Cost::from_thousandths(thousandths)), "{json}");
        }
    }
}
