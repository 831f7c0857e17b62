//! Defines sets of results of requests to an upstream, for `count_on` and `refund_on`.

use std::fmt;
use std::sync::Arc;

use http::StatusCode;

/// How a request to an upstream has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UpstreamResult {
    /// The upstream's last response has this status.
    Status(StatusCode),
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
    Result(UpstreamResult),
    /// All statuses with this first digit, from 1 to 5.
    Class(u16),
}

impl UpstreamResults {
    /// Parses one entry: `429`, `5xx`, `connect` or `timeout`. Adds the entry to the set. `None` for any other text.
    pub fn add(&mut self, text: &str) -> Option<()> {
        let pattern = match text {
            "connect" => ResultPattern::Result(UpstreamResult::Connect),
            "timeout" => ResultPattern::Result(UpstreamResult::Timeout),
            _ => match (text.as_bytes(), text) {
                ([digit @ b'1'..=b'5', b'x', b'x'], _) => ResultPattern::Class(u16::from(digit - b'0')),
                ([b'1'..=b'5', b'0'..=b'9', b'0'..=b'9'], code) => {
                    ResultPattern::Result(UpstreamResult::Status(code.parse().ok()?))
                }
                _ => return None,
            },
        };
        if !self.0.contains(&pattern) {
            Arc::make_mut(&mut self.0).push(pattern);
        }
        Some(())
    }

    pub fn contains(&self, result: UpstreamResult) -> bool {
        self.0.iter().any(|pattern| match (pattern, result) {
            (ResultPattern::Class(class), UpstreamResult::Status(status)) => status.as_u16() / 100 == *class,
            (ResultPattern::Class(_), _) => false,
            (ResultPattern::Result(own), result) => *own == result,
        })
    }
}

impl fmt::Display for ResultPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ResultPattern::Result(UpstreamResult::Status(status)) => write!(f, "{}", status.as_u16()),
            ResultPattern::Result(UpstreamResult::Connect) => f.write_str("connect"),
            ResultPattern::Result(UpstreamResult::Timeout) => f.write_str("timeout"),
            ResultPattern::Class(class) => write!(f, "{class}xx"),
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
}
