//! Says in plain words why the certificate of a server was rejected.
//!
//! rustls says it for programmers, and of some libraries only its text is left.

use std::borrow::Cow;

use chrono::{DateTime, SecondsFormat};

/// With this begins what rustls says of a certificate.
pub const UNVERIFIED: &str = "invalid peer certificate";

/// The text of an error, with what it says of a certificate in plain words. The text of other errors stays as it is.
pub fn in_words(text: &str) -> Cow<'_, str> {
    let reason = text.split_once(UNVERIFIED).and_then(|(before, rest)| Some((before, rest.strip_prefix(": ")?)));
    match reason.and_then(|(before, reason)| Some((before, words(reason)?))) {
        Some((before, words)) => Cow::Owned(format!("{before}{UNVERIFIED}: {words}")),
        None => Cow::Borrowed(text),
    }
}

fn words(reason: &str) -> Option<String> {
    let moment = |after: &str| {
        let (_, rest) = reason.split_once(after)?;
        let seconds = rest.split(' ').next()?.parse().ok()?;
        Some(DateTime::from_timestamp(seconds, 0)?.to_rfc3339_opts(SecondsFormat::Secs, true))
    };
    Some(match reason {
        _ if reason.starts_with("UnknownIssuer") => {
            "it was issued by an authority that is not trusted (`ca_file` names those that are; without it, \
             those of the system are)"
                .to_owned()
        }
        _ if reason.starts_with("certificate expired") => format!("it expired on {}", moment("not valid after ")?),
        _ if reason.starts_with("certificate not valid yet") => {
            format!("it is not valid before {}", moment("not valid before ")?)
        }
        "Expired" => "it has expired".to_owned(),
        "NotValidYet" => "it is not valid yet".to_owned(),
        "NotValidForName" => "it is for another host name".to_owned(),
        _ if reason.starts_with("certificate not valid for name ") => {
            let (_, rest) = reason.split_once("for name \"")?;
            let (expected, presented) = rest.split_once("\"; certificate ")?;
            match presented.strip_prefix("is only valid for ") {
                Some(names) => format!(
                    "it is not for `{expected}`, but for {}; `server_name` may name another",
                    plain_names(names)
                ),
                None => format!("it is not for `{expected}`, and for no other name either"),
            }
        }
        _ if reason.contains("CaUsedAsEndEntity") => {
            "it is that of an authority (CA), which no server may present as its own".to_owned()
        }
        _ if reason.starts_with("BadSignature") => {
            "its signature is not that of the authority that it names".to_owned()
        }
        _ if reason.starts_with("Revoked") => "it was revoked".to_owned(),
        _ => return None,
    })
}

/// `DnsName("localhost") or IpAddress(127.0.0.1)` without what is around the names.
fn plain_names(names: &str) -> String {
    let names = names.replace("DnsName(\"", "").replace("IpAddress(", "").replace("\")", "");
    names.replace(')', "")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustls::pki_types::{ServerName, UnixTime};
    use rustls::{CertificateError, Error};

    use super::*;

    #[test]
    fn every_reason_that_an_operator_meets_is_in_words() {
        let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let name = || ServerName::try_from("redis.internal").unwrap();
        let presented = vec!["DnsName(\"localhost\")".to_owned(), "IpAddress(127.0.0.1)".to_owned()];
        for (error, expected) in [
            (
                CertificateError::UnknownIssuer,
                "it was issued by an authority that is not trusted (`ca_file` names those",
            ),
            (
                CertificateError::ExpiredContext { time: at(1_800_000_000), not_after: at(1_577_836_800) },
                "it expired on 2020-01-01T00:00:00Z",
            ),
            (
                CertificateError::NotValidYetContext { time: at(1_577_836_800), not_before: at(1_800_000_000) },
                "it is not valid before 2027-01-15T08:00:00Z",
            ),
            (
                CertificateError::NotValidForNameContext { expected: name(), presented },
                "it is not for `redis.internal`, but for localhost or 127.0.0.1; `server_name` may name another",
            ),
            (
                CertificateError::NotValidForNameContext { expected: name(), presented: Vec::new() },
                "it is not for `redis.internal`, and for no other name either",
            ),
            (CertificateError::Expired, "it has expired"),
            (CertificateError::BadSignature, "its signature is not that of the authority that it names"),
        ] {
            let text = format!("TLS: {}", Error::InvalidCertificate(error));
            let words = in_words(&text);
            assert!(words.starts_with(&format!("TLS: invalid peer certificate: {expected}")), "{words}");
        }
        for other in ["connection reset", "invalid peer certificate: Another", "invalid peer certificate"] {
            assert_eq!(in_words(other), other);
        }
    }
}
