//! Runs a Redis server with a replica, and a sentinel that watches it.

use std::process::{Child, Command, Stdio};

use base::host_port::HostPort;
use stores::redis::sentinel::Settings as SentinelSettings;
use stores::redis::{Login, Settings, Target};
use tempfile::TempDir;

use super::redis::{Redis, settings};
use super::{eventually, free_port};

pub(crate) struct SentinelGroup {
    pub servers: [Redis; 2],
    port: u16,
    child: Child,
    _directory: TempDir,
}

impl SentinelGroup {
    pub(crate) fn start() -> SentinelGroup {
        let first = Redis::start(&["--repl-diskless-sync-delay", "0"]);
        let master = first.port.to_string();
        let second = Redis::start(&["--repl-diskless-sync-delay", "0", "--replicaof", "127.0.0.1", &master]);
        let (port, directory) = (free_port(), TempDir::new().unwrap());
        let text = format!(
            "port {port}\nbind 127.0.0.1\nsentinel monitor mymaster 127.0.0.1 {master} 1\n\
             sentinel down-after-milliseconds mymaster 1000\n"
        );
        let file = directory.path().join("sentinel.conf");
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new("redis-sentinel");
        let child = command.arg(&file).current_dir(directory.path()).stdout(Stdio::null()).spawn().unwrap();
        let group = SentinelGroup { servers: [first, second], port, child, _directory: directory };
        eventually("the sentinel knows the replica", || {
            group.ask(&["SENTINEL", "REPLICAS", "mymaster"]).contains("slave")
        });
        eventually("the replica is in step", || {
            let info: String = group.servers[1].command(&["INFO", "replication"]);
            info.contains("master_link_status:up")
        });
        group
    }

    /// Sends a command to the sentinel. Returns the reply as a text.
    pub(crate) fn ask(&self, words: &[&str]) -> String {
        let client = ::redis::Client::open(format!("redis://127.0.0.1:{}/", self.port)).unwrap();
        let Ok(mut connection) = client.get_connection() else { return String::new() };
        let mut command = ::redis::cmd(words[0]);
        let reply = command.arg(&words[1..]).query::<::redis::Value>(&mut connection);
        reply.map_or_else(|error| error.to_string(), |reply| text(&reply))
    }

    pub(crate) fn settings(&self) -> Settings {
        let sentinels = SentinelSettings {
            nodes: vec![HostPort::new("127.0.0.1", self.port)],
            master: "mymaster".to_owned(),
            login: Login::default(),
        };
        settings(Target::Sentinel(Box::new(sentinels)))
    }
}

fn text(value: &::redis::Value) -> String {
    match value {
        ::redis::Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        ::redis::Value::Array(parts) => parts.iter().map(text).collect::<Vec<_>>().join(" "),
        ::redis::Value::Map(pairs) => {
            pairs.iter().map(|(key, value)| format!("{} {}", text(key), text(value))).collect::<Vec<_>>().join(" ")
        }
        ::redis::Value::SimpleString(text) => text.clone(),
        ::redis::Value::Okay => "OK".to_owned(),
        other => format!("{other:?}"),
    }
}

impl Drop for SentinelGroup {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
