//! Writes and parses one line of the access log: the result of a request.
//!
//! The values that a client sends appear only as pseudonyms, which are made with `hash_key`. Exceptions are the values
//! that the configuration lists in `values`, and the request id. Fields without a value are omitted. A reader ignores
//! unknown fields.

mod logged_text;
mod moment;
mod parts;

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use base::endpoint_address::EndpointAddress;
use base::printable::write_json;
use base::pseudonym::Pseudonym;
use base::time::{Micros, Timestamp};
use ledger::cost::Cost;
pub use logged_text::LoggedText;
pub use parts::{LoggedAttempt, LoggedLimit, LoggedPrice, LoggedUsage, MoneyUnit};

/// The line of one request in the access log. The fields are written in this order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line<'a> {
    /// The moment at which the whole head of the request had been received.
    #[serde(with = "moment")]
    pub time: Timestamp,
    #[serde(borrow)]
    pub request_id: Cow<'a, str>,
    pub kind: Kind,
    #[serde(borrow)]
    pub route: Cow<'a, str>,
    /// The way in which another proxy asked about the request. `None` if the gateway proxied the request.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub door: Option<Cow<'a, str>>,
    /// The method of the request, or `OTHER` if the method is unknown.
    #[serde(borrow)]
    pub method: Cow<'a, str>,
    pub code: u16,
    pub origin: Origin,
    /// The time from receiving the request head to sending the end of the answer.
    pub duration_us: Micros,
    /// The time that the decision took. `None` if the request was answered before a decision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision_us: Option<Micros>,
    /// The time by which a limit delayed the request after the decision. `None` if no limit delayed the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited_us: Option<Micros>,
    /// The time that the request spent at the upstream. `None` for a request that was not forwarded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream_us: Option<Micros>,
    /// The name of the request's upstream. `None` for a request that was not forwarded.
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    pub upstream: Option<Cow<'a, str>>,
    /// The address of the endpoint to which the last attempt was sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<EndpointAddress>,
    /// The attempts before the last one. All of them failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed_attempts: Vec<LoggedAttempt<'a>>,
    /// The number of bytes of the request body that were read.
    pub request_bytes: u64,
    /// The number of bytes of the response body that were written.
    pub response_bytes: u64,
    /// The value of `X-Tollgate-Reason`, if the gateway refused the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Cow<'a, str>>,
    /// The exact cause of the refusal: why a token is invalid, or which attribute has several readings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Cow<'a, str>>,
    /// The policy of the most restrictive of the enforced limits that were checked. The fields from `policy` to
    /// `bucket` describe this limit. After a `deny` by a rule, only the policy and the rule are set. After `otherwise:
    /// deny`, only the policy is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<Cow<'a, str>>,
    /// The name of the rule as it is displayed: `free.second` for one limit of a rule with several limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<Cow<'a, str>>,
    /// The cost of the request. At a budget, the amount that was reserved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
    /// The final cost of the request at a budget, as it is known when the request ends. `None` for other limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled: Option<Cost>,
    /// The amount that is left in the bucket. `None` if the amount is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remaining: Option<Cost>,
    /// The unit of `cost`, `settled` and `remaining`, if the limit counts money.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<MoneyUnit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bucket: Option<Pseudonym>,
    /// The value of `Retry-After` in seconds, if the response has this field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<u64>,
    /// The source of `remaining`. `None` if no limit was checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// All limits that were checked, if there are several. Empty if only the limit of `policy` and `rule` was checked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<LoggedLimit<'a>>,
    /// The model that answered, if a language model was asked and its response names it.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Cow<'a, str>>,
    /// The tokens that a language model used. `None` for other requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<LoggedUsage>,
    /// What the tokens in `usage` cost. `None` if no limit on money applied.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub price: Option<LoggedPrice<'a>>,
    /// The attributes that the configuration lists to be logged as pseudonyms.
    #[serde(default, with = "map", skip_serializing_if = "Vec::is_empty")]
    pub attributes: Vec<(Cow<'a, str>, LoggedValue)>,
    /// The attributes that the configuration lists to be logged in clear text.
    #[serde(default, with = "map", skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<(Cow<'a, str>, LoggedValue<LoggedText>)>,
}

/// An attribute's value, as a pseudonym or in clear text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum LoggedValue<T = Pseudonym> {
    Single(T),
    /// Several values: the elements of a claim in their order, or the different values in all descriptors of a call.
    List(Vec<T>),
}

impl<T> LoggedValue<T> {
    /// Returns the values as a slice: all elements of a list, or the single value as a slice of one element.
    pub fn elements(&self) -> &[T] {
        match self {
            LoggedValue::Single(value) => std::slice::from_ref(value),
            LoggedValue::List(values) => values,
        }
    }
}

/// The kind of a request's result. Every answer has exactly one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The request was allowed, and the complete answer of the upstream was sent, whatever its status.
    Allowed,
    /// The gateway refused the request, and its answer has a reason.
    Refused,
    /// The gateway answered without a reason, or the answer was not sent completely.
    Error,
}

impl Kind {
    pub const ALL: [Kind; 3] = [Kind::Allowed, Kind::Refused, Kind::Error];
}

/// The side that made an answer: the gateway or the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    Gateway,
    Upstream,
}

/// The source of the amount that is left in a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    Store,
    /// The amount was computed from earlier answers of the store.
    Cached,
    /// The amount was computed without the store, because the store gave no answer.
    Fallback,
}

impl Line<'static> {
    /// A line for a request without a decision. The caller must set the fields that every line has.
    pub const UNDECIDED: Line<'static> = Line {
        time: Timestamp(0),
        request_id: Cow::Borrowed(""),
        kind: Kind::Error,
        route: Cow::Borrowed(""),
        door: None,
        method: Cow::Borrowed("GET"),
        code: 0,
        origin: Origin::Gateway,
        duration_us: Micros(0),
        decision_us: None,
        waited_us: None,
        upstream_us: None,
        upstream: None,
        endpoint: None,
        failed_attempts: Vec::new(),
        request_bytes: 0,
        response_bytes: 0,
        reason: None,
        detail: None,
        policy: None,
        rule: None,
        cost: None,
        settled: None,
        remaining: None,
        unit: None,
        bucket: None,
        retry_after: None,
        source: None,
        limits: Vec::new(),
        model: None,
        usage: None,
        price: None,
        attributes: Vec::new(),
        values: Vec::new(),
    };
}

impl<'a> Line<'a> {
    /// Parses a line, with or without its line end.
    ///
    /// # Errors
    /// If the line is not a JSON object, or if a field is missing or invalid.
    pub fn read(line: &'a [u8]) -> Result<Line<'a>, serde_json::Error> {
        serde_json::from_slice(line)
    }

    /// Appends the line, with its line end, to `out`.
    pub fn write(&self, out: &mut Vec<u8>) {
        // `write_json` fails only for a key that is not text. All keys are text.
        if write_json(out, self).is_ok() {
            out.push(b'\n');
        }
    }
}

/// Writes and reads pairs as a mapping, in their order.
mod map {
    use super::{Cow, Deserialize, Deserializer, Serialize, Serializer, de};
    use std::fmt;
    use std::marker::PhantomData;

    type Pairs<'a, V> = Vec<(Cow<'a, str>, V)>;

    /// Writes pairs as one object.
    ///
    /// # Errors
    /// When the serializer fails.
    pub(super) fn serialize<S: Serializer, V: Serialize>(
        pairs: &Pairs<'_, V>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_map(pairs.iter().map(|(key, value)| (key, value)))
    }

    /// Reads pairs from one object.
    ///
    /// # Errors
    /// If the value is not an object whose values have the type `V`, or if a name occurs twice.
    pub(super) fn deserialize<'de, 'a, D: Deserializer<'de>, V: Deserialize<'de>>(
        deserializer: D,
    ) -> Result<Pairs<'a, V>, D::Error> {
        deserializer.deserialize_map(Visitor(PhantomData))
    }

    struct Visitor<V>(PhantomData<V>);

    impl<'de, V: Deserialize<'de>> de::Visitor<'de> for Visitor<V> {
        type Value = Pairs<'static, V>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a mapping from attributes to names or values")
        }

        fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Pairs<'static, V>, A::Error> {
            let mut pairs: Pairs<'static, V> = Vec::new();
            while let Some((key, value)) = map.next_entry::<String, V>()? {
                if pairs.iter().any(|(known, _)| *known == key) {
                    return Err(de::Error::custom("an attribute occurs twice"));
                }
                pairs.push((key.into(), value));
            }
            Ok(pairs)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use base::pseudonym::PseudonymKey;
    use ledger::outcome::Verdict;
    use rules::rule::Mode;

    fn refused() -> Line<'static> {
        let names = PseudonymKey::default();
        let limit_of = |rule: &'static str, mode, verdict| LoggedLimit {
            policy: "plan".into(),
            rule: rule.into(),
            mode,
            verdict,
            cost: Cost::ONE,
            settled: None,
            remaining: Some(Cost::from_thousandths(250)),
            unit: None,
            bucket: names.bucket(&[7; 16]),
        };
        Line {
            time: Timestamp(1_795_272_712_123_456),
            request_id: "a-1".into(),
            kind: Kind::Refused,
            code: 429,
            duration_us: Micros(210),
            decision_us: Some(Micros(90)),
            response_bytes: 250,
            reason: Some("token_bucket_exceeded".into()),
            policy: Some("plan".into()),
            rule: Some("free.second".into()),
            cost: Some(Cost::ONE),
            remaining: Some(Cost::from_thousandths(250)),
            bucket: Some(names.bucket(&[7; 16])),
            route: "default".into(),
            retry_after: Some(1),
            source: Some(Source::Cached),
            limits: vec![
                limit_of("free.second", Mode::Enforce, Verdict::Deny),
                limit_of("free.day", Mode::Enforce, Verdict::Unasked),
                limit_of("next", Mode::Shadow, Verdict::Never),
            ],
            attributes: vec![
                ("jwt:plan".into(), LoggedValue::Single(names.value("jwt:plan", b"free"))),
                ("jwt:roles".into(), LoggedValue::List(vec![names.value("jwt:roles", b"admin")])),
            ],
            ..Line::UNDECIDED
        }
    }

    #[test]
    fn fields_are_written_in_their_declared_order() {
        let mut out = Vec::new();
        refused().write(&mut out);
        let limit = |rule: &str, mode: &str, verdict: &str| {
            format!(
                r#"{{"policy":"plan","rule":"{rule}","mode":"{mode}","verdict":"{verdict}","cost":1,"remaining":0.25,"bucket":"BUCKET"}}"#
            )
        };
        let limits = [
            limit("free.second", "enforce", "deny"),
            limit("free.day", "enforce", "unasked"),
            limit("next", "shadow", "never"),
        ];
        let names = PseudonymKey::default();
        let expected = concat!(
            r#"{"time":"2026-11-21T14:51:52.123456Z","request_id":"a-1","kind":"refused","route":"default","method":"GET","#,
            r#""code":429,"origin":"gateway","duration_us":210,"decision_us":90,"request_bytes":0,"response_bytes":250,"#,
            r#""reason":"token_bucket_exceeded","policy":"plan","rule":"free.second","cost":1,"remaining":0.25,"#,
            r#""bucket":"BUCKET","retry_after":1,"source":"cached","limits":[LIMITS],"attributes":{"jwt:plan":"PLAN","jwt:roles":["ROLE"]}}"#,
            "\n"
        );
        let expected = expected
            .replace("LIMITS", &limits.join(","))
            .replace("BUCKET", &names.bucket(&[7; 16]).to_string())
            .replace("PLAN", &names.value("jwt:plan", b"free").to_string())
            .replace("ROLE", &names.value("jwt:roles", b"admin").to_string());
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn absent_fields_are_omitted() {
        let line = Line { duration_us: Micros(210), response_bytes: 250, ..Line::UNDECIDED };
        let mut out = Vec::new();
        line.write(&mut out);
        let text = String::from_utf8(out).unwrap();
        assert!(text.ends_with(",\"duration_us\":210,\"request_bytes\":0,\"response_bytes\":250}\n"), "{text}");
        assert_eq!(Line::read(text.as_bytes()).unwrap(), line);
    }

    #[test]
    fn unknown_fields_are_ignored_and_repeated_or_invalid_ones_are_errors() {
        let mut out = Vec::new();
        refused().write(&mut out);
        let text = String::from_utf8(out).unwrap();
        let more = text.replace("{\"time\"", "{\"zone\":[{\"a\":null}],\"time\"");
        assert_eq!(Line::read(more.as_bytes()).unwrap(), refused());
        for (part, wrong) in [
            ("\"code\":429", "\"code\":429,\"code\":200"),
            ("\"code\":429", "\"code\":70000"),
            ("\"refused\"", "\"dropped\""),
            ("2026-11-21T14", "1926-11-21T14"),
            ("{\"jwt:plan\":", "{\"jwt:plan\":\"0123456789abcdef\",\"jwt:plan\":"),
            ("\"jwt:roles\":[", "\"jwt:roles\":[7,"),
            ("\"jwt:roles\":[", "\"jwt:roles\":[[],"),
            ("\"request_id\":\"a-1\",", ""),
            ("}\n", ""),
        ] {
            let wrong = text.replace(part, wrong);
            assert!(Line::read(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_line_is_read_as_it_was_written(
            text in any::<String>(),
            micros in 0..253_402_300_800_000_000u64,
            tokens in 0..1000u64 << 40,
            code in any::<u16>(),
            bytes in any::<u64>(),
        ) {
            let line = Line {
                time: Timestamp(micros),
                request_id: text.clone().into(),
                route: text.clone().into(),
                method: text.clone().into(),
                reason: Some(text.clone().into()),
                policy: Some(text.clone().into()),
                rule: Some(text.clone().into()),
                remaining: Some(Cost::from_thousandths(tokens)),
                settled: Some(Cost::from_thousandths(tokens)),
                model: Some(text.clone().into()),
                usage: Some(LoggedUsage { input: bytes, output: tokens, cached: 0, cache_write: 1, estimated: bytes % 2 == 0 }),
                attributes: vec![(text.clone().into(), LoggedValue::Single(PseudonymKey::default().value("x", b"y")))],
                values: vec![
                    ("single".into(), LoggedValue::Single(LoggedText::of(text.as_bytes()))),
                    ("list".into(), LoggedValue::List(vec![LoggedText::of(text.as_bytes()), LoggedText::of(b"")])),
                ],
                code,
                response_bytes: bytes,
                duration_us: Micros(bytes),
                ..refused()
            };
            let mut out = b"before\n".to_vec();
            line.write(&mut out);
            let written = &out[b"before\n".len()..];
            let (end, rest) = written.split_last().unwrap();
            assert_eq!(*end, b'\n');
            assert!(rest.iter().all(|byte| *byte >= b' '), "{written:?}");
            assert_eq!(Line::read(written).unwrap(), line);
        }
    }
}
