//! HOW A PERSON ASKS: the commands. The only room that writes to the terminal.
//!
//! Exit codes: 0 fine, 1 a problem with what was given or found, 2 wrong usage (clap's own).

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "this room is the one that speaks")]

mod admin_client;
mod bucket;
mod bucket_backend;
mod bucket_lookup;
mod check;
mod completions;
mod config_file;
mod diagnostics;
mod echo;
mod explain;
mod failure;
mod healthcheck;
mod key;
mod man;
mod nonblocking_stderr;
mod output;
mod replay;
mod run;
mod schema;
mod startup_warnings;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

const EXAMPLE: &str = "\
Example: see what a file says, then proxy by it.

  tollgate check gateway.yaml
  tollgate run -c gateway.yaml

`tollgate COMMAND -h` explains a command.
Exit codes: 0 fine, 1 a problem with what was given or found, 2 wrong usage.";

/// A rate-limiting reverse proxy: plans and limits as rules in one file
#[derive(Debug, Parser)]
#[command(name = "tollgate", version, args_conflicts_with_subcommands = true, after_help = EXAMPLE)]
pub struct CommandLine {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: run::Arguments,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Proxy and enforce; what happens without a command
    Run(run::Arguments),
    /// Report every problem of a file, and what is unwise in it; change nothing
    Check(check::Arguments),
    /// Say what a file makes of a request, rule by rule, and why
    Explain(Box<explain::Arguments>),
    /// Show what a client's bucket holds, or make it full
    Bucket(Box<bucket::Arguments>),
    /// Run access logs through the rules: who would be refused
    Replay(replay::Arguments),
    /// Ask a running gateway's admin listener whether it is well (for containers)
    Healthcheck(healthcheck::Arguments),
    /// Print the line of `api_keys.file` for a key that stands on standard input
    Key(key::Arguments),
    /// Answer every request with what it said: an upstream to try things on
    Echo(echo::Arguments),
    /// Print the JSON Schema of the configuration, for editors
    Schema(schema::Arguments),
    /// Print what completes commands and flags in a shell
    Completions(completions::Arguments),
    /// Print the manual page
    Man(man::Arguments),
}

impl CommandLine {
    pub fn run(self) -> ExitCode {
        let done = match self.command {
            None => run::run(&self.run),
            Some(Command::Run(arguments)) => run::run(&arguments),
            Some(Command::Check(arguments)) => return check::run(&arguments),
            Some(Command::Explain(arguments)) => explain::run(&arguments),
            Some(Command::Bucket(arguments)) => bucket::run(&arguments),
            Some(Command::Replay(arguments)) => replay::run(&arguments),
            Some(Command::Healthcheck(arguments)) => healthcheck::run(&arguments),
            Some(Command::Key(arguments)) => key::run(&arguments),
            Some(Command::Echo(arguments)) => echo::run(&arguments),
            Some(Command::Schema(arguments)) => schema::run(&arguments),
            Some(Command::Completions(arguments)) => completions::run(&arguments, CommandLine::command()),
            Some(Command::Man(arguments)) => man::run(&arguments, CommandLine::command()),
        };
        match done {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => {
                eprintln!("{failure}");
                ExitCode::FAILURE
            }
        }
    }
}
