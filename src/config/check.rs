//! Reads `check`: the names of warnings that are meant.

use super::document::or_default;
use super::lints::LINTS;
use super::reader::{Field, all};

pub fn allowed(field: Field<'_>) -> Option<Vec<&'static str>> {
    let section = field.section()?;
    let names = LINTS.map(|(name, _)| (name, name));
    let allowed =
        or_default(section.get("allow"), Vec::new(), |field| all(field.list()?, |member| member.choice(&names)));
    section.close();
    allowed
}
