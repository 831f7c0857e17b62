//! Tests properties of the values that rules read from the bodies of requests: each is the value that a simple reader finds.

use request::attribute::Attribute;
use request::body_values::{BodyKind, BodyValues};
use serde_json::Value;

use super::mutation::{fuzz, is_bug_planted};

/// Returns what the rules read. `None` if the body is ambiguous.
fn read(kind: BodyKind, body: &[u8], attributes: &[Attribute]) -> Option<Vec<Option<Vec<u8>>>> {
    let mut values = BodyValues::default();
    values.read(kind, body, attributes).ok()?;
    assert!(attributes.iter().all(|attribute| values.knows(attribute)), "a value is still unknown");
    Some(attributes.iter().map(|attribute| values.value(attribute).map(<[u8]>::to_vec)).collect())
}

/// Whether this text is what the rules may read of the number.
fn is_of_number(number: &serde_json::Number, text: Option<&str>) -> bool {
    if number.is_f64() {
        // An integer that is too long for serde_json, or the zero that it keeps the sign of.
        return text.is_none_or(|text| text.trim_start_matches('-').bytes().all(|byte| byte.is_ascii_digit()));
    }
    text == Some(&*number.to_string())
}

#[test]
pub fn request_json() {
    let words: &[&[u8]] = &[
        b"\"user\":",
        b"\"\\u0075ser\":",
        b"\"a\":{",
        b"\"b\":[",
        b"\"ann\"",
        b"\\ud800",
        b"\\udc00",
        b"\xc3",
        b"\xa9",
        b"null",
        b"true",
        b"-0",
        b"1e5",
        b"18446744073709551616",
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b" ",
    ];
    let pointers = ["/user", "/a/b", "/a/b/0"];
    let attributes = pointers.map(|pointer| Attribute::parse(&format!("request_json:{pointer}")).unwrap());
    fuzz("request-json", words, |body| {
        let Some(mut values) = read(BodyKind::Json, body, &attributes) else { return (true, [0; 3]) };
        if body.is_empty() {
            return (false, [1; 3]);
        }
        let simple: Value = match serde_json::from_slice(body) {
            Ok(simple) => simple,
            // serde_json keeps numbers as doubles.
            Err(error) if error.to_string().starts_with("number out of range") => return (false, [0; 3]),
            Err(error) => panic!("no JSON: {error}"),
        };
        assert!(!simple.is_array(), "a batch was read");
        // The planted bug: `true` is no value.
        if is_bug_planted() {
            values = values.into_iter().map(|value| value.filter(|value| value != b"true")).collect();
        }
        let kinds = [0, 1, 2].map(|index| {
            let value = values[index].as_deref().map(|value| std::str::from_utf8(value).unwrap());
            let (expected, kind) = match simple.pointer(pointers[index]) {
                Some(Value::Number(number)) => {
                    assert!(is_of_number(number, value), "{number} was read as {value:?}");
                    return 2;
                }
                Some(Value::String(text)) => (Some(&**text).filter(|text| !text.is_empty()), 3),
                Some(Value::Bool(true)) => (Some("true"), 4),
                Some(Value::Bool(false)) => (Some("false"), 5),
                Some(Value::Null | Value::Array(_) | Value::Object(_)) => (None, 6),
                None => (None, 7),
            };
            assert_eq!(value, expected, "{}", pointers[index]);
            kind
        });
        (false, kinds)
    });
}

/// Decodes a name or a value of a form byte by byte.
fn decode(text: &[u8]) -> Vec<u8> {
    let (mut decoded, mut at) = (Vec::new(), 0);
    while let Some(byte) = text.get(at) {
        let digit = |offset| text.get(at + offset).and_then(|digit| char::from(*digit).to_digit(16));
        let escaped = digit(1).zip(digit(2)).filter(|_| *byte == b'%');
        at += if escaped.is_some() { 3 } else { 1 };
        decoded.push(match escaped {
            Some((high, low)) => u8::try_from(high * 16 + low).unwrap(),
            // The planted bug: `+` is no space.
            None if *byte == b'+' && !is_bug_planted() => b' ',
            None => *byte,
        });
    }
    decoded
}

#[test]
pub fn request_form() {
    let words: &[&[u8]] =
        &[b"user=", b"&user=", b"%75ser", b"%2", b"%ff", b"%3D", b"%26", b"+", b"&", b"=", b";", b"%", b"ann"];
    let attributes = [Attribute::parse("request_form:user").unwrap()];
    fuzz("request-form", words, |body| {
        let Some(values) = read(BodyKind::Form, body, &attributes) else { return (true, None) };
        let pairs = body.split(|byte| *byte == b'&').map(|pair| {
            let mut sides = pair.splitn(2, |byte| *byte == b'=');
            (decode(sides.next().unwrap_or_default()), decode(sides.next().unwrap_or_default()))
        });
        let found: Vec<_> = pairs.filter(|(name, _)| name == b"user").map(|(_, value)| value).collect();
        assert!(found.len() < 2, "one of several fields was read");
        let expected = found.into_iter().next().filter(|value| !value.is_empty());
        assert_eq!(values[0], expected);
        (false, expected.map(|value| value.len().min(5)))
    });
}
