//! Prepares a gateway: its gateway.yaml, other files, its environment, and the shell that starts it.

use std::process::Command;
use std::time::Duration;

use super::proof::intervals_are_shortened;
use super::{ConfigDirectory, Gateway, Upstream};

pub(crate) struct GatewayBuilder {
    upstream: String,
    config: String,
    files: Vec<(String, String)>,
    variables: Vec<(String, String)>,
    shell: Option<String>,
    intervals: Vec<String>,
}

impl Gateway {
    /// Returns a gateway with this upstream.
    pub(crate) fn before(upstream: &Upstream) -> GatewayBuilder {
        Gateway::before_url(&format!("http://{}", upstream.address))
    }

    /// Returns a gateway that decides for other proxies, and proxies nothing.
    pub(crate) fn deciding() -> GatewayBuilder {
        Gateway::before_url("")
    }

    /// Returns a gateway with the upstream of this URL.
    pub(crate) fn before_url(upstream: &str) -> GatewayBuilder {
        GatewayBuilder {
            upstream: upstream.to_owned(),
            config: String::new(),
            files: Vec::new(),
            variables: Vec::new(),
            shell: None,
            intervals: Vec::new(),
        }
    }
}

impl GatewayBuilder {
    /// Adds lines to gateway.yaml. The file already names the upstream, and one listener unless the lines name listeners.
    pub(crate) fn with(mut self, lines: &str) -> GatewayBuilder {
        if !self.config.is_empty() && !self.config.ends_with('\n') {
            self.config.push('\n');
        }
        self.config += lines;
        self
    }

    /// Writes a file into the directory of gateway.yaml.
    pub(crate) fn file(mut self, name: &str, text: &str) -> GatewayBuilder {
        self.files.push((name.to_owned(), text.to_owned()));
        self
    }

    /// Writes several files, by name.
    pub(crate) fn files(self, files: &[(&str, &str)]) -> GatewayBuilder {
        files.iter().fold(self, |builder, (name, text)| builder.file(name, text))
    }

    /// Sets a variable in the gateway's environment.
    pub(crate) fn variable(mut self, name: &str, value: &str) -> GatewayBuilder {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets several variables, by name.
    pub(crate) fn variables(self, variables: &[(&str, &str)]) -> GatewayBuilder {
        variables.iter().fold(self, |builder, (name, value)| builder.variable(name, value))
    }

    /// Logs what an observer is shown of the response to each request.
    #[cfg(feature = "test-hooks")]
    pub(crate) fn record_responses(self) -> GatewayBuilder {
        self.variable("TOLLGATE_TEST_RECORD_RESPONSES", "1").with("log: {format: json}\n")
    }

    /// Changes an interval for which there is no setting (`crates/base/src/interval.rs`). Needs the feature `test-hooks`.
    pub(crate) fn interval(mut self, name: &str, length: Duration) -> GatewayBuilder {
        self.intervals.push(format!("{name}={}", length.as_millis()));
        self
    }

    /// Changes an interval like [`GatewayBuilder::interval`], but only in the short form of a proof. The long form has the
    /// real intervals.
    pub(crate) fn short_interval(self, name: &str, length: Duration) -> GatewayBuilder {
        if intervals_are_shortened() { self.interval(name, length) } else { self }
    }

    /// Shortens the heartbeats by which gateways on one Redis know of each other.
    pub(crate) fn short_heartbeats(self) -> GatewayBuilder {
        self.short_interval("heartbeat", Duration::from_millis(200))
            .short_interval("gateway_ttl", Duration::from_millis(1500))
    }

    /// Runs shell commands in the gateway's process before the program starts.
    pub(crate) fn shell(mut self, commands: &str) -> GatewayBuilder {
        self.shell = Some(commands.to_owned());
        self
    }

    /// Starts the gateway, and waits until it is ready.
    #[track_caller]
    pub(crate) fn start(self) -> Gateway {
        let directory = ConfigDirectory::new();
        for (name, text) in &self.files {
            std::fs::write(directory.path().join(name), text).unwrap();
        }
        let file = directory.path().join("gateway.yaml");
        std::fs::write(&file, Gateway::text(&self.upstream, &self.config)).unwrap();
        let mut command = Gateway::command(&file);
        if let Some(commands) = &self.shell {
            let plain = command;
            command = Command::new("sh");
            command.arg("-c").arg(format!("{commands}; exec \"$0\" \"$@\""));
            command.arg(plain.get_program()).args(plain.get_args());
        }
        command.envs(self.variables).env("TOLLGATE_TEST_INTERVALS", self.intervals.join(","));
        Gateway::launch(command, directory)
    }
}
