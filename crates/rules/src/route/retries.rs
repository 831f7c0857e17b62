//! Defines the failures after which a request is sent again.

/// A failure of an attempt after which the request may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryCause {
    /// No connection could be made.
    Connect,
    /// The connection was closed or timed out before a byte of the response.
    Reset,
    /// The upstream answered with this status.
    Status502,
    Status503,
    Status504,
}

impl RetryCause {
    /// Returns the cause that a gateway.yaml names in this way. `None` for other texts.
    pub fn parse(text: &str) -> Option<RetryCause> {
        match text {
            "connect" => Some(RetryCause::Connect),
            "reset" => Some(RetryCause::Reset),
            "502" => Some(RetryCause::Status502),
            "503" => Some(RetryCause::Status503),
            "504" => Some(RetryCause::Status504),
            _ => None,
        }
    }

    /// Returns the cause that a response with this status is. `None` if no request is sent again after it.
    pub fn of_status(status: u16) -> Option<RetryCause> {
        match status {
            502 => Some(RetryCause::Status502),
            503 => Some(RetryCause::Status503),
            504 => Some(RetryCause::Status504),
            _ => None,
        }
    }

    fn bit(self) -> u8 {
        match self {
            RetryCause::Connect => 1,
            RetryCause::Reset => 2,
            RetryCause::Status502 => 4,
            RetryCause::Status503 => 8,
            RetryCause::Status504 => 16,
        }
    }
}

/// The failures after which requests are sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryCauses(u8);

impl RetryCauses {
    /// The set of a file that names none: failures that bring no response.
    pub const DEFAULT: RetryCauses = RetryCauses(1 | 2);

    pub fn contains(self, cause: RetryCause) -> bool {
        self.0 & cause.bit() != 0
    }
}

impl FromIterator<RetryCause> for RetryCauses {
    fn from_iter<I: IntoIterator<Item = RetryCause>>(causes: I) -> RetryCauses {
        RetryCauses(causes.into_iter().fold(0, |bits, cause| bits | cause.bit()))
    }
}

/// The settings of a route that replace those of its upstream. `None` replaces nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouteRetries {
    /// The largest number of retries of a request.
    pub max: Option<u32>,
    pub on: Option<RetryCauses>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_contains_what_it_was_made_of() {
        let names = ["connect", "reset", "502", "503", "504"];
        for (index, name) in names.iter().enumerate() {
            let set: RetryCauses = RetryCause::parse(name).into_iter().collect();
            let contained = names.map(|name| set.contains(RetryCause::parse(name).unwrap()));
            assert_eq!(contained.iter().position(|contained| *contained), Some(index));
            assert_eq!(contained.iter().filter(|contained| **contained).count(), 1, "{name}");
        }
        let usual = [RetryCause::Connect, RetryCause::Reset].into_iter().collect::<RetryCauses>();
        assert_eq!(RetryCauses::DEFAULT, usual);
        assert_eq!([500, 502, 505].map(RetryCause::of_status), [None, Some(RetryCause::Status502), None]);
    }
}
