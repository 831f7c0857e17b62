//! Adds `-c FILE` to a command that reads the configuration.

use std::path::{Path, PathBuf};

use super::output::{self, Colour, ColourMode, Page};
use config::Config;
use config::problem::{Problems, Purpose};

/// The argument that names the configuration file.
#[derive(Debug, clap::Args)]
pub(super) struct ConfigFile {
    /// The configuration
    #[arg(short, long, value_name = "FILE", default_value = "gateway.yaml")]
    pub config: PathBuf,
}

/// Reads a file for a command that does not need all values of the file. Reports on standard error which values are
/// not known here.
///
/// # Errors
/// If the file, or another file that it names, has problems. The error lists all of them.
pub(super) fn examine(path: &Path, purpose: Purpose) -> Result<Config, Problems> {
    let config = Config::examine(path, purpose)?;
    let unknown = config.warnings.named("unknown_value");
    if !unknown.warnings.is_empty() {
        let mut page = Page::default();
        page.report(unknown.report(), Colour::Yellow, ColourMode::of_errors());
        output::print_errors(&page);
    }
    Ok(config)
}
