//! Holds a value of the access log that is not a pseudonym. A long value is cut off.

use serde::{Deserialize, Serialize};

/// A value of a request, as the access log shows it. Only the beginning of a long value is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LoggedText(String);

impl LoggedText {
    /// The largest number of bytes of a value that are kept.
    const MAX_BYTES: usize = 256;
    /// The mark at the end of a value that was cut off.
    const CUT: char = '…';

    /// Makes a logged value. Bytes that are not UTF-8 are replaced, and a long value is cut.
    pub fn of(value: &[u8]) -> LoggedText {
        let text = String::from_utf8_lossy(value.get(..Self::MAX_BYTES).unwrap_or(value));
        match value.len() > Self::MAX_BYTES {
            // If a character was cut in two, its first part is left out.
            true => LoggedText(format!("{}{}", text.trim_end_matches(char::REPLACEMENT_CHARACTER), Self::CUT)),
            false => LoggedText(text.into_owned()),
        }
    }

    pub fn text(&self) -> &str {
        &self.0
    }

    /// Returns the value if it is complete. `None` if a part of the value was cut off or replaced.
    pub fn whole(&self) -> Option<&str> {
        let is_partial = self.0.ends_with(Self::CUT) || self.0.contains(char::REPLACEMENT_CHARACTER);
        (!is_partial).then_some(&*self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::LoggedText;

    #[test]
    fn a_long_value_is_cut_between_characters_and_is_not_whole() {
        let whole = |value: &[u8]| LoggedText::of(value).whole().map(str::to_owned);
        assert_eq!(whole(b"/a/b").as_deref(), Some("/a/b"));
        let long = "é".repeat(128);
        assert_eq!(whole(long.as_bytes()), Some(long.clone()));
        let cut = LoggedText::of(format!("x{long}").as_bytes());
        assert_eq!(cut.text(), format!("x{}…", "é".repeat(127)));
        assert_eq!((cut.whole(), whole(b"a\xff")), (None, None));
    }
}
