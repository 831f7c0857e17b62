//! Determines the scheme of a request: whether the client sent the request over an encrypted connection.

use http::HeaderMap;

/// The scheme of a request: `http`, or the encrypted `https`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    Http,
    Https,
}

impl Scheme {
    pub fn name(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
        }
    }
}

/// The source from which the scheme of a request is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchemeSource {
    /// The scheme of the connection on which the request arrived.
    Connection(Scheme),
    /// The scheme in `X-Forwarded-Proto`, which a trusted proxy has set. If the field names no scheme, the scheme of
    /// the connection counts.
    TrustedProxy(Scheme),
}

impl SchemeSource {
    /// Returns the scheme of a request with these header fields.
    pub fn scheme(self, headers: &HeaderMap) -> Scheme {
        match self {
            SchemeSource::Connection(scheme) => scheme,
            SchemeSource::TrustedProxy(scheme) => forwarded(headers).unwrap_or(scheme),
        }
    }
}

/// Returns the scheme in `X-Forwarded-Proto`. `None` if the field names no scheme or occurs several times.
fn forwarded(headers: &HeaderMap) -> Option<Scheme> {
    let mut values = headers.get_all("x-forwarded-proto").iter();
    let (value, None) = (values.next()?, values.next()) else { return None };
    parse(value.as_bytes().trim_ascii())
}

/// Parses a scheme in a header field that a proxy has set. `wss` means `https`, and `ws` means `http`. `None` for any
/// other value, also for a scheme with spaces around it.
pub fn parse(value: &[u8]) -> Option<Scheme> {
    let is_one_of = |names: [&str; 2]| names.iter().any(|name| value.eq_ignore_ascii_case(name.as_bytes()));
    // Traefik sends `wss` and `ws` for WebSockets.
    match value {
        _ if is_one_of(["https", "wss"]) => Some(Scheme::Https),
        _ if is_one_of(["http", "ws"]) => Some(Scheme::Http),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn only_a_trusted_proxy_names_another_scheme_and_only_in_one_word() {
        let scheme = |source: SchemeSource, values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append("x-forwarded-proto", HeaderValue::from_static(value));
            }
            source.scheme(&headers)
        };
        let (plain, trusted) = (SchemeSource::Connection(Scheme::Http), SchemeSource::TrustedProxy(Scheme::Http));
        for (source, values, expected) in [
            (plain, &["https"][..], Scheme::Http),
            (trusted, &["HTTPS"], Scheme::Https),
            (trusted, &[" wss "], Scheme::Https),
            (trusted, &["https", "https"], Scheme::Http),
            (trusted, &["https, http"], Scheme::Http),
            (trusted, &["ftp"], Scheme::Http),
            (trusted, &[], Scheme::Http),
            (SchemeSource::TrustedProxy(Scheme::Https), &["http"], Scheme::Http),
            (SchemeSource::TrustedProxy(Scheme::Https), &[], Scheme::Https),
        ] {
            assert_eq!(scheme(source, values), expected, "{source:?} {values:?}");
        }
    }
}
