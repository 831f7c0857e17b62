//! Defines the statuses of gRPC calls, by the names in gRPC's documentation.

use std::fmt;

/// The names of the statuses, each at the index that is its code (gRPC, "Status codes and their use in gRPC").
const NAMES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// The status of a gRPC call: a code from 0 to 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GrpcStatus(u8);

impl GrpcStatus {
    pub const OK: GrpcStatus = GrpcStatus(0);
    pub const UNKNOWN: GrpcStatus = GrpcStatus(2);

    /// Parses the name of a status, such as `UNAUTHENTICATED`. `None` for any other text, and for a name in lower case.
    pub fn parse_name(text: &str) -> Option<GrpcStatus> {
        let code = NAMES.iter().position(|name| *name == text)?;
        u8::try_from(code).ok().map(GrpcStatus)
    }

    /// Reads the value of the field `grpc-status`. As for a gRPC client, any value that is not a known code is `UNKNOWN`.
    pub fn of_field(value: &[u8]) -> GrpcStatus {
        let text = std::str::from_utf8(value).unwrap_or_default();
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        match text.parse::<u8>() {
            Ok(code) if is_number && usize::from(code) < NAMES.len() => GrpcStatus(code),
            _ => GrpcStatus::UNKNOWN,
        }
    }

    /// Returns the status that a gRPC client gives a response with this HTTP status and without `grpc-status`. `None`
    /// for 200 (gRPC, "HTTP to gRPC Status Code Mapping").
    pub fn of_http(status: u16) -> Option<GrpcStatus> {
        let name = match status {
            200 => return None,
            400 => "INTERNAL",
            401 => "UNAUTHENTICATED",
            403 => "PERMISSION_DENIED",
            404 => "UNIMPLEMENTED",
            429 | 502..=504 => "UNAVAILABLE",
            _ => "UNKNOWN",
        };
        GrpcStatus::parse_name(name)
    }
}

/// Displays the name of the status.
impl fmt::Display for GrpcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NAMES.get(usize::from(self.0)).copied().unwrap_or("UNKNOWN"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_has_a_name_and_a_code() {
        for (code, name) in NAMES.iter().enumerate() {
            let status = GrpcStatus::parse_name(name).unwrap();
            assert_eq!(
                (status, status.to_string()),
                (GrpcStatus::of_field(code.to_string().as_bytes()), (*name).to_owned())
            );
        }
        assert_eq!(GrpcStatus::of_field(b"16").to_string(), "UNAUTHENTICATED");
        for wrong in ["", "17", "256", "-1", "+1", "1.0", "0x1", " 1", "ok"] {
            assert_eq!(GrpcStatus::of_field(wrong.as_bytes()), GrpcStatus::UNKNOWN, "{wrong}");
        }
        for wrong in ["", "ok", "unauthenticated", "UNAUTHENTICATED ", "16"] {
            assert_eq!(GrpcStatus::parse_name(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_response_without_a_status_has_that_of_its_http_status() {
        let names = [401, 403, 404, 429, 500, 503, 301].map(|status| GrpcStatus::of_http(status).unwrap().to_string());
        let unavailable = "UNAVAILABLE";
        assert_eq!(
            names,
            ["UNAUTHENTICATED", "PERMISSION_DENIED", "UNIMPLEMENTED", unavailable, "UNKNOWN", unavailable, "UNKNOWN"]
        );
        assert_eq!(GrpcStatus::of_http(200), None);
    }
}
