//! The Debian package: its content, the origin of the content, and the files that dpkg keeps. deploy/try-deb installs it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::{read, root};
use crate::support::{not_checked, tollgate};

/// Runs a program and returns its output. `None` if the program is not installed.
#[track_caller]
fn printed(program: impl AsRef<Path>, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program.as_ref()).args(arguments).env("SOURCE_DATE_EPOCH", "1750000000").output().ok()?;
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap())
}

/// Returns an unpacked archive in the form of scripts/release, with another program.
fn release() -> TempDir {
    let folder = TempDir::new().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("tollgate", "a program");
    write("man/tollgate.1", &printed(env!("CARGO_BIN_EXE_tollgate"), &["man"]).unwrap());
    write("systemd/tollgate.service", &read("deploy/systemd/tollgate.service"));
    for name in ["gateway.yaml", "README.md", "CHANGELOG.md", "LICENSE-MIT"] {
        write(name, &read(name));
    }
    for name in [
        "completions/tollgate.bash",
        "completions/_tollgate",
        "completions/tollgate.fish",
        "sbom.cdx.json",
        "THIRD-PARTY-LICENSES",
        "licenses/musl.txt",
    ] {
        write(name, name);
    }
    folder
}

/// Packs a release. `None` if dpkg is not installed.
fn package(release: &Path, out: &Path) -> Option<PathBuf> {
    if Command::new("dpkg-deb").arg("--version").output().is_err() {
        not_checked("dpkg-deb is not installed");
        return None;
    }
    let [release, out] = [release, out].map(|path| path.to_str().unwrap());
    let file = printed(root().join("scripts/deb"), &[release, "x86_64", out])?;
    Some(PathBuf::from(file.trim()))
}

/// Unpacks a package into a folder. Its control files are then in DEBIAN.
fn unpacked(file: &Path, folder: &Path) {
    printed("dpkg-deb", &["--raw-extract", file.to_str().unwrap(), folder.to_str().unwrap()]).unwrap();
}

#[test]
fn the_package_contains_what_the_archive_does_at_the_places_of_debian() {
    let (release, out, folder) = (release(), TempDir::new().unwrap(), TempDir::new().unwrap());
    let Some(file) = package(release.path(), out.path()) else { return };
    let name = format!("tollgate_{}_amd64.deb", env!("CARGO_PKG_VERSION"));
    assert_eq!(file.file_name().unwrap().to_str(), Some(&*name));
    let listed = printed("dpkg-deb", &["--contents", file.to_str().unwrap()]).unwrap();
    let entries: Vec<Vec<&str>> = listed.lines().map(|line| line.split_whitespace().collect()).collect();
    assert!(entries.iter().all(|entry| entry[1] == "root/root"), "{listed}");
    let files: BTreeSet<_> = entries.iter().filter(|entry| !entry[5].ends_with('/')).map(|entry| entry[5]).collect();
    let expected = [
        "./etc/logrotate.d/tollgate",
        "./etc/tollgate/gateway.yaml",
        "./lib/systemd/system/tollgate.service",
        "./usr/bin/tollgate",
        "./usr/share/bash-completion/completions/tollgate",
        "./usr/share/doc/tollgate/CHANGELOG.md",
        "./usr/share/doc/tollgate/README.md",
        "./usr/share/doc/tollgate/THIRD-PARTY-LICENSES.gz",
        "./usr/share/doc/tollgate/changelog.gz",
        "./usr/share/doc/tollgate/copyright",
        "./usr/share/doc/tollgate/examples/gateway.yaml",
        "./usr/share/doc/tollgate/licenses/musl.txt",
        "./usr/share/doc/tollgate/sbom.cdx.json.gz",
        "./usr/share/fish/vendor_completions.d/tollgate.fish",
        "./usr/share/man/man1/tollgate.1.gz",
        "./usr/share/zsh/vendor-completions/_tollgate",
    ];
    assert_eq!(files.into_iter().collect::<Vec<_>>(), expected);

    let folder = folder.path().join("package");
    unpacked(&file, &folder);
    let text = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    // What an upgrade keeps is all that is in /etc.
    assert_eq!(text("DEBIAN/conffiles"), "/etc/tollgate/gateway.yaml\n/etc/logrotate.d/tollgate\n");
    let control = text("DEBIAN/control");
    assert!(control.contains(&format!("\nVersion: {}\n", env!("CARGO_PKG_VERSION"))), "{control}");
    let changelog = folder.join("usr/share/doc/tollgate/changelog.gz");
    let changelog = printed("gzip", &["-dc", changelog.to_str().unwrap()]).unwrap();
    assert!(changelog.starts_with(&format!("tollgate ({}) ", env!("CARGO_PKG_VERSION"))), "{changelog}");
    assert!(changelog.ends_with(">  Sun, 15 Jun 2025 15:06:40 +0000\n"), "{changelog}");
    assert_eq!(text("usr/bin/tollgate"), "a program");
    for script in ["preinst", "postinst", "prerm", "postrm"] {
        printed("sh", &["-n", folder.join("DEBIAN").join(script).to_str().unwrap()]);
    }
    // The program is elsewhere, and its user stays.
    let unit = text("lib/systemd/system/tollgate.service");
    assert_eq!(unit.matches("/usr/bin/tollgate ").count(), 2, "{unit}");
    assert!(!unit.contains("/usr/local") && !unit.contains("DynamicUser="), "{unit}");
    assert!(unit.contains("\nUser=tollgate\nGroup=tollgate\nRemoveIPC=yes\n"), "{unit}");
    assert!(text("DEBIAN/postinst").contains("adduser --quiet --system --group"));
    let logs = unit.lines().find_map(|line| line.strip_prefix("LogsDirectory=")).unwrap();
    assert!(text("etc/logrotate.d/tollgate").contains(&format!("\n/var/log/{logs}/*.jsonl {{\n")));
    assert!(text("etc/tollgate/gateway.yaml").contains(&format!("/var/log/{logs}/access.jsonl")));
}

#[test]
fn the_same_release_gives_the_same_package() {
    let (release, first, second) = (release(), TempDir::new().unwrap(), TempDir::new().unwrap());
    let Some(one) = package(release.path(), first.path()) else { return };
    // Files of another time.
    fs::write(release.path().join("tollgate"), "a program").unwrap();
    let two = package(release.path(), second.path()).unwrap();
    assert!(fs::read(one).unwrap() == fs::read(two).unwrap());
}

#[test]
fn the_gateway_yaml_of_the_package_passes_check_and_is_reached_from_this_machine_only() {
    let file = root().join("deploy/debian/gateway.yaml");
    let output = tollgate(&["check", "--strict", file.to_str().unwrap()]);
    assert_eq!(output.code, Some(0), "{output:?}");
    let config = super::parse(&read("deploy/debian/gateway.yaml"), &[]);
    assert!(config.listeners.iter().all(|listener| listener.address.inet().unwrap().ip().is_loopback()));
    assert!(config.admin.unwrap().ip().is_loopback());
}
