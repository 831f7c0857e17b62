//! Checks that no report shows a value that comes from a variable, or that may be a secret.

use std::path::Path;

use crate::config::Config;
use crate::document::FILE_KEYS;
use crate::language::environment::Environment;
use crate::language::problem::{Problem, Problems, Purpose, Report};
use crate::language::tree::{self, Node, Style, Value};
use crate::language::warning::Warning;

/// Values of a variable, each with parts that readers may take out of it.
const SECRETS: [&str; 9] = [
    "SEKRET-0123456789",
    "SEKRET-0123456789\n",
    "sk SEKRET-0123456789 \"q\": 7",
    "!SEKRET-0123456789",
    "http://user:SEKRET-0123456789@host/SEKRET",
    "redis://:SEKRET-0123456789@host:port",
    "{jwt:SEKRET-0123456789}",
    "jwt:SEKRET-0123456789",
    "/SEKRET-0123456789/*",
];

fn scalars(node: &Node) -> usize {
    match &node.value {
        Value::Scalar(_) => 1,
        Value::List(list) => list.iter().map(scalars).sum(),
        Value::Map(map) => map.iter().map(|entry| scalars(&entry.value)).sum(),
    }
}

/// Replaces the scalar of this number by a text without quotes, and returns whether the tree has it.
fn replace(node: &mut Node, number: &mut usize, text: &str) -> bool {
    match &mut node.value {
        Value::Scalar(scalar) if *number == 0 => {
            (scalar.text, scalar.style) = (text.to_owned(), Style::Plain);
            true
        }
        Value::Scalar(_) => {
            *number -= 1;
            false
        }
        Value::List(list) => list.iter_mut().any(|node| replace(node, number, text)),
        Value::Map(map) => map.iter_mut().any(|entry| replace(&mut entry.value, number, text)),
    }
}

/// Returns the messages about a tree: of problems and warnings, with their hints.
fn messages(tree: Node, report: &Report, secret: &str) -> Vec<String> {
    let variable = |name: &str| (name == "SEKRET").then(|| secret.to_owned());
    let read = |_: &Path| Err(std::io::ErrorKind::NotFound.into());
    let environment = Environment { variable: &variable, folder: Path::new(""), read: &read };
    let of_warning = |warning: Warning| [warning.what, warning.hint];
    match Config::of_tree(tree, report, Purpose::Examine, "gateway.yaml", b"", environment) {
        Ok(config) => config.warnings.warnings.into_iter().flat_map(of_warning).collect(),
        Err(Problems { problems, warnings, .. }) => {
            let of_problem = |problem: Problem| [problem.path, problem.what, problem.hint.unwrap_or_default()];
            let warnings = warnings.into_iter().flat_map(of_warning);
            problems.into_iter().flat_map(of_problem).chain(warnings).collect()
        }
    }
}

#[test]
fn no_message_shows_what_a_variable_has() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/config/good");
    let (mut shown, mut tried) = (Vec::new(), 0);
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    for path in files {
        let Ok(tree) = tree::read(&std::fs::read(&path).unwrap(), &Report::default()) else { continue };
        // The same keys are in many files, so each file has every fourth of its values tried, and each value one secret.
        for number in (tried % 4..scalars(&tree)).step_by(4) {
            tried += 1;
            let secret = SECRETS[tried % SECRETS.len()];
            let text = ["${SEKRET}", "${SEKRET}", "Bearer ${SEKRET}"][tried / SECRETS.len() % 3];
            let mut tree = tree.clone();
            assert!(replace(&mut tree, &mut number.clone(), text));
            let report = Report::new(Purpose::Examine).of_keys(FILE_KEYS);
            let messages = messages(tree, &report, secret);
            let of_secret = messages.into_iter().filter(|message| message.replace("${SEKRET", "").contains("SEKRET"));
            shown.extend(of_secret.map(|message| format!("{} {secret:?}: {message}", path.display())));
        }
    }
    assert!(tried > 200, "{tried}");
    shown.sort();
    shown.dedup();
    assert!(shown.is_empty(), "{} of {tried}\n{}", shown.len(), shown.join("\n"));
}

#[test]
fn no_message_shows_a_secret_of_the_file() {
    let key = "SEKRET0123456789abcdefghijklmnop";
    for text in [
        format!("hash_key: !{key}"),
        format!("hash_key: {{!{key} : a}}"),
        format!("hash_key: [{key}]\nhash_key_file: a"),
        format!("hash_key: *{key}"),
        format!("hash_key: &{key}"),
        format!("hash_key: ${{{key}}}"),
        format!("hash_key: \"${{A-{key}}}\""),
        format!("hash_key: \"%${{{key}!}}\""),
        format!("hash_key:{key}"),
        format!("store: {{redis: {{password:{key}, url: \"redis://a\"}}}}"),
        format!("store: {{redis: {{url: !{key}, password: !{key}}}}}"),
        format!("store: {{redis: {{url: \"redis://:{key}@host:x\"}}}}"),
        format!("store: {{postgres: {{url: \"postgres://a:{key}@:x/y\"}}}}"),
        format!("store:\n  redis:\n    username: a\n      password:{key}\n    url: redis://a"),
        format!("jwt: {{algorithms: [HS256], keys: {{secret: \"${{A-{key}}}\"}}}}"),
        format!("jwt: {{algorithms: [HS256], keys: {{secret: !{key}}}}}"),
        format!("jwt: {{algorithms: [HS512], keys: {{secret: {key}}}}}"),
        format!("jwt: {{algorithms: [HS512], keys: {key}}}"),
        format!("routes: [{{name: a, upstream: b, request_headers: {{set: {{Authorization: \"{key}\\n\"}}}}}}]"),
        format!("routes: [{{name: a, upstream: b, request_headers: {{set: {{Authorization: \"{key} {{\"}}}}}}]"),
        format!("routes: [{{name: a, upstream: b, request_headers: {{set: {{Authorization:{key}}}}}}}]"),
        format!("routes: [{{name: a, upstream: b, request_headers: {{set: {{\"Authorization: {key}\": x}}}}}}]"),
        format!("routes: [{{name: a, respond: {{status: 200, headers: {{X-Key: \"{key}\\n\"}}}}}}]"),
    ] {
        let problems = Config::parse(
            "gateway.yaml",
            text.as_bytes(),
            Environment {
                variable: &|_| None,
                folder: Path::new(""),
                read: &|_| Err(std::io::ErrorKind::NotFound.into()),
            },
        );
        let problems = problems.expect_err(&text).to_string();
        // What looks like the name of a variable is shown as one.
        assert!(!problems.replace(&format!("${{{key}"), "").contains("SEKRET"), "{text}\n{problems}");
    }
}
