//! A command of the real binary, and what it said.

use std::process::Command;

use serde_json::Value;

#[derive(Debug)]
pub struct Told {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Told {
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }
}

/// Runs `tollgate` with these arguments to its end.
pub fn tollgate(arguments: &[&str]) -> Told {
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate")).args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Told { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}
