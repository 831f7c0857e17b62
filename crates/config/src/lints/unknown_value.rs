//! Finds values that a command does not know because it only examines the file, such as variables that are not set.

use std::collections::HashSet;

use super::file::File;
use super::location::Finding;
use crate::language::problem::{HIDDEN, NOT_SET};
use crate::language::remarks::Remark;

/// Finds variables that are not set, and secrets that cannot be read. Each of these causes is reported only once.
pub(super) fn unknown_value(file: &File<'_>) -> Vec<Finding> {
    let mut causes = HashSet::new();
    let unknown = file.config.remarks.unknown_values.iter().filter(|remark| causes.insert(&remark.what));
    let finding = |remark: &Remark| {
        let needed = |remedy: &str| {
            format!(
                "a gateway needs it to start; {remedy} where this command runs, too, if what depends on it is to be checked"
            )
        };
        let hint = match &remark.what {
            what if what.ends_with(HIDDEN) => {
                "if the gateway cannot read it either, it keeps its former file and says so in its log".to_owned()
            }
            what if what.ends_with(NOT_SET) => needed("set it"),
            _ => needed("make it readable"),
        };
        Finding::of_remark(remark, &hint)
    };
    unknown.map(finding).collect()
}
