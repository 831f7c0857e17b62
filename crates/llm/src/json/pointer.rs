//! A JSON pointer (RFC 6901): the place of a value in a body.

use std::fmt;
use std::sync::Arc;

/// The place of a value: the names of members and the numbers of elements that lead to it. Clones share one text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pointer(Arc<[PointerToken]>);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PointerToken {
    /// A member with this name, or the element with this number.
    Name { name: String, element: Option<u64> },
    /// A member with one of these names.
    AnyOf(Vec<String>),
    /// Every element of an array, and no member. An object in place of the array is its only element, because some
    /// servers read it so.
    EachElement,
}

/// The reason why a text is not a JSON pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidPointer {
    /// The text is not empty, and does not begin with `/`.
    Start,
    /// A `~` is not followed by `0` or `1`.
    Escape,
}

impl fmt::Display for InvalidPointer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            InvalidPointer::Start => "must be empty or begin with /",
            InvalidPointer::Escape => "a ~ must be sent as ~0, and a / in a name as ~1",
        })
    }
}

impl std::error::Error for InvalidPointer {}

impl Pointer {
    /// Parses a pointer: `/usage/total_tokens`, `/choices/0/text`. An empty text points to the whole body.
    ///
    /// # Errors
    /// If the text is not a pointer by RFC 6901, section 3.
    pub fn parse(text: &str) -> Result<Pointer, InvalidPointer> {
        if text.is_empty() {
            return Ok(Pointer(Arc::default()));
        }
        let text = text.strip_prefix('/').ok_or(InvalidPointer::Start)?;
        text.split('/').map(|token| Ok(named(unescape(token)?))).collect::<Result<_, _>>().map(Pointer)
    }

    /// Reads a pointer in which `*` stands for every element of an array, and `|` separates names of the same member:
    /// `/choices/*/delta/content`, `/fileData|file_data`.
    pub(crate) fn with_wildcards(text: &str) -> Pointer {
        let token = |token: &str| match token {
            "*" => PointerToken::EachElement,
            names if names.contains('|') => PointerToken::AnyOf(names.split('|').map(str::to_owned).collect()),
            name => named(name.to_owned()),
        };
        Pointer(text.split('/').skip(1).map(token).collect())
    }

    pub(crate) fn tokens(&self) -> &[PointerToken] {
        &self.0
    }
}

/// Displays the pointer in the form that is parsed.
impl fmt::Display for Pointer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|token| match token {
            PointerToken::Name { name, .. } => write!(out, "/{}", name.replace('~', "~0").replace('/', "~1")),
            PointerToken::AnyOf(names) => write!(out, "/{}", names.join("|")),
            PointerToken::EachElement => out.write_str("/*"),
        })
    }
}

fn named(name: String) -> PointerToken {
    // `01` and `+1` are names.
    let is_index = name == "0" || (!name.starts_with(['0', '+']) && !name.is_empty());
    let element = if is_index { name.parse().ok() } else { None };
    PointerToken::Name { name, element }
}

fn unescape(token: &str) -> Result<String, InvalidPointer> {
    let mut parts = token.split('~');
    let mut name = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (character, rest) = match (part.strip_prefix('0'), part.strip_prefix('1')) {
            (Some(rest), _) => ('~', rest),
            (_, Some(rest)) => ('/', rest),
            _ => return Err(InvalidPointer::Escape),
        };
        name.push(character);
        name.push_str(rest);
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &[(&str, Option<u64>)]) {
        let expected = expected.iter().map(|(name, element)| {
            let name = (*name).to_owned();
            PointerToken::Name { name, element: *element }
        });
        let pointer = Pointer::parse(text).unwrap();
        assert_eq!(pointer.tokens(), expected.collect::<Vec<_>>(), "{text}");
        assert_eq!(pointer.to_string(), text);
    }

    #[test]
    fn a_pointer_is_read_as_the_rfc_says() {
        check("", &[]);
        check("/", &[("", None)]);
        check("/foo/0", &[("foo", None), ("0", Some(0))]);
        check("/a~1b/m~0n/~01", &[("a/b", None), ("m~n", None), ("~1", None)]);
        check("/10/01/+1/-", &[("10", Some(10)), ("01", None), ("+1", None), ("-", None)]);
        check("/*/ ", &[("*", None), (" ", None)]);
        assert_eq!(Pointer::parse("usage"), Err(InvalidPointer::Start));
        assert_eq!(Pointer::parse("/a~"), Err(InvalidPointer::Escape));
        assert_eq!(Pointer::parse("/a~2"), Err(InvalidPointer::Escape));
    }
}
