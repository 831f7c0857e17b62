//! Reads and writes the file of API keys: lines of `SHA256-HEX-OF-KEY ID PLAN`.
//!
//! The first line may name the columns: `#columns id plan rps …`. Then every other line has, after the hash, one word
//! for each column. `-` stands for a missing value. Blank lines are ignored. Any other `#` begins a comment, which ends
//! with its line. The message of a fault never repeats text of the file, because this text may be a key.

use std::fmt;

use super::api_keys::{ApiKeySet, Fingerprint};
use base::position::Position;
use request::identity::{KeyColumns, KnownKey};

pub const MAX_BYTES: usize = 64 << 20;
const MAX_LINES: usize = 1_000_000;
const LONGEST_NAME: usize = 128;
const LONGEST_COLUMN: usize = 64;

/// The first word of a line that names the columns.
const COLUMNS: &[u8] = b"#columns";
/// Stands for a missing value in a column.
const NO_VALUE: &str = "-";

/// The message for an invalid id or plan.
pub const NAME: &str = "must be 1 to 128 of letters, digits, `_`, `.`, `@` and `-`";

/// A fault in a file of API keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The position of the fault. `None` if the fault concerns the file as a whole.
    pub position: Option<Position>,
    pub kind: FaultKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    Empty,
    TooLarge,
    TooManyLines,
    NotText,
    Words(usize),
    /// The line is not a hash followed by one word for each column.
    WordsOfColumns {
        words: usize,
        columns: usize,
    },
    /// The first two columns are not `id` and `plan`.
    FirstColumns,
    ColumnName,
    /// Another column has the same name.
    ColumnTwice,
    Hash,
    Id,
    Plan,
    /// The value in the column with this number is invalid. Column 1 is `id`, and column 2 is `plan`.
    Value(usize),
    /// The hash is already listed in the line with this number.
    Duplicate(usize),
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FaultKind::Empty => {
                f.write_str("must not be empty; where no key is meant to be known, say so in a comment")
            }
            FaultKind::TooLarge => write!(f, "must be at most {MAX_BYTES} bytes"),
            FaultKind::TooManyLines => write!(f, "must have at most {MAX_LINES} lines, has more"),
            FaultKind::NotText => f.write_str("must be UTF-8 text"),
            FaultKind::Words(1) => f.write_str("must be HASH ID PLAN, is one word"),
            FaultKind::Words(words) => write!(f, "must be HASH ID PLAN, is {words} words"),
            FaultKind::WordsOfColumns { words, columns } => {
                let words = if *words == 1 { "one word".to_owned() } else { format!("{words} words") };
                write!(f, "must be a hash and a word for each of the {columns} columns, is {words}; `-` means no value")
            }
            FaultKind::FirstColumns => f.write_str("columns: must begin with `id plan`"),
            FaultKind::ColumnName => {
                f.write_str("columns: a name must be 1 to 64 of letters, digits, `_`, `.` and `-`")
            }
            FaultKind::ColumnTwice => f.write_str("columns: a name must be unique"),
            FaultKind::Value(column) => write!(f, "column {column}: {NAME}; the value is not shown: it may be a key"),
            FaultKind::Hash => f.write_str(
                "hash: must be SHA-256 of a key, as 64 hexadecimal digits; the value is not shown: it may be a key",
            ),
            FaultKind::Id => write!(f, "id: {NAME}; the value is not shown: it may be a key"),
            FaultKind::Plan => write!(f, "plan: {NAME}; the value is not shown: it may be a key"),
            FaultKind::Duplicate(line) => write!(f, "hash: must be unique, is in line {line} already"),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.position {
            Some(Position { line, column }) => write!(f, "{line}:{column}: {}", self.kind),
            None => write!(f, "{}", self.kind),
        }
    }
}

/// Parses the whole text of a file of API keys.
///
/// # Errors
///
/// Returns all faults, in the order of the file.
pub fn parse(bytes: &[u8]) -> Result<ApiKeySet, Vec<Fault>> {
    let whole = |kind| Err(vec![Fault { position: None, kind }]);
    if bytes.is_empty() {
        // An empty file is more likely an interrupted write than a wish to accept no keys.
        return whole(FaultKind::Empty);
    }
    if bytes.len() > MAX_BYTES {
        return whole(FaultKind::TooLarge);
    }
    let mut keys = ApiKeySet::of(bytes);
    let bytes = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes);
    let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let mut faults = Vec::new();
    for (number, line) in (1..).zip(bytes.split(|byte| *byte == b'\n')) {
        if number > MAX_LINES {
            faults.push(Fault { position: Some(Position { line: number, column: 1 }), kind: FaultKind::TooManyLines });
            break;
        }
        match line.strip_prefix(COLUMNS).filter(|names| number == 1 && starts_word(names)) {
            Some(names) => read_columns(names, &mut keys, &mut faults),
            None => read_line(line, number, &mut keys, &mut faults),
        }
    }
    if faults.is_empty() { Ok(keys) } else { Err(faults) }
}

/// Whether a word ends before `rest`.
fn starts_word(rest: &[u8]) -> bool {
    rest.first().is_none_or(u8::is_ascii_whitespace)
}

/// Reads the names of the columns in the first line, after `#columns`.
fn read_columns(line: &[u8], keys: &mut ApiKeySet, faults: &mut Vec<Fault>) {
    let mut fault = |before: &str, kind| {
        let position = Position { line: 1, column: COLUMNS.len() + before.chars().count() + 1 };
        faults.push(Fault { position: Some(position), kind });
    };
    let Ok(line) = std::str::from_utf8(line) else { return fault("", FaultKind::NotText) };
    let names: Vec<(usize, &str)> = words(line).collect();
    let [(_, "id"), (_, "plan"), further @ ..] = &names[..] else { return fault("", FaultKind::FirstColumns) };
    for (index, (at, name)) in names.iter().enumerate() {
        let letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
        let before = line.get(..*at).unwrap_or_default();
        if name.len() > LONGEST_COLUMN || !name.bytes().all(letter) {
            fault(before, FaultKind::ColumnName);
        } else if names.iter().take(index).any(|(_, other)| other == name) {
            fault(before, FaultKind::ColumnTwice);
        }
    }
    keys.name_columns(further.iter().map(|(_, name)| (*name).to_owned()).collect());
}

fn read_line(line: &[u8], number: usize, keys: &mut ApiKeySet, faults: &mut Vec<Fault>) {
    let mut fault = |before: &str, kind| {
        let position = Position { line: number, column: before.chars().count() + 1 };
        faults.push(Fault { position: Some(position), kind });
    };
    let line = match std::str::from_utf8(line) {
        Ok(line) => line,
        Err(error) => {
            let before = line.get(..error.valid_up_to()).and_then(|before| std::str::from_utf8(before).ok());
            return fault(before.unwrap_or_default(), FaultKind::NotText);
        }
    };
    let words: Vec<(usize, &str)> = words(line).collect();
    let before = |at: usize| line.get(..at).unwrap_or_default();
    let further = keys.columns();
    let (hash_at, hash, id_at, id, plan_at, plan, values) = match &words[..] {
        [(hash_at, hash), (id_at, id), (plan_at, plan), values @ ..] if values.len() == further.len() => {
            (*hash_at, *hash, *id_at, *id, *plan_at, *plan, values)
        }
        [] => return,
        [(at, _), ..] => {
            let words = words.len();
            let kind = match further.len() {
                0 => FaultKind::Words(words),
                further => FaultKind::WordsOfColumns { words, columns: 2 + further },
            };
            return fault(before(*at), kind);
        }
    };
    let fingerprint = Fingerprint::parse(hash);
    let checks = [
        (fingerprint.is_some(), hash_at, FaultKind::Hash),
        (is_name(id), id_at, FaultKind::Id),
        (is_name(plan), plan_at, FaultKind::Plan),
    ];
    for (_, at, wrong) in checks.iter().filter(|(good, ..)| !good) {
        fault(before(*at), *wrong);
    }
    for (column, (at, _)) in (3..).zip(values).filter(|(_, (_, value))| !is_name(value)) {
        fault(before(*at), FaultKind::Value(column));
    }
    let Some(fingerprint) = fingerprint else { return };
    let values = values.iter().map(|(_, value)| (*value != NO_VALUE).then(|| (*value).into())).collect();
    let columns = KeyColumns { names: further, values };
    if let Err(first) = keys.add(fingerprint, KnownKey { columns, ..KnownKey::new(id, plan) }, number) {
        fault(before(hash_at), FaultKind::Duplicate(first));
    }
}

/// Returns the words before a comment, each with its offset in bytes.
fn words(line: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut next = 0;
    let placed = line.split(|letter: char| letter.is_ascii_whitespace()).map(move |word| {
        let at = next;
        next += word.len() + 1;
        (at, word)
    });
    placed.filter(|(_, word)| !word.is_empty()).take_while(|(_, word)| !word.starts_with('#'))
}

/// Whether the text is a valid id or plan.
pub fn is_name(text: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'@' | b'-');
    (1..=LONGEST_NAME).contains(&text.len()) && text.bytes().all(letter)
}

/// Returns the line of the file for this key, without a line break.
pub fn line(key: &[u8], known: &KnownKey) -> String {
    format!("{} {} {}", Fingerprint::of(key), known.id, known.plan)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HASH: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    const OTHER: &str = "88d4266fd4e6338d13b845fcf289579d209c897823b9217da3e161936f031589";

    /// Checks the number of keys in a file, or the faults that are found in it. `H` stands for a hash, and `O` for another hash.
    #[track_caller]
    fn check(text: &str, expected: &str) {
        let text = text.replace('H', HASH).replace('O', OTHER);
        let found = match parse(text.as_bytes()) {
            Ok(keys) => format!("{} keys", keys.len()),
            Err(faults) => faults.iter().map(Fault::to_string).collect::<Vec<_>>().join("\n"),
        };
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn a_line_is_hash_id_and_plan() {
        check("H acme gold\n", "1 keys");
        check("H acme gold", "1 keys");
        check("\u{feff}  H\tacme\t gold  \r\n\r\n", "1 keys");
        check("# keys\n\nH acme gold # since May\nO acme gold\n   # end", "2 keys");
        check("# no key yet", "0 keys");
        check("\n", "0 keys");
        check(&format!("H {} a_B.9@x-y", "i".repeat(128)), "1 keys");
    }

    #[test]
    fn every_fault_of_a_file_is_reported_with_its_position() {
        let hash = FaultKind::Hash;
        let (id, plan) = (FaultKind::Id, FaultKind::Plan);
        check("", &FaultKind::Empty.to_string());
        check("H acme", "1:1: must be HASH ID PLAN, is 2 words");
        check(" H", "1:2: must be HASH ID PLAN, is one word");
        check("H acme gold silver", "1:1: must be HASH ID PLAN, is 4 words");
        check("H acme # gold", "1:1: must be HASH ID PLAN, is 2 words");
        check("secret acme gold", &format!("1:1: {hash}"));
        check("\n é acme gold", &format!("2:2: {hash}"));
        check("H a/b gold", &format!("1:66: {id}"));
        check("H acme g#ld", &format!("1:71: {plan}"));
        check("é é é", &format!("1:1: {hash}\n1:3: {id}\n1:5: {plan}"));
        check(&format!("H {} gold", "i".repeat(129)), &format!("1:66: {id}"));
        let upper = HASH.to_uppercase();
        check(&format!("H a b\nO a b\n{upper} c d"), "3:1: hash: must be unique, is in line 1 already");
        assert_eq!(
            parse(b"# \xe9").unwrap_err(),
            [Fault { position: Some(Position { line: 1, column: 3 }), kind: FaultKind::NotText }]
        );
    }

    #[test]
    fn the_first_line_may_name_further_columns() {
        let acme = |text: &str, name: &str| {
            let keys = parse(text.replace('H', HASH).as_bytes()).unwrap();
            keys.find(b"abc").unwrap().column(name).map(str::to_owned)
        };
        let text = "\u{feff}#columns id plan rps burst\r\nH acme gold 12.5 -\n";
        assert_eq!(acme(text, "rps").as_deref(), Some("12.5"));
        assert_eq!(acme(text, "burst"), None);
        assert_eq!(acme(text, "plan"), None);
        check("#columns id plan\nH acme gold", "1 keys");
        check("#columns id plan rps\nH acme gold 5 # since May\n\n# end", "1 keys");
        // Columns are named only in the first line, and only by exactly this word.
        check("# columns are hash, id, plan\nH acme gold", "1 keys");
        check("#columnsidplan\nH acme gold", "1 keys");
        check("\n#columns id plan rps\nH acme gold", "1 keys");
    }

    #[test]
    fn every_fault_of_columns_is_reported_with_its_position() {
        let words = "must be a hash and a word for each of the 3 columns";
        check("#columns id plan rps\nH acme gold", &format!("2:1: {words}, is 3 words; `-` means no value"));
        check("#columns id plan rps\nH a b 1 2", &format!("2:1: {words}, is 5 words; `-` means no value"));
        check("#columns id plan rps\nH", &format!("2:1: {words}, is one word; `-` means no value"));
        check("#columns id plan rps\nH a b ½", &format!("2:70: {}", FaultKind::Value(3)));
        check("#columns", &format!("1:9: {}", FaultKind::FirstColumns));
        check("#columns plan id", &format!("1:9: {}", FaultKind::FirstColumns));
        check("#columns hash id plan", &format!("1:9: {}", FaultKind::FirstColumns));
        check("#columns id plan rps rps", &format!("1:22: {}", FaultKind::ColumnTwice));
        check("#columns id plan plan", &format!("1:18: {}", FaultKind::ColumnTwice));
        check("#columns id plan a:b", &format!("1:18: {}", FaultKind::ColumnName));
        check(&format!("#columns id plan {}", "c".repeat(65)), &format!("1:18: {}", FaultKind::ColumnName));
    }

    #[test]
    fn the_size_of_a_key_file_is_bounded() {
        let lines = "#\n".repeat(MAX_LINES);
        assert!(parse(lines.as_bytes()).is_ok());
        check(&format!("{lines}#"), "1000001:1: must have at most 1000000 lines, has more");
        assert_eq!(
            parse(&vec![b'#'; MAX_BYTES + 1]).unwrap_err(),
            [Fault { position: None, kind: FaultKind::TooLarge }]
        );
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }

        #[test]
        fn a_written_line_is_read_back(key in prop::collection::vec(any::<u8>(), 0..40), id in "[A-Za-z0-9_.@-]{1,128}") {
            let line = line(&key, &KnownKey::new(&id, "gold"));
            prop_assert_eq!(parse(line.as_bytes()).map(|keys| keys.len()), Ok(1));
        }
    }
}
