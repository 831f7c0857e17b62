//! Reads names of policies, rules and limits, which are shown to clients and in metrics.

use std::collections::HashSet;

use crate::language::reader::{Field, Section};
use crate::language::shape::matches;
use crate::language::value_types::{NAME_MUST, NAME_PATTERN};

/// Checks a name, which may be the key of `field`: metrics and logs must be able to show it unchanged. `None` after reporting a
/// problem at `field`.
pub(crate) fn checked<'n>(field: &Field<'_>, name: &'n str) -> Option<&'n str> {
    let valid = matches(NAME_PATTERN, name);
    if !valid {
        field.wrong(format_args!("a name must {NAME_MUST}, is `{}`", name.escape_debug()), None);
    }
    valid.then_some(name)
}

/// Reads the `name` of a policy or rule, and adds it to `taken`. `None` after reporting a name that is already there.
pub(crate) fn unique(section: &Section<'_>, taken: &mut HashSet<String>) -> Option<String> {
    unique_name(&section.need("name")?, taken)
}

/// Reads a name, and adds it to `taken`. `None` after reporting a name that is already there.
pub(crate) fn unique_name(field: &Field<'_>, taken: &mut HashSet<String>) -> Option<String> {
    let name = checked(field, field.written()?)?;
    if !taken.insert(name.to_owned()) {
        field.wrong(format_args!("must be unique, `{name}` is taken"), None);
        return None;
    }
    Some(name.to_owned())
}
