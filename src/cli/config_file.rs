//! Adds `-c FILE` to a command that reads the configuration.

use std::path::PathBuf;

/// Which file a command reads.
#[derive(Debug, clap::Args)]
pub struct ConfigFile {
    /// The configuration
    #[arg(short, long, value_name = "FILE", default_value = "gateway.yaml")]
    pub config: PathBuf,
}
