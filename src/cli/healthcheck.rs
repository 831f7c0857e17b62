//! `tollgate healthcheck`: asks the admin listener, for containers that have no curl.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

use super::{ConfigFile, Failure};
use crate::config::Config;

const EXAMPLE: &str = "\
Example: in a container, ask whether the gateway of this file takes requests.

  tollgate healthcheck -c /etc/tollgate/gateway.yaml --ready";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub struct Arguments {
    #[command(flatten)]
    file: ConfigFile,
    /// Ask whether it takes requests, not only whether it lives
    #[arg(long)]
    ready: bool,
    /// The admin listener's address, when it is not the file's (or its port is 0)
    #[arg(long, value_name = "ADDRESS")]
    address: Option<SocketAddr>,
}

const TIMEOUT: Duration = Duration::from_secs(3);

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let address = match arguments.address {
        Some(address) => address,
        None => {
            let config = Config::load(&arguments.file.config)?;
            config.admin.ok_or_else(|| format!("{}: admin: missing", arguments.file.config.display()))?
        }
    };
    let path = if arguments.ready { "/readyz" } else { "/livez" };
    let status = ask(reachable(address), path).map_err(|error| format!("{address}{path}: {error}"))?;
    match status {
        200 => {
            println!("ok");
            Ok(())
        }
        status => Err(format!("{address}{path}: must answer 200, is {status}").into()),
    }
}

/// A listener on every address is asked on the loopback one.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

fn ask(address: SocketAddr, path: &str) -> std::io::Result<u16> {
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut start = [0; 12];
    stream.read_exact(&mut start)?;
    let code = start.strip_prefix(b"HTTP/1.1 ").and_then(|code| std::str::from_utf8(code).ok()?.parse().ok());
    code.ok_or_else(|| std::io::Error::other("must be an HTTP answer, is not"))
}
