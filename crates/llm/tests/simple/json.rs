//! JSON as serde_json reads it, to compare the scanner with. The fuzz targets use it too.

use std::fmt;

use llm::json::{Interest, JsonScanner, Lookup, Pointer, PointerSet, Value};
use serde_json::Number;

/// A JSON value as serde_json reads it, with all members of an object.
#[derive(Clone, Debug)]
pub enum Tree {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    Array(Vec<Tree>),
    Object(Vec<(String, Tree)>),
}

impl<'de> serde::Deserialize<'de> for Tree {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Tree, D::Error> {
        from.deserialize_any(TreeVisitor)
    }
}

struct TreeVisitor;

impl<'de> serde::de::Visitor<'de> for TreeVisitor {
    type Value = Tree;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("JSON")
    }
    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Null)
    }
    fn visit_bool<E>(self, value: bool) -> Result<Tree, E> {
        Ok(Tree::Bool(value))
    }
    fn visit_u64<E>(self, value: u64) -> Result<Tree, E> {
        Ok(Tree::Number(value.into()))
    }
    fn visit_i64<E>(self, value: i64) -> Result<Tree, E> {
        Ok(Tree::Number(value.into()))
    }
    fn visit_f64<E>(self, value: f64) -> Result<Tree, E> {
        Ok(Tree::Number(Number::from_f64(value).unwrap()))
    }
    fn visit_str<E>(self, value: &str) -> Result<Tree, E> {
        Ok(Tree::Text(value.to_owned()))
    }
    fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut seq: A) -> Result<Tree, A::Error> {
        let mut elements = Vec::new();
        while let Some(element) = seq.next_element()? {
            elements.push(element);
        }
        Ok(Tree::Array(elements))
    }
    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Tree, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(Tree::Object(members))
    }
}

/// The expected result at a pointer.
#[derive(Debug, PartialEq)]
enum Expected {
    Missing,
    Twice,
    Value(Value),
    Number(f64),
}

impl Tree {
    fn at(&self, tokens: &[&str]) -> Expected {
        let Some((token, rest)) = tokens.split_first() else {
            return match self {
                Tree::Null => Expected::Value(Value::Null),
                Tree::Bool(value) => Expected::Value(Value::Bool(*value)),
                Tree::Number(number) => Expected::Number(number.as_f64().unwrap()),
                Tree::Text(text) if text.len() > Value::MAX_BYTES => Expected::Value(Value::TooLong),
                Tree::Text(text) => Expected::Value(Value::Text(text.clone())),
                Tree::Array(_) => Expected::Value(Value::Array),
                Tree::Object(_) => Expected::Value(Value::Object),
            };
        };
        match self {
            Tree::Array(elements) => {
                let element = token.parse::<usize>().ok().filter(|number| number.to_string() == *token);
                element.and_then(|number| elements.get(number)).map_or(Expected::Missing, |element| element.at(rest))
            }
            Tree::Object(members) => {
                let named: Vec<&Tree> =
                    members.iter().filter(|(name, _)| name == token).map(|(_, member)| member).collect();
                match named[..] {
                    [] => Expected::Missing,
                    [member] => member.at(rest),
                    _ => Expected::Twice,
                }
            }
            _ => Expected::Missing,
        }
    }
}

pub const POINTERS: [&str; 12] =
    ["", "/a", "/b", "/a/a", "/a/b", "/a/0", "/a/1/b", "/0", "/", "/é", "/a/a/a/a", "/b/0/0"];

pub fn pointers() -> PointerSet {
    PointerSet::new(POINTERS.map(|text| (Pointer::parse(text).unwrap(), Interest::Value)))
}

/// Compares the scanner with serde_json. The scanner gets the pieces, and serde_json the whole body. Returns the
/// pointers with a value. `None` if the body is not JSON.
pub fn compare<'p>(body: &[u8], pieces: impl IntoIterator<Item = &'p [u8]>) -> Option<[bool; POINTERS.len()]> {
    let set = pointers();
    let mut scanner = JsonScanner::new(&set, u64::MAX);
    pieces.into_iter().for_each(|piece| scanner.push(piece));
    let result = scanner.finish();
    let tree = match serde_json::from_slice::<Tree>(body) {
        Ok(tree) => tree,
        // JSON has no largest number, but serde_json has one.
        Err(error) if error.to_string().contains("number out of range") => return None,
        Err(error) => {
            assert!(result.is_err(), "{} must not be JSON: {error}", body.escape_ascii());
            return None;
        }
    };
    assert_eq!(result, Ok(()), "{}", body.escape_ascii());
    let mut has_value = [false; POINTERS.len()];
    for (index, pointer) in POINTERS.iter().enumerate() {
        let tokens: Vec<&str> = pointer.split('/').skip(1).collect();
        let expected = tree.at(&tokens);
        let found = match scanner.value(index) {
            Lookup::Missing => Expected::Missing,
            Lookup::Twice => Expected::Twice,
            Lookup::Value(Value::Number(number)) => Expected::Number(number.as_str().parse().unwrap()),
            Lookup::Value(value) => Expected::Value(value.clone()),
        };
        has_value[index] = !matches!(found, Expected::Missing | Expected::Twice);
        // Below a name that occurs twice, the scanner reports `Twice` even if there is no value.
        let is_below_twice = (0..tokens.len()).any(|end| tree.at(&tokens[..end]) == Expected::Twice);
        if !(is_below_twice && found == Expected::Twice) {
            assert_eq!(found, expected, "{pointer} of {}", body.escape_ascii());
        }
    }
    Some(has_value)
}
