//! Bytes and numbers in the text of a statement, and bytes in its answers. Only digits get into a text, and what marks them.

use crate::limit::percent::hex_pair;

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// An array of byte strings.
pub fn byte_strings<B: AsRef<[u8]>>(values: &[B]) -> String {
    let length: usize = values.iter().map(|value| 2 * value.as_ref().len() + 6).sum();
    let mut text = String::with_capacity(length + 16);
    // A backslash is itself, whatever the server is set to, only in a text that is marked.
    text.push_str("E'{");
    for (index, value) in values.iter().enumerate() {
        text.push_str(if index == 0 { r"\\\\x" } else { r",\\\\x" });
        for byte in value.as_ref() {
            for digit in [byte >> 4, byte & 15] {
                text.push(DIGITS.get(usize::from(digit)).map_or('0', |digit| char::from(*digit)));
            }
        }
    }
    text.push_str("}'::bytea[]");
    text
}

/// An array of integers.
pub fn integers(values: &[i64]) -> String {
    let values: Vec<String> = values.iter().map(i64::to_string).collect();
    format!("'{{{}}}'::bigint[]", values.join(","))
}

/// What `encode(…, 'hex')` has made of bytes.
pub fn decoded(digits: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    if rest.is_empty() { pairs.iter().map(|pair| hex_pair(pair)).collect() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_numbers_are_written_as_arrays() {
        assert_eq!(byte_strings(&[&[0, 255][..], &[], &[0x5c]]), r"E'{\\\\x00ff,\\\\x,\\\\x5c}'::bytea[]");
        assert_eq!(byte_strings::<&[u8]>(&[]), "E'{}'::bytea[]");
        assert_eq!(integers(&[1, i64::MAX, -2]), "'{1,9223372036854775807,-2}'::bigint[]");
    }

    #[test]
    fn bytes_are_read_from_digits() {
        assert_eq!(decoded("00fF5c"), Some(vec![0, 255, 0x5c]));
        assert_eq!(decoded(""), Some(Vec::new()));
        for wrong in ["0", "0g", "é", "+1", r"\x00"] {
            assert_eq!(decoded(wrong), None, "{wrong}");
        }
    }
}
