//! Logs the changes of `tollgate bucket reset|grant|raise|ban` on standard error, with one line for each bucket.
//!
//! No gateway records a change in a shared store. A client's values are not logged.

use log::LevelFilter;

use super::diagnostics;
use super::failure::Failure;
use crate::gateway::bucket_levels::Levels;
use crate::gateway::bucket_lookup::BucketSelection;
use crate::gateway::bucket_report::{BucketReport, Change, LoggedRaise, bucket_name};
use crate::gateway::raise_request::RaiseArguments;
use config::Log;

/// Logs a change of buckets, with one line for each bucket, whatever the log level of the file is.
///
/// # Errors
/// When the log cannot be started.
pub(super) fn log_change(report: &BucketReport<'_>, chosen: &[BucketSelection]) -> Result<(), Failure> {
    diagnostics::start(Log { level: LevelFilter::Info, ..report.config.log })?;
    let (user, store) = (user(), &*report.before.from);
    for chosen in chosen {
        let bucket = bucket_name(&report.config.hash_key, &chosen.key);
        let Some(limit) = &chosen.limit else {
            log::info!(user:%, bucket:%, store; "bucket reset by an operator");
            continue;
        };
        let shown = |amount| limit.unit.amount(amount);
        // Of a limit over several regions, this store has only the purse.
        let left_in = |levels: &Levels| {
            let level = levels.bucket(&chosen.key, &limit.algorithm, limit.cost);
            shown(level.purse.map_or(level.untouched.remaining, |purse| purse.left))
        };
        let (policy, name, had) = (&*limit.policy, &*limit.name, left_in(&report.before));
        match (report.change, &report.after) {
            (Change::GiveBack(amount), Some(after)) => {
                let (amount, given_back) = (shown(amount), shown(report.given_back(chosen, limit, after)));
                let left = left_in(after);
                log::info!(
                    user:%, bucket:%, policy, limit = name, amount:%, given_back:%, had:%, left:%, store;
                    "amount given back by an operator"
                );
            }
            (Change::Ban(length), _) => {
                let seconds = length.ceil_seconds();
                log::info!(user:%, bucket:%, policy, limit = name, seconds, store; "bucket banned by an operator");
            }
            (_, after) => {
                let full = || shown(report.before.raised(&chosen.key, &limit.algorithm).ceiling());
                // What is held is not given back.
                let left = after.as_ref().map_or_else(full, left_in);
                log::info!(
                    user:%, bucket:%, policy, limit = name, had:%, left:%, store;
                    "bucket reset by an operator"
                );
            }
        }
    }
    log::logger().flush();
    Ok(())
}

/// Logs a raise, whatever the log level of the file is. A raise that the bucket had already is not logged.
///
/// # Errors
/// When the log cannot be started.
pub(super) fn log_raise(
    report: &BucketReport<'_>,
    chosen: &[BucketSelection],
    arguments: &RaiseArguments,
) -> Result<(), Failure> {
    let Some(LoggedRaise { limit, bucket, amount, until, before, after }) = LoggedRaise::of(report, chosen) else {
        return Ok(());
    };
    diagnostics::start(Log { level: LevelFilter::Info, ..report.config.log })?;
    let (user, store) = (user(), &*report.before.from);
    let (policy, name, id, reason) =
        (&*limit.policy, &*limit.name, &*arguments.id, arguments.reason.as_deref().unwrap_or_default());
    log::info!(
        user:%, bucket:%, policy, limit = name, id, amount, until, before, after, reason, store;
        "bucket raised by an operator"
    );
    log::logger().flush();
    Ok(())
}

/// Returns the name or number of the user who runs the command. Under `sudo`, adds the name of the user who called it.
pub(super) fn user() -> String {
    let id = nix::unistd::getuid();
    let name = nix::unistd::User::from_uid(id).ok().flatten().map_or_else(|| id.to_string(), |user| user.name);
    match std::env::var("SUDO_USER") {
        Ok(caller) if id.is_root() => format!("{name} (sudo by {caller})"),
        _ => name,
    }
}
