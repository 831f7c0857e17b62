//! Runs a command of the real binary, and returns its output.

use std::process::Command;

use serde_json::Value;

#[derive(Debug)]
pub(crate) struct CommandOutput {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl CommandOutput {
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }
}

/// Runs `tollgate` with these arguments to its end.
pub(crate) fn tollgate(arguments: &[&str]) -> CommandOutput {
    tollgate_with(arguments, &[])
}

/// Runs `tollgate` with these arguments and environment variables to its end.
pub(crate) fn tollgate_with(arguments: &[&str], variables: &[(&str, &str)]) -> CommandOutput {
    let mut program = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let output = program.args(arguments).envs(variables.iter().copied()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    CommandOutput { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// Returns the commands that the `-h` of a command lists, without `help`.
#[track_caller]
pub(crate) fn subcommands(command: &[&str]) -> Vec<String> {
    let help = tollgate(&[command, &["-h"]].concat());
    assert_eq!((help.code, &*help.err), (Some(0), ""), "{command:?}");
    let lines = help.out.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = lines.map(|line| line.split_whitespace().next().unwrap().to_owned());
    names.filter(|name| name != "help").collect()
}
