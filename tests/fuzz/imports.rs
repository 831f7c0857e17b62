//! Tests properties of imports from the files of other programs, on any files.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::LazyLock;

use config::import::{Import, ImportedFile, import, import_kong, import_nginx};
use config::problem::Problems;
use config::{Config, Environment};

use super::mutation::{fuzz, is_bug_planted};

/// The name of the imported file.
const NAME: &str = "imported";

/// The longest file in bytes. A file may have as many rules as it has zones times locations, and each is read here.
const LONGEST: usize = 2 << 10;

/// Returns the rules of an imported text, without the places in the imported file.
fn rules(text: &str) -> String {
    // What has no name in Kong's file is named after its line.
    static LINE: LazyLock<regex::Regex> =
        LazyLock::new(|| regex::Regex::new(r"\b(consumer|route|service)-\d+").unwrap());
    let rules = text.lines().filter(|line| !line.trim_start().starts_with('#')).map(|line| format!("{line}\n"));
    LINE.replace_all(&rules.collect::<String>(), "$1-LINE").into_owned()
}

/// Checks that a text is a gateway.yaml. Returns the number of its limits.
fn limits(text: &str) -> usize {
    // The file with the keys of clients is not part of the import.
    let read = |path: &Path| match path == Path::new("api-keys.txt") {
        true => Ok(format!("{} client plan", "0".repeat(64)).into_bytes()),
        false => Err(ErrorKind::NotFound.into()),
    };
    let environment = Environment { variable: &|_| None, folder: Path::new(""), read: &read };
    let config = Config::parse("gateway.yaml", text.as_bytes(), environment);
    config.unwrap_or_else(|wrong| panic!("{wrong}\n{text}")).rules.limits().len()
}

/// Imports a file, and the same file below a comment. Returns the numbers of limits and losses, or the length of the first
/// problem.
fn check(bytes: &[u8], import: impl Fn(&ImportedFile<'_>) -> Result<Import, Problems>) -> (usize, usize, usize) {
    let bytes = &bytes[..bytes.len().min(LONGEST)];
    let imported = import(&ImportedFile { name: NAME, bytes });
    // A mark of the byte order and a directive of YAML stand in the first line alone.
    let is_movable = !bytes.starts_with(b"\xef\xbb\xbf") && !bytes.starts_with(b"%");
    let below = is_movable.then(|| import(&ImportedFile { name: NAME, bytes: &[b"# one\n", bytes].concat() }));
    let lines = bytes.iter().filter(|byte| matches!(byte, b'\n' | b'\r')).count() + 1;
    match imported {
        Ok(Import { text, losses }) => {
            let count = limits(&text);
            for loss in &losses {
                assert!(loss.remark.position.line <= lines + 1, "{}", loss.line());
            }
            if let Some(Ok(below)) = below {
                assert_eq!(rules(&below.text), rules(&text));
                // The planted bug: the line of a comment is not counted.
                let moved = if is_bug_planted() { 0 } else { 1 };
                assert_eq!(below.losses.len(), losses.len());
                for (loss, below) in losses.iter().zip(&below.losses) {
                    // The file as a whole has no line of its own.
                    let expected = loss.remark.position.line + moved;
                    assert!([expected, 1].contains(&below.remark.position.line), "{} {}", loss.line(), below.line());
                }
            } else {
                assert!(below.is_none(), "a comment makes the file invalid");
            }
            (count, losses.len(), 0)
        }
        Err(problems) => {
            assert!(!problems.problems.is_empty());
            let report = problems.report();
            (0, 0, report[0].rsplit(": ").next().map_or(0, str::len).max(1))
        }
    }
}

#[test]
pub fn import_nginx_file() {
    let words: &[&[u8]] = &[
        b"http {",
        b"server {",
        b"location / {",
        b"location ~ x {",
        b"location ^~ /a {",
        b"location = /a {",
        b"}",
        b";",
        b"limit_req zone=a burst=5 nodelay;",
        b"limit_req_zone $binary_remote_addr zone=a:1m rate=1r/s;",
        b"limit_conn_zone $http_x zone=c:1m;",
        b"limit_conn c 5;",
        b"limit_req_dry_run on;",
        b"include imported;",
        b"return 200;",
        b"map $uri $x { }",
        b"server_name *.a.example ~x .b;",
        b"delay=3",
        b"\"",
        b"'",
        b"\\",
        b"${",
        b"#",
        b"\n",
    ];
    fuzz("import-nginx", words, |bytes| check(bytes, |file| import_nginx(&[*file])));
}

#[test]
pub fn import_kong_file() {
    let words: &[&[u8]] = &[
        b"_format_version: \"3.0\"\n",
        b"plugins:\n- ",
        b"services:\n- ",
        b"routes:\n- ",
        b"consumers:\n- ",
        b"{name: rate-limiting, config: {minute: 5}}",
        b"{name: rate-limiting-advanced, config: {limit: [5], window_size: [60]}}",
        b"{name: key-auth}",
        b"route: a",
        b"paths: [/a, ~/b$]",
        b"hosts: [a.example, '*.b']",
        b"limit_by: consumer",
        b"policy: redis",
        b"redis: {host: h}",
        b"null",
        b"[",
        b"{",
        b": ",
        b"\n",
        b"  ",
    ];
    fuzz("import-kong", words, |bytes| check(bytes, import_kong));
}

#[test]
pub fn import_ratelimit_file() {
    let words: &[&[u8]] = &[
        b"domain: a\n",
        b"descriptors:\n  - ",
        b"key: a",
        b"value: b",
        b"value: '*'",
        b"rate_limit: {unit: minute, requests_per_unit: 5}",
        b"unlimited: true",
        b"shadow_mode: true",
        b"replaces: [{name: x}]",
        b"name: x",
        b"quota_mode: true",
        b"share_threshold: true",
        b"unit: month",
        b"4294967295",
        b"[",
        b"{",
        b": ",
        b"\n",
        b"    ",
    ];
    fuzz("import-ratelimit", words, |bytes| check(bytes, |file| import(&[*file])));
}
