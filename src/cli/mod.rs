//! The command line: one file for each command. Only `output` writes to the terminal.

mod admin_client;
mod bucket;
mod bucket_backend;
mod bucket_home;
mod bucket_log;
mod bucket_raise;
mod check;
mod completions;
mod config_file;
mod diagnostics;
mod echo;
mod exit_code;
mod explain;
mod failure;
mod healthcheck;
mod import;
mod init;
mod key;
mod man;
mod nonblocking_stderr;
mod output;
mod records;
mod replay;
mod run;
mod schema;
mod startup_warnings;
mod store;
mod usage;

use std::process::ExitCode;
use std::sync::LazyLock;

use clap::{CommandFactory, Parser, Subcommand};

use check::Verdict;
use ledger::calendar::zone_data_version;

const EXAMPLE: &str = "\
Example: check a file, then run the proxy with it.

  tollgate check gateway.yaml
  tollgate run -c gateway.yaml

`tollgate COMMAND -h` explains a command.
";

/// The text of `--version`. `-V` prints only its first line.
static LONG_VERSION: LazyLock<String> =
    LazyLock::new(|| format!("{}\ntime zones {}", env!("CARGO_PKG_VERSION"), zone_data_version()));

/// A rate-limiting reverse proxy: plans and limits as rules in one file
#[derive(Debug, Parser)]
#[command(
    name = "tollgate",
    bin_name = "tollgate",
    version,
    long_version = LONG_VERSION.as_str(),
    args_conflicts_with_subcommands = true,
    after_help = format!("{EXAMPLE}{}", exit_code::HELP)
)]
struct CommandLine {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: run::Arguments,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the proxy and enforce the limits; the default without a command
    Run(run::Arguments),
    /// Write a commented starter file
    Init(init::Arguments),
    /// Print a gateway.yaml that makes the same decisions as the files of another program
    Import(import::Arguments),
    /// Report all problems of a file, and warnings; change nothing
    Check(check::Arguments),
    /// Explain how a file decides a request, rule by rule
    Explain(Box<explain::Arguments>),
    /// Show the level of a client's bucket, reset it, give back an amount, ban it, or list banned ones
    Bucket(Box<bucket::Arguments>),
    /// Sum the records for billing, and compare them with the buckets
    Records(records::Arguments),
    /// Apply the rules to access logs and show which requests would be refused
    Replay(replay::Arguments),
    /// Ask the admin listener of a running gateway whether it is healthy (for containers)
    Healthcheck(healthcheck::Arguments),
    /// Print the line of `api_keys.file` for a key read from standard input
    Key(key::Arguments),
    /// Run a test upstream that answers every request with the request itself
    Echo(echo::Arguments),
    /// Print the JSON Schema of the configuration, for editors
    Schema(schema::Arguments),
    /// Prepare the database of a PostgreSQL store
    Store(Box<store::Arguments>),
    /// Print a completion script for a shell
    Completions(completions::Arguments),
    /// Print the manual page
    Man(man::Arguments),
}

/// Parses the command line, runs its command, and returns the exit code.
pub fn run() -> ExitCode {
    match CommandLine::try_parse() {
        Ok(command_line) => command_line.run(),
        Err(error) => exit_code::report_usage(error),
    }
}

impl CommandLine {
    fn run(self) -> ExitCode {
        let done = match self.command {
            None => run::run(&self.run),
            Some(Command::Run(arguments)) => run::run(&arguments),
            Some(Command::Check(arguments)) => return exit_code::report(check::run(&arguments)),
            Some(Command::Records(arguments)) => return exit_code::report(records::run(&arguments)),
            Some(Command::Init(arguments)) => init::run(&arguments),
            Some(Command::Import(arguments)) => import::run(&arguments),
            Some(Command::Explain(arguments)) => explain::run(&arguments),
            Some(Command::Bucket(arguments)) => bucket::run(&arguments),
            Some(Command::Replay(arguments)) => replay::run(&arguments),
            Some(Command::Healthcheck(arguments)) => healthcheck::run(&arguments),
            Some(Command::Key(arguments)) => key::run(&arguments),
            Some(Command::Echo(arguments)) => echo::run(&arguments),
            Some(Command::Schema(arguments)) => schema::run(&arguments),
            Some(Command::Store(arguments)) => store::run(&arguments),
            Some(Command::Completions(arguments)) => completions::run(&arguments, CommandLine::command()),
            Some(Command::Man(arguments)) => man::run(&arguments, CommandLine::command()),
        };
        exit_code::report(done.map(|()| Verdict::Pass))
    }
}
