//! Makes hints for text that is no YAML, or other YAML than its author meant: tabs, typographic quotes and dashes, a missing space
//! behind a colon, an alias that was meant as text.

/// Returns the hint for a place that the parser could not read. `lines` are the lines up to that place, the last of which has the
/// position. `None` if no cause is likely.
pub(crate) fn hint_for_unreadable(lines: &[&str], info: &str) -> Option<String> {
    let (line, before) = lines.split_last()?;
    if info.contains("tabs") {
        return Some("indent with spaces".to_owned());
    }
    if info.contains("unknown anchor") {
        return Some("`*` begins an alias: define its `&anchor` above, or put the text in quotes".to_owned());
    }
    if !info.contains("mapping values") && !info.contains("simple key") {
        return None;
    }
    let above = before.iter().rev().find(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#'));
    for line in [Some(line), above].into_iter().flatten() {
        let text = line.trim_start();
        if text.starts_with(['–', '—', '−', '•', '*']) {
            let dash: String = text.chars().take(1).collect();
            return Some(format!("an entry of a list begins with `- `, not with `{dash}`"));
        }
    }
    // Only the key is shown, because the value may be a secret.
    let entry = above?.trim_start().trim_start_matches("- ").trim_start();
    let (key, value) = entry.split_once(':')?;
    let is_key = !key.is_empty() && key.chars().all(|char| char.is_ascii_alphanumeric() || char == '_');
    (is_key && value.starts_with(|char: char| !char.is_whitespace() && char != '/'))
        .then(|| format!("in the line above, a space is missing behind `{key}:`"))
}

/// Returns the hint for a text that begins with a typographic quotation mark. `None` for any other text.
pub(crate) fn hint_for_quotation_marks(text: &str) -> Option<String> {
    text.starts_with(['“', '”', '„', '‘', '’', '«'])
        .then(|| "write `\"` in place of the typographic quotation marks".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_likely_cause_is_named() {
        let hint = |lines: &[&str], info: &str| hint_for_unreadable(lines, info);
        let values = "mapping values are not allowed in this context";
        let missing = |key: &str| Some(format!("in the line above, a space is missing behind `{key}:`"));
        assert_eq!(hint(&["rules:", "  - name:a", "", "    limit_keys: []"], values), missing("name"));
        assert_eq!(hint(&["password:hunter2", "user: a"], values), missing("password"));
        for line in ["name: a", "http://a", "- a"] {
            assert_eq!(hint(&[line, "b: c"], values), None, "{line}");
        }
        let dash = hint(&["rules:", "  – name: a", "    b: c"], values);
        assert_eq!(dash.as_deref(), Some("an entry of a list begins with `- `, not with `–`"));
        assert_eq!(hint(&["\ta: b"], "tabs disallowed").as_deref(), Some("indent with spaces"));
        assert_eq!(hint(&[], values), None);
    }
}
