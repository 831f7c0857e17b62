//! Builds the path of a value from the root of the file, as reports print it: `rules[2].limit_keys`.

/// The path of a key in the mapping at `path`.
pub(crate) fn join(path: &str, key: &str) -> String {
    let mut path = path.to_owned();
    push_key(&mut path, key);
    path
}

/// Extends the path of a mapping by a key.
pub(crate) fn push_key(path: &mut String, key: &str) {
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(key);
}

/// Extends the path of a list by an index.
pub(crate) fn push_index(path: &mut String, index: usize) {
    path.push_str(&format!("[{index}]"));
}
