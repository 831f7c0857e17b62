//! Holds facts about a file for the warnings of lints, and the lengths of the file's lists.

use std::path::PathBuf;

use base::position::Position;

/// A fact about a value that the reader notes for the lints, such as that the value is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    pub position: Position,
    /// The path of the value in gateway.yaml, such as `store.redis.password`.
    pub path: String,
    pub what: String,
}

/// The facts that the reader of a file notes for the lints and for the gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remarks {
    /// The values that are not known here, because a variable is not set or a secret cannot be read.
    pub unknown_values: Vec<Remark>,
    /// The networks that are written with bits after the prefix, such as `10.1.2.3/8`.
    pub host_bits: Vec<Remark>,
    /// The lists that were read from separate files.
    pub lists: Vec<ListSize>,
    /// The files that gateway.yaml names, except lists.
    pub named_files: Vec<NamedFileRemark>,
}

/// A file that gateway.yaml names, with the value that names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedFileRemark {
    pub remark: Remark,
    /// The path at which the file can be opened.
    pub file: PathBuf,
    pub role: FileRole,
}

/// Whether gateway.yaml names a file as a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileRole {
    Secret,
    Other,
}

impl Remarks {
    /// Whether the value at this path is unknown.
    pub fn is_unknown(&self, path: &str) -> bool {
        self.unknown_values.iter().any(|unknown| unknown.path == path)
    }
}

/// The length of a list in a separate file, and the share of the list that a change may remove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListSize {
    /// The path of the list's file, as gateway.yaml writes it.
    pub file: String,
    /// The position of the value in gateway.yaml that names the list's file.
    pub position: Position,
    pub path: String,
    pub entries: usize,
    /// How many per cent of the list a change of the file may remove at once.
    pub max_shrink: u8,
}

impl ListSize {
    /// Whether the list has lost more than the allowed share of its entries. `before` is the former number of entries.
    pub fn has_shrunk(&self, before: usize) -> bool {
        has_shrunk(before, self.entries, self.max_shrink)
    }
}

/// Whether a list has lost more than `max_shrink` per cent of its entries: it had `before`, and now has `entries`.
pub fn has_shrunk(before: usize, entries: usize, max_shrink: u8) -> bool {
    // Without rounding, every single entry of a long list counts.
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
