//! Finds values that are not known on this machine, in a file that is only examined.

use super::file::File;
use super::location::Finding;

/// Values whose variables are not set, and secrets that cannot be read.
pub fn unknown_value(file: &File<'_>) -> Vec<Finding> {
    let hint =
        "a gateway needs it to start; set it where this command runs, too, if what depends on it is to be checked";
    file.config.remarks.unknown_values.iter().map(|remark| Finding::of_remark(remark, hint)).collect()
}
