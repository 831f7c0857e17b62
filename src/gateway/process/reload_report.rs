//! Logs the changes of a reload, and the faults of a rejected file.

use config::Config;
use config::diff::Reset;
use config::problem::Problems;
use rules::number_changes::ChangedLimit;

/// The maximum number of problems or limits that one log line names.
const NAMED: usize = 10;

/// The differences between the old and the new configuration, for the log.
pub(crate) struct Changes {
    resets: Vec<Reset>,
    kept: Vec<ChangedLimit>,
    routes: Vec<String>,
    upstreams: Vec<String>,
}

impl Changes {
    pub(crate) fn between(before: &Config, after: &Config) -> Changes {
        Changes {
            resets: after.reset_buckets(before),
            kept: after.changed_limits(before),
            routes: after.changed_routes(before),
            upstreams: after.changed_upstreams(before),
        }
    }

    pub(crate) fn log(&self) {
        let Changes { resets, kept, routes, upstreams } = self;
        if !resets.is_empty() {
            let which = list(resets.iter().map(Reset::to_string));
            log::warn!(limits = resets.len(), which; "buckets are reset");
        }
        if !kept.is_empty() {
            let which = list(kept.iter().map(ChangedLimit::to_string));
            log::info!(limits = kept.len(), which; "limits have other numbers, their buckets are kept");
        }
        if !routes.is_empty() {
            let which = list(routes.iter().cloned());
            log::info!(routes = routes.len(), which; "routes are changed");
        }
        if !upstreams.is_empty() {
            let which = list(upstreams.iter().cloned());
            log::info!(upstreams = upstreams.len(), which; "upstreams are changed");
        }
    }
}

/// Returns the position of the first problem, for the status page. The invalid value is left out, because it may be a
/// secret.
pub(crate) fn first_position(problems: &Problems) -> String {
    let Some(first) = problems.problems.first() else { return String::new() };
    let file = std::path::Path::new(first.file.as_ref().unwrap_or(&problems.file)).file_name().unwrap_or_default();
    let position = first.position.map_or_else(String::new, |position| format!(":{position}"));
    let path = if first.path.is_empty() { String::new() } else { format!(" {}", first.path) };
    let more = match problems.problems.len() {
        1 => String::new(),
        count => format!(", and {} more problems", count - 1),
    };
    format!("{}{position}{path}{more}", file.display())
}

/// Returns the problems as one line of bounded length for the log, in the words of `check`.
pub(crate) fn brief(problems: &Problems) -> String {
    list(problems.lines())
}

fn list(all: impl ExactSizeIterator<Item = String>) -> String {
    let rest = if all.len() > NAMED { "; …" } else { "" };
    all.take(NAMED).collect::<Vec<_>>().join("; ") + rest
}
