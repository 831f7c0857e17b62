//! Writes the properties of a client's verified certificate into `X-Forwarded-Client-Cert`, in the format of Envoy.

use http::HeaderValue;

use base::tls::client_certificate_properties::ClientCertificate;

/// Returns the value of `X-Forwarded-Client-Cert`: the properties of the certificate as pairs of a name and a value. Leaves out
/// a property with characters that a field cannot contain.
pub(super) fn field(
    ClientCertificate { fingerprint, subject, uri, dns, .. }: &ClientCertificate,
) -> Option<HeaderValue> {
    let mut text = format!("Hash={fingerprint}");
    for (name, value) in [("Subject", subject), ("URI", uri), ("DNS", dns)] {
        let fits = |value: &&String| value.bytes().all(|byte| matches!(byte, b' '..=b'~'));
        if let Some(value) = value.as_ref().filter(fits) {
            text.push(';');
            text.push_str(name);
            text.push('=');
            push(&mut text, value);
        }
    }
    HeaderValue::try_from(text).ok()
}

/// Appends a value, in quotes unless all its characters are plain. Escapes quotes and backslashes in the value.
fn push(text: &mut String, value: &str) {
    if value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~:/@+%".contains(&byte)) {
        return text.push_str(value);
    }
    text.push('"');
    for character in value.chars() {
        if matches!(character, '"' | '\\') {
            text.push('\\');
        }
        text.push(character);
    }
    text.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(subject: Option<&str>, uri: Option<&str>, dns: Option<&str>, expected: &str) {
        let own = |text: Option<&str>| text.map(str::to_owned);
        let (subject, uri, dns) = (own(subject), own(uri), own(dns));
        let certificate = ClientCertificate { fingerprint: "ab12".to_owned(), subject, uri, dns, not_after: None };
        assert_eq!(field(&certificate).unwrap(), expected);
    }

    #[test]
    fn no_value_can_pass_for_another_pair() {
        check(None, None, None, "Hash=ab12");
        check(
            Some("CN=a,O=b"),
            Some("spiffe://x/y"),
            Some("a.test"),
            "Hash=ab12;Subject=\"CN=a,O=b\";URI=spiffe://x/y;DNS=a.test",
        );
        check(Some("CN=\\\";URI=x"), None, None, "Hash=ab12;Subject=\"CN=\\\\\\\";URI=x\"");
        check(None, Some("x;Hash=0"), Some("a,b"), "Hash=ab12;URI=\"x;Hash=0\";DNS=\"a,b\"");
        // A field can contain neither a line end nor a character beyond ASCII.
        check(Some("CN=a\nb"), None, Some("\u{e9}"), "Hash=ab12");
    }
}
