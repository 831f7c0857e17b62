//! `tollgate import … -o FILE` writes a file that `check` accepts, and leaves the old one after an error.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown, symlink};
use std::process::Command;

use crate::support::tollgate;

const NGINX: &str = "limit_req_zone $binary_remote_addr zone=all:1m rate=10r/s;
limit_rate 10k;
server { location / { limit_req zone=all burst=20; } }
";

const KONG: &str = "_format_version: \"3.0\"
plugins: [{name: rate-limiting, config: {minute: 100, limit_by: ip}}]
";

const RATELIMIT: &str = "domain: shop
descriptors: [{key: a, rate_limit: {unit: minute, requests_per_unit: 3}}]
";

#[test]
fn an_output_file_is_written_whole_or_not_at_all() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (from, to) = (path("from"), path("gateway.yaml"));
    for (kind, text, wrong) in
        [("nginx", NGINX, "server {"), ("kong", KONG, "plugins: []\n"), ("ratelimit", RATELIMIT, "domain: [\n")]
    {
        fs::write(&from, text).unwrap();
        fs::write(&to, "old").unwrap();
        fs::set_permissions(&to, fs::Permissions::from_mode(0o640)).unwrap();
        let printed = tollgate(&["import", kind, &from]);
        let written = tollgate(&["import", kind, &from, "-o", &to]);
        assert_eq!((written.code, &*written.out, &written.err), (Some(0), "", &printed.err), "{kind}");
        assert_eq!(fs::read_to_string(&to).unwrap(), printed.out);
        assert_eq!(fs::metadata(&to).unwrap().permissions().mode() & 0o777, 0o640);
        let checked = tollgate(&["check", &to]);
        assert_eq!((checked.code, checked.out.lines().last()), (Some(0), Some("ok")), "{kind}: {}", checked.err);
        fs::write(&from, wrong).unwrap();
        let failed = tollgate(&["import", kind, &from, "--output", &to]);
        assert_eq!((failed.code, &*failed.out), (Some(1), ""), "{kind}");
        assert!(failed.err.contains(&format!("{from}:")) && failed.err.ends_with("1 problem\n"), "{}", failed.err);
        assert_eq!(fs::read_to_string(&to).unwrap(), printed.out, "{kind}");
    }
    fs::write(&from, NGINX).unwrap();
    let unwritable = tollgate(&["import", "nginx", &from, "-o", &path("missing/gateway.yaml")]);
    assert_eq!(unwritable.code, Some(1));
    assert!(unwritable.err.contains("missing/gateway.yaml: must be writable: "), "{}", unwritable.err);
    let mut names: Vec<_> = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["from", "gateway.yaml"]);
}

#[test]
fn a_link_to_the_output_file_stays_a_link() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("nginx.conf"), NGINX).unwrap();
    fs::write(path("real.yaml"), "old").unwrap();
    symlink("real.yaml", path("link.yaml")).unwrap();
    let written = tollgate(&["import", "nginx", &path("nginx.conf"), "-o", &path("link.yaml")]);
    assert_eq!(written.code, Some(0));
    assert!(written.err.contains("nginx.conf:2:1: limit_rate: the speed of a response is not limited\n1 remark\n"));
    assert!(fs::symlink_metadata(path("link.yaml")).unwrap().is_symlink());
    assert!(fs::read_to_string(path("real.yaml")).unwrap().contains("algorithm: leaky_bucket"));
}

#[test]
fn a_link_to_nothing_leads_to_the_new_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("nginx.conf"), NGINX).unwrap();
    symlink("second.yaml", path("first.yaml")).unwrap();
    symlink("real.yaml", path("second.yaml")).unwrap();
    symlink("circle.yaml", path("circle.yaml")).unwrap();
    let written = tollgate(&["import", "nginx", &path("nginx.conf"), "-o", &path("first.yaml")]);
    assert_eq!(written.code, Some(0), "{}", written.err);
    for link in ["first.yaml", "second.yaml"] {
        assert!(fs::symlink_metadata(path(link)).unwrap().is_symlink(), "{link}");
    }
    assert!(fs::symlink_metadata(path("real.yaml")).unwrap().is_file());
    let failed = tollgate(&["import", "nginx", &path("nginx.conf"), "-o", &path("circle.yaml")]);
    assert_eq!(failed.code, Some(1));
    assert!(fs::symlink_metadata(path("circle.yaml")).unwrap().is_symlink());
}

#[test]
fn an_output_that_is_no_file_is_written_and_stays() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("nginx.conf"), NGINX).unwrap();
    let printed = tollgate(&["import", "nginx", &path("nginx.conf")]);
    let import = |to: &str| tollgate(&["import", "nginx", &path("nginx.conf"), "-o", to]);
    let to_output = import("/dev/stdout");
    assert_eq!((to_output.code, &to_output.out), (Some(0), &printed.out), "{}", to_output.err);
    // A pipe in a folder of its own, as no test may harm /dev/null.
    assert!(Command::new("mkfifo").arg(path("pipe")).status().unwrap().success());
    let reader = std::thread::spawn({
        let pipe = path("pipe");
        move || fs::read_to_string(pipe).unwrap()
    });
    let to_pipe = import(&path("pipe"));
    assert_eq!(to_pipe.code, Some(0), "{}", to_pipe.err);
    assert!(fs::symlink_metadata(path("pipe")).unwrap().file_type().is_fifo());
    assert_eq!(reader.join().unwrap(), printed.out);
    let to_folder = import(directory.path().to_str().unwrap());
    assert_eq!(to_folder.code, Some(1));
    assert!(to_folder.err.contains(": must be writable: "), "{}", to_folder.err);
}

#[test]
fn an_output_file_keeps_its_owner_and_group() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let to = path("gateway.yaml");
    fs::write(path("nginx.conf"), NGINX).unwrap();
    fs::write(&to, "old").unwrap();
    fs::set_permissions(&to, fs::Permissions::from_mode(0o640)).unwrap();
    // Only root may give a file away. Others keep what they have.
    let _ = chown(&to, Some(12_345), Some(23_456));
    let old = fs::metadata(&to).unwrap();
    assert_eq!(tollgate(&["import", "nginx", &path("nginx.conf"), "-o", &to]).code, Some(0));
    let new = fs::metadata(&to).unwrap();
    assert_eq!((new.uid(), new.gid(), new.mode()), (old.uid(), old.gid(), old.mode()));
    assert!(fs::read_to_string(&to).unwrap().contains("algorithm: leaky_bucket"));
}
