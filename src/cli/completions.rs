//! `tollgate completions`: prints a completion script for a shell.

use clap::Command;
use clap_complete::aot::Shell;

use super::failure::Failure;
use super::output::print_own;

const EXAMPLE: &str = "\
Example: install it for all users, effective in the next shell.

  tollgate completions bash > /etc/bash_completion.d/tollgate
  tollgate completions zsh > /usr/share/zsh/site-functions/_tollgate
  tollgate completions fish > /etc/fish/completions/tollgate.fish";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Arguments {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: SupportedShell,
}

/// The shells for which the script is tested.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum SupportedShell {
    Bash,
    Zsh,
    Fish,
}

/// Prints the completion script for a shell.
///
/// # Errors
/// When the script cannot be written.
pub(super) fn run(arguments: &Arguments, mut tollgate: Command) -> Result<(), Failure> {
    let shell = match arguments.shell {
        SupportedShell::Bash => Shell::Bash,
        SupportedShell::Zsh => Shell::Zsh,
        SupportedShell::Fish => Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut tollgate, "tollgate", &mut script);
    print_own(&script)
}
