//! Reads YAML into values with positions, and reports every problem.
//!
//! A [`tree`] holds the text of a file, a [`key`] declares a key, a [`reader`] reads typed values by the declarations,
//! and a [`problem`] is a report of the reader. A test checks that nothing in this folder names a key of gateway.yaml
//! or imports from `keys`.

mod disclosure;
pub(crate) mod duration;
pub(crate) mod environment;
pub mod key;
pub(crate) mod key_path;
mod likely_causes;
pub(crate) mod misplaced_keys;
pub(crate) mod network;
pub(crate) mod other_spellings;
pub mod problem;
pub(crate) mod quotes;
pub(crate) mod reader;
pub(crate) mod remarks;
pub(crate) mod shape;
pub(crate) mod size;
pub(crate) mod substitution;
pub(crate) mod suggest;
pub(crate) mod tree;
mod unreadable_text;
pub(crate) mod value_kind;
pub(crate) mod value_types;
pub mod warning;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use crate::document::FILE;

    /// Returns a sign that a source file knows gateway.yaml: an import from outside, or the name of a key in the root.
    fn known_key(source: &str) -> Option<String> {
        let code = source.split("#[cfg(test)]").next().unwrap_or_default();
        let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        lines
            .flat_map(|line| {
                let import = line.contains("crate::") && !line.contains("crate::language::");
                let key = FILE.names().into_iter().find(|name| line.contains(&format!("\"{name}\"")));
                import.then(|| line.trim().to_owned()).or(key.map(str::to_owned))
            })
            .next()
    }

    #[test]
    fn nothing_here_knows_a_key() {
        assert_eq!(known_key("use crate::keys::log::LOG;"), Some("use crate::keys::log::LOG;".to_owned()));
        assert_eq!(known_key("    if name == \"listen\" {"), Some("listen".to_owned()));
        let mut files = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src/language")];
        let mut seen = 0;
        while let Some(path) = files.pop() {
            if path.is_dir() {
                files.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
                continue;
            }
            assert_eq!(known_key(&fs::read_to_string(&path).unwrap()), None, "{}", path.display());
            seen += 1;
        }
        assert!(seen > 10, "{seen} files");
    }
}
