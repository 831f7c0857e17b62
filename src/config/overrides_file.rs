//! Parses the file of `overrides_file`: a mapping as under `overrides`, or a table with a line for each value.

use super::overrides::OverriddenLimit;
use super::problem::Report;
use super::suggest::{listed, nearest};
use super::tree;
use super::tree::{Entry, Node, Scalar, Style, TreeBounds, Value};
use crate::base::position::Position;

/// The most overrides of a file.
pub const MOST_ENTRIES: usize = 100_000;
/// Of a file in YAML: several numbers for each of several limits.
const YAML: TreeBounds = TreeBounds { nodes: 2_000_000, bytes: 64 << 20 };
/// The column with what an override is for.
const VALUE: &str = "value";
/// Of these, a limit has one.
const RATES: [&str; 3] = ["rps", "tokens_per_second", "rate"];

/// The overrides of a file as if they stood in the rule: a mapping from values to numbers, without the lines that are no
/// override, which are reported. `None` after reporting that the rest says nothing.
pub fn parse(file: &str, content: &[u8], limits: &[OverriddenLimit<'_, '_>], report: &Report) -> Option<Node> {
    let is_table = file.to_ascii_lowercase().ends_with(".csv");
    let tree = if is_table { Table { limits, report }.parse(content) } else { mapping(content, report) }?;
    let Value::Map(entries) = &tree.value else {
        report.add(tree.position, "", format!("must be a mapping from values to numbers, is {}", tree.found()));
        return None;
    };
    if let Some(extra) = entries.get(MOST_ENTRIES) {
        let what = format!("is one override too many: at most {MOST_ENTRIES}, there are {}", entries.len());
        report.add(extra.key_position, "", what);
        return None;
    }
    Some(tree)
}

fn mapping(content: &[u8], report: &Report) -> Option<Node> {
    // An empty file has no overrides.
    if content.iter().all(u8::is_ascii_whitespace) {
        return Some(Node { position: Position { line: 1, column: 1 }, value: Value::Map(Vec::new()) });
    }
    match tree::read_within(YAML, content, report) {
        Ok(tree) => Some(tree),
        Err(problem) => {
            report.add(problem.position.unwrap_or(Position { line: 1, column: 1 }), problem.path, problem.what);
            None
        }
    }
}

/// Reads lines of cells, of which the first names the columns.
#[derive(Clone, Copy)]
struct Table<'t> {
    limits: &'t [OverriddenLimit<'t, 't>],
    report: &'t Report,
}

enum Column {
    /// What an override is for.
    Value,
    /// A number of the limit at this index.
    Number { limit: usize, key: String },
}

/// A cell without its quotes.
struct Cell {
    text: String,
    position: Position,
}

impl Table<'_> {
    fn parse(self, content: &[u8]) -> Option<Node> {
        let content = content.strip_prefix(b"\xef\xbb\xbf").unwrap_or(content);
        let (mut columns, mut entries) = (None, Vec::new());
        for (line, text) in (1..).zip(content.split(|byte| *byte == b'\n')) {
            match (self.cells(line, text), &columns) {
                (None, _) => {}
                (Some(cells), _) if cells.is_empty() => {}
                (Some(cells), None) => columns = Some(self.columns(&cells)?),
                (Some(cells), Some(columns)) => entries.extend(self.entry(line, cells, columns)),
            }
        }
        let position = Position { line: 1, column: 1 };
        if columns.is_none() {
            self.report.add(
                position,
                "",
                format!("must begin with a line that names its columns, such as {}", self.example()),
            );
            return None;
        }
        Some(Node { position, value: Value::Map(entries) })
    }

    /// The cells of a line; of one that is empty or a comment none.
    fn cells(self, line: usize, text: &[u8]) -> Option<Vec<Cell>> {
        let start = Position { line, column: 1 };
        let Ok(text) = std::str::from_utf8(text.strip_suffix(b"\r").unwrap_or(text)) else {
            self.report.add(start, "", "must be UTF-8");
            return None;
        };
        let mut cells = Vec::new();
        if text.trim().is_empty() || text.starts_with('#') {
            return Some(cells);
        }
        let mut rest = text;
        loop {
            let column = text.get(..text.len() - rest.len()).map_or(0, |before| before.chars().count()) + 1;
            let position = Position { line, column };
            let (cell, after) = match rest.trim_start().strip_prefix('"') {
                Some(quoted) => {
                    let Some((cell, after)) = unquoted(quoted) else {
                        self.report.add(
                            position,
                            "",
                            "must end with a quote and be followed by a comma, or by the end of the line",
                        );
                        return None;
                    };
                    (cell, after)
                }
                None => match rest.split_once(',') {
                    Some((cell, after)) => (cell.trim().to_owned(), Some(after)),
                    None => (rest.trim().to_owned(), None),
                },
            };
            cells.push(Cell { text: cell, position });
            match after {
                Some(after) => rest = after,
                None => return Some(cells),
            }
        }
    }

    fn columns(self, header: &[Cell]) -> Option<Vec<Column>> {
        let mut columns = Vec::new();
        let mut correct = Some(());
        let names = self.names();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        for (index, Cell { text, position }) in header.iter().enumerate() {
            let is_again = header.iter().take(index).any(|before| before.text == *text);
            let (limit, key) = text.rsplit_once('.').unwrap_or(("", text));
            let limit = self.limits.iter().position(|known| known.name == limit);
            match limit {
                _ if is_again => self.report.add(*position, "", format!("`{}` is there twice", text.escape_debug())),
                _ if text == VALUE => {
                    columns.push(Column::Value);
                    continue;
                }
                Some(limit) if names.contains(&&**text) => {
                    columns.push(Column::Number { limit, key: key.to_owned() });
                    continue;
                }
                _ => {
                    let what = format!("`{}` is not one of the columns: {}", text.escape_debug(), listed(&names));
                    self.report.add_with_hint(*position, "", what, nearest(text, &names));
                }
            }
            correct = None;
        }
        if !header.iter().any(|cell| cell.text == VALUE) {
            let what = format!("must have a column `{VALUE}`, such as {}", self.example());
            self.report.add(Position { line: header.first()?.position.line, column: 1 }, "", what);
            return None;
        }
        correct.map(|()| columns)
    }

    /// The columns that there may be.
    fn names(self) -> Vec<String> {
        let of_limit = |limit: &OverriddenLimit<'_, '_>| {
            let mut keys = limit.numbers.keys();
            // `unlimited` may stand there.
            if !keys.contains(&"limit") {
                keys.push("limit");
            }
            let name = limit.name.to_owned();
            keys.into_iter().map(move |key| if name.is_empty() { key.to_owned() } else { format!("{name}.{key}") })
        };
        std::iter::once(VALUE.to_owned()).chain(self.limits.iter().flat_map(of_limit)).collect()
    }

    fn example(self) -> String {
        let number = self
            .limits
            .first()
            .map_or("limit", |limit| if limit.numbers.keys().contains(&"rps") { "rps" } else { "limit" });
        match self.limits.first() {
            Some(limit) if !limit.name.is_empty() => format!("`{VALUE},{}.{number}`", limit.name),
            _ => format!("`{VALUE},{number}`"),
        }
    }

    /// The override of one line.
    fn entry(self, line: usize, cells: Vec<Cell>, columns: &[Column]) -> Option<Entry> {
        if cells.len() != columns.len() {
            let what = format!("must have {} cells, as the first line, has {}", columns.len(), cells.len());
            self.report.add(Position { line, column: 1 }, "", what);
            return None;
        }
        let start = Position { line, column: 1 };
        let mut value = None;
        let mut numbers: Vec<Vec<Entry>> = self.limits.iter().map(|_| Vec::new()).collect();
        for (cell, column) in cells.into_iter().zip(columns) {
            match column {
                Column::Value => value = Some(cell),
                Column::Number { .. } if cell.text.is_empty() => {}
                Column::Number { limit, key } => {
                    let node = scalar(cell.text, cell.position);
                    numbers.get_mut(*limit)?.push(Entry { key: key.clone(), key_position: cell.position, value: node });
                }
            }
        }
        let Cell { text: value, position: key_position } = value?;
        let whole = |numbers, limit: &OverriddenLimit<'_, '_>| Node {
            position: start,
            value: Value::Map(completed(numbers, limit, start)),
        };
        let mut of_limits = numbers.into_iter().zip(self.limits);
        let node = match self.limits {
            [only] if only.name.is_empty() => whole(of_limits.next()?.0, only),
            _ => {
                // A limit without a number in this line has no override.
                let named = of_limits.filter(|(numbers, _)| !numbers.is_empty()).map(|(numbers, limit)| Entry {
                    key: limit.name.to_owned(),
                    key_position: start,
                    value: whole(numbers, limit),
                });
                let named: Vec<Entry> = named.collect();
                if named.is_empty() {
                    self.report.add(start, "", "must have a number for one of the limits");
                    return None;
                }
                Node { position: start, value: Value::Map(named) }
            }
        };
        Some(Entry { key: value, key_position, value: node })
    }
}

/// The text of a cell after its first quote, and what follows its comma, if one does.
fn unquoted(text: &str) -> Option<(String, Option<&str>)> {
    let mut cell = String::new();
    let mut rest = text;
    loop {
        let (before, after) = rest.split_once('"')?;
        cell.push_str(before);
        if let Some(after) = after.strip_prefix('"') {
            cell.push('"');
            rest = after;
            continue;
        }
        let after = after.trim_start();
        return match after.strip_prefix(',') {
            Some(after) => Some((cell, Some(after))),
            None => after.is_empty().then_some((cell, None)),
        };
    }
}

/// Each cell has whatever type its column requires.
fn scalar(text: String, position: Position) -> Node {
    Node { position, value: Value::Scalar(Scalar { text, style: Style::Reference }) }
}

/// The numbers of a line, with those of the limit where a cell is empty.
fn completed(mut numbers: Vec<Entry>, limit: &OverriddenLimit<'_, '_>, start: Position) -> Vec<Entry> {
    if numbers.iter().any(|entry| entry.key == "limit" && entry.value.value == unlimited()) {
        return numbers;
    }
    let keys = limit.numbers.keys();
    let has = |numbers: &[Entry], key: &str| numbers.iter().any(|entry| entry.key == key);
    let has_rate = numbers.iter().any(|entry| RATES.contains(&&*entry.key));
    for Entry { key, value, .. } in limit.written.iter().filter(|entry| keys.contains(&&*entry.key)) {
        if has(&numbers, key) || (has_rate && RATES.contains(&&**key)) {
            continue;
        }
        // A number that comes from requests has a default.
        let default = match &value.value {
            Value::Map(claimed) => claimed.iter().find(|entry| entry.key == "default").map(|entry| &entry.value),
            Value::Scalar(_) | Value::List(_) => Some(value),
        };
        if let Some(default) = default {
            let value = Node { position: start, value: default.value.clone() };
            numbers.push(Entry { key: key.clone(), key_position: start, value });
        }
    }
    // Where the limit's burst is that of its `rate`.
    if keys.contains(&"burst")
        && !has(&numbers, "burst")
        && !has(&numbers, "rate")
        && let Some(Value::Scalar(rate)) =
            limit.written.iter().find(|entry| entry.key == "rate").map(|entry| &entry.value.value)
        && let Some((burst, _)) = rate.text.split_once('/')
    {
        let value = scalar(burst.trim().to_owned(), start);
        numbers.push(Entry { key: "burst".to_owned(), key_position: start, value });
    }
    numbers
}

fn unlimited() -> Value {
    Value::Scalar(Scalar { text: "unlimited".to_owned(), style: Style::Reference })
}
