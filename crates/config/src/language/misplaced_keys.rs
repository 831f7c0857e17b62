//! Says where a key belongs if it is unknown in its mapping: in a mapping above or below, or under another name.

use crate::language::key::{FileKeys, Key, Mapping, Type, within};
use crate::language::suggest::listed;

/// The largest number of places that a hint names.
const MOST_PLACES: usize = 3;

/// Returns the hint for a key that is unknown in this mapping: its name in gateway.yaml, or another mapping that has
/// the key. `None` if neither is known.
pub(crate) fn belongs_elsewhere(file: FileKeys, mapping: &Mapping, key: &str) -> Option<String> {
    let other_name = (file.other_name)(mapping, key).map(str::to_owned);
    other_name.or_else(|| below(mapping, key)).or_else(|| above(file.root, mapping, key))
}

/// Returns a hint with the keys of this mapping under which `key` may be written.
fn below(mapping: &Mapping, key: &str) -> Option<String> {
    // Mappings of several limits or of overrides are left out: an operator rarely means them.
    let places = mapping.keys.iter().filter(|one| !matches!(one.kind, Type::NamedOneOf(_)));
    let places = places.filter(|one| one.kind.mappings().iter().any(|of| of.key(key).is_some()));
    let places: Vec<String> = places.map(place).collect();
    let places: Vec<&str> = places.iter().map(String::as_str).collect();
    (!places.is_empty() && places.len() <= MOST_PLACES).then(|| format!("write it in {}", listed(&places)))
}

fn place(key: &Key) -> String {
    match key.kind {
        Type::List { .. } | Type::ListOfOwnOr { .. } => format!("an entry of `{}`", key.name),
        Type::Named(_) => format!("one of `{}`", key.name),
        _ => format!("`{}`", key.name),
    }
}

/// Returns a hint with the keys beside which `key` belongs. `None` if one of the mapping's parents cannot have `key`, or if the
/// parents have the mapping under other names.
fn above(file: &'static Mapping, mapping: &Mapping, key: &str) -> Option<String> {
    let is_value = |one: &&Key| one.kind.mappings().iter().any(|of| std::ptr::eq(*of, mapping));
    let mut parents = within(vec![file]).into_iter().filter(|parent| parent.keys.iter().any(|one| is_value(&one)));
    let names_in = |parent: &Mapping| -> Vec<String> {
        parent.keys.iter().filter(is_value).map(|one| format!("`{}`", one.name)).collect()
    };
    let first = parents.next().filter(|parent| parent.key(key).is_some())?;
    let names = names_in(first);
    if !parents.all(|parent| parent.key(key).is_some() && names_in(parent) == names) {
        return None;
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    Some(format!("write it beside {}, not in it", listed(&names)))
}
