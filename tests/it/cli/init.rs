//! `tollgate init`: the starter files can be run without a change.

use std::process::Command;

use crate::support::{Gateway, Upstream, tollgate};

#[test]
fn every_starter_file_passes_check_and_overwrites_nothing() {
    let folder = tempfile::TempDir::new().unwrap();
    for shape in ["jwt", "api-keys", "ip"] {
        let file = folder.path().join(format!("{shape}.yaml"));
        let name = file.to_str().unwrap();
        let written = tollgate(&["init", shape, name]);
        assert_eq!(written.code, Some(0), "{written:?}");
        assert!(written.out.starts_with(&format!("written {name}\n")), "{written:?}");
        let mut check = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        let checked = check.args(["check", "--strict", name]).env("JWT_SECRET", "s".repeat(32)).output().unwrap();
        assert!(checked.status.success(), "{shape}: {}", String::from_utf8_lossy(&checked.stderr));
        // Its access log has what a replay needs.
        let logged = std::fs::read_to_string(&file).unwrap().replace("\n#access_log:", "\naccess_log:");
        let with_log = folder.path().join("logged.yaml");
        std::fs::write(&with_log, logged).unwrap();
        let warned = tollgate(&["check", with_log.to_str().unwrap()]).err;
        assert!(warned.contains("guessable_names") && !warned.contains("unlogged_attribute"), "{shape}: {warned}");
        let again = tollgate(&["init", shape, name]);
        assert_eq!((again.code, &*again.out), (Some(1), ""), "{again:?}");
        assert!(again.err.contains("must not exist: nothing was written"), "{again:?}");
        assert!(again.err.contains(&format!("`tollgate init {shape} new.yaml`")), "{again:?}");
        let printed = tollgate(&["init", shape, "-"]);
        assert_eq!((printed.code, printed.out), (Some(0), std::fs::read_to_string(&file).unwrap()));
    }
    assert!(folder.path().join("api-keys.txt").exists());
}

#[test]
fn a_starter_file_refuses_what_it_says() {
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("gateway.yaml");
    assert_eq!(tollgate(&["init", "ip", file.to_str().unwrap()]).code, Some(0));
    let text = std::fs::read_to_string(&file).unwrap();
    let policies = text.split_once("\npolicies:").unwrap().1.split_once("\n#").unwrap().0;
    let gateway = Gateway::start(&Upstream::start(), &format!("policies:{policies}"));
    let mut client = gateway.client();
    let refused = (0..12).filter(|_| client.send("POST", "/login", &[], "").status == 429).count();
    assert_eq!((refused, client.get("/health", &[]).status), (2, 200));
}

#[test]
fn a_report_has_colours_on_a_terminal_unless_it_must_not() {
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("gateway.yaml");
    std::fs::write(&file, "upstream: http://a\nadmin: 0.0.0.0:1\n").unwrap();
    let check = format!("{} check {}", env!("CARGO_BIN_EXE_tollgate"), file.display());
    let on_terminal = |variables: &[(&str, &str)]| {
        let mut command = Command::new("script");
        command.args(["-qec", &check, "/dev/null"]).env_remove("NO_COLOR").env("TERM", "xterm");
        command.envs(variables.iter().copied());
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let coloured = on_terminal(&[]);
    assert!(coloured.contains("\x1b[33m") && coloured.contains("\x1b[32mok\x1b[0m"), "{coloured:?}");
    for plain in [&[("NO_COLOR", "1")][..], &[("TERM", "dumb")]] {
        let printed = on_terminal(plain);
        assert!(!printed.contains('\x1b') && printed.contains("1 warning"), "{printed:?}");
    }
    assert!(!tollgate(&["check", file.to_str().unwrap()]).err.contains('\x1b'));
}
