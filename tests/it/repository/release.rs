//! Releases: the bill of materials agrees with Cargo.lock, the licences with deny.toml, and version and signatures with the
//! documents.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::not_checked;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(name: &str) -> String {
    std::fs::read_to_string(root().join(name)).unwrap()
}

/// Returns the exit code and the output of the script. `None` without a suitable Python.
fn sbom(arguments: &[&str]) -> Option<(Option<i32>, String)> {
    let mut python = Command::new("python3");
    let reads_toml = python.args(["-c", "import tomllib"]).stderr(Stdio::null()).status();
    if !reads_toml.is_ok_and(|status| status.success()) {
        not_checked("python3 is missing, or older than 3.11");
        return None;
    }
    let output = Command::new(root().join("scripts/sbom")).args(arguments).output().unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    Some((output.status.code(), text))
}

/// Returns the names and versions of the linked packages from cargo's tree, without our own crates.
fn linked(target: &str) -> BTreeSet<String> {
    let arguments = [
        "tree",
        "--locked",
        "--package=tollgate",
        "--edges=normal",
        "--prefix=none",
        "--format={p}",
        "--target",
        target,
    ];
    let output = Command::new(env!("CARGO")).args(arguments).current_dir(root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    let name = |line: &str| line.split(' ').take(2).collect::<Vec<_>>().join(" ").replace(" v", " ");
    lines.lines().filter(|line| !line.is_empty() && !line.starts_with("tollgate-")).map(name).collect()
}

/// Returns the checksums of Cargo.lock, by name and version.
fn locked() -> BTreeMap<String, String> {
    let value = |package: &str, key: &str| {
        let start = format!("{key} = ");
        package.lines().find_map(|line| Some(line.strip_prefix(&start)?.trim_matches('"').to_owned()))
    };
    let lock = read("Cargo.lock");
    let packages = lock.split("[[package]]").skip(1);
    let named = |package| Some((format!("{} {}", value(package, "name")?, value(package, "version")?), package));
    packages.filter_map(named).filter_map(|(name, package)| Some((name, value(package, "checksum")?))).collect()
}

#[test]
fn the_bill_of_materials_has_every_package_that_is_linked_with_its_checksum_and_licence() {
    for target in ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "x86_64-unknown-linux-musl"] {
        let Some((code, text)) = sbom(&["--target", target]) else { return };
        assert_eq!(code, Some(0), "{text}");
        assert!(sbom(&["--target", target]).unwrap().1 == text, "it differs from one time to the next");
        let bom: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&bom["bomFormat"], &bom["specVersion"]), (&"CycloneDX".into(), &"1.5".into()));
        let locked = locked();
        let own = &bom["metadata"]["component"];
        assert_eq!(own["version"], env!("CARGO_PKG_VERSION"));
        let mut found = BTreeSet::new();
        for component in bom["components"].as_array().unwrap().iter().chain([own]) {
            let word = |key: &str| component[key].as_str().unwrap();
            let name = format!("{} {}", word("name"), word("version"));
            let purl = format!("pkg:cargo/{}@{}", word("name"), word("version").replace('+', "%2B"));
            assert_eq!(word("purl"), purl);
            assert!(component["licenses"][0]["expression"].is_string(), "{name} has no licence");
            let checksum = component["hashes"][0]["content"].as_str();
            assert_eq!(checksum, locked.get(&name).map(String::as_str), "{name}");
            found.insert(name);
        }
        assert_eq!(found.symmetric_difference(&linked(target)).collect::<Vec<_>>(), [""; 0]);
        let depends = bom["dependencies"].as_array().unwrap();
        assert_eq!(depends.len(), found.len());
    }
}

#[test]
fn a_licence_that_is_not_allowed_is_named_and_fails() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("rules.toml");
    // Each with what cannot be had without it, and what can.
    for (licence, wanting, content) in [
        ("ISC", Some("ring "), "rustls "),
        ("Unicode-3.0", Some("unicode-ident "), "memchr "),
        ("BSL-1.0", Some("xxhash-rust "), "ryu "),
        ("Unlicense", None, "memchr "),
    ] {
        let rules = read("deny.toml").replace(&format!("\"{licence}\""), "\"None\"");
        std::fs::write(&file, rules).unwrap();
        let Some((code, text)) = sbom(&["--check", "--rules", file.to_str().unwrap()]) else { return };
        assert_eq!(code, Some(i32::from(wanting.is_some())), "{licence}: {text}");
        assert!(wanting.is_none_or(|name| text.contains(name)) && !text.contains(content), "{licence}: {text}");
    }
    let (code, text) = sbom(&["--check"]).unwrap();
    assert_eq!(code, Some(0), "{text}");
}

#[test]
fn an_exception_that_nothing_needs_fails() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("rules.toml");
    let more = "exceptions = [{ crate = \"gone\", allow = [\"MIT\"] }, ";
    std::fs::write(&file, read("deny.toml").replace("exceptions = [", more)).unwrap();
    let Some((code, text)) = sbom(&["--check", "--rules", file.to_str().unwrap()]) else { return };
    assert_eq!((code, &*text), (Some(1), "deny.toml: an exception is for gone, which is not needed\n"));
}

#[test]
fn documents_manifests_and_the_changelog_name_the_version_of_the_program() {
    let version = env!("CARGO_PKG_VERSION");
    let changelog = read("CHANGELOG.md");
    let newest = changelog.lines().find_map(|line| line.strip_prefix("## ").filter(|title| *title != "Unreleased"));
    assert!(newest.unwrap().starts_with(&format!("{version} (")), "{newest:?}");
    let named =
        regex::Regex::new(r"(?:VERSION=|newest version is |tollgate(?:-chart-|[-_: ]))(\d+\.\d+\.\d+)").unwrap();
    for (file, least) in [
        ("README.md", 2),
        ("Dockerfile", 1),
        ("docs/deploy.md", 7),
        ("docs/operations.md", 1),
        ("deploy/image", 1),
        ("deploy/kubernetes/deployment.yaml", 1),
        ("deploy/kubernetes-postgres/job.yaml", 1),
    ] {
        let text = read(file);
        let found: Vec<_> = named.captures_iter(&text).map(|found| found.get(1).unwrap().as_str()).collect();
        assert!(found.len() >= least && found.iter().all(|found| *found == version), "{file}: {found:?}");
    }
}

#[test]
fn a_signature_is_verified_as_the_documents_say() {
    let folder = TempDir::new().unwrap();
    let shell = |command: &str| {
        let output = Command::new("sh").args(["-c", command]).current_dir(folder.path()).output().unwrap();
        (output.status.success(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    };
    if !shell("command -v ssh-keygen").0 {
        not_checked("ssh-keygen is not installed");
        return;
    }
    for key in ["release", "other"] {
        let (made, text) = shell(&format!("ssh-keygen -q -t ed25519 -N '' -f {key}"));
        assert!(made, "{text}");
    }
    let page = read("docs/deploy.md");
    let command = |start: &str| page.lines().find(|line| line.starts_with(start)).unwrap();
    let signers = command("echo \"release ");
    let verify = command("ssh-keygen -Y verify").replace("tollgate-0", "a-0");
    let archive = verify.rsplit('<').next().unwrap().to_owned();
    let write = |text: &str| std::fs::write(folder.path().join(&archive), text).unwrap();
    let sign = |key: &str| shell(&format!("{}/scripts/sign {key} {archive}", root().display()));

    write("an archive");
    assert_eq!(sign("release"), (true, format!("{archive}.sig\n")));
    assert!(shell(signers).0);
    let (good, text) = shell(&verify);
    assert!(good && text.starts_with("Good \"tollgate-release\" signature for release with"), "{text}");
    write("an archivE");
    assert!(!shell(&verify).0, "of another file");
    write("an archive");
    assert!(sign("other").0 && !shell(&verify).0, "by another key");
    assert!(sign("release").0 && shell(&verify).0);
    let other = format!("rm {archive}.sig && ssh-keygen -q -Y sign -f release -n git {archive}");
    assert!(shell(&other).0 && !shell(&verify).0, "for another purpose");
    let (signed, text) = sign("missing");
    assert!(!signed && text.contains("missing"), "{text}");
}
