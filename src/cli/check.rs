//! `tollgate check`: every problem of a file, or `ok`.

use std::path::PathBuf;

use super::Failure;
use crate::config::Config;

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The configuration
    #[arg(value_name = "FILE", default_value = "gateway.yaml")]
    file: PathBuf,
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    Config::load(&arguments.file)?;
    println!("ok");
    Ok(())
}
