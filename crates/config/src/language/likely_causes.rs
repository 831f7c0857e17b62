//! Makes hints for text that is no YAML, or other YAML than its author meant: tabs, typographic quotes and dashes, a missing space
//! behind a colon, an alias that was meant as text.

/// Likely causes of messages of the parser: a part of the message, and the hint.
const CAUSES: [(&str, &str); 8] = [
    ("must be followed by a valid YAML whitespace", "write a space in place of the tab"),
    ("tab", "indent with spaces"),
    ("unknown anchor", "`*` begins an alias: define its `&anchor` above, or put the text in quotes"),
    ("alphabetic or numeric", "`*` begins an alias and `&` an anchor: put such a text in quotes"),
    ("unexpected character: `", "a text that begins with this character needs quotes"),
    ("a quoted scalar, found unexpected end", "this quotation mark is not closed"),
    ("indentation in quoted scalar", "this quotation mark is not closed, or its text is not indented"),
    ("expected '-' indicator", "all keys of an entry begin in the same column, behind the `- `"),
];

/// Returns the hint for a place that the parser could not read. `lines` are the lines up to that place, the last of which has the
/// position. `None` if no cause is likely.
pub(crate) fn hint_for_unreadable(lines: &[&str], info: &str) -> Option<String> {
    let (line, before) = lines.split_last()?;
    if let Some((_, hint)) = CAUSES.iter().find(|(part, _)| info.contains(part)) {
        return Some((*hint).to_owned());
    }
    if info.contains("flow") || info == "invalid indentation" {
        return hint_for_open_bracket(lines);
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

/// Returns the first tab that indents one of these lines: the index of the line, and the column.
pub(crate) fn tab_in_indentation<'t>(lines: impl Iterator<Item = &'t str>) -> Option<(usize, usize)> {
    let tab = |line: &str| line.chars().take_while(|char| char.is_whitespace()).position(|char| char == '\t');
    lines.enumerate().find_map(|(index, line)| Some((index, tab(line)? + 1)))
}

/// Returns the hint for a brace or bracket that is open at the end of these lines, and begins in a line before the last.
fn hint_for_open_bracket(lines: &[&str]) -> Option<String> {
    let mut open: Vec<(char, usize, usize)> = Vec::new();
    for (line, text) in (1..).zip(lines) {
        let mut quote = None;
        let mut before = ' ';
        for (column, char) in (1..).zip(text.chars()) {
            let begins = before.is_whitespace() || matches!(before, '[' | '{' | ',' | ':');
            match (quote, char) {
                (Some(mark), _) if char == mark => quote = None,
                (Some(_), _) => {}
                (None, '"' | '\'') if begins => quote = Some(char),
                (None, '#') if before.is_whitespace() => break,
                (None, '[' | '{') => open.push((char, line, column)),
                (None, ']' | '}') => drop(open.pop()),
                _ => {}
            }
            before = char;
        }
    }
    let (bracket, line, column) = open.pop().filter(|(_, line, _)| *line < lines.len())?;
    let is_cut = lines.get(line - 1).is_some_and(|text| text.contains(" #"));
    let cut = if is_cut { ": a ` #` in a text begins a comment, so the text needs quotes" } else { "" };
    Some(format!("the `{bracket}` in line {line}, column {column}, is not closed{cut}"))
}

/// Returns the hint for an unknown key that is the name of a key and its value, without a space between them. `None` for any other
/// key.
pub(crate) fn hint_for_missing_space(key: &str, names: &[&str]) -> Option<String> {
    let (name, _) = key.split_once(':')?;
    names.contains(&name).then(|| format!("a space is missing behind `{name}:`"))
}

/// Returns the hint for a text in typographic quotation marks, or for a variable without braces. `None` for any other text.
pub(crate) fn hint_for_text(text: &str) -> Option<String> {
    if text.starts_with(['“', '”', '„', '‘', '’', '«']) {
        return Some("write `\"` in place of the typographic quotation marks".to_owned());
    }
    let name = text.strip_prefix('$').filter(|name| name.starts_with(|char: char| char.is_ascii_uppercase()))?;
    let is_name = name.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_');
    is_name.then(|| format!("a variable is written in braces: `${{{name}}}`"))
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
        let flow = "while parsing a flow mapping, did not find expected ',' or '}'";
        let open = hint(&["a: [b]", "c: {d: \"}\", e: f", "g: h"], flow);
        assert_eq!(open.as_deref(), Some("the `{` in line 2, column 4, is not closed"));
        assert!(hint(&["c: {d: /a #b}", ""], flow).unwrap().ends_with("begins a comment, so the text needs quotes"));
        assert_eq!(hint(&["a: {b: c}", "d: {e f: g}"], flow), None);
        assert_eq!(hint(&[], values), None);
    }
}
