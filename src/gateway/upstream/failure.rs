//! Lists the reasons for which a request to an upstream fails or is sent again.

/// The reason why a request to an upstream failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamError {
    Unresolved,
    /// Every endpoint already has the maximum number of requests.
    Busy,
    ConnectTimeout,
    ConnectFailed,
    /// The certificate of the endpoint could not be verified.
    Certificate,
    /// TLS failed for another reason than the certificate.
    Tls,
    /// The first byte of a response did not arrive within its own timeout.
    FirstByteTimeout,
    ReadTimeout,
    WriteTimeout,
    /// The request and all its retries together exceeded the total timeout.
    TotalTimeout,
    Closed,
    InvalidAnswer,
}

impl UpstreamError {
    pub const ALL: [UpstreamError; 12] = [
        UpstreamError::Unresolved,
        UpstreamError::Busy,
        UpstreamError::ConnectTimeout,
        UpstreamError::ConnectFailed,
        UpstreamError::Certificate,
        UpstreamError::Tls,
        UpstreamError::FirstByteTimeout,
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
            UpstreamError::FirstByteTimeout => "first_byte_timeout",
            UpstreamError::ReadTimeout => "read_timeout",
            UpstreamError::WriteTimeout => "write_timeout",
            UpstreamError::TotalTimeout => "total_timeout",
            UpstreamError::Closed => "closed",
            UpstreamError::InvalidAnswer => "invalid_answer",
        }
    }
}

/// The reason why an attempt counts as a failure of the endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndpointFailure {
    Error(UpstreamError),
    /// The endpoint answered with status 502, 503 or 504.
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

    /// Returns the index of the failure in a list of [`EndpointFailure::COUNT`] counters.
    pub(crate) fn index(self) -> usize {
        match self {
            EndpointFailure::Error(error) => error as usize,
            EndpointFailure::Status => UpstreamError::ALL.len(),
        }
    }
}

/// The failure of an attempt that was followed by another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetriedFailure {
    Error(UpstreamError),
    /// The endpoint answered with this status, and `retries` lists it.
    Status(u16),
}

impl RetriedFailure {
    pub(crate) fn all() -> impl Iterator<Item = RetriedFailure> {
        UpstreamError::ALL.into_iter().map(RetriedFailure::Error).chain((502..=504).map(RetriedFailure::Status))
    }

    /// Returns the name in metrics and logs: the kind of the error, or the status.
    pub(crate) fn name(self) -> &'static str {
        match self {
            RetriedFailure::Error(error) => error.name(),
            RetriedFailure::Status(502) => "502",
            RetriedFailure::Status(503) => "503",
            RetriedFailure::Status(_) => "504",
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
