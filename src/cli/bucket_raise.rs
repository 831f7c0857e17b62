//! `tollgate bucket raise`: adds an amount to the burst or limit of one bucket until a moment.

use super::bucket::{Place, by_values, failure};
use super::bucket_backend::Backend;
use super::bucket_home::Site;
use super::bucket_log;
use super::failure::{Failure, wrong_usage};
use super::output;
use super::output::Page;
use crate::gateway::bucket_report::{BucketReport, Change};
use crate::gateway::raise_request::{RaiseArguments, RaiseRequest};
use config::Config;
use rules::partial_evaluation::Knowledge;

#[derive(Debug, clap::Args)]
#[command(
    override_usage = "tollgate bucket raise [OPTIONS] <RULE> [KEY=VALUE]... <+N> --until <END> --id <ID>",
    after_help = "KEY=VALUE is a value for each limit key of the rule; +N is how much to add, such as +500, in USD for a limit on money."
)]
pub(super) struct Raise {
    #[command(flatten)]
    pub place: Place,
    /// The rule: `free`, `plan/free`, or `free.second` for one of several limits; or a meter
    #[arg(value_name = "RULE")]
    pub rule: String,
    // The keys and the amount are one list, as for a grant.
    #[arg(value_name = "+N", num_args = 1.., required = true, hide = true)]
    keys_and_amount: Vec<String>,
    /// When the raise ends: `period-end` (of a fixed window), or a date and time like 2026-12-01T00:00:00Z
    #[arg(long, value_name = "END")]
    until: String,
    /// A name of this raise, such as the number of a ticket. The same raise is made once, however often it is asked for
    #[arg(long, value_name = "ID")]
    id: String,
    /// Why, for the log
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

impl Raise {
    /// Returns the checked arguments, and the values of the limit keys.
    ///
    /// # Errors
    /// When an argument is invalid.
    pub(super) fn arguments(&self) -> Result<(RaiseArguments, &[String]), Failure> {
        let (amount, keys) = self.keys_and_amount.split_last().ok_or("+N: missing")?;
        let (amount, until) = (amount.clone(), self.until.clone());
        let arguments = RaiseArguments { amount, until, id: self.id.clone(), reason: self.reason.clone() };
        arguments.until().map_err(|error| wrong_usage(error.what))?;
        Ok((arguments, keys))
    }

    /// Raises the bucket in a shared store, and prints it.
    ///
    /// # Errors
    /// When the arguments name no bucket that can be raised, a running gateway cannot read raises, or the store does not answer.
    pub(super) fn run(&self, backend: &Backend, config: &Config, known: Knowledge<'_>) -> Result<(), Failure> {
        let (arguments, keys) = self.arguments()?;
        let chosen = Site::of(&self.place).select(by_values(config, &self.rule, keys, known)?, config)?;
        let (request, chosen) = RaiseRequest::new(&arguments, &self.rule, chosen).map_err(failure)?;
        let (before, after) = backend.raise(&request)?.map_err(failure)?;
        let report = BucketReport { config, change: Change::Raise(request.id), before, after: Some(after) };
        bucket_log::log_raise(&report, &chosen, &arguments)?;
        let mut page = Page::default();
        match self.place.json {
            true => page.pretty_json(&report.document(&chosen))?,
            false => page.lines(report.lines(&chosen)),
        }
        output::print(&page)
    }
}
