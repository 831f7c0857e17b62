//! Runs a redis-server.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ::redis::FromRedisValue;
use stores::redis::{Login, Settings, Target};
use stores::{Micros, breaker};
use tempfile::TempDir;

use super::{eventually, free_port};

pub(crate) struct Redis {
    pub port: u16,
    child: Child,
    directory: TempDir,
    arguments: Vec<String>,
}

impl Redis {
    /// Starts a server with these settings of redis.conf.
    pub(crate) fn start(arguments: &[&str]) -> Redis {
        let (port, directory) = (free_port(), TempDir::new().unwrap());
        let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let child = launch(port, &directory, &arguments);
        let redis = Redis { port, child, directory, arguments };
        redis.wait();
        redis
    }

    fn wait(&self) {
        eventually("redis-server answers", || self.try_command::<String>(&["PING"]).is_ok());
    }

    /// Kills the server.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts the server that was killed again, at the same address.
    pub(crate) fn restart(&mut self) {
        self.child = launch(self.port, &self.directory, &self.arguments);
        self.wait();
    }

    pub(crate) fn try_command<T: FromRedisValue>(&self, words: &[&str]) -> ::redis::RedisResult<T> {
        let client = ::redis::Client::open(format!("redis://127.0.0.1:{}/", self.port)).unwrap();
        let mut connection = client.get_connection_with_timeout(Duration::from_secs(1))?;
        let mut command = ::redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query(&mut connection)
    }

    pub(crate) fn command<T: FromRedisValue>(&self, words: &[&str]) -> T {
        self.try_command(words).unwrap()
    }

    pub(crate) fn settings(&self) -> Settings {
        settings(Target::at("127.0.0.1", self.port))
    }
}

/// Returns the settings of a store. The timeout is long, for a busy machine.
pub(crate) fn settings(target: Target) -> Settings {
    Settings {
        target,
        login: Login::default(),
        timeout: Micros(5_000_000),
        prefix: "lease".to_owned(),
        breaker: breaker::Settings::default(),
        gateways: 1,
    }
}

fn launch(port: u16, directory: &TempDir, arguments: &[String]) -> Child {
    let mut command = Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]).args(arguments);
    command.current_dir(directory.path()).stdout(Stdio::null()).spawn().unwrap()
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
