//! Makes text safe for terminals and logs: escapes characters that control a terminal, end a line, reorder text or are
//! invisible.

use std::fmt::{self, Display, Write};

use serde::Serialize;

/// Displays a value as one line: every [hidden](is_hidden) character is escaped, also a line break. Backslashes are not
/// escaped, so that no text is escaped twice.
#[derive(Clone, Copy, Debug)]
pub struct Printable<T>(pub T);

impl<T: Display> Display for Printable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(EscapingWriter(f), "{}", self.0)
    }
}

struct EscapingWriter<'f, 'w>(&'f mut fmt::Formatter<'w>);

impl Write for EscapingWriter<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for part in text.split_inclusive(is_hidden) {
            match part.chars().next_back().filter(|last| is_hidden(*last)) {
                None => self.0.write_str(part)?,
                Some(hidden) => {
                    self.0.write_str(part.strip_suffix(hidden).unwrap_or_default())?;
                    match hidden {
                        '\n' | '\r' | '\t' => write!(self.0, "{}", hidden.escape_default())?,
                        _ => write!(self.0, "{}", hidden.escape_unicode())?,
                    }
                }
            }
        }
        Ok(())
    }
}

/// Appends a value to `out` as JSON. Every hidden character is written as a JSON escape, which a JSON parser decodes.
///
/// # Errors
///
/// If the value cannot be written as JSON. `out` is then unchanged.
pub fn write_json(out: &mut Vec<u8>, value: &impl Serialize) -> serde_json::Result<()> {
    let start = out.len();
    if let Err(error) = serde_json::to_writer(&mut *out, value) {
        out.truncate(start);
        return Err(error);
    }
    // Most texts have only bytes below 0x7f. They need no more escapes, because JSON escapes the control characters
    // below 0x20.
    if out.get(start..).is_some_and(|json| !json.iter().all(|byte| *byte < 0x7f)) {
        let json = String::from_utf8_lossy(&out.split_off(start)).into_owned();
        out.extend_from_slice(printable_json(&json).as_bytes());
    }
    Ok(())
}

/// Returns the JSON document `json` with every hidden character in its strings escaped. Between values, line breaks are kept,
/// and tabs and carriage returns become spaces.
pub fn printable_json(json: &str) -> String {
    let mut printable = String::with_capacity(json.len());
    for character in json.chars() {
        match character {
            '\n' => printable.push('\n'),
            '\r' | '\t' => printable.push(' '),
            _ if is_hidden(character) => {
                let mut units = [0; 2];
                for unit in character.encode_utf16(&mut units) {
                    let _ = write!(printable, "\\u{unit:04x}");
                }
            }
            _ => printable.push(character),
        }
    }
    printable
}

/// Returns a text in Prometheus' exposition format with every hidden character escaped, except for line breaks. A
/// hidden character in the value of a label becomes a text such as `\u{1b}`.
pub fn printable_exposition(text: String) -> String {
    if !text.contains(|character| character != '\n' && is_hidden(character)) {
        return text;
    }
    let mut printable = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            _ if character != '\n' && is_hidden(character) => {
                // In this format, the backslash of an escape is itself escaped.
                let _ = write!(printable, "\\{}", character.escape_unicode());
            }
            _ => printable.push(character),
        }
    }
    printable
}

/// Whether a character is not plainly visible: it controls a terminal, ends a line, looks like a space, reorders text or has no
/// width. The space itself is not hidden.
pub fn is_hidden(character: char) -> bool {
    match character {
        ' '..='~' => false,
        _ => character.is_control() || character.is_whitespace() || is_ignorable(character),
    }
}

/// Whether Unicode calls a character `Format` or `Default_Ignorable_Code_Point`. These characters set directions, join
/// or separate other characters, or are invisible.
fn is_ignorable(character: char) -> bool {
    matches!(
        character,
        '\u{ad}'
            | '\u{34f}'
            | '\u{600}'..='\u{605}'
            | '\u{61c}'
            | '\u{6dd}'
            | '\u{70f}'
            | '\u{890}'..='\u{891}'
            | '\u{8e2}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}'
            | '\u{110bd}'
            | '\u{110cd}'
            | '\u{13430}'..='\u{1343f}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(Printable(text).to_string(), expected);
        assert_eq!(Printable(format_args!("`{text}`")).to_string(), format!("`{expected}`"));
    }

    #[test]
    fn visible_characters_are_kept() {
        for text in ["", "a b", "`\"'\\ \\u{1b} {}~", "é e\u{301} 漢字 → עברית ไทย \u{1f600}"] {
            check(text, text);
        }
    }

    #[test]
    fn characters_that_control_a_terminal_or_end_a_line_are_escaped() {
        check("a\u{1b}[2Jb", "a\\u{1b}[2Jb");
        check("\r\n\tok\0\u{7}\u{8}", "\\r\\n\\tok\\u{0}\\u{7}\\u{8}");
        check("\u{7f}\u{80}\u{85}\u{9b}31m\u{9f}", "\\u{7f}\\u{80}\\u{85}\\u{9b}31m\\u{9f}");
        check("\u{2028}\u{2029}", "\\u{2028}\\u{2029}");
    }

    #[test]
    fn characters_that_reorder_or_have_no_width_are_escaped() {
        check("\u{202e}cba\u{2066}\u{2069}\u{61c}", "\\u{202e}cba\\u{2066}\\u{2069}\\u{61c}");
        check("burst\u{200b}\u{200d}\u{feff}\u{ad}\u{fe0f}", "burst\\u{200b}\\u{200d}\\u{feff}\\u{ad}\\u{fe0f}");
        check("a\u{a0}b\u{3000}\u{e0041}", "a\\u{a0}b\\u{3000}\\u{e0041}");
    }

    #[test]
    fn json_has_no_hidden_character_and_the_same_values() {
        let value = json!({"a\u{9b}": ["\u{7f}\u{1b}\n", "\u{202e}é", "\u{e0041}", 1]});
        let mut out = b"before".to_vec();
        write_json(&mut out, &value).unwrap();
        let expected = r#"before{"a\u009b":["\u007f\u001b\n","\u202eé","\udb40\udc41",1]}"#;
        assert_eq!(String::from_utf8(out).unwrap(), expected);
        let spaced = "{\r\t\"a\u{9b}\": [\n1]}";
        assert_eq!(printable_json(spaced), "{  \"a\\u009b\": [\n1]}");
    }

    #[test]
    fn labels_of_metrics_have_no_hidden_character() {
        let text = "# HELP a b\na{issuer=\"\u{1b}[2Jé\u{202e}\\n\\\\\"} 1\n";
        let expected = "# HELP a b\na{issuer=\"\\\\u{1b}[2Jé\\\\u{202e}\\n\\\\\"} 1\n";
        assert_eq!(printable_exposition(text.to_owned()), expected);
        assert_eq!(printable_exposition("a 1\n".to_owned()), "a 1\n");
    }

    #[test]
    fn a_value_that_json_cannot_express_writes_nothing() {
        let mut out = b"before".to_vec();
        let map = std::collections::BTreeMap::from([((), 1)]);
        assert!(write_json(&mut out, &map).is_err());
        assert_eq!(out, b"before");
    }

    proptest! {
        #[test]
        fn any_text_becomes_one_visible_line(text in any::<String>()) {
            assert!(!Printable(&text).to_string().contains(is_hidden));
            let mut json = Vec::new();
            write_json(&mut json, &text).unwrap();
            let json = String::from_utf8(json).unwrap();
            assert!(!json.contains(is_hidden), "{json:?}");
            assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
        }
    }
}
