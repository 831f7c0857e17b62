//! `tollgate records check`: sums the records for billing, and compares them with the buckets of the store.

mod comparison;
mod global_bucket;
mod regions;
mod result_lines;
mod sums;

use std::net::SocketAddr;
use std::path::PathBuf;

use super::admin_client;
use super::check::Verdict;
use super::config_file::examine;
use super::failure::Failure;
use super::output;
use super::output::Page;
use base::time::Clock;
use comparison::compare;
use config::problem::Purpose;
use regions::Regions;
use rules::partial_evaluation::Knowledge;
use sums::RecordSums;

const EXAMPLE: &str = "\
Example: compare the records of all gateways with what the store has counted this month.

  tollgate records check gateway-1.jsonl gateway-2.jsonl -c gateway.yaml

Example: compare the records of all gateways of three regions, for limits over all regions to the unit.

  tollgate records check eu-*.jsonl us-*.jsonl ap-*.jsonl -c eu.yaml -c us.yaml -c ap.yaml

Exit code 1 if the records and a bucket differ by more than purses that were not read can hold. A running gateway has not
written its last interval yet.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Arguments {
    #[command(subcommand)]
    act: Act,
}

#[derive(Debug, clap::Subcommand)]
enum Act {
    /// Sum the records of all gateways by meter, subject and period, and compare the sums with the buckets
    Check(Check),
}

#[derive(Debug, clap::Args)]
struct Check {
    /// The files that the gateways have written, in any order, rotated ones too
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// The configuration, which names the meters and the store. With limits over several regions, one for each region: their
    /// purses are read too
    #[arg(short, long, value_name = "FILE", default_value = "gateway.yaml")]
    config: Vec<PathBuf>,
    /// The issuer of the tokens, if the file trusts several issuers
    #[arg(long, value_name = "ISSUER")]
    issuer: Option<String>,
    /// The admin listener to ask about buckets in memory [default: the one in the file]; of several files, that of the first
    #[arg(long, value_name = "ADDRESS", value_parser = admin_client::address_argument)]
    admin: Option<SocketAddr>,
}

/// Compares records with buckets.
///
/// # Errors
/// When a file cannot be read, the configuration has problems, or the store does not answer.
pub(super) fn run(arguments: &Arguments) -> Result<Verdict, Failure> {
    let Act::Check(Check { files, config: paths, issuer, admin }) = &arguments.act;
    let mut sums = RecordSums::default();
    for file in files {
        sums.read(file).and_then(|()| sums.read_left(file)).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    let mut configs = Vec::new();
    for path in paths {
        configs.push((path.clone(), examine(path, Purpose::ReachStore)?));
    }
    let regions = Regions::of(&configs, admin.map(Into::into))?;
    let Some((_, config)) = configs.first() else { return Err("-c: missing".into()) };
    let at = Clock::system().wall();
    let known = Knowledge { client: None, issuer: issuer.as_deref(), at, names: &config.hash_key, is_held: false };
    let comparison = compare(config, &regions, known, &sums)?;
    let mut page = Page::default();
    page.lines(sums.remarks());
    page.lines(comparison.lines());
    output::print(&page)?;
    Ok(if comparison.passes() { Verdict::Pass } else { Verdict::Fail })
}
