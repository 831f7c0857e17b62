//! Reads `check`: which warnings are silenced.

use crate::language::key::{Key, Mapping, Type, names, unconstrained};
use crate::language::reader::{Field, all};
use crate::lints::LINTS;

pub(crate) static CHECK: Mapping = Mapping {
    heading: Some("key in `check`"),
    definition: None,
    keys: &[Key::default(
        "allow",
        Type::Choices { names: &names(&LINTS), least: 0 },
        "[]",
        "Warnings that are accepted.",
    )],
    constraints: unconstrained,
};

/// Reads `allow`, the list of the warnings that `check` does not show. Returns their names.
pub(crate) fn allowed(field: Field<'_>) -> Option<Vec<&'static str>> {
    let section = field.section(&CHECK)?;
    let names = LINTS.map(|(name, _)| (name, name));
    let allowed = section.value("allow", |field| {
        all(field.list()?, |member| {
            member.choice_of(&names, "be the name of a warning, as docs/warnings.md lists them")
        })
    });
    section.close();
    allowed
}
