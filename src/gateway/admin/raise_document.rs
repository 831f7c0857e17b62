//! Answers `POST /buckets/raise`: raises the limit of one bucket, as a JSON document says.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use http::Method;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::bucket_query::{self, Act, BucketQuery};
use super::buckets::{Answer, OPERATOR_FIELD};
use super::host_check::HostKind;
use super::raise_request::RaiseArguments;
use super::write_access::Operator;
use crate::gateway::state::GatewayState;

pub(super) const PATH: &str = "/buckets/raise";

/// The longest document, in bytes.
pub(super) const LONGEST: usize = 16 << 10;

/// What the document says.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RaiseDocument {
    rule: String,
    /// A value for each limit key, such as `{"jwt:sub": "acme"}`.
    #[serde(default, deserialize_with = "each_once")]
    keys: BTreeMap<String, String>,
    amount: String,
    until: String,
    id: String,
    reason: Option<String>,
    issuer: Option<String>,
}

/// Reads the values of the limit keys. serde's own reader would take the last of two with one name.
fn each_once<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    struct Keys;
    impl<'de> Visitor<'de> for Keys {
        type Value = BTreeMap<String, String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a text for each limit key")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut keys = BTreeMap::new();
            while let Some((key, value)) = map.next_entry::<String, String>()? {
                if keys.contains_key(&key) {
                    return Err(A::Error::custom(format_args!("duplicate key `{key}`")));
                }
                keys.insert(key, value);
            }
            Ok(keys)
        }
    }
    deserializer.deserialize_map(Keys)
}

/// Checks the head of the request. `host` is the name of this machine.
///
/// # Errors
/// If a page of another site could have sent the request, or it has no JSON.
pub(super) fn check(head: &Parts, host: &str) -> Result<(), (u16, &'static str)> {
    let field = |name| head.headers.get(name).map_or(&b""[..], |value| value.as_bytes());
    match () {
        () if head.method != Method::POST => Err((405, "only POST")),
        () if HostKind::of(head, host) != HostKind::Address => {
            Err((403, "use an address or localhost: any other host name may be that of another site"))
        }
        () if field(OPERATOR_FIELD) != b"raise" => Err((403, "POST needs the field `Tollgate-Operator: raise`")),
        () if !field(CONTENT_TYPE).starts_with(b"application/json") => Err((415, "the body must be application/json")),
        () => Ok(()),
    }
}

/// Raises the bucket that the document names. Returns the status code of the answer, and its JSON or text.
///
/// # Errors
/// When the document is wrong, or another query is being answered.
pub(super) async fn answer(
    gateway: &Arc<GatewayState>,
    body: &[u8],
    operator: &Operator,
) -> (u16, Result<Value, String>) {
    let document: RaiseDocument = match serde_json::from_slice(body) {
        Ok(document) => document,
        Err(error) => return (400, Err(format!("the document is wrong: {error}"))),
    };
    let amount = if document.amount.starts_with('+') { document.amount } else { format!("+{}", document.amount) };
    let arguments = RaiseArguments { amount, until: document.until, id: document.id, reason: document.reason };
    let query = BucketQuery {
        act: Act::Raise(arguments),
        rule: Some(document.rule),
        keys: document.keys.into_iter().map(|(key, value)| format!("{key}={value}")).collect(),
        hash: None,
        issuer: document.issuer,
        user: operator.name_or("POST /buckets/raise".to_owned()),
        gateway: "this gateway".to_owned(),
    };
    let (code, answered): Answer = bucket_query::answer(gateway, query).await;
    let answered = answered.map_err(str::to_owned);
    // The text for a terminal is left out.
    (code, answered.map(|mut answer| answer.get_mut("document").map(Value::take).unwrap_or(answer)))
}
