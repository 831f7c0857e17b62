//! Makes the problem of a text that is no YAML: its place, the words of the parser, and a hint.

use crate::language::likely_causes::{hint_for_unreadable, tab_in_indentation};
use crate::language::problem::Problem;
use crate::language::quotes::hint_for_quotes;
use crate::language::tree::{MAX_DEPTH, fault};
use base::position::Position;

/// Returns the problem that the parser has found at this position, worded like other problems.
pub(super) fn unreadable(text: &str, at: Position, info: &str) -> Problem {
    if info.contains("recursion") {
        return fault(at, format!("must be nested at most {MAX_DEPTH} deep"));
    }
    if info.contains("simple key") {
        // The parser reports the position of the token after the key. So the key is searched for before this
        // position.
        let before = text.lines().take(at.line.saturating_sub(1)).enumerate();
        let is_token = |line: &str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
        let key = before.filter(|(_, line)| is_token(line)).last();
        if let Some((index, line)) = key {
            let column = line.chars().take_while(|one| one.is_whitespace()).count() + 1;
            let hint = Some("a colon and a space follow a key: `KEY: VALUE`".to_owned());
            return Problem { hint, ..fault(Position { line: index + 1, column }, "must be a key with a value") };
        }
    }
    // The parser reports the value that the line with the tab continues.
    let tab = match info.contains("found a tab") {
        true => tab_in_indentation(text.lines().skip(at.line.saturating_sub(1))),
        false => None,
    };
    let at = tab.map_or(at, |(index, column)| Position { line: at.line + index, column });
    // Behind the last line there is an empty one.
    let lines: Vec<&str> = text.lines().chain(std::iter::repeat("")).take(at.line).collect();
    let here = lines.get(at.line.saturating_sub(1));
    let hint = here.and_then(|line| hint_for_quotes(line, at.column, info));
    let hint = hint.or_else(|| hint_for_unreadable(&lines, info));
    Problem { hint, ..fault(at, format!("must be YAML: {info}")) }
}
