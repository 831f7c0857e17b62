//! Finds the format of the log in a gateway.yaml that is invalid, so that its problems are logged in that format.

use crate::document::{FILE, FILE_KEYS};
use crate::keys::log::{LogFormat, log};
use crate::language::environment::Environment;
use crate::language::problem::{Purpose, Report};
use crate::language::reader::Field;
use crate::language::{substitution, tree};

/// Returns the format that `log.format` names. If the file is no valid YAML, a line that looks like the key decides.
pub(crate) fn log_format(bytes: &[u8], environment: Environment<'_>) -> LogFormat {
    let report = Report::new(Purpose::Examine).of_keys(FILE_KEYS);
    let Ok(mut tree) = tree::read(bytes, &report) else { return written_format(bytes) };
    substitution::expand(&mut tree, environment.variable, &report);
    let settings = Field::root(&tree, &report).section(&FILE).and_then(|file| file.value("log", log));
    settings.map_or(LogFormat::Text, |settings| settings.format)
}

/// Returns the format that is written in the lines of the key `log`.
fn written_format(bytes: &[u8]) -> LogFormat {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.lines().skip_while(|line| !line.starts_with("log:"));
    let first = lines.next().into_iter();
    let mut block = first.chain(lines.take_while(|line| line.starts_with(' ') || line.is_empty()));
    if block.any(|line| line.contains("format: json")) { LogFormat::Json } else { LogFormat::Text }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[track_caller]
    fn check(text: &str, format: LogFormat) {
        let variable = |name: &str| (name == "FORMAT").then(|| "json".to_owned());
        let read = |_: &Path| Err(std::io::ErrorKind::NotFound.into());
        let environment = Environment { variable: &variable, folder: Path::new(""), read: &read };
        assert_eq!(log_format(text.as_bytes(), environment), format, "{text}");
    }

    #[test]
    fn the_format_is_found_beside_problems() {
        check("log: {format: json}\nupstrem: http://a\n", LogFormat::Json);
        check("log: {format: \"${FORMAT}\"}\nupstrem: http://a\n", LogFormat::Json);
        check("log: {format: jso}\nupstream: http://a\n", LogFormat::Text);
        check("upstrem: http://a\n", LogFormat::Text);
        check("- log: {format: json}\n", LogFormat::Text);
    }

    #[test]
    fn the_format_is_found_in_invalid_yaml() {
        check("log: {level: warn, format: json}\nrules: [\n", LogFormat::Json);
        check("rules: [\nlog:\n  level: warn\n  format: json\nadmin: x\n", LogFormat::Json);
        check("rules: [\nlog:\n  level: warn\nother:\n  format: json\n", LogFormat::Text);
        check("access_log: {format: json}\nrules: [\n", LogFormat::Text);
    }
}
