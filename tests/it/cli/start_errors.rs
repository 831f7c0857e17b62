//! The errors that a failed start prints, in the format of the log.

use serde_json::Value;

use crate::support::{CommandOutput, tollgate};

/// Starts with this file, which must be rejected.
#[track_caller]
fn rejected(text: &str) -> CommandOutput {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("gateway.yaml");
    std::fs::write(&file, text).unwrap();
    let output = tollgate(&["run", "-c", file.to_str().unwrap()]);
    assert_eq!((output.code, &*output.out), (Some(1), ""), "{}", output.err);
    output
}

#[track_caller]
fn lines(output: &CommandOutput) -> Vec<Value> {
    let line = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {}", output.err));
    output.err.lines().map(line).collect()
}

#[test]
fn an_invalid_file_is_logged_as_json_if_it_says_so() {
    let wrong = "upstream: http://127.0.0.1:9\nlisten: 127.0.0.1:0\nlog: {format: json}\nrule: []\nthreads: -1\n";
    let lines = lines(&rejected(wrong));
    assert_eq!(lines.len(), 2, "{lines:?}");
    for line in &lines {
        assert_eq!((&line["level"], &line["message"]), (&"error".into(), &"not started".into()));
        assert!(line["time"].as_str().unwrap().ends_with('Z'));
    }
    let [first, second] = [&lines[0], &lines[1]].map(|line| line["error"].as_str().unwrap());
    assert!(first.ends_with("gateway.yaml:4:1: rule: unknown key"), "{first}");
    assert!(second.contains("gateway.yaml:5:10: threads: must be "), "{second}");
    assert_eq!(lines[0]["hint"], "did you mean `rules`?");
    assert_eq!(lines[1].get("hint"), None);
    let text = rejected(&wrong.replace("json", "text"));
    assert!(text.err.ends_with("2 problems\n"), "{}", text.err);
}

#[test]
fn a_file_that_is_no_yaml_and_a_busy_port_are_logged_as_json_too() {
    assert_eq!(lines(&rejected("log:\n  format: json\nrules: [\n")).len(), 1);
    let busy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = busy.local_addr().unwrap();
    let text = format!("upstream: http://127.0.0.1:9\nlisten: {address}\nlog: {{format: json}}\n");
    let logged = lines(&rejected(&text));
    // What the thread of the log still had to write, such as a warning about root, may follow.
    let error = logged.iter().find(|line| line["message"] == "not started").unwrap();
    assert!(error["error"].as_str().unwrap().contains(&address.to_string()), "{error}");
}
