//! `tollgate run`: reads the file, binds the listeners, announces them, and runs the proxy.

use sd_notify::NotifyState;

use super::config_file::ConfigFile;
use super::failure::{Failure, MultiLine};
use super::output;
use super::output::Page;
use super::{diagnostics, startup_warnings};
use crate::gateway;
use config::{LoadedConfig, LogFormat};

const EXAMPLE: &str = "\
Example: run with another file. Prints `ready` when all listeners are bound.

  tollgate run -c /etc/tollgate/gateway.yaml";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Arguments {
    #[command(flatten)]
    file: ConfigFile,
}

/// Starts the gateway, and runs it until the process ends.
///
/// # Errors
/// When the file has problems, or the gateway cannot start.
pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    gateway::hold_signals();
    let loaded = LoadedConfig::from(&arguments.file.config);
    let format = loaded.log_format;
    start(loaded).map_err(|failure| match format {
        LogFormat::Text => failure,
        LogFormat::Json => diagnostics::as_json_lines(&failure),
    })
}

fn start(LoadedConfig { config, sources, .. }: LoadedConfig) -> Result<(), Failure> {
    let config = config?;
    let files = gateway::raise_open_files(&config.bounds);
    let diagnostics = diagnostics::start(config.log)?;
    let (version, hash, limits) = (env!("CARGO_PKG_VERSION"), &config.hash, config.rules.limits().len());
    log::info!(version, hash, limits, store = config.store.name(), pid = std::process::id(); "starts");
    // The panic's message may contain data from a client.
    std::panic::set_hook(Box::new(|panic| {
        let location = panic.location().map(ToString::to_string).unwrap_or_default();
        log::error!(place = location; "panicked, which is a bug");
    }));
    startup_warnings::warn(&sources);
    match files {
        Ok(files) => log::debug!(files; "open-file limit"),
        Err(error) => log::warn!(error:% = error; "open-file limit not raised"),
    }
    // With huge pages of 2 MiB, thousands of slow clients would take twice as much memory.
    if let Err(error) = nix::sys::prctl::set_thp_disable(true) {
        log::debug!(error:% = error; "huge pages not turned off");
    }
    let bootstrapped = gateway::bootstrap(config, sources, Box::new(move |log| diagnostics.change(log)))
        .map_err(|error| MultiLine(error.lines()))?;
    let listening = bootstrapped.listening();
    bootstrapped.run(move || {
        let mut page = Page::default();
        page.lines(listening.iter().map(|listening| format!("listening {} {}", listening.name, listening.address)));
        page.line("ready");
        // The gateway also works if standard output is closed.
        if let Err(error) = output::print(&page) {
            log::debug!(error:% = error; "standard output is closed");
        }
        // After an upgrade, systemd does not know the id of this process.
        if let Err(error) = sd_notify::notify(&[NotifyState::Ready, NotifyState::MainPid(std::process::id())]) {
            log::warn!(error:% = error; "systemd is not notified");
        }
    });
    Ok(())
}
