//! Defines sets of results of requests to an upstream, for `count_on`, `reset_on` and `refund_on`.

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
    /// Adds one entry to the set: `429`, `5xx`, `connect`, `timeout` or `UNAUTHENTICATED`. `None` for any other text.
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

    /// Returns whether the set names a status of gRPC.
    pub fn has_grpc(&self) -> bool {
        self.0.iter().any(|pattern| matches!(pattern, ResultPattern::Grpc(_)))
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

impl UpstreamResults {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether a request with this result has certainly ended as the set says. A gRPC call without a status of gRPC is
    /// in no set, and its HTTP status is in a set only if the call has ended with `OK`.
    pub fn certainly_contains(&self, result: UpstreamResult) -> bool {
        match result {
            UpstreamResult::Grpc { grpc: None, .. } => false,
            UpstreamResult::Grpc { status, grpc: Some(grpc) } => {
                let is_ok = grpc == GrpcStatus::OK && self.contains(UpstreamResult::Status(status));
                is_ok || self.0.contains(&ResultPattern::Grpc(grpc))
            }
            result => self.contains(result),
        }
    }

    /// Returns the first entry of this set that has a result in common with the other set, as gateway.yaml writes it.
    pub fn common_entry(&self, other: &UpstreamResults) -> Option<String> {
        let is_common = |own: &&ResultPattern| other.0.iter().any(|other| own.overlaps(*other));
        self.0.iter().find(is_common).map(ToString::to_string)
    }
}

impl ResultPattern {
    /// Returns whether some result is in both entries.
    fn overlaps(self, other: ResultPattern) -> bool {
        match (self, other) {
            (ResultPattern::Status(status), ResultPattern::Class(class))
            | (ResultPattern::Class(class), ResultPattern::Status(status)) => status.as_u16() / 100 == class,
            // A call with the status OK has the HTTP status 200.
            (ResultPattern::Grpc(grpc), ResultPattern::Class(2))
            | (ResultPattern::Class(2), ResultPattern::Grpc(grpc)) => grpc == GrpcStatus::OK,
            (ResultPattern::Grpc(grpc), ResultPattern::Status(status))
            | (ResultPattern::Status(status), ResultPattern::Grpc(grpc)) => {
                grpc == GrpcStatus::OK && status == StatusCode::OK
            }
            (own, other) => own == other,
        }
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
    fn a_result_is_certain_only_with_a_status_and_of_a_call_with_that_of_grpc() {
        let set = |entries: &[&str]| {
            let mut set = UpstreamResults::default();
            entries.iter().for_each(|entry| set.add(entry).unwrap());
            set
        };
        let call = |name: &str| UpstreamResult::Grpc { status: StatusCode::OK, grpc: GrpcStatus::parse_name(name) };
        let (class, names) = (set(&["2xx"]), set(&["OK", "NOT_FOUND"]));
        assert!(class.certainly_contains(UpstreamResult::Status(StatusCode::NO_CONTENT)));
        assert!(class.certainly_contains(call("OK")) && names.certainly_contains(call("NOT_FOUND")));
        for other in [call(""), call("UNAUTHENTICATED"), call("INVALID_ARGUMENT"), UpstreamResult::Timeout] {
            assert!(!class.certainly_contains(other) && !names.certainly_contains(other), "{other:?}");
        }
        assert!(!names.certainly_contains(UpstreamResult::Status(StatusCode::OK)));
    }

    #[test]
    fn two_sets_have_the_entries_in_common_that_a_result_can_be_in() {
        let common = |one: &str, other: &str| {
            let [one, other] = [one, other].map(|entry| {
                let mut set = UpstreamResults::default();
                set.add(entry).unwrap();
                set
            });
            assert_eq!(one.common_entry(&other).is_some(), other.common_entry(&one).is_some());
            one.common_entry(&other)
        };
        for (one, other) in [("401", "4xx"), ("401", "401"), ("2xx", "2xx"), ("OK", "2xx"), ("OK", "200"), ("OK", "OK")]
        {
            assert_eq!(common(one, other).as_deref(), Some(one), "{other}");
        }
        for (one, other) in
            [("401", "5xx"), ("OK", "201"), ("UNAUTHENTICATED", "2xx"), ("200", "201"), ("timeout", "5xx")]
        {
            assert_eq!(common(one, other), None, "{one} {other}");
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
