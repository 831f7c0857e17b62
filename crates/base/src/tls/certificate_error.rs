//! Explains to operators why a certificate was rejected, by the gateway or by the peer.
//!
//! The reason is found in the text of the error, because some libraries pass on nothing else.

use std::borrow::Cow;

use crate::rfc3339::format_seconds;
use crate::time::Timestamp;

/// The beginning of the text with which rustls reports that the peer's certificate is invalid.
pub const UNVERIFIED: &str = "invalid peer certificate";
/// The beginning of the text with which rustls reports that the peer has sent a fatal alert.
pub(crate) const ALERT: &str = "received fatal alert: ";
/// The text with which rustls reports a client that presents no certificate.
const NONE_SHOWN: &str = "peer sent no certificates";

/// Converts `text`, the error of a connection to a server, to a message for operators. Explains problems of
/// certificates and alerts. Any other text is returned unchanged.
pub fn of_server(text: &str) -> Cow<'_, str> {
    let hint = " (`ca_file` names those that are; without it, those of the system are)";
    by_authorities(text, hint).or_else(|| replaced(text, ALERT, by_server)).map_or(Cow::Borrowed(text), Cow::Owned)
}

/// Converts `text`, the error of a connection for which no `ca_file` can be set, to a message for operators. Explains
/// problems of the server's certificate. Any other text is returned unchanged.
pub fn of_site(text: &str) -> Cow<'_, str> {
    by_authorities(text, "").map_or(Cow::Borrowed(text), Cow::Owned)
}

/// Describes the fault of a server's certificate. `hint` says which authorities are trusted.
fn by_authorities(text: &str, hint: &str) -> Option<String> {
    replaced(text, UNVERIFIED, |reason| {
        let reason = reason.strip_prefix(": ")?;
        let words = match reason {
            _ if reason.starts_with("UnknownIssuer") => {
                format!("it was issued by an authority that is not trusted{hint}")
            }
            _ if reason.contains("CaUsedAsEndEntity") => {
                "it is that of an authority (CA), which no server may present as its own".to_owned()
            }
            _ => words(reason)?,
        };
        Some(format!("{UNVERIFIED}: {words}"))
    })
}

/// Converts `text`, the error of a connection from a client, to a message for operators. Explains problems of
/// certificates and alerts. Any other text is returned unchanged.
pub fn of_client(text: &str) -> Cow<'_, str> {
    let verified = replaced(text, UNVERIFIED, |reason| {
        let reason = reason.strip_prefix(": ")?;
        let words = match reason {
            _ if reason.starts_with("UnknownIssuer") => {
                "it was issued by an authority that `client_ca_file` does not have".to_owned()
            }
            _ if reason.starts_with("UnknownRevocationStatus") => {
                "`client_crl_file` has no list of an authority that issued it".to_owned()
            }
            _ if reason.contains("CaUsedAsEndEntity") => {
                "it is that of an authority (CA), which no client may present as its own".to_owned()
            }
            _ => words(reason)?,
        };
        Some(format!("the client's certificate is not valid: {words}"))
    });
    let none = || replaced(text, NONE_SHOWN, |_| Some("the client showed no certificate".to_owned()));
    verified.or_else(none).or_else(|| replaced(text, ALERT, by_client)).map_or(Cow::Borrowed(text), Cow::Owned)
}

/// Replaces everything in the text from `beginning` on. `words` makes the replacement from the text after `beginning`.
fn replaced(text: &str, beginning: &str, words: impl Fn(&str) -> Option<String>) -> Option<String> {
    let (before, rest) = text.split_once(beginning)?;
    Some(before.to_owned() + &words(rest)?)
}

/// Explains an alert that a server has sent.
fn by_server(alert: &str) -> Option<String> {
    let words = match name(alert) {
        "CertificateRequired" => "it requires a certificate of its clients (`cert_file` and `key_file`)",
        "UnknownCA" => "it does not trust the authority of the certificate in `cert_file`",
        "CertificateExpired" => "the certificate in `cert_file` has expired",
        "CertificateRevoked" => "the certificate in `cert_file` was revoked",
        "BadCertificate" | "UnsupportedCertificate" | "CertificateUnknown" | "AccessDenied" => {
            "it does not accept the certificate in `cert_file`, or requires one"
        }
        "UnrecognisedName" => "it has no certificate for the name that was asked for (`server_name`)",
        "ProtocolVersion" => "it speaks no version of TLS from 1.2 on",
        "HandshakeFailure" => {
            "it has no cipher suite in common, or requires a certificate of its clients (`cert_file`)"
        }
        _ => return None,
    };
    Some(format!("the server ended the handshake: {words}"))
}

/// Explains an alert that a client has sent.
fn by_client(alert: &str) -> Option<String> {
    let words = match name(alert) {
        "UnknownCA" => "it does not trust the authority of our certificate",
        "CertificateExpired" => "our certificate has expired",
        "CertificateRevoked" => "our certificate was revoked",
        "BadCertificate" | "UnsupportedCertificate" | "CertificateUnknown" => {
            "it does not accept our certificate: perhaps it is for another name, or its chain is not whole"
        }
        _ => return None,
    };
    Some(format!("the client ended the handshake: {words}"))
}

/// Returns the first word of an alert's text, which is the alert's name.
fn name(alert: &str) -> &str {
    alert.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default()
}

/// Explains why a certificate of a client or server was rejected.
fn words(reason: &str) -> Option<String> {
    let moment = |after: &str| {
        let (_, rest) = reason.split_once(after)?;
        let seconds: u64 = rest.split(' ').next()?.parse().ok()?;
        Some(format_seconds(Timestamp(seconds.saturating_mul(1_000_000))))
    };
    Some(match reason {
        _ if reason.starts_with("certificate expired") => format!("it expired on {}", moment("not valid after ")?),
        _ if reason.starts_with("certificate not valid yet") => {
            format!("it is not valid before {}", moment("not valid before ")?)
        }
        _ if reason.starts_with("certificate revocation list expired") => {
            format!("the revocation list of its authority is out of date since {}", moment("not valid after ")?)
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
        _ if reason.starts_with("certificate does not allow extended key usage for client") => {
            "it is not for clients (extended key usage)".to_owned()
        }
        _ if reason.starts_with("certificate does not allow extended key usage for server") => {
            "it is not for servers (extended key usage)".to_owned()
        }
        _ if reason.starts_with("BadSignature") => {
            "its signature is not that of the authority that it names".to_owned()
        }
        _ if reason.starts_with("BadEncoding") => "it is not encoded as X.509 requires".to_owned(),
        _ if reason.starts_with("Revoked") => "it was revoked".to_owned(),
        _ if reason.starts_with("UnhandledCriticalExtension") => {
            "it has a critical extension that is not known".to_owned()
        }
        _ if reason.starts_with("UnsupportedSignatureAlgorithm") => {
            "it is signed in a way that is not known, or no longer safe".to_owned()
        }
        _ => return None,
    })
}

/// Returns the names in a text such as `DnsName("localhost") or IpAddress(127.0.0.1)`, without their types.
fn plain_names(names: &str) -> String {
    let names = names.replace("DnsName(\"", "").replace("IpAddress(", "").replace("\")", "");
    names.replace(')', "")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustls::pki_types::{ServerName, UnixTime};
    use rustls::{AlertDescription, CertificateError, Error, ExtendedKeyPurpose};

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
            (CertificateError::BadEncoding, "it is not encoded as X.509 requires"),
            (
                CertificateError::InvalidPurposeContext {
                    required: ExtendedKeyPurpose::ServerAuth,
                    presented: vec![ExtendedKeyPurpose::ClientAuth],
                },
                "it is not for servers (extended key usage)",
            ),
        ] {
            let text = format!("TLS: {}", Error::InvalidCertificate(error));
            let words = of_server(&text);
            assert!(words.starts_with(&format!("TLS: invalid peer certificate: {expected}")), "{words}");
        }
        for other in ["connection reset", "invalid peer certificate: Another", "invalid peer certificate"] {
            assert_eq!(of_server(other), other);
            assert_eq!(of_client(other), other);
        }
    }

    #[test]
    fn what_a_client_did_wrong_is_said_of_the_client() {
        let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        for (error, expected) in [
            (
                Error::InvalidCertificate(CertificateError::UnknownIssuer),
                "the client's certificate is not valid: it was issued by an authority that `client_ca_file` does not have",
            ),
            (
                Error::InvalidCertificate(CertificateError::ExpiredRevocationListContext {
                    time: at(1_800_000_000),
                    next_update: at(1_577_836_800),
                }),
                "the client's certificate is not valid: the revocation list of its authority is out of date since 2020-01-01T00:00:00Z",
            ),
            (
                Error::InvalidCertificate(CertificateError::UnknownRevocationStatus),
                "the client's certificate is not valid: `client_crl_file` has no list of an authority that issued it",
            ),
            (Error::NoCertificatesPresented, "the client showed no certificate"),
            (
                Error::AlertReceived(AlertDescription::UnknownCA),
                "the client ended the handshake: it does not trust the authority of our certificate",
            ),
        ] {
            assert_eq!(of_client(&error.to_string()), expected);
        }
    }

    #[test]
    fn what_a_server_rejects_is_said_of_our_files() {
        for (alert, expected) in [
            (
                AlertDescription::CertificateRequired,
                "it requires a certificate of its clients (`cert_file` and `key_file`)",
            ),
            (AlertDescription::UnknownCA, "it does not trust the authority of the certificate in `cert_file`"),
            (
                AlertDescription::UnrecognisedName,
                "it has no certificate for the name that was asked for (`server_name`)",
            ),
        ] {
            let text = format!("{} (os error)", Error::AlertReceived(alert));
            assert_eq!(of_server(&text), format!("the server ended the handshake: {expected}"));
        }
        let other = Error::AlertReceived(AlertDescription::InternalError).to_string();
        assert_eq!(of_server(&other), other);
    }
}
