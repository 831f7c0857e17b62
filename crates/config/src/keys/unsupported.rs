//! Lists the settings that the gateway cannot carry out yet, and reports them.

use std::fmt;

use crate::language::reader::Field;

/// The settings that gateway.yaml may not have yet.
const UNSUPPORTED: &[&str] = &["llm_cost"];

/// Checks that the gateway can carry out this setting. `None` after reporting that it cannot.
pub(crate) fn supported(field: &Field<'_>, setting: &str) -> Option<()> {
    if UNSUPPORTED.contains(&setting) {
        unsupported(field, setting);
        return None;
    }
    Some(())
}

/// Reports that the gateway cannot carry out this setting yet.
pub(crate) fn unsupported(field: &Field<'_>, setting: impl fmt::Display) {
    field.wrong(format_args!("`{setting}` is not supported yet"), None);
}
