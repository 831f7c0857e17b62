//! Parses the file of `overrides_file`: a mapping as under `overrides`, or a table with one line for each value.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::ControlFlow;

use smallvec::SmallVec;

use crate::keys::rules::overrides::{NumbersByLimit, OverriddenLimit, ReadNumbers};
use crate::language::problem::Report;
use crate::language::reader::Field;
use crate::language::suggest::{listed, nearest};
use crate::language::tree;
use crate::language::tree::{Entry, Node, Scalar, Style, TreeBounds, Value};
use base::position::Position;

/// The largest number of overrides in a file.
const MOST_ENTRIES: usize = 100_000;
/// The bounds of a YAML file. An override may have several numbers for each of several limits.
const YAML: TreeBounds = TreeBounds { nodes: 2_000_000, bytes: 64 << 20 };
/// The name of the column with the value to which an override applies.
const VALUE: &str = "value";
/// The keys for a rate. A limit has only one of them.
const RATES: [&str; 3] = ["rps", "tokens_per_second", "rate"];
const START: Position = Position { line: 1, column: 1 };

/// A file of overrides, with what is needed to read it.
#[derive(Clone, Copy)]
pub(crate) struct Source<'s> {
    pub file: &'s str,
    pub content: &'s [u8],
    pub limits: &'s [OverriddenLimit<'s, 's>],
    pub read: ReadNumbers<'s>,
    /// The report that collects the problems of this file.
    pub report: &'s Report,
}

/// Receives the value, the position and the numbers of an override. Invalid numbers have been reported and are `None`.
type TakeEntry<'e> = &'e mut dyn FnMut(&str, Position, Option<NumbersByLimit>) -> ControlFlow<()>;

impl Source<'_> {
    /// Passes every valid override of the file to `take`, until `take` returns `Break`. Returns the number of
    /// overrides. `None` after reporting that the file as a whole is invalid.
    pub(crate) fn each(self, take: TakeEntry<'_>) -> Option<usize> {
        if self.file.to_ascii_lowercase().ends_with(".csv") { self.lines(take) } else { self.mapping(take) }
    }

    /// Returns the number of overrides. Reports a file with too many, at the first override beyond the bound.
    fn check_count(self, count: usize, extra: Option<Position>) -> Option<usize> {
        match extra {
            None => Some(count),
            Some(position) => {
                let what = format!("is one override too many: at most {MOST_ENTRIES}, there are {count}");
                self.report.add(position, "", what);
                None
            }
        }
    }

    fn mapping(self, take: TakeEntry<'_>) -> Option<usize> {
        // An empty file is not a mapping, but it is accepted as a file without overrides.
        if self.content.iter().all(u8::is_ascii_whitespace) {
            return Some(0);
        }
        let tree = match tree::read_within(YAML, self.content, self.report) {
            Ok(tree) => tree,
            Err(problem) => {
                self.report.add(problem.position.unwrap_or(START), problem.path, problem.what);
                return None;
            }
        };
        let Value::Map(entries) = &tree.value else {
            // A text is not shown: the file may be a secret, named by mistake.
            let found = if matches!(tree.value, Value::Scalar(_)) { "text".to_owned() } else { tree.found() };
            let what = format!("must be a mapping from values to numbers, is {found}");
            self.report.add(tree.position, "", what);
            return None;
        };
        let count = self.check_count(entries.len(), entries.get(MOST_ENTRIES).map(|extra| extra.key_position))?;
        for (text, position, field) in Field::root(&tree, self.report).pairs()? {
            if take(text, position, (self.read)(field)).is_break() {
                break;
            }
        }
        Some(count)
    }

    fn lines(self, take: TakeEntry<'_>) -> Option<usize> {
        let content = self.content.strip_prefix(b"\xef\xbb\xbf").unwrap_or(self.content);
        let numbered = (1..).zip(content.split(|byte| *byte == b'\n'));
        let mut lines = numbered.filter_map(|(number, text)| Line::new(number, text, self.report));
        let table = Table { source: self, columns: Vec::new() };
        let Some(header) = lines.next() else {
            let what = format!("must begin with a line that names its columns, such as {}", table.example());
            self.report.add(START, "", what);
            return None;
        };
        let columns = table.columns(&header, &header.cells(self.report)?)?;
        let table = Table { columns, ..table };
        let lines: Vec<Line<'_>> = lines.collect();
        let extra = lines.get(MOST_ENTRIES).map(|line| line.start());
        let count = self.check_count(lines.len(), extra)?;
        // Equal numbers, such as the numbers of many customers with one tariff, are read only once.
        let mut known: HashMap<String, NumbersByLimit> = HashMap::new();
        let mut numbers_text = String::new();
        for line in lines {
            let Some(cells) = table.cells(&line) else { continue };
            let Some(value) = table.value(&cells) else { continue };
            numbers_text.clear();
            for (cell, _) in
                cells.iter().zip(&table.columns).filter(|(_, column)| matches!(column, Column::Number { .. }))
            {
                numbers_text.push_str(&cell.text);
                // Line breaks separate the numbers, because no cell contains a line break.
                numbers_text.push('\n');
            }
            let numbers = known.get(&numbers_text).cloned().or_else(|| {
                let numbers = table.numbers(&line, &cells, &value.text)?;
                known.insert(numbers_text.clone(), numbers.clone());
                Some(numbers)
            });
            if take(&value.text, line.position(value), numbers).is_break() {
                break;
            }
        }
        Some(count)
    }
}

/// A line that is neither empty nor a comment.
#[derive(Clone, Copy)]
struct Line<'c> {
    number: usize,
    text: &'c str,
}

/// A cell without its quotes.
struct Cell<'c> {
    text: Cow<'c, str>,
    /// The position of the cell in its line, in bytes.
    start: usize,
}

type Cells<'c> = SmallVec<[Cell<'c>; 4]>;

impl<'c> Line<'c> {
    /// Makes a line. `None` if the line has no cells, or after reporting that it is not text.
    fn new(number: usize, text: &'c [u8], report: &Report) -> Option<Line<'c>> {
        let Ok(text) = std::str::from_utf8(text.strip_suffix(b"\r").unwrap_or(text)) else {
            report.add(Position { line: number, column: 1 }, "", "must be UTF-8");
            return None;
        };
        (!text.trim().is_empty() && !text.starts_with('#')).then_some(Line { number, text })
    }

    fn start(&self) -> Position {
        Position { line: self.number, column: 1 }
    }

    fn position(&self, cell: &Cell<'_>) -> Position {
        let before = self.text.get(..cell.start).unwrap_or_default();
        Position { line: self.number, column: before.chars().count() + 1 }
    }

    /// Splits the line into cells. `None` after reporting a quote that does not end.
    fn cells(&self, report: &Report) -> Option<Cells<'c>> {
        let mut cells = Cells::new();
        let mut rest = self.text;
        loop {
            let start = self.text.len() - rest.len();
            let (text, after) = match rest.trim_start().strip_prefix('"') {
                Some(quoted) => {
                    let Some((text, after)) = unquoted(quoted) else {
                        let position = self.position(&Cell { text: Cow::Borrowed(""), start });
                        let what = "must end with a quote and be followed by a comma, or by the end of the line";
                        report.add(position, "", what);
                        return None;
                    };
                    (Cow::Owned(text), after)
                }
                None => match rest.split_once(',') {
                    Some((text, after)) => (Cow::Borrowed(text.trim()), Some(after)),
                    None => (Cow::Borrowed(rest.trim()), None),
                },
            };
            cells.push(Cell { text, start });
            match after {
                Some(after) => rest = after,
                None => return Some(cells),
            }
        }
    }
}

/// Reads lines of cells. The first line names the columns.
struct Table<'t> {
    source: Source<'t>,
    columns: Vec<Column>,
}

enum Column {
    /// The value to which an override applies.
    Value,
    /// A number of the limit at this index.
    Number { limit: usize, key: String },
}

impl Table<'_> {
    /// Reads the cells of the first line. `None` after reporting a problem in them.
    fn columns(&self, line: &Line<'_>, header: &[Cell<'_>]) -> Option<Vec<Column>> {
        let mut columns = Vec::new();
        let mut correct = Some(());
        let names = self.names();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        for (index, cell) in header.iter().enumerate() {
            let (text, position) = (&*cell.text, line.position(cell));
            let is_again = header.iter().take(index).any(|before| before.text == text);
            let (limit, key) = text.rsplit_once('.').unwrap_or(("", text));
            let limit = self.source.limits.iter().position(|known| known.name == limit);
            match limit {
                _ if is_again => {
                    self.source.report.add(position, "", format!("`{}` is there twice", text.escape_debug()));
                }
                _ if text == VALUE => {
                    columns.push(Column::Value);
                    continue;
                }
                Some(limit) if names.contains(&text) => {
                    columns.push(Column::Number { limit, key: key.to_owned() });
                    continue;
                }
                _ => {
                    let what = format!("`{}` is not one of the columns: {}", text.escape_debug(), listed(&names));
                    self.source.report.add_with_hint(position, "", what, nearest(text, &names));
                }
            }
            correct = None;
        }
        if !header.iter().any(|cell| cell.text == VALUE) {
            let what = format!("must have a column `{VALUE}`, such as {}", self.example());
            self.source.report.add(line.start(), "", what);
            return None;
        }
        correct.map(|()| columns)
    }

    /// Returns the names of all allowed columns.
    fn names(&self) -> Vec<String> {
        let of_limit = |limit: &OverriddenLimit<'_, '_>| {
            let mut keys = limit.numbers.keys();
            // The column `limit` is allowed for every algorithm, because every override may be `limit: unlimited`.
            if !keys.contains(&"limit") {
                keys.push("limit");
            }
            let name = limit.name.to_owned();
            keys.into_iter().map(move |key| if name.is_empty() { key.to_owned() } else { format!("{name}.{key}") })
        };
        std::iter::once(VALUE.to_owned()).chain(self.source.limits.iter().flat_map(of_limit)).collect()
    }

    fn example(&self) -> String {
        let limits = self.source.limits;
        let number =
            limits.first().map_or("limit", |limit| if limit.numbers.keys().contains(&"rps") { "rps" } else { "limit" });
        match limits.first() {
            Some(limit) if !limit.name.is_empty() => format!("`{VALUE},{}.{number}`", limit.name),
            _ => format!("`{VALUE},{number}`"),
        }
    }

    /// Returns the cells of a line, one for each column. `None` after reporting too few or too many cells.
    fn cells<'c>(&self, line: &Line<'c>) -> Option<Cells<'c>> {
        let cells = line.cells(self.source.report)?;
        if cells.len() != self.columns.len() {
            let what = format!("must have {} cells, as the first line, has {}", self.columns.len(), cells.len());
            self.source.report.add(line.start(), "", what);
            return None;
        }
        Some(cells)
    }

    /// Returns the cell with the value to which the override applies.
    fn value<'l, 'c>(&self, cells: &'l Cells<'c>) -> Option<&'l Cell<'c>> {
        let index = self.columns.iter().position(|column| matches!(column, Column::Value))?;
        cells.get(index)
    }

    /// Reads the numbers of a line, as if they stood in the rule. `None` after reporting a problem.
    fn numbers(&self, line: &Line<'_>, cells: &Cells<'_>, value: &str) -> Option<NumbersByLimit> {
        let (start, limits) = (line.start(), self.source.limits);
        let mut numbers: Vec<Vec<Entry>> = limits.iter().map(|_| Vec::new()).collect();
        for (cell, column) in cells.iter().zip(&self.columns) {
            if let Column::Number { limit, key } = column
                && !cell.text.is_empty()
            {
                let position = line.position(cell);
                let node = scalar(cell.text.clone().into_owned(), position);
                numbers.get_mut(*limit)?.push(Entry { key: key.clone(), key_position: position, value: node });
            }
        }
        let whole = |numbers, limit: &OverriddenLimit<'_, '_>| Node {
            position: start,
            value: Value::Map(completed(numbers, limit, start)),
        };
        let mut of_limits = numbers.into_iter().zip(limits);
        let node = match limits {
            [only] if only.name.is_empty() => whole(of_limits.next()?.0, only),
            _ => {
                // A limit without a number in this line gets no override.
                let named = of_limits.filter(|(numbers, _)| !numbers.is_empty()).map(|(numbers, limit)| Entry {
                    key: limit.name.to_owned(),
                    key_position: start,
                    value: whole(numbers, limit),
                });
                let named: Vec<Entry> = named.collect();
                if named.is_empty() {
                    self.source.report.add(start, "", "must have a number for one of the limits");
                    return None;
                }
                Node { position: start, value: Value::Map(named) }
            }
        };
        let of_value = Entry { key: value.to_owned(), key_position: start, value: node };
        let whole = Node { position: start, value: Value::Map(vec![of_value]) };
        let (_, _, field) = Field::root(&whole, self.source.report).pairs()?.pop()?;
        (self.source.read)(field)
    }
}

/// Reads a cell in quotes. `text` begins after the first quote. Returns the cell's text, and the text after the cell's
/// comma, if there is one. `None` if the cell is not valid.
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

/// Makes a value that may have any type, because each column requires its own type.
fn scalar(text: String, position: Position) -> Node {
    Node { position, value: Value::Scalar(Scalar::new(text, Style::Reference)) }
}

/// Returns the numbers of a line. Numbers of the limit replace empty cells.
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
        // If credentials supply a number, the default in the file is used here.
        let default = match &value.value {
            Value::Map(claimed) => claimed.iter().find(|entry| entry.key == "default").map(|entry| &entry.value),
            Value::Scalar(_) | Value::List(_) => Some(value),
        };
        if let Some(default) = default {
            let value = Node { position: start, value: default.value.clone() };
            numbers.push(Entry { key: key.clone(), key_position: start, value });
        }
    }
    // An override without `burst` and `rate` keeps the burst that comes from the limit's `rate`.
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
    Value::Scalar(Scalar::new("unlimited", Style::Reference))
}
