//! Reads names of policies, rules and limits. These names are shown to clients and in metrics.

use std::collections::HashSet;

use crate::language::reader::{Field, Section};
use crate::language::shape::matches;
use crate::language::value_types::{NAME_MUST, NAME_PATTERN};

/// Checks that metrics and logs can show a name unchanged. The name is the value of `field` or the key of `field`.
/// `None` after reporting at `field` that the name is invalid.
pub(crate) fn checked<'n>(field: &Field<'_>, name: &'n str) -> Option<&'n str> {
    let valid = matches(NAME_PATTERN, name);
    if !valid {
        field.wrong(format_args!("a name must {NAME_MUST}, is `{}`", name.escape_debug()), None);
    }
    valid.then_some(name)
}

/// Reads the `name` of a policy or rule, and adds it to `taken`. `None` after reporting a missing, invalid or taken
/// name.
pub(crate) fn unique(section: &Section<'_>, taken: &mut HashSet<String>) -> Option<String> {
    unique_name(&section.need("name")?, taken)
}

/// Reads a name, and adds the name to `taken`. `None` after reporting that the name is invalid or already in `taken`.
pub(crate) fn unique_name(field: &Field<'_>, taken: &mut HashSet<String>) -> Option<String> {
    let name = checked(field, field.written()?)?;
    if !taken.insert(name.to_owned()) {
        field.wrong(format_args!("must be unique, `{name}` is taken"), None);
        return None;
    }
    Some(name.to_owned())
}
