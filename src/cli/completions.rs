//! `tollgate completions`: what completes commands and flags in a shell.

use clap::CommandFactory;
use clap_complete::aot::Shell;

use super::{CommandLine, Failure, print_long};

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
    shell: Known,
}

/// Those for which it is tested.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Known {
    Bash,
    Zsh,
    Fish,
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let shell = match arguments.shell {
        Known::Bash => Shell::Bash,
        Known::Zsh => Shell::Zsh,
        Known::Fish => Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut CommandLine::command(), "tollgate", &mut script);
    print_long(&script)
}
