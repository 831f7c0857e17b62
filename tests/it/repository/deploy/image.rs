//! The image: what the Dockerfile says, and what it is built from.

use std::collections::BTreeSet;
use std::process::Command;

use super::{read, root};

/// What a Dockerfile says in the exec form; without a shell in the image there is no other.
#[track_caller]
pub fn words(line: &str) -> Vec<String> {
    let list = &line[line.find('[').unwrap_or_else(|| panic!("not in exec form: {line}"))..];
    serde_json::from_str(list).unwrap_or_else(|error| panic!("{line}: {error}"))
}

/// The instructions of the Dockerfile's last stage, each in one line.
fn last_stage() -> Vec<String> {
    let whole = read("Dockerfile").replace("\\\n", " ");
    let lines: Vec<_> = whole.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let start = lines.iter().rposition(|line| line.starts_with("FROM ")).unwrap();
    lines[start..].to_vec()
}

#[track_caller]
pub fn instruction(name: &str) -> String {
    let prefix = format!("{name} ");
    let lines: Vec<_> =
        last_stage().into_iter().filter_map(|line| Some(line.strip_prefix(&prefix)?.to_owned())).collect();
    assert_eq!(lines.len(), 1, "{name} in the Dockerfile: {lines:?}");
    lines[0].clone()
}

#[test]
fn the_image_runs_without_a_shell_and_without_root() {
    let user = instruction("USER");
    assert!(user.split(':').all(|number| number.parse::<u32>().is_ok_and(|number| number > 0)), "USER {user}");
    let program = words(&instruction("ENTRYPOINT"));
    let copied = instruction("COPY");
    assert_eq!(copied.rsplit(' ').next(), Some(&*program[0]), "what is copied is what is started");
    let command = words(&instruction("CMD"));
    let health = words(&instruction("HEALTHCHECK"));
    assert_eq!(health[0], program[0]);
    // Both are arguments that the program takes, and about one file.
    for arguments in [&command[..], &health[1..]] {
        let mut ours = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        let output = ours.args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("/etc/tollgate/gateway.yaml"), "{output:?}");
    }
}

#[test]
fn the_image_is_built_from_existing_files() {
    let dockerfile = read("Dockerfile");
    let manifest = read("Cargo.toml");
    let sent = read(".dockerignore");
    let mut copied = BTreeSet::new();
    for line in dockerfile.lines().filter_map(|line| line.strip_prefix("COPY ")).filter(|line| !line.contains("--from"))
    {
        let names: Vec<_> = line.split(' ').collect();
        copied.extend(names[..names.len() - 1].to_vec());
    }
    for name in &copied {
        assert!(root().join(name).exists(), "COPY {name}");
        assert!(sent.lines().any(|line| line == format!("!{name}")), ".dockerignore keeps {name} out");
    }
    assert_eq!(copied.into_iter().collect::<Vec<_>>(), ["Cargo.lock", "Cargo.toml", "src"]);
    // Cargo wants every target that the manifest names to be there, also for the dependencies alone.
    for path in manifest.lines().filter_map(|line| line.strip_prefix("path = \"")) {
        assert!(dockerfile.contains(path.trim_end_matches('"')), "the Dockerfile lacks {path}");
    }
    let version = |text: &str| -> Vec<u32> { text.split('.').map(|part| part.parse().unwrap()).collect() };
    let builds = dockerfile.lines().find_map(|line| line.strip_prefix("ARG RUST=")).unwrap();
    let needs = manifest.lines().find_map(|line| line.strip_prefix("rust-version = ")).unwrap().trim_matches('"');
    assert!(version(builds) >= version(needs), "{builds} builds what needs {needs}");
}
