//! `tollgate init`: writes a commented starter file.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use clap::ValueEnum;

use super::failure::{Failure, with_hint};
use super::output::{self, Page};

const EXAMPLE: &str = "\
Example: write a file with tiers by the plan in a token, and check it.

  tollgate init jwt
  tollgate check gateway.yaml";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Arguments {
    /// What identifies a client
    #[arg(value_name = "SHAPE", value_enum)]
    shape: Shape,
    /// The file to write, which must not exist; - is standard output
    #[arg(value_name = "FILE", default_value = "gateway.yaml")]
    file: PathBuf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shape {
    /// The token (JWT): limits by its plan
    Jwt,
    /// The API key: limits by its plan; also writes api-keys.txt beside the file
    ApiKeys,
    /// The address: one limit for each address
    Ip,
}

impl Shape {
    /// The name on the command line.
    fn name(self) -> &'static str {
        match self {
            Shape::Jwt => "jwt",
            Shape::ApiKeys => "api-keys",
            Shape::Ip => "ip",
        }
    }

    fn text(self) -> &'static str {
        match self {
            Shape::Jwt => include_str!("starter/jwt.yaml"),
            Shape::ApiKeys => include_str!("starter/api-keys.yaml"),
            Shape::Ip => include_str!("starter/ip.yaml"),
        }
    }
}

/// Writes the starter file, and prints its name. For `api-keys`, also writes a missing `api-keys.txt`.
///
/// # Errors
/// When the starter file exists, or a file cannot be written.
pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { shape, file } = arguments;
    let mut page = Page::default();
    if file.as_os_str() == "-" {
        page.lines(shape.text().lines());
        return output::print(&page);
    }
    match write_new(file, shape.text()) {
        Ok(()) => page.line(format_args!("written {}", file.display())),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let what = format!("{}: must not exist: nothing was written", file.display());
            return Err(with_hint(
                what,
                format_args!("name another file, as in `tollgate init {} new.yaml`", shape.name()),
            ));
        }
        Err(error) => return Err(unwritable(file, &error)),
    }
    if let Shape::ApiKeys = shape {
        let keys = file.with_file_name("api-keys.txt");
        match write_new(&keys, include_str!("starter/api-keys.txt")) {
            Ok(()) => page.line(format_args!("written {}", keys.display())),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(unwritable(&keys, &error)),
        }
    }
    page.line(format_args!("next: tollgate check {}", file.display()));
    output::print(&page)
}

fn unwritable(file: &Path, error: &std::io::Error) -> Failure {
    format!("{}: must be a file that can be written: {error}", file.display()).into()
}

fn write_new(path: &Path, text: &str) -> std::io::Result<()> {
    OpenOptions::new().write(true).create_new(true).open(path)?.write_all(text.as_bytes())
}
