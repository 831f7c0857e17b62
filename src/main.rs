//! Parses arguments, calls the command line, maps the result to an exit code.

use std::process::ExitCode;

use clap::Parser;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    tollgate::cli::CommandLine::parse().run()
}
