//! `tollgate healthcheck`: queries the admin listener, for containers that have no curl.

use std::net::SocketAddr;
use std::path::Path;

use super::admin_client::{address_argument, status};
use super::config_file::ConfigFile;
use super::failure::{Failure, with_hint};
use super::output;
use base::reachable::reachable;
use config::Config;
use config::problem::Purpose;

const EXAMPLE: &str = "\
Example: in a container, ask whether the gateway of this file takes requests.

  tollgate healthcheck -c /etc/tollgate/gateway.yaml --ready";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Arguments {
    #[command(flatten)]
    file: ConfigFile,
    /// Ask whether the gateway accepts requests, not only whether it is running
    #[arg(long)]
    ready: bool,
    /// The admin listener to ask, without reading the file [default: the one in the file]
    #[arg(long, value_name = "ADDRESS", alias = "address", value_parser = address_argument)]
    admin: Option<SocketAddr>,
}

/// Asks the admin listener for the health of the gateway.
///
/// # Errors
/// When the listener cannot be reached, or does not answer 200.
pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let address = match arguments.admin {
        Some(address) => address,
        None => address_in(&arguments.file.config)?,
    };
    let path = if arguments.ready { "/readyz" } else { "/livez" };
    let status = status(reachable(address), path).map_err(|error| format!("{address}{path}: {error}"))?;
    match status {
        200 => output::print_line("ok"),
        status => Err(format!("{address}{path}: must answer 200, is {status}").into()),
    }
}

/// Returns the address of the admin listener in a file. Missing variables and files are not reported, because a
/// container runs this check often.
fn address_in(file: &Path) -> Result<SocketAddr, Failure> {
    let config = Config::examine(file, Purpose::Examine)?;
    let hint = "give the address that the gateway announced at its start: --admin ADDRESS";
    match config.admin {
        Some(address) if address.port() != 0 => Ok(address),
        Some(_) => Err(with_hint(format!("{}: admin: has port 0", file.display()), hint)),
        None if config.remarks.is_unknown("admin") => {
            Err(with_hint(format!("{}: admin: not known here", file.display()), hint))
        }
        None => Err(format!("{}: admin: missing", file.display()).into()),
    }
}
