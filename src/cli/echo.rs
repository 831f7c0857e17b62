//! `tollgate echo`: a test upstream whose response contains the received request.

use std::net::SocketAddr;

use super::failure::Failure;
use super::output;
use super::output::Page;
use crate::gateway::echo;

const EXAMPLE: &str = "\
Example: see what an upstream would see.

  tollgate echo --listen 127.0.0.1:9000
  curl localhost:9000/hello";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Arguments {
    /// The address to listen on
    #[arg(short, long, value_name = "ADDRESS", default_value = "127.0.0.1:9000")]
    listen: SocketAddr,
}

/// Runs the test upstream until the process ends.
///
/// # Errors
/// When the test upstream cannot listen on the address.
pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let echo = echo::Echo::bind(arguments.listen)?;
    let listening = format!("listening echo {}", echo.address());
    echo.run(move || {
        let mut page = Page::default();
        page.lines([&*listening, "ready"]);
        // The server also works if standard output is closed.
        let _ = output::print(&page);
    });
    Ok(())
}
