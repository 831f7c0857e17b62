//! The container image: the instructions of the Dockerfile, and the files from which the image is built.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use super::{read, root};
use crate::repository::imports::source_folders;
use crate::support::not_checked;

/// Returns the words of an instruction in the exec form. The image has no shell, so there is no other form.
#[track_caller]
pub fn words(line: &str) -> Vec<String> {
    let list = &line[line.find('[').unwrap_or_else(|| panic!("not in exec form: {line}"))..];
    serde_json::from_str(list).unwrap_or_else(|error| panic!("{line}: {error}"))
}

/// Returns the instructions of the Dockerfile's last stage, each in one line.
fn last_stage() -> Vec<String> {
    let whole = read("Dockerfile").replace("\\\n", " ");
    let lines: Vec<_> = whole.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let start = lines.iter().rposition(|line| line.starts_with("FROM ")).unwrap();
    lines[start..].to_vec()
}

fn instructions(name: &str) -> Vec<String> {
    let prefix = format!("{name} ");
    last_stage().into_iter().filter_map(|line| Some(line.strip_prefix(&prefix)?.to_owned())).collect()
}

#[track_caller]
pub fn instruction(name: &str) -> String {
    let lines = instructions(name);
    assert_eq!(lines.len(), 1, "{name} in the Dockerfile: {lines:?}");
    lines[0].clone()
}

#[test]
fn the_image_runs_without_a_shell_and_without_root() {
    let user = instruction("USER");
    assert!(user.split(':').all(|number| number.parse::<u32>().is_ok_and(|number| number > 0)), "USER {user}");
    let program = words(&instruction("ENTRYPOINT"));
    let copied = instructions("COPY");
    assert_eq!(copied.len(), 2, "{copied:?}");
    assert_eq!(copied[0].rsplit(' ').next(), Some(&*program[0]), "what is copied is what is started");
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

/// Runs the Dockerfile's commands that write files beside the program, in a folder with the files that they need.
#[test]
fn the_image_has_its_bill_of_materials_and_the_licences() {
    let folder = tempfile::TempDir::new().unwrap();
    let whole = read("Dockerfile").replace("\\\n", " ");
    let line =
        |begins: &str| whole.lines().find(|line| line.starts_with(begins)).unwrap_or_else(|| panic!("no {begins}"));
    let run = line("RUN scripts/sbom ").strip_prefix("RUN ").unwrap();
    let empty = line("RUN for crate in ").strip_prefix("RUN ").unwrap();
    let empty = empty.split(" && cargo build").next().unwrap();
    let from = root().display();
    let brought =
        format!("cp {from}/Cargo.toml {from}/Cargo.lock . && mkdir scripts doc && cp {from}/scripts/sbom scripts");
    let manifests: Vec<&str> = whole.lines().filter(|line| line.starts_with("COPY crates/")).collect();
    let manifests = manifests.iter().map(|line| {
        let (file, folder) = line.trim_start_matches("COPY ").split_once(' ').unwrap();
        format!("mkdir -p {folder} && cp {from}/{file} {folder}")
    });
    let manifests = manifests.collect::<Vec<_>>().join("\n");
    let mut shell = Command::new("sh");
    shell.arg("-ec").arg(format!("{manifests}\n{empty}\n{brought}\n{run}")).current_dir(folder.path());
    let output = shell.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    if errors.contains("needs Python 3.11") || errors.contains("python3") {
        not_checked("python3 is missing, or older than 3.11");
        return;
    }
    assert!(output.status.success(), "{errors}");
    let written = |name: &str| std::fs::read_to_string(folder.path().join("doc").join(name)).unwrap();
    let bom: serde_json::Value = serde_json::from_str(&written("sbom.cdx.json")).unwrap();
    assert_eq!(bom["metadata"]["component"]["version"], env!("CARGO_PKG_VERSION"));
    assert!(written("THIRD-PARTY-LICENSES").contains("ring "));
    assert_eq!(instructions("COPY")[1], "--from=build /build/doc /usr/share/doc/tollgate");
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
        let is_sent = |line: &str| line.strip_prefix('!').is_some_and(|sent| Path::new(name).starts_with(sent));
        assert!(sent.lines().any(is_sent), ".dockerignore keeps {name} out");
    }
    let mut expected = ["Cargo.lock", "Cargo.toml", "LICENSE-APACHE", "LICENSE-MIT", "crates", "scripts/sbom", "src"]
        .map(str::to_owned)
        .to_vec();
    // Of each crate the manifest alone, before its sources.
    let crates = source_folders().into_iter().filter_map(|folder| {
        let manifest = folder.strip_prefix(root()).unwrap().with_file_name("Cargo.toml");
        manifest.starts_with("crates").then(|| manifest.to_str().unwrap().to_owned())
    });
    let crates: Vec<String> = crates.collect();
    expected.extend(crates.clone());
    expected.sort();
    assert_eq!(copied.into_iter().collect::<Vec<_>>(), expected);
    // Cargo wants every target that a manifest names to be there, also for the dependencies alone.
    for name in crates.iter().map(String::as_str).chain(["Cargo.toml"]) {
        let text = read(name);
        let folder = Path::new(name).parent().unwrap();
        let paths: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("path = \"")).collect();
        let targets = text.lines().filter(|line| line.starts_with("[[")).count();
        assert_eq!(paths.len(), targets, "{name}: every target has a path");
        for path in paths {
            let path = folder.join(path.trim_end_matches('"'));
            assert!(dockerfile.contains(path.to_str().unwrap()), "the Dockerfile lacks {}", path.display());
        }
    }
    let version = |text: &str| -> Vec<u32> { text.split('.').map(|part| part.parse().unwrap()).collect() };
    let builds = dockerfile.lines().find_map(|line| line.strip_prefix("ARG RUST=")).unwrap();
    let needs = manifest.lines().find_map(|line| line.strip_prefix("rust-version = ")).unwrap().trim_matches('"');
    assert!(version(builds) >= version(needs), "{builds} builds what needs {needs}");
}
