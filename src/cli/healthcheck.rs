//! `tollgate healthcheck`: queries the admin listener, for containers without curl.

use std::net::SocketAddr;

use super::admin_client::{reachable, status};
use super::config_file::ConfigFile;
use super::failure::Failure;
use super::output;
use crate::config::Config;

const EXAMPLE: &str = "\
Example: in a container, ask whether the gateway of this file takes requests.

  tollgate healthcheck -c /etc/tollgate/gateway.yaml --ready";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub struct Arguments {
    #[command(flatten)]
    file: ConfigFile,
    /// Ask whether it accepts requests, not only whether it is running
    #[arg(long)]
    ready: bool,
    /// The address of the admin listener, instead of the one in the file (needed if its port is 0)
    #[arg(long, value_name = "ADDRESS")]
    address: Option<SocketAddr>,
}

/// Asks the admin listener for its health.
///
/// # Errors
/// When it cannot be reached, or does not answer 200.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let address = match arguments.address {
        Some(address) => address,
        None => {
            let config = Config::load(&arguments.file.config)?;
            config.admin.ok_or_else(|| format!("{}: admin: missing", arguments.file.config.display()))?
        }
    };
    let path = if arguments.ready { "/readyz" } else { "/livez" };
    let status = status(reachable(address), path).map_err(|error| format!("{address}{path}: {error}"))?;
    match status {
        200 => output::print_line("ok"),
        status => Err(format!("{address}{path}: must answer 200, is {status}").into()),
    }
}
