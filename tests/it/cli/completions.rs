//! `-h`, shell completions and the manual page describe the same commands.

use std::process::{Command, Stdio};

use crate::support::subcommands;

const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];

#[track_caller]
fn tollgate(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate")).args(arguments).output().unwrap();
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0), "{arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn commands() -> Vec<String> {
    let commands = subcommands(&[]);
    assert!(commands.len() >= 8, "{commands:?}");
    commands
}

/// Returns the long flags that a command's `-h` lists.
fn flags(help: &str) -> Vec<String> {
    let lines = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    lines.filter_map(|line| Some(line.split_once("--")?.1.split([' ', ',']).next()?.to_owned())).collect()
}

/// Whether a program is installed on this machine.
fn is_there(program: &str) -> bool {
    Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

#[test]
fn every_command_is_explained_with_an_example() {
    for command in commands() {
        let help = tollgate(&[&command, "-h"]);
        let (explained, example) = help.split_once("\nExample: ").unwrap_or_else(|| panic!("{command}: no example"));
        assert!(explained.starts_with(char::is_uppercase), "{help}");
        // The example is a line to be typed, and uses the command.
        assert!(
            example.lines().any(|line| line.starts_with("  ") && line.contains(&format!("tollgate {command}"))),
            "{help}"
        );
    }
    assert!(tollgate(&["-h"]).contains("\nExample: "));
}

#[test]
fn every_command_and_flag_is_completed_and_in_the_manual() {
    let manual = tollgate(&["man"]).replace("\\-", "-");
    let scripts = SHELLS.map(|shell| tollgate(&["completions", shell]));
    let mut all = Vec::new();
    for command in commands() {
        all.extend(subcommands(&[&command]).into_iter().map(|inner| vec![command.clone(), inner]));
        all.push(vec![command]);
    }
    for command in all {
        let name = command.join(" ");
        let part = manual.split(&format!(".SS {name}\n")).nth(1).unwrap_or_else(|| panic!("man: {name}"));
        let part = part.split(".SS ").next().unwrap();
        let words: Vec<_> = command.iter().map(String::as_str).chain(["-h"]).collect();
        let flags = flags(&tollgate(&words));
        assert!(flags.contains(&"help".to_owned()), "{name}: {flags:?}");
        for flag in flags {
            assert!(part.contains(&format!("--{flag}")), "man: {name} --{flag}");
            for (shell, script) in SHELLS.iter().zip(&scripts) {
                let spelt = if *shell == "fish" { format!("-l {flag}") } else { format!("--{flag}") };
                let known = command.iter().all(|word| script.contains(word)) && script.contains(&spelt);
                assert!(known, "{shell}: {name} --{flag}");
            }
        }
        assert!(command.len() > 1 || part.contains("Example: "), "man: {name}");
    }
}

#[test]
fn bash_completes() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("tollgate");
    std::fs::write(&script, tollgate(&["completions", "bash"])).unwrap();
    let complete = |words: &[&str]| {
        let line = format!(
            ". {}; COMP_WORDS=({}); COMP_CWORD={}; _tollgate tollgate '{}' '{}'; echo ${{COMPREPLY[*]}}",
            script.display(),
            words.join(" "),
            words.len() - 1,
            words.last().unwrap(),
            words[words.len() - 2],
        );
        let output = Command::new("bash").args(["--norc", "-c", &line]).output().unwrap();
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    assert_eq!(complete(&["tollgate", "hea"]), "healthcheck");
    assert_eq!(complete(&["tollgate", "check", "--ag"]), "--against");
    assert_eq!(complete(&["tollgate", "completions", "z"]), "zsh");
}

#[test]
fn every_installed_shell_reads_its_script() {
    for shell in SHELLS.into_iter().filter(|shell| is_there(shell)) {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("script");
        std::fs::write(&script, tollgate(&["completions", shell])).unwrap();
        let output = Command::new(shell).arg("-n").arg(&script).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{shell}: {output:?}");
    }
}

#[test]
fn the_manual_can_be_formatted() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("tollgate.1");
    std::fs::write(&page, tollgate(&["man"])).unwrap();
    for setter in [&["groff", "-man", "-Tutf8", "-ww", "-z"][..], &["mandoc", "-Tlint", "-Werror"]] {
        if is_there(setter[0]) {
            let output = Command::new(setter[0]).args(&setter[1..]).arg(&page).output().unwrap();
            let said = [output.stdout, output.stderr].concat();
            assert!(said.is_empty(), "{}: {}", setter[0], String::from_utf8_lossy(&said));
        }
    }
}

#[test]
fn every_command_is_in_the_operators_table() {
    let page = crate::repository::docs::read("docs/operations.md");
    for command in commands() {
        assert!(
            page.contains(&format!("`tollgate {command}")),
            "docs/operations.md does not name `tollgate {command}`"
        );
    }
}
