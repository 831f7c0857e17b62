//! `tollgate import`: writes a gateway.yaml from the files of another program.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::failure::Failure;
use super::output::{self, Colour, ColourMode, Page};
use config::import::{ImportedFile, Loss, import};

const EXAMPLE: &str = "\
Example: carry the limits of envoyproxy/ratelimit over, and see what could not be.

  tollgate import ratelimit config/*.yaml > gateway.yaml
  tollgate check gateway.yaml";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Arguments {
    #[command(subcommand)]
    from: From,
}

#[derive(Debug, clap::Subcommand)]
enum From {
    /// Read the files of envoyproxy/ratelimit: descriptors with fixed windows
    #[command(after_help = EXAMPLE)]
    Ratelimit {
        /// The files, `-` for standard input; several may have one domain
        #[arg(value_name = "FILE", required = true)]
        files: Vec<PathBuf>,
    },
}

fn read_file(file: &Path) -> std::io::Result<Vec<u8>> {
    if file.as_os_str() != "-" {
        return std::fs::read(file);
    }
    let mut bytes = Vec::new();
    std::io::stdin().lock().read_to_end(&mut bytes).map(|_| bytes)
}

/// Prints the imported configuration, and on standard error the settings that could not be imported.
///
/// # Errors
/// When a file cannot be read, or has problems.
pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let From::Ratelimit { files } = &arguments.from;
    let mut files_read = Vec::with_capacity(files.len());
    for file in files {
        let name = file.display().to_string();
        let bytes = read_file(file).map_err(|error| format!("{name}: must be a readable file: {error}"))?;
        files_read.push((name, bytes));
    }
    let files: Vec<ImportedFile<'_>> = files_read.iter().map(|(name, bytes)| ImportedFile { name, bytes }).collect();
    let imported = import(&files)?;
    let mut page = Page::default();
    page.lines(imported.text.lines());
    output::print(&page)?;
    if !imported.losses.is_empty() {
        let mut lines: Vec<String> = imported.losses.iter().map(Loss::line).collect();
        lines.push(match lines.len() {
            1 => "1 remark".to_owned(),
            count => format!("{count} remarks"),
        });
        let mut errors = Page::default();
        errors.report(lines, Colour::Yellow, ColourMode::of_errors());
        output::print_errors(&errors);
    }
    Ok(())
}
