//! `tollgate key`: prints the line of the API key file for a key.

use std::io::BufRead;

use super::failure::Failure;
use super::output;
use identity::api_key_file;
use identity::api_keys::LONGEST_KEY;
use request::identity::KnownKey;

/// The shortest key, in characters. Shorter keys have less than 128 random bits.
const SHORTEST_KEY: usize = 16;

const EXAMPLE: &str = "\
Example: make a key of 192 random bits, and let the gateway know it.

  head -c 24 /dev/urandom | base64 > acme.key
  tollgate key acme gold < acme.key >> api-keys.txt

A running gateway applies the changed file by itself. Give acme.key to the user of the key,
and keep no copy.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Arguments {
    /// The owner of the key, the attribute key:id. Several keys may share an id
    #[arg(value_name = "ID")]
    id: String,
    /// The plan of the key, the attribute key:plan
    #[arg(value_name = "PLAN")]
    plan: String,
}

/// Reads an API key from standard input and prints its line for the key file.
///
/// # Errors
/// When a name or the key is invalid.
pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    for (what, name) in [("ID", &arguments.id), ("PLAN", &arguments.plan)] {
        if !api_key_file::is_name(name) {
            return Err(format!("{what}: {}, is `{name}`", api_key_file::NAME).into());
        }
    }
    let key = read(std::io::stdin().lock()).map_err(|error| format!("standard input: {error}"))?;
    let known = KnownKey::new(&arguments.id, &arguments.plan);
    output::print_line(api_key_file::line(&key, &known))
}

/// Reads the first line of the input, which must be a key. The key is never printed.
fn read(input: impl BufRead) -> Result<Vec<u8>, Failure> {
    let mut key = Vec::new();
    // The line end may be two bytes.
    let bound = u64::try_from(LONGEST_KEY)? + 2;
    input.take(bound).read_until(b'\n', &mut key)?;
    let key = key.strip_suffix(b"\n").unwrap_or(&key);
    let key = key.strip_suffix(b"\r").unwrap_or(key);
    if !(SHORTEST_KEY..=LONGEST_KEY).contains(&key.len()) {
        return Err(format!("a key must have {SHORTEST_KEY} to {LONGEST_KEY} characters in one line").into());
    }
    // Other characters cannot be sent in every place where a request may carry a key.
    if !key.iter().all(u8::is_ascii_graphic) {
        return Err("a key must be of visible ASCII characters, without white space".into());
    }
    Ok(key.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(input: &[u8], expected: Result<&str, &str>) {
        let found = read(input).map_err(|error| error.to_string());
        let expected = expected.map(|key| key.as_bytes().to_vec());
        match (found, expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected),
            (Err(found), Err(expected)) => assert!(found.contains(expected), "{found}"),
            (found, expected) => panic!("{found:?}, not {expected:?}"),
        }
    }

    #[test]
    fn a_key_is_the_first_line() {
        for end in ["", "\n", "\r\n", "\nmore\n"] {
            check(format!("0123456789abcdef{end}").as_bytes(), Ok("0123456789abcdef"));
        }
        let longest = "k".repeat(LONGEST_KEY);
        check(format!("{longest}\r\n").as_bytes(), Ok(&longest));
    }

    #[test]
    fn an_invalid_key_is_rejected() {
        for short in ["", "\n", "0123456789abcde\n", "\n0123456789abcdef\n"] {
            check(short.as_bytes(), Err("must have 16 to 1024 characters"));
        }
        check("k".repeat(LONGEST_KEY + 1).as_bytes(), Err("must have 16 to 1024 characters"));
        check(&[b'k'; 9000], Err("must have 16 to 1024 characters"));
        for odd in ["0123456789 abcdef", " 0123456789abcdef", "0123456789abcdef\t", "0123456789abcd\u{e9}f"] {
            check(odd.as_bytes(), Err("visible ASCII"));
        }
    }
}
