//! Reads what an observer was shown of an upstream's response, from the log of a gateway with [`GatewayBuilder::record_responses`].
//!
//! [`GatewayBuilder::record_responses`]: super::GatewayBuilder::record_responses

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{Gateway, eventually};

/// What an observer was shown of one response.
#[derive(Clone, Debug)]
pub(crate) struct ObservedResponse {
    /// The calls, in their order. Several pieces of data in a row are one call.
    pub calls: String,
    pub status: u64,
    /// The fields of the head, each with its name in lower case.
    pub fields: Vec<String>,
    pub pieces: u64,
    pub bytes: u64,
    pub sha256: String,
    /// The trailers, each with its name in lower case.
    pub trailers: Vec<String>,
    pub end: String,
    /// The fault that ended the exchange, as the program prints it for debugging; `None` without one.
    pub fault: String,
}

impl ObservedResponse {
    fn parse(line: &Value) -> ObservedResponse {
        let text = |key: &str| line[key].as_str().unwrap_or_else(|| panic!("no {key} in {line}")).to_owned();
        let number = |key: &str| match &line[key] {
            Value::String(number) => number.parse().unwrap(),
            number => number.as_u64().unwrap_or_else(|| panic!("no {key} in {line}")),
        };
        let lines = |key: &str| {
            let lines = line[key].as_str().unwrap().lines().map(|line| match line.split_once(':') {
                Some((name, value)) => format!("{}:{value}", name.to_lowercase()),
                None => panic!("{line}"),
            });
            lines.collect()
        };
        ObservedResponse {
            calls: text("calls"),
            status: number("status"),
            fields: lines("fields"),
            pieces: number("pieces"),
            bytes: number("bytes"),
            sha256: text("sha256"),
            trailers: lines("trailers"),
            end: text("end"),
            fault: text("fault"),
        }
    }

    /// Whether the pieces are together these bytes.
    #[track_caller]
    pub(crate) fn expect_body(&self, body: &[u8]) {
        let sha256: String = Sha256::digest(body).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!((self.bytes, &self.sha256), (body.len() as u64, &sha256), "{self:?}");
    }
}

/// Waits until the response to the request with this id has ended. Panics if it was observed more than once.
#[track_caller]
pub(crate) fn observed_response(gateway: &Gateway, request_id: &str) -> ObservedResponse {
    let find = || -> Vec<ObservedResponse> {
        let log = gateway.errors();
        let lines = log.lines().filter(|line| line.contains("the response of an upstream was observed"));
        let lines = lines.map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.filter(|line| line["request_id"] == request_id).map(|line| ObservedResponse::parse(&line)).collect()
    };
    eventually("the response is observed", || !find().is_empty());
    let found = find();
    assert_eq!(found.len(), 1, "{found:?}");
    found.into_iter().next().unwrap()
}
