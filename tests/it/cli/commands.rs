//! The output and the exit code of the commands.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output, Stdio};

use crate::support::{Client, Gateway, Upstream};

fn tollgate(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    // The file that is shipped wants it.
    command.env("JWT_SECRET", "0123456789abcdef0123456789abcdef");
    command.args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn check_accepts_the_shipped_file() {
    let output = tollgate(&["check", concat!(env!("CARGO_MANIFEST_DIR"), "/gateway.yaml")]);
    assert_eq!((output.status.code(), text(&output.stdout), text(&output.stderr)), (Some(0), "ok\n", ""));
}

#[test]
fn an_invalid_file_prevents_the_start_and_every_problem_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("gateway.yaml");
    std::fs::write(&file, "listen: 127.0.0.1:0\nupstream: ftp://x\nrules:\n  - {name: a, limit_keys: [], algorithm_config: {rps: 1}}\nlisen: 1\n").unwrap();
    let name = file.to_str().unwrap();
    for arguments in [&["check", name][..], &["run", "-c", name], &["-c", name]] {
        let output = tollgate(arguments);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), ""), "{arguments:?}");
        let expected = format!(
            "{name}:2:11: upstream: must be a URL like http://127.0.0.1:9000 or https://api.internal, without a path, is `ftp://x`\n\
             {name}:4:49: rules[0].algorithm_config.burst: missing; needed with `rps`\n\
             {name}:5:1: lisen: unknown key\n  hint: did you mean `listen`?\n3 problems\n"
        );
        assert_eq!(text(&output.stderr), expected, "{arguments:?}");
    }
}

#[test]
fn a_missing_file_is_a_problem() {
    let output = tollgate(&["check", "no-such-file.yaml"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).starts_with("no-such-file.yaml: must be a readable file: "), "{output:?}");
    assert!(text(&output.stderr).ends_with("\n1 problem\n"), "{output:?}");
}

/// Writes a configuration file with this text, in its own folder.
fn written(text: &str) -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("gateway.yaml");
    std::fs::write(&file, format!("upstream: http://127.0.0.1:9\n{text}")).unwrap();
    let name = file.to_str().unwrap().to_owned();
    (directory, name)
}

#[test]
fn warnings_are_printed_before_ok_and_instead_of_it_with_strict() {
    let (_directory, name) = written("admin: 0.0.0.0:9901\n");
    let warning = format!(
        "{name}:2:8: warning public_admin: admin: is 0.0.0.0:9901: every host that can reach that address can read metrics without a \
         password\n  hint: listen on 127.0.0.1, or on an address that only monitoring can reach, and say that it is meant\n\
         1 warning\n"
    );
    let output = tollgate(&["check", &name]);
    assert_eq!((output.status.code(), text(&output.stdout), text(&output.stderr)), (Some(0), "ok\n", &*warning));
    let output = tollgate(&["check", "--strict", &name]);
    assert_eq!((output.status.code(), text(&output.stdout), text(&output.stderr)), (Some(1), "", &*warning));
    let (_directory, name) = written("admin: 0.0.0.0:9901\ncheck: {allow: [public_admin]}\n");
    let output = tollgate(&["check", "--strict", &name]);
    assert_eq!((output.status.code(), text(&output.stdout), text(&output.stderr)), (Some(0), "ok\n", ""));
    let (_directory, name) = written("rules: [{name: a, action: deny, expires: 2020-01-01T00:00:00Z}]\n");
    let output = tollgate(&["check", "--strict", &name]);
    assert!(text(&output.stderr).contains("warning expired_rule: rules[0].expires: has passed"), "{output:?}");
}

#[test]
fn check_prints_one_json_document_with_json() {
    let json = |arguments: &[&str]| {
        let output = tollgate(&[&["check", "--json"], arguments].concat());
        assert_eq!(text(&output.stderr), "", "{arguments:?}");
        let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(if document["ok"] == true { 0 } else { 1 }), "{document}");
        document
    };
    let (_directory, good) = written("");
    let none: [(); 0] = [];
    assert_eq!(
        json(&[&good]),
        serde_json::json!({"file": good, "ok": true, "problems": none, "warnings": none, "starts_anew": none, "kept": none, "routes": none, "upstreams": none, "home": none, "gone": none, "needs_restart": none,
            "denied_without_store": none, "denied_without_home": none})
    );
    let (_directory, unwise) =
        written("admin: 0.0.0.0:9901\nrules: [{name: a, limit_keys: [], algorithm_config: {rate: 1/s}}]\n");
    let found = json(&[&unwise, "--against", &good]);
    assert_eq!(found["starts_anew"], serde_json::json!(["policy default, limit a: it was not there before"]));
    assert_eq!((&found["needs_restart"], &found["gone"]), (&serde_json::json!(["admin"]), &serde_json::json!([])));
    assert_eq!(json(&[&good, "--against", &unwise])["gone"], serde_json::json!(["policy default, limit a"]));
    let against = tollgate(&["check", &good, "--against", &unwise]);
    assert_eq!(text(&against.stdout), "gone: policy default, limit a\nneeds a restart: admin\nok\n");
    let warning = &found["warnings"][0];
    assert_eq!(
        (&warning["name"], &warning["line"], &warning["column"]),
        (&"public_admin".into(), &2.into(), &8.into())
    );
    assert_eq!((&warning["file"], &warning["path"]), (&unwise.clone().into(), &"admin".into()));
    assert_eq!(json(&[&unwise, "--strict"])["ok"], false);
    let (_directory, wrong) = written("lisen: 1\n");
    let problem = serde_json::json!({
        "file": wrong, "line": 2, "column": 1, "path": "lisen", "what": "unknown key", "hint": "did you mean `listen`?"
    });
    assert_eq!(json(&[&wrong])["problems"], serde_json::json!([problem]));
    assert_eq!(json(&[&good, "--against", &wrong])["problems"], serde_json::json!([problem]));
    let missing = json(&["no-such-file.yaml"]);
    assert_eq!(
        (&missing["file"], &missing["problems"][0]["line"]),
        (&"no-such-file.yaml".into(), &serde_json::Value::Null)
    );
    assert!(missing["problems"][0]["what"].as_str().unwrap().starts_with("must be a readable file: "), "{missing}");
}

#[test]
fn the_file_of_check_is_an_argument_an_option_or_standard_input() {
    let (_directory, good) = written("");
    let (_other, wrong) = written("lisen: 1\n");
    assert_eq!(text(&tollgate(&["check", "-c", &good]).stdout), "ok\n");
    let both = tollgate(&["check", "-c", &good, &wrong]);
    assert_eq!(both.status.code(), Some(2), "{both:?}");
    let piped = |file: &str, arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(arguments).stdin(std::fs::File::open(file).unwrap()).output().unwrap()
    };
    assert_eq!(text(&piped(&good, &["check", "-"]).stdout), "ok\n");
    assert!(text(&piped(&wrong, &["check", "-"]).stderr).starts_with("-:2:1: lisen: unknown key\n"));
    // A running gateway reads its file again.
    let run = piped(&good, &["run", "-c", "-"]);
    assert!(text(&run.stderr).starts_with("-: must be a readable file: "), "{run:?}");
}

#[test]
fn an_unusable_file_is_a_single_problem() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().to_str().unwrap();
    let large = directory.path().join("large.yaml");
    std::fs::write(&large, "# filler\n".repeat(10 << 17)).unwrap();
    let binary = directory.path().join("binary.yaml");
    std::fs::write(&binary, [0, 159, 146, 150]).unwrap();
    let mut files = vec![
        (folder, ": must be a readable file: Is a directory"),
        (large.to_str().unwrap(), ": must be at most 4194304 bytes, is 11796480"),
        (binary.to_str().unwrap(), ":1:2: must be UTF-8 text, is not"),
    ];
    let secret = directory.path().join("secret.yaml");
    std::fs::write(&secret, "upstream: http://a\n").unwrap();
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o000)).unwrap();
    // Root can read it anyway.
    if std::fs::read(&secret).is_err() {
        files.push((secret.to_str().unwrap(), ": must be a readable file: Permission denied"));
    }
    for (file, what) in files {
        let output = tollgate(&["check", file]);
        let said = text(&output.stderr);
        assert!(said.starts_with(&format!("{file}{what}")) && said.ends_with("\n1 problem\n"), "{said}");
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), ""));
    }
}

#[test]
fn a_start_and_a_reload_log_each_warning_once() {
    let upstream = Upstream::start();
    let user = |name: &str| {
        format!(
            "{{name: {name}, match: {{path: /{name}}}, limit_keys: [header:x-user], algorithm_config: {{rps: 1, burst: 1}}}}"
        )
    };
    let rules = |names: &[&str]| {
        format!(
            "rules: [{}, {{name: rest, limit_keys: [], algorithm_config: {{rps: 9, burst: 9}}}}]",
            names.iter().map(|name| user(name)).collect::<Vec<_>>().join(", ")
        )
    };
    let gateway = Gateway::start(&upstream, &rules(&["a"]));
    let said = |what: &str| gateway.errors().matches(what).count();
    let line =
        format!("WARN configuration warning name=unverified_key place={}:", gateway.file("gateway.yaml").display());
    crate::support::eventually("it is reported", || said(&line) == 1);
    gateway.reload(&upstream, &rules(&["a", "b"]));
    crate::support::eventually("the new one is reported", || said(&line) == 2);
    assert_eq!((said("path=rules[0].limit_keys"), said("path=rules[1].limit_keys")), (1, 1), "{}", gateway.errors());
    let many: Vec<String> = (0..20).map(|number| format!("r{number}")).collect();
    gateway.reload(&upstream, &rules(&many.iter().map(String::as_str).collect::<Vec<_>>()));
    crate::support::eventually("the rest is counted", || said("WARN more configuration warnings") == 1);
    assert_eq!((said(&line), said(" more=8")), (12, 1), "{}", gateway.errors());
}

#[test]
fn wrong_usage_exits_with_2() {
    for arguments in [&["--no-such-flag"][..], &["no-such-command"], &["check", "a", "b"], &["run", "-c"]] {
        assert_eq!(tollgate(arguments).status.code(), Some(2), "{arguments:?}");
    }
    for arguments in [&["-h"][..], &["check", "--help"], &["--version"]] {
        assert_eq!(tollgate(arguments).status.code(), Some(0), "{arguments:?}");
    }
}

#[test]
fn healthcheck_asks_the_admin_listener() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "drain: {delay: 20s}");
    let address = gateway.admin.to_string();
    let ask = |extra: &[&str]| tollgate(&[&["healthcheck", "--admin", &address], extra].concat());
    assert_eq!(text(&ask(&[]).stdout), "ok\n");
    assert_eq!(ask(&["--ready"]).status.code(), Some(0));
    gateway.drain();
    assert_eq!(ask(&[]).status.code(), Some(0));
    let draining = ask(&["--ready"]);
    assert_eq!(draining.status.code(), Some(1));
    assert_eq!(text(&draining.stderr), format!("{address}/readyz: must answer 200, is 503\n"));
}

#[test]
fn healthcheck_finds_the_admin_listener_in_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("gateway.yaml");
    let name = file.to_str().unwrap();
    std::fs::write(&file, "upstream: http://127.0.0.1:9\n").unwrap();
    let output = tollgate(&["healthcheck", "-c", name]);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(1), &*format!("{name}: admin: missing\n")));
    let gateway = Gateway::start(&Upstream::start(), "");
    std::fs::write(&file, format!("upstream: http://127.0.0.1:9\nadmin: 0.0.0.0:{}\n", gateway.admin.port())).unwrap();
    assert_eq!(tollgate(&["healthcheck", "-c", name]).status.code(), Some(0));
}

#[test]
fn echo_is_an_upstream_to_try_things_on() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["echo", "--listen", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let address = lines.next().unwrap().strip_prefix("listening echo ").unwrap().to_owned();
    assert_eq!(lines.next().as_deref(), Some("ready"));
    let gateway = Gateway::before_url(&format!("http://{address}")).start();
    let response = gateway.client().send("POST", "/hello?a=b", &[("X-Mine", "v")], "body");
    assert!(response.body.starts_with("POST /hello?a=b\n"), "{response:?}");
    assert!(response.body.contains("x-mine: v\n") && response.body.ends_with("\n\nbody"), "{response:?}");
    let head = Client::connect(address.parse().unwrap()).send("HEAD", "/", &[], "");
    assert_eq!(head.status, 200);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn diagnostics_never_hold_what_a_client_sent() {
    let upstream = Upstream::answering(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nSet-Cookie: a-secret\r\nContent-Length: 8\r\n\r\na-secret");
    });
    for level in ["debug", "trace"] {
        let gateway = Gateway::start(&upstream, &format!("log: {{level: {level}}}"));
        let fields = [("Authorization", "Bearer a-secret"), ("Cookie", "a-secret")];
        assert_eq!(gateway.client().send("POST", "/?key=a-secret", &fields, "a-secret").status, 200);
        gateway.expect_logged("DEBUG");
        assert!(!gateway.errors().contains("a-secret"), "{}", gateway.errors());
    }
}

#[test]
fn diagnostics_never_hold_what_an_upstream_sent() {
    for answer in [
        &b"HTTP/1.1 200 OK\r\nSet-Cookie: a-secret\r\nX Y: a\r\n\r\n"[..],
        b"HTTP/1.1 200 OK\r\nSet-Cookie: a-secret\r\nContent-Length: a-secret\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\na-secret\r\n",
        b"a-secret",
    ] {
        let upstream = Upstream::answering(move |_, stream| {
            let _ = stream.write_all(answer);
            let _ = stream.shutdown(std::net::Shutdown::Both);
        });
        for level in ["info", "trace"] {
            let gateway = Gateway::start(&upstream, &format!("log: {{level: {level}}}"));
            let mut client = gateway.client();
            client.write("GET /?a-secret HTTP/1.1\r\nHost: a\r\n\r\n");
            let _ = client.response("GET");
            crate::support::eventually("it says so", || gateway.has_logged("upstream failed"));
            let errors = gateway.errors();
            assert!(!errors.contains("a-secret"), "{errors}");
            assert!(errors.lines().all(|line| line.len() < 1000), "{errors}");
        }
    }
}

#[test]
fn diagnostics_are_text_or_json() {
    let gateway = Gateway::before_url("http://localhost:1").with("log: {format: json}").start();
    crate::support::eventually("a line", || gateway.has_logged("upstream resolved"));
    let errors = gateway.errors();
    let line: serde_json::Value =
        serde_json::from_str(errors.lines().find(|line| line.contains("upstream resolved")).unwrap()).unwrap();
    assert_eq!((&line["level"], &line["host"]), (&"info".into(), &"localhost".into()), "{line}");
    let gateway = Gateway::before_url("http://localhost:1").with("log: {level: error}").start();
    gateway.client().get("/", &[]);
    assert_eq!(gateway.errors(), "");
}

#[test]
fn check_reports_the_warnings_that_do_not_depend_on_a_problem() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("gateway.yaml");
    let name = file.to_str().unwrap();
    let check = |text: &str| {
        std::fs::write(&file, text).unwrap();
        text_of_errors(&tollgate(&["check", name])).replace(&format!("{name}:"), "")
    };
    let rules = "rules: [{name: a, limit_keys: [header:x-a], algorithm_config: {rps: 1, burst: 5}}]\n";
    let admin = "2:8: warning public_admin";
    let key = "warning unverified_key";
    // A problem of a key that nothing else reads.
    let both = check(&format!("upstream: http://a\nadmin: 0.0.0.0:1\nlog: {{level: loud}}\n{rules}"));
    assert!(both.starts_with("3:14: log.level: must be") && both.contains("1 problem\n"), "{both}");
    assert!(both.contains(admin) && both.contains(key) && both.ends_with(" warnings\n"), "{both}");
    // One of the rules: what is said of rules may be wrong without it.
    let broken = rules.replace("rps: 1", "rps: 0");
    let process = check(&format!("upstream: http://a\nadmin: 0.0.0.0:1\n{broken}"));
    assert!(process.contains(admin) && !process.contains(key) && process.ends_with("1 warning\n"), "{process}");
    // One of a key without which another is read in another way.
    let unsure = check(&format!("upstream: http://a\nadmin: 0.0.0.0:1\njwt: {{}}\n{rules}"));
    assert!(unsure.contains(admin) && !unsure.contains(key), "{unsure}");
    // A key that is unknown, and one that may be a misspelt `jwt`.
    let strange = check(&format!("upstream: http://a\nadmin: 0.0.0.0:1\nxylophone: 1\n{rules}"));
    assert!(strange.contains(admin) && strange.contains(key) && strange.ends_with(" warnings\n"), "{strange}");
    let misspelt = check(&format!("upstream: http://a\nadmin: 0.0.0.0:1\njwtt: {{}}\n{rules}"));
    assert!(misspelt.contains(admin) && !misspelt.contains(key), "{misspelt}");
    let unknown = check(&format!("upstream: http://a\nadmin: 0.0.0.0:1\ncheck: {{allow: [public_admni]}}\n{rules}"));
    assert!(!unknown.contains(": warning "), "{unknown}");
    let json = tollgate(&["check", "--json", name]);
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&json.stdout).unwrap()["warnings"], serde_json::json!([]));
}

fn text_of_errors(output: &Output) -> String {
    text(&output.stderr).to_owned()
}
