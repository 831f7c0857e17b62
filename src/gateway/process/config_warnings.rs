//! Logs the warnings of a configuration, because not all operators run `check`.

use config::warning::Warnings;

/// The maximum number of warnings that are logged. Each has its own line.
const MAX_LOGGED: usize = 10;

pub(crate) fn warn(warnings: &Warnings) {
    for warning in warnings.warnings.iter().take(MAX_LOGGED) {
        let position = format!("{}:{}", warnings.file, warning.position);
        let (name, path, what) = (warning.name, &*warning.path, &*warning.what);
        log::warn!(name, place = position, path, what; "configuration warning");
    }
    let more = warnings.warnings.len().saturating_sub(MAX_LOGGED);
    if more > 0 {
        log::warn!(more; "more configuration warnings, which tollgate check names");
    }
}
