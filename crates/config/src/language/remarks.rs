//! Holds the facts that the reader of a file notes: for warnings of lints, and how long its lists are.

use std::path::PathBuf;

use base::position::Position;

/// A fact about a value that the reader notes for the lints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    pub position: Position,
    /// The path of the value, such as `store.redis.password`.
    pub path: String,
    pub what: String,
}

/// The facts that the reader of a file notes for the lints and the gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remarks {
    /// Values that are not known here, because a variable is not set or a secret cannot be read.
    pub unknown_values: Vec<Remark>,
    /// Networks that are written with bits of a host.
    pub host_bits: Vec<Remark>,
    /// The lists that were read from files of their own.
    pub lists: Vec<ListSize>,
    /// The files with secrets, by the paths under which they can be opened.
    pub secret_files: Vec<PathBuf>,
}

impl Remarks {
    /// Whether the value of this key is unknown.
    pub fn is_unknown(&self, path: &str) -> bool {
        self.unknown_values.iter().any(|unknown| unknown.path == path)
    }
}

/// The length of a list in a separate file, and how much of it may be lost at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListSize {
    /// The path of the list's file, as it is written in gateway.yaml.
    pub file: String,
    /// The position of that path in gateway.yaml.
    pub position: Position,
    pub path: String,
    pub entries: usize,
    /// The part of the list, in per cent, that a change of the file may remove.
    pub max_shrink: u8,
}

impl ListSize {
    /// Whether the list has lost more entries than allowed, since it had `before` entries.
    pub fn has_shrunk(&self, before: usize) -> bool {
        has_shrunk(before, self.entries, self.max_shrink)
    }
}

/// Whether a list that had `before` entries and has `entries` now has lost more than `max_shrink` per cent of them.
pub fn has_shrunk(before: usize, entries: usize, max_shrink: u8) -> bool {
    // Of a long list every entry counts.
    entries * 100 < before * usize::from(100 - max_shrink.min(100))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_may_lose_its_share_and_no_more() {
        let list = |entries, max_shrink| ListSize {
            file: String::new(),
            position: Position::default(),
            path: String::new(),
            entries,
            max_shrink,
        };
        for (entries, max_shrink, before, shrunk) in [
            (50, 50, 100, false),
            (49, 50, 100, true),
            (0, 50, 0, false),
            (0, 50, 1, true),
            (0, 100, 9, false),
            (9, 0, 10, true),
        ] {
            assert_eq!(list(entries, max_shrink).has_shrunk(before), shrunk, "{entries} of {before}, {max_shrink} %");
        }
    }
}
