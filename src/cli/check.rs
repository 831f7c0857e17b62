//! `tollgate check`: every problem of a file, or `ok`; and whose buckets start anew where another file is in force.

use std::path::PathBuf;

use super::Failure;
use crate::config::Config;

const EXAMPLE: &str = "\
Example: take a new file into use when it is right, and say whose buckets start anew.

  tollgate check --against gateway.yaml new.yaml && mv new.yaml gateway.yaml";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub struct Arguments {
    /// The configuration
    #[arg(value_name = "FILE", default_value = "gateway.yaml")]
    file: PathBuf,
    /// Another file, which is in force: name the limits whose buckets start anew
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let config = Config::load(&arguments.file)?;
    if let Some(before) = &arguments.against {
        for anew in config.starts_anew(&Config::load(before)?) {
            println!("starts anew: {anew}");
        }
    }
    println!("ok");
    Ok(())
}
