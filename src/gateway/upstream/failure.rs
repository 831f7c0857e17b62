//! Lists the ways in which a request fails at an upstream.

/// The failure of an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamError {
    Unresolved,
    /// Every endpoint has as many requests as it may.
    Busy,
    ConnectTimeout,
    ConnectFailed,
    /// Its certificate could not be verified.
    Certificate,
    /// Another failure of TLS.
    Tls,
    ReadTimeout,
    WriteTimeout,
    /// The request, with all its attempts, has taken longer than it may.
    TotalTimeout,
    Closed,
    InvalidAnswer,
}

impl UpstreamError {
    pub const ALL: [UpstreamError; 11] = [
        UpstreamError::Unresolved,
        UpstreamError::Busy,
        UpstreamError::ConnectTimeout,
        UpstreamError::ConnectFailed,
        UpstreamError::Certificate,
        UpstreamError::Tls,
        UpstreamError::ReadTimeout,
        UpstreamError::WriteTimeout,
        UpstreamError::TotalTimeout,
        UpstreamError::Closed,
        UpstreamError::InvalidAnswer,
    ];

    pub fn name(self) -> &'static str {
        match self {
            UpstreamError::Unresolved => "unresolved",
            UpstreamError::Busy => "busy",
            UpstreamError::ConnectTimeout => "connect_timeout",
            UpstreamError::ConnectFailed => "connect_failed",
            UpstreamError::Certificate => "certificate",
            UpstreamError::Tls => "tls",
            UpstreamError::ReadTimeout => "read_timeout",
            UpstreamError::WriteTimeout => "write_timeout",
            UpstreamError::TotalTimeout => "total_timeout",
            UpstreamError::Closed => "closed",
            UpstreamError::InvalidAnswer => "invalid_answer",
        }
    }
}

/// The failure of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndpointFailure {
    Error(UpstreamError),
    /// It answered 502, 503 or 504.
    Status,
}

impl EndpointFailure {
    pub(crate) const COUNT: usize = UpstreamError::ALL.len() + 1;

    pub(crate) fn all() -> impl Iterator<Item = EndpointFailure> {
        UpstreamError::ALL.into_iter().map(EndpointFailure::Error).chain([EndpointFailure::Status])
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            EndpointFailure::Error(error) => error.name(),
            EndpointFailure::Status => "status",
        }
    }

    /// The index of the failure, below [`EndpointFailure::COUNT`]; each failure has a different one.
    pub(crate) fn index(self) -> usize {
        match self {
            EndpointFailure::Error(error) => error as usize,
            EndpointFailure::Status => UpstreamError::ALL.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_has_an_index_of_its_own() {
        let indices: Vec<usize> = EndpointFailure::all().map(EndpointFailure::index).collect();
        assert_eq!(indices, (0..EndpointFailure::COUNT).collect::<Vec<_>>());
    }
}
