//! Defines sets of results of requests to an upstream, for `count_on` and `refund_on`.

use std::fmt;
use std::sync::Arc;

use http::StatusCode;

use super::grpc_status::GrpcStatus;

/// How a request to an upstream has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UpstreamResult {
    /// The upstream's last response has this status.
    Status(StatusCode),
    /// The upstream's last response to a gRPC call has this HTTP status. `grpc` is `None` if the response ended without
    /// a status of gRPC.
    Grpc { status: StatusCode, grpc: Option<GrpcStatus> },
    /// No connection to the upstream could be opened, so the request was not sent.
    Connect,
    /// The request was sent, and the upstream did not respond in time.
    Timeout,
}

/// A set of results of requests to an upstream. A clone shares the entries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct UpstreamResults(Arc<Vec<ResultPattern>>);

/// One entry of a set of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ResultPattern {
    Connect,
    Timeout,
    Status(StatusCode),
    /// All statuses with this first digit, from 1 to 5.
    Class(u16),
    /// The status of a gRPC call. A response to such a call that ended without a status of gRPC is in the set too.
    Grpc(GrpcStatus),
}

impl UpstreamResults {
    /// Parses one entry: `429`, `5xx`, `connect`, `timeout` or `UNAUTHENTICATED`. Adds the entry to the set. `None` for any other text.
    pub fn add(&mut self, text: &str) -> Option<()> {
        let pattern = match text {
            "connect" => ResultPattern::Connect,
            "timeout" => ResultPattern::Timeout,
            _ => match (text.as_bytes(), text) {
                ([digit @ b'1'..=b'5', b'x', b'x'], _) => ResultPattern::Class(u16::from(digit - b'0')),
                ([b'1'..=b'5', b'0'..=b'9', b'0'..=b'9'], code) => ResultPattern::Status(code.parse().ok()?),
                (_, name) => ResultPattern::Grpc(GrpcStatus::parse_name(name)?),
            },
        };
        if !self.0.contains(&pattern) {
            Arc::make_mut(&mut self.0).push(pattern);
        }
        Some(())
    }

    pub fn contains(&self, result: UpstreamResult) -> bool {
        let (status, grpc) = match result {
            UpstreamResult::Connect => return self.0.contains(&ResultPattern::Connect),
            UpstreamResult::Timeout => return self.0.contains(&ResultPattern::Timeout),
            UpstreamResult::Status(status) => (status, None),
            UpstreamResult::Grpc { status, grpc } => (status, Some(grpc)),
        };
        self.0.iter().any(|pattern| match pattern {
            ResultPattern::Connect | ResultPattern::Timeout => false,
            ResultPattern::Status(own) => *own == status,
            ResultPattern::Class(class) => status.as_u16() / 100 == *class,
            ResultPattern::Grpc(own) => grpc.is_some_and(|grpc| grpc.is_none_or(|grpc| grpc == *own)),
        })
    }
}

impl fmt::Display for ResultPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ResultPattern::Connect => f.write_str("connect"),
            ResultPattern::Timeout => f.write_str("timeout"),
            ResultPattern::Status(status) => write!(f, "{}", status.as_u16()),
            ResultPattern::Class(class) => write!(f, "{class}xx"),
            ResultPattern::Grpc(status) => write!(f, "{status}"),
        }
    }
}

/// Displays the set as gateway.yaml writes it: `[connect, 429, 5xx]`.
impl fmt::Display for UpstreamResults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        write!(f, "[{}]", entries.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_codes_classes_and_failures() {
        let mut set = UpstreamResults::default();
        for text in ["connect", "429", "5xx", "429"] {
            set.add(text).unwrap();
        }
        let status = |code| UpstreamResult::Status(StatusCode::from_u16(code).unwrap());
        assert_eq!(set.to_string(), "[connect, 429, 5xx]");
        assert!([status(429), status(500), status(599), UpstreamResult::Connect].iter().all(|one| set.contains(*one)));
        assert!(![status(200), status(428), status(600), UpstreamResult::Timeout].iter().any(|one| set.contains(*one)));
        for wrong in ["", "6xx", "0xx", "600", "99", "5x", "5XX", "4294967725", "reset", " 429"] {
            assert_eq!(set.add(wrong), None, "{wrong}");
        }
    }
    #[test]
    fn a_grpc_call_without_a_status_is_in_each_set_with_a_status_of_grpc() {
        let mut names = UpstreamResults::default();
        for text in ["UNAUTHENTICATED", "404"] {
            names.add(text).unwrap();
        }
        let call = |status, name: &str| UpstreamResult::Grpc {
            status: StatusCode::from_u16(status).unwrap(),
            grpc: GrpcStatus::parse_name(name),
        };
        assert_eq!(names.to_string(), "[UNAUTHENTICATED, 404]");
        assert!([call(200, "UNAUTHENTICATED"), call(200, ""), call(404, "OK")].iter().all(|one| names.contains(*one)));
        assert!(!names.contains(call(200, "OK")) && !names.contains(UpstreamResult::Status(StatusCode::OK)));
        let mut failures = UpstreamResults::default();
        failures.add("5xx").unwrap();
        assert!(!failures.contains(call(200, "")));
    }
}
