//! Decodes percent-escapes in paths, queries and cookies.

use std::borrow::Cow;

/// Parses the two hexadecimal digits at the start of `text` as a byte. `None` if there are not two digits.
pub fn hex_pair(text: &[u8]) -> Option<u8> {
    let digit = |at: usize| char::from(*text.get(at)?).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    Some(digit(0)? * 16 + digit(1)?)
}

/// Decodes a name or value of a query: `+` becomes a space, and an escape becomes the byte that it stands for.
pub(crate) fn decode_form(text: &[u8]) -> Cow<'_, [u8]> {
    if !text.contains(&b'+') {
        return decode(text);
    }
    let spaced: Vec<u8> = text.iter().map(|byte| if *byte == b'+' { b' ' } else { *byte }).collect();
    Cow::Owned(decode(&spaced).into_owned())
}

/// Decodes percent-escapes once. An invalid escape stays as it was sent.
pub fn decode(text: &[u8]) -> Cow<'_, [u8]> {
    if !text.contains(&b'%') {
        return Cow::Borrowed(text);
    }
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        decoded.push(match byte {
            b'%' => match hex_pair(tail) {
                Some(escaped) => {
                    rest = tail.get(2..).unwrap_or_default();
                    escaped
                }
                None => b'%',
            },
            _ => byte,
        });
    }
    Cow::Owned(decoded)
}
