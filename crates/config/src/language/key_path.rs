//! Builds the path of a value from the root of the file, as reports print it: `rules[2].limit_keys`.

/// Returns the path of `key` in the mapping whose path is `path`.
pub(crate) fn join(path: &str, key: &str) -> String {
    let mut path = path.to_owned();
    push_key(&mut path, key);
    path
}

/// Appends a key to the path of its mapping.
pub(crate) fn push_key(path: &mut String, key: &str) {
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(key);
}

/// Appends the index of a member to the path of its list.
pub(crate) fn push_index(path: &mut String, index: usize) {
    path.push_str(&format!("[{index}]"));
}
