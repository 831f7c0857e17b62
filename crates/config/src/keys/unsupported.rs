//! Reports settings that the gateway cannot carry out yet.

use std::fmt;

use crate::language::reader::Field;

/// Reports that the gateway cannot carry out this setting yet.
pub(crate) fn unsupported(field: &Field<'_>, setting: impl fmt::Display) {
    field.wrong(format_args!("`{setting}` is not supported yet"), None);
}
