//! Prints lists of names for reports, and suggests the name that a misspelled name may stand for.

/// A name of up to this length is suggested only if it differs from the text by one letter at most.
const SHORT: usize = 5;

/// Returns the hint ``did you mean `x`?`` with the most similar of `names`. `None` if no name is similar enough.
pub(crate) fn nearest(text: &str, names: &[&str]) -> Option<String> {
    nearest_name(text, names).map(|name| format!("did you mean `{name}`?"))
}

/// Returns the most similar of `names`. `None` if no name is similar enough, or if two names are equally similar.
pub(crate) fn nearest_name<'n>(text: &str, names: &[&'n str]) -> Option<&'n str> {
    let distance = |name: &&'n str| strsim::osa_distance(text, name);
    if let Some(same) = names.iter().find(|name| name.eq_ignore_ascii_case(text)) {
        return Some(same);
    }
    let best = names.iter().copied().min_by_key(distance)?;
    let length = best.chars().count();
    // With two changed letters, a short name is a different word.
    let most = if length <= SHORT { 1 } else { 1 + length / 4 };
    let is_alone = !names.iter().any(|other| *other != best && distance(other) == distance(&best));
    (distance(&best) <= most.min(length.saturating_sub(1)) && is_alone && !text.is_empty()).then_some(best)
}

/// Words of other programs, and the word for each here.
const OTHER_WORDS: [(&[&str], &str); 6] = [
    (&["dry_run", "dry-run", "dryrun", "monitor", "observe", "report", "log_only", "permissive"], "shadow"),
    (&["on", "active", "enabled", "block", "strict", "live"], "enforce"),
    (&["block", "reject", "refuse", "drop", "forbid", "fail_closed", "closed", "close", "503"], "deny"),
    (&["pass", "permit", "accept", "skip", "bypass", "fail_open", "open", "ignore"], "allow"),
    (&["verbose", "all"], "debug"),
    (&["warning"], "warn"),
];

/// Returns the hint with the one of `words` that has the meaning of `text` in other programs. `None` if no word has it.
pub(crate) fn word_of_others(text: &str, words: &[&str]) -> Option<String> {
    let text = text.to_ascii_lowercase();
    let means = |(others, ours): &&(&[&str], &str)| others.contains(&&*text) && words.contains(ours);
    OTHER_WORDS.iter().find(means).map(|(_, ours)| format!("did you mean `{ours}`?"))
}

/// Returns a hint with the most similar spelling, such as `jwt:<claim>`, and the name in `text`. `None` if no spelling
/// is similar enough.
pub(crate) fn nearest_spelling(text: &str, spellings: &[&str]) -> Option<String> {
    let name = text.split_once(':').map_or("", |(_, name)| name);
    let possible = |spelling: &&&str| !name.is_empty() || !spelling.contains('<');
    let filled = |spelling: &&str| {
        spelling.replace("<name>", name).replace("<claim>", name).replace("<n>", name).replace("<column>", name)
    };
    let spellings: Vec<String> = spellings.iter().filter(possible).map(filled).collect();
    nearest(text, &spellings.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Joins the names into a list in words, such as `a, b or c`.
pub(crate) fn listed(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [most @ .., last] => format!("{} or {last}", most.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_names_only_what_is_similar() {
        let names = ["limit_keys", "algorithm", "match"];
        assert_eq!(nearest("limit_key", &names).as_deref(), Some("did you mean `limit_keys`?"));
        assert_eq!(nearest("algoritm", &names).as_deref(), Some("did you mean `algorithm`?"));
        assert_eq!(nearest("colour", &names), None);
        // For short names, two wrong letters are too many.
        let short = ["cors", "name", "limits"];
        assert_eq!(nearest("port", &short), None);
        assert_eq!(nearest("rate", &short), None);
        assert_eq!(nearest("cor", &short).as_deref(), Some("did you mean `cors`?"));
        // A wrong text of one letter gets no suggestion. A text that differs only in capitals gets a suggestion.
        assert_eq!(nearest("b", &["a", "long"]), None);
        assert_eq!(nearest("hs256", &["HS256", "RS256"]).as_deref(), Some("did you mean `HS256`?"));
        // If two names are equally similar, no name is suggested.
        assert_eq!(nearest("fsync", &["none", "async", "sync"]), None);
    }

    #[test]
    fn a_hint_for_an_attribute_keeps_the_name_after_the_colon() {
        let spellings = ["header:<name>", "query:<name>", "fixed"];
        assert_eq!(nearest_spelling("heder:x-cost", &spellings).as_deref(), Some("did you mean `header:x-cost`?"));
        assert_eq!(nearest_spelling("fixd", &spellings).as_deref(), Some("did you mean `fixed`?"));
    }
}
