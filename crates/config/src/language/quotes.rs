//! Makes hints for texts that need quotes in YAML, where the parser reports only what it expected instead.

use request::attribute::SPELLINGS;

/// Returns the hint for the first character of a line that the parser could not read, at this column. `None` if a missing pair of
/// quotes is not the likely cause. Values are not shown, because they may be secrets.
pub(crate) fn hint_for_quotes(line: &str, column: usize, info: &str) -> Option<String> {
    let at = line.char_indices().nth(column.checked_sub(1)?).map(|(at, _)| at)?;
    let (before, rest) = line.split_at_checked(at)?;
    let in_flow = info.contains("flow");
    if in_flow && before.ends_with('$') && rest.starts_with('{') {
        // The default behind the name may be a secret.
        let is_name = |byte: &char| byte.is_ascii_alphanumeric() || *byte == '_';
        let name: String = rest.chars().skip(1).take_while(is_name).collect();
        let rest = if rest.get(1 + name.len()..).is_some_and(|rest| rest.starts_with('}')) { "}" } else { "…}" };
        return Some(format!("in braces and brackets, a value with a variable needs quotes: \"${{{name}{rest}\""));
    }
    let inside = before.trim_end().ends_with(|char: char| !":,[{-".contains(char)) && rest.starts_with(['[', '{']);
    if in_flow && (inside || before.ends_with([']', '}']) && !rest.starts_with(char::is_whitespace)) {
        return Some("in braces and brackets, a text with a brace or bracket in it needs quotes".to_owned());
    }
    let in_value = in_flow || info.contains("mapping values") && before.contains(": ");
    if !rest.starts_with(": ") || !in_value {
        return None;
    }
    let mut words = before.rsplit([' ', ',', '{', '[', '"']);
    let kind = words.next()?;
    if let Some(above) = words.next().and_then(|word| word.strip_suffix(':')).filter(|word| is_kind_of_attribute(word))
    {
        return Some(format!("an attribute has no space after its colon: `{above}:{kind}`"));
    }
    Some(match is_kind_of_attribute(kind) {
        true => format!("an attribute has no space after its colon: `{kind}:<name>`"),
        false => "a text with a colon and a space in it needs quotes".to_owned(),
    })
}

/// Whether attributes begin with this word and a colon.
pub(crate) fn is_kind_of_attribute(word: &str) -> bool {
    SPELLINGS.iter().any(|spelling| spelling.split_once(':').is_some_and(|(kind, _)| kind == word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_not_shown() {
        let line = "store: {redis: {url: redis://a, password: hunter: 2}}";
        let column = line.find("hunter").unwrap() + "hunter".len() + 1;
        let hint = hint_for_quotes(line, column, "while parsing a flow mapping");
        assert_eq!(hint.as_deref(), Some("a text with a colon and a space in it needs quotes"));
        for column in [0, 1, 8, 1000] {
            assert_eq!(hint_for_quotes(line, column, "while parsing a flow mapping"), None, "{column}");
        }
        for (line, shown) in
            [("{p: ${P:-hunter2}}", "\"${P…}\""), ("{p: ${P}}", "\"${P}\""), ("{p: ${P, q: hunter2}", "\"${P…}\"")]
        {
            let column = line.find('$').unwrap() + 2;
            let hint = hint_for_quotes(line, column, "while parsing a flow mapping").unwrap();
            assert!(hint.ends_with(shown) && !hint.contains("hunter2"), "{hint}");
        }
    }
}
