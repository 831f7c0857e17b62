//! `tollgate bucket`, as an operator of a gateway uses it.

use serde_json::Value;

use super::{CommandOutput, Gateway, tollgate};

/// Runs `tollgate bucket` with the file and the admin listener of a gateway.
pub(crate) fn bucket(gateway: &Gateway, arguments: &[&str]) -> CommandOutput {
    let (file, admin) = (gateway.file("gateway.yaml").display().to_string(), gateway.admin.to_string());
    tollgate(&[&["bucket"], arguments, &["-c", &file, "--admin", &admin]].concat())
}

/// Checks the exit code, and that the output contains `part`.
#[track_caller]
pub(crate) fn says(gateway: &Gateway, arguments: &[&str], code: i32, part: &str) {
    let CommandOutput { code: found, out, err } = bucket(gateway, arguments);
    assert!(found == Some(code) && format!("{out}{err}").contains(part), "{arguments:?}: {found:?} {out}{err}");
}

/// Returns the JSON that the command prints.
#[track_caller]
pub(crate) fn document(gateway: &Gateway, arguments: &[&str]) -> Value {
    let output = bucket(gateway, &[arguments, &["--json"]].concat());
    assert_eq!(output.code, Some(0), "{}", output.err);
    output.json()
}
