//! Replaces the longest matching prefix of a path. The prefix is compared with the normalised path, and replaced in the
//! path as it was sent.

use request::path::normalise_segment;

/// A replacement for the first segments of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixReplacement {
    /// The prefixes, normalised and without a slash at the end. The first prefix with which a path begins is replaced.
    prefixes: Vec<Vec<u8>>,
    /// The new segments, without a slash at the end.
    new: Vec<u8>,
}

impl PrefixReplacement {
    /// Makes a replacement by `new`. Of the `prefixes` with which a path begins, the longest is replaced.
    pub fn new(mut prefixes: Vec<Vec<u8>>, new: &str) -> PrefixReplacement {
        for prefix in &mut prefixes {
            while prefix.last() == Some(&b'/') {
                prefix.pop();
            }
        }
        prefixes.sort_by_key(|prefix| std::cmp::Reverse(prefix.len()));
        PrefixReplacement { prefixes, new: new.trim_end_matches('/').into() }
    }

    /// Returns the path with its first segments replaced, and the rest as it was sent. `None` if the path does not
    /// begin with a prefix of this replacement.
    ///
    /// The result begins with exactly one slash, because with two slashes it would name a host. The result stays below
    /// the new segments, even if the path leaves the prefix by `..` and returns to it.
    pub fn replace(&self, path: &[u8]) -> Option<Vec<u8>> {
        let rest = self.prefixes.iter().find_map(|prefix| rest(path, prefix))?;
        Some(match (self.new.as_slice(), rest) {
            ([], []) => b"/".to_vec(),
            ([], rest) => from_first_name(rest).to_vec(),
            (new, rest) => [new, rest].concat(),
        })
    }

    /// Returns the segments that replace the prefix.
    pub fn new_prefix(&self) -> &[u8] {
        &self.new
    }
}

/// Returns the path after the prefix: nothing, or a text that begins with a slash. `None` without the prefix.
fn rest<'p>(path: &'p [u8], prefix: &[u8]) -> Option<&'p [u8]> {
    let Some(inner) = path.strip_prefix(b"/") else { return (path == prefix).then_some(b"") };
    let wanted: Vec<&[u8]> = prefix.split(|byte| *byte == b'/').skip(1).collect();
    // `depth` counts the segments that were read. The first `equal` of these are equal to the prefix's segments.
    let (mut depth, mut equal) = (0_usize, 0_usize);
    let mut found = wanted.is_empty().then_some(path);
    let mut left = path;
    for segment in inner.split(|byte| *byte == b'/') {
        left = left.get(segment.len() + 1..).unwrap_or_default();
        match Kind::of(segment) {
            Kind::Nothing => continue,
            Kind::Parent => {
                depth = depth.saturating_sub(1);
                equal = equal.min(depth);
                // The path has left the prefix again, so the rest in `found` is no longer the rest after the prefix.
                if depth < wanted.len() {
                    found = None;
                }
            }
            Kind::Name => {
                let is_wanted = |wanted: &&[u8]| normalise_segment(segment).is_some_and(|segment| segment == **wanted);
                if equal == depth && wanted.get(depth).is_some_and(is_wanted) {
                    equal += 1;
                }
                depth += 1;
            }
        }
        if depth == wanted.len() && equal == depth {
            // A path that ends in `..` is a directory, so a slash follows.
            found = Some(if left.is_empty() && Kind::of(segment) == Kind::Parent { b"/" } else { left });
        }
    }
    found
}

/// Removes empty and `.` segments at the beginning of a path, because some servers would read such a path as `//…`.
fn from_first_name(path: &[u8]) -> &[u8] {
    let mut path = path;
    while let Some(inner) = path.strip_prefix(b"/") {
        let segment = inner.split(|byte| *byte == b'/').next().unwrap_or_default();
        match inner.get(segment.len()..) {
            Some(rest) if !rest.is_empty() && Kind::of(segment) == Kind::Nothing => path = rest,
            _ => break,
        }
    }
    path
}

/// The effect of a segment on the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The segment is empty, or `.`.
    Nothing,
    Parent,
    Name,
}

impl Kind {
    /// Returns the kind of a segment as it was sent. The path of the segment must have only one reading.
    fn of(segment: &[u8]) -> Kind {
        let mut rest = segment.split(|byte| *byte == b';').next().unwrap_or_default();
        let mut dots = 0_u8;
        loop {
            rest = match rest {
                [b'.', rest @ ..] | [b'%', b'2', b'e' | b'E', rest @ ..] if dots < 2 => rest,
                [] if dots < 2 => return Kind::Nothing,
                [] => return Kind::Parent,
                _ => return Kind::Name,
            };
            dots += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use request::path::normalise;

    #[track_caller]
    fn check(path: &str, prefix: &str, new: &str, expected: Option<&str>) {
        let replacement = PrefixReplacement::new(vec![prefix.as_bytes().to_vec()], new);
        let replaced = replacement.replace(path.as_bytes()).map(|path| String::from_utf8(path).unwrap());
        assert_eq!(replaced.as_deref(), expected, "{path} {prefix} {new}");
    }

    #[test]
    fn the_rest_of_a_path_stays_as_it_was_sent() {
        check("/old/a%20b", "/old", "/v1", Some("/v1/a%20b"));
        check("/%6fld/%61", "/old", "/v1/", Some("/v1/%61"));
        check("/old;x=1/a;y", "/old", "/v1", Some("/v1/a;y"));
        check("/x/../old/a", "/old", "/v1", Some("/v1/a"));
        check("/old", "/old", "/v1", Some("/v1"));
        check("/old/", "/old", "/v1", Some("/v1/"));
        check("/old//a", "/old", "/v1", Some("/v1//a"));
        check("/old", "/old", "/", Some("/"));
        check("/old/", "/old/", "/", Some("/"));
        check("/a/b/c", "/a/b", "", Some("/c"));
        check("/caf%c3%a9/x", "/caf%C3%A9", "", Some("/x"));
        check("/a", "", "/v1", Some("/v1/a"));
        check("/", "", "/v1", Some("/v1/"));
        check("*", "*", "/v1", Some("/v1"));
        check("/older/a", "/old", "/v1", None);
        check("/a", "/old", "/v1", None);
        check("/a/old", "/old", "/v1", None);
        check("/old/..", "/old", "/v1", None);
        check("/old/../a", "/old", "/v1", None);
    }

    #[test]
    fn what_is_left_never_leaves_the_prefix_and_never_names_a_host() {
        check("/old/x/../../old/y", "/old", "/v1", Some("/v1/y"));
        check("/old/%2e%2E/old/y", "/old", "/v1", Some("/v1/y"));
        check("/old/x/..", "/old", "/v1", Some("/v1/"));
        check("/../a", "", "/v1", Some("/v1/a"));
        check("/x/../../a", "", "/v1", Some("/v1/a"));
        check("/old//evil.example/", "/old", "/", Some("/evil.example/"));
        check("/old/./a", "/old", "", Some("/a"));
        check("/old/;x/.//a", "/old", "", Some("/a"));
        check("/old/.", "/old", "", Some("/."));
    }

    #[test]
    fn of_several_prefixes_the_longest_is_replaced() {
        let prefixes = ["/a", "/a/b"].map(|prefix| prefix.as_bytes().to_vec());
        let replacement = PrefixReplacement::new(prefixes.to_vec(), "/v1");
        assert_eq!(replacement.replace(b"/a/b/c").unwrap(), b"/v1/c");
        assert_eq!(replacement.replace(b"/a/c").unwrap(), b"/v1/c");
    }

    proptest! {
        /// For any spelling of a path, the normalised result is the normalised path with the prefix replaced.
        #[test]
        fn the_result_is_the_normalised_path_with_another_prefix(
            path in "/(a|b|%61|\\.|\\.\\.|%2e%2E|a;x|;y|/){0,1}(/(a|b|%61|\\.|\\.\\.|%2e%2E|a;x|;y)?){0,8}",
            prefix in "(/a|/b){0,2}",
            new in "(/n){0,2}",
        ) {
            let Ok(normal) = normalise(path.as_bytes()) else { return Ok(()) };
            let replaced = PrefixReplacement::new(vec![prefix.clone().into_bytes()], &new).replace(path.as_bytes());
            let below = normal.strip_prefix(prefix.as_bytes()).filter(|below| matches!(below, [] | [b'/', ..]));
            prop_assert_eq!(replaced.is_some(), below.is_some(), "{}", path);
            if let (Some(replaced), Some(below)) = (replaced, below) {
                prop_assert!(replaced.starts_with(b"/") && !replaced.starts_with(b"//"));
                let expected = [new.as_bytes(), below].concat();
                let expected = if expected.is_empty() { b"/".to_vec() } else { expected };
                prop_assert_eq!(normalise(&replaced).map(|path| path.into_owned()), Ok(expected), "{}", path);
            }
        }
    }
}
