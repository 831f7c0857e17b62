//! Checks one file for each mistake, with its expected report below a `# ---` line, and files that must be valid.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use base::time::Timestamp;
use config::problem::{Problems, Purpose};
use config::{Config, Environment};
use proptest::prelude::*;

use crate::support::Certificates;
use crate::support::authority::{Authority, IssuedCertificate};

/// Returns the files of the folder `good` or `bad`.
pub fn files(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/config").join(folder);
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// The environment variables for these files.
fn environment(name: &str) -> Option<String> {
    match name {
        "TEN" => Some("10".to_owned()),
        "SECRET" => Some("12345678901234567890123456789012".to_owned()),
        "EMPTY" => Some(String::new()),
        _ => None,
    }
}

/// 21 November 2026.
const NOW: Timestamp = Timestamp(1_795_219_200_000_000);

/// The SHA-256 hash of an API key.
const KEY: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

/// Prices in USD for a million tokens.
const PRICES: &str = "\
model,input,output,cached,cache_write,above
gpt-4o*,2.50,10,1.25,,
claude-*,3,15,0.30,3.75,
";

const WRONG_KEYS: &str = "\
# A key where its hash should be.
wVxW3cGZ0JbXIHl9bYkOTqfvjJ0rEd5x acme gold

KEY acme
KEY acme gold
KEY acme, Inc. gold
  KEY a/b gold
KEY a go+ld # a remark
KEY acme silver
";

/// Returns a certificate that expired in 2020.
fn expired() -> &'static IssuedCertificate {
    static EXPIRED: LazyLock<IssuedCertificate> =
        LazyLock::new(|| Authority::new("ca").issue_until(&["localhost"], 2020));
    &EXPIRED
}

/// Parses a configuration as if all files that it names existed.
pub fn parse(bytes: &[u8]) -> Result<Config, Problems> {
    parse_for(Purpose::Run, bytes)
}

fn parse_for(purpose: Purpose, bytes: &[u8]) -> Result<Config, Problems> {
    let certificates = Certificates::shared();
    let read = |path: &Path| match path.to_str() {
        Some("ca.pem") => Ok(certificates.authority.clone().into_bytes()),
        Some("gw.pem") => Ok(certificates.client.0.clone().into_bytes()),
        Some("server.pem" | "partners.pem") => Ok(certificates.server.0.clone().into_bytes()),
        Some("server.key" | "partners.key") => Ok(certificates.server.1.clone().into_bytes()),
        Some("revoked.pem") => Ok(Authority::new("ca").revoke(&[]).into_bytes()),
        Some("expired.pem") => Ok(expired().certificate.clone().into_bytes()),
        Some("expired.key") => Ok(expired().key.clone().into_bytes()),
        Some("not-x509.pem") => Ok(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".to_vec()),
        Some("gw.key") => Ok(certificates.client.1.clone().into_bytes()),
        Some("other.key") => Ok(certificates.server.1.clone().into_bytes()),
        Some("api-keys.txt") => Ok(format!("{KEY} acme gold\n").into_bytes()),
        Some("admin-tokens.txt") => Ok(b"# Who\nalice 0123456789abcdef\nbob fedcba9876543210 \n".to_vec()),
        Some("wrong-tokens.txt") => Ok(b"alice\nbob short\ncarl 0123456789abcdef\ncarl 0123456789abcdee\n".to_vec()),
        Some("columns.txt") => Ok(format!("#columns id plan rps burst\n{KEY} acme gold 5 -\n").into_bytes()),
        Some("wrong-keys.txt") => Ok(WRONG_KEYS.replace("KEY", KEY).into_bytes()),
        Some("empty.txt") => Ok(Vec::new()),
        Some("wrong.csv") => Ok(WRONG_TABLE.as_bytes().to_vec()),
        Some("columns.csv") => Ok(b"name,rps,mnth.limit,rps\n".to_vec()),
        Some("contracts.csv") => {
            Ok(b"\xef\xbb\xbfvalue,rps,burst\r\n\r\n# ours\r\nacme, 50 ,100\r\n\"a, b\",,40\r\n".to_vec())
        }
        Some("wrong-overrides.yaml") => Ok(b"acme: {rps: 5}\nother: 7\nacme: {rate: 3/s}\n".to_vec()),
        Some("wrong-list.txt") => Ok(b"10.0.0.0/8\n/v1/*\n*.example.com\n".to_vec()),
        Some("models.txt") => Ok(b"o7 # new\ngpt-4o-mini\no1\no2\no3\no4\no5\no6\n".to_vec()),
        Some("prices.csv") => Ok(PRICES.as_bytes().to_vec()),
        Some("wrong-prices.csv") => Ok(b"model,input,output\ngpt-4o,2.50\ngpt-4o*,$2,10\n".to_vec()),
        Some("password.txt") => Ok(b"secret\n".to_vec()),
        Some("empty-keys.json") => Ok(b"{\"keys\":[]}".to_vec()),
        Some("rsa.pub.pem" | "rsa-1024.pub.pem" | "secp256k1.pub.pem") => {
            std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/keys").join(path))
        }
        _ => Err(std::io::ErrorKind::NotFound.into()),
    };
    let environment = Environment { variable: &environment, folder: Path::new(""), read: &read };
    Config::parse_for(purpose, "gateway.yaml", bytes, environment)
}

fn report(bytes: &[u8]) -> String {
    match parse(bytes) {
        Ok(config) => match config.warnings.at(NOW) {
            warnings if warnings.warnings.is_empty() => "ok".to_owned(),
            warnings => format!("{warnings}\nok"),
        },
        Err(problems) => problems.to_string(),
    }
}

/// Checks every file of a folder, and returns the number of files.
#[track_caller]
fn every_file_gives_its_report(folder: &str) -> usize {
    let mut wrong = Vec::new();
    let files = files(folder);
    for path in &files {
        let text = std::fs::read_to_string(path).unwrap();
        let (yaml, expected) = text.split_once("# ---\n").unwrap_or_else(|| panic!("{}: no report", path.display()));
        let expected: Vec<_> =
            expected.lines().map(|line| line.trim_start_matches('#').strip_prefix(' ').unwrap_or("")).collect();
        let found = report(yaml.as_bytes());
        if found != expected.join("\n") {
            wrong.push(format!("{}:\n{found}\n", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    files.len()
}

/// Overrides by host, for a token bucket with a rate of 10 per second and a burst of 20.
const WRONG_TABLE: &str = "\
value,rps,burst,limit
a.example,50
b.example,ten,,
c.example,30,,
,1,,
d.example,,,unlimited
A.example,1,1,
D.EXAMPLE,1,1,
\"e.example,1,1,
f.example,,,unlimitd
";

#[test]
fn every_bad_file_gives_the_expected_report() {
    let files = every_file_gives_its_report("bad");
    assert!(files >= 100, "{files} files");
}

#[test]
fn every_unwise_file_gives_the_expected_warnings() {
    every_file_gives_its_report("warned");
}

/// This finds lints that read a key of which `valid_rest` does not know: they warn about the shortened file but not about the
/// whole one.
#[test]
fn a_file_with_a_wrong_key_has_no_warning_that_it_would_not_have_without_the_mistake() {
    let (mut files_seen, mut warnings_seen, mut wrong) = (0, 0, Vec::new());
    for path in files("warned").into_iter().chain(files("good")) {
        let text = std::fs::read_to_string(&path).unwrap();
        let yaml = text.split("# ---\n").next().unwrap();
        let Ok(whole) = parse_for(Purpose::CheckToRun, yaml.as_bytes()) else { continue };
        files_seen += 1;
        let known: Vec<_> = whole.warnings.warnings.iter().map(|one| (one.name, &one.path, &one.what)).collect();
        let is_key = |line: &&str| line.starts_with(|first: char| first.is_ascii_lowercase()) && line.contains(':');
        for key_line in yaml.lines().filter(is_key) {
            let key = key_line.split(':').next().unwrap();
            let mut is_below = false;
            let broken: Vec<String> = yaml
                .lines()
                .filter_map(|line| {
                    let is_begin = line == key_line;
                    is_below = is_begin || is_below && (line.starts_with([' ', '-', '#', '}', ']']) || line.is_empty());
                    if is_begin {
                        Some(format!("{key}: {{no_such_key: 1}}"))
                    } else {
                        (!is_below).then(|| line.to_owned())
                    }
                })
                .collect();
            let Err(problems) = parse_for(Purpose::CheckToRun, broken.join("\n").as_bytes()) else {
                panic!("{}: `{key}` is not wrong", path.display());
            };
            for warning in &problems.warnings {
                warnings_seen += 1;
                if !known.contains(&(warning.name, &warning.path, &warning.what)) {
                    wrong.push(format!("{}: without `{key}`: {} at {}", path.display(), warning.name, warning.path));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(files_seen > 50 && warnings_seen > 20, "{files_seen} files, {warnings_seen} warnings");
}

#[test]
fn every_good_file_is_valid() {
    let report = |path: &PathBuf| format!("{}:\n{}", path.display(), report(&std::fs::read(path).unwrap()));
    let wrong: Vec<_> = files("good").iter().map(report).filter(|report| !report.ends_with(":\nok")).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn bytes_that_are_not_a_config_file_are_rejected_in_one_line() {
    for (bytes, expected) in [
        (&b""[..], "gateway.yaml: must be a mapping, is empty\n1 problem"),
        (b"# nothing\n", "gateway.yaml: must be a mapping, is empty\n1 problem"),
        (b"\xff\xfe\x00", "gateway.yaml:1:1: must be UTF-8 text, is not\n1 problem"),
        (b"a: b\nc: \xff\n", "gateway.yaml:2:4: must be UTF-8 text, is not\n1 problem"),
        (b"just text", "gateway.yaml:1:1: must be a mapping, is `just text`\n1 problem"),
    ] {
        assert_eq!(report(bytes), expected);
    }
    let huge = "# filler\n".repeat(1 << 20);
    assert_eq!(report(huge.as_bytes()), "gateway.yaml: must be at most 4194304 bytes, is 9437184\n1 problem");
}

proptest! {
    /// An arbitrarily edited file is valid or has problems; neither ends the process.
    #[test]
    fn a_mangled_file_never_panics(cuts in prop::collection::vec((any::<prop::sample::Index>(), 0usize..4, "[ -~\n\t\u{e9}]{0,3}"), 1..8)) {
        let mut text: Vec<char> = include_str!("../../config/good/everything.yaml").chars().collect();
        for (at, taken, put) in cuts {
            let at = at.index(text.len());
            text.splice(at..(at + taken).min(text.len()), put.chars());
        }
        let text: String = text.into_iter().collect();
        prop_assert!(!report(text.as_bytes()).is_empty());
    }

    #[test]
    fn no_bytes_make_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(!report(&bytes).is_empty());
    }
}
