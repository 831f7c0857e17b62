//! `tollgate schema`: prints the JSON Schema of the configuration, for editors.

use super::failure::Failure;
use super::output::print_own;
use config::schema;

const EXAMPLE: &str = "\
Example: let an editor complete, explain and check the file while it is written.

  tollgate schema > gateway.schema.json

and as the first line of gateway.yaml:

  # yaml-language-server: $schema=gateway.schema.json";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Arguments {}

/// Prints the JSON Schema of the configuration.
///
/// # Errors
/// When the schema cannot be written.
pub(super) fn run(_: &Arguments) -> Result<(), Failure> {
    print_own(schema().as_bytes())
}
