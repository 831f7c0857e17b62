//! `tollgate completions`: what completes commands and flags in a shell.

use clap::Command;
use clap_complete::aot::Shell;

use super::failure::Failure;
use super::output::print_long;

const EXAMPLE: &str = "\
Example: for everybody on this machine, from the next shell on.

  tollgate completions bash > /etc/bash_completion.d/tollgate
  tollgate completions zsh > /usr/share/zsh/site-functions/_tollgate
  tollgate completions fish > /etc/fish/completions/tollgate.fish";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub struct Arguments {
    /// For which shell
    #[arg(value_name = "SHELL")]
    shell: SupportedShell,
}

/// Those for which it is tested.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum SupportedShell {
    Bash,
    Zsh,
    Fish,
}

pub fn run(arguments: &Arguments, mut tollgate: Command) -> Result<(), Failure> {
    let shell = match arguments.shell {
        SupportedShell::Bash => Shell::Bash,
        SupportedShell::Zsh => Shell::Zsh,
        SupportedShell::Fish => Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut tollgate, "tollgate", &mut script);
    print_long(&script)
}
