//! Runs a real redis-server on a free port, and kills it at the end of the test. TOLLGATE_REDIS_SERVER can name another
//! server, as scripts/test-valkey does.

use std::ffi::{OsStr, OsString};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use base::time::Micros;
use redis::{Cmd, Connection, FromRedisValue};
use tempfile::TempDir;

use super::{Certificates, eventually};

pub(super) const REDIS_SERVER: &str = "redis-server";

pub(crate) struct Redis {
    pub port: u16,
    child: Child,
    server: OsString,
    directory: TempDir,
    arguments: Vec<String>,
}

impl Redis {
    #[track_caller]
    pub(crate) fn start() -> Redis {
        Redis::start_with(&[])
    }

    /// Starts a server with settings of redis.conf as arguments.
    #[track_caller]
    pub(crate) fn start_with(arguments: &[&str]) -> Redis {
        let port = free_port();
        let directory = TempDir::new().unwrap();
        let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let server = server();
        let child = launch(&server, port, directory.path(), &arguments);
        let redis = Redis { port, child, server, directory, arguments };
        redis.wait_for_it();
        redis
    }

    /// Starts a server that also listens with TLS, on the second port, and requires a client certificate of the authority.
    /// The program is always redis-server, because other servers may be built without TLS.
    #[track_caller]
    pub(crate) fn start_tls(certificates: &Certificates) -> (Redis, u16) {
        Redis::start_tls_with(certificates, &[])
    }

    /// Starts such a server with settings of redis.conf as arguments.
    #[track_caller]
    pub(crate) fn start_tls_with(certificates: &Certificates, more: &[&str]) -> (Redis, u16) {
        let directory = TempDir::new().unwrap();
        let mut arguments: Vec<String> = more.iter().map(|argument| (*argument).to_owned()).collect();
        for (option, text) in [
            ("--tls-ca-cert-file", &certificates.authority),
            ("--tls-cert-file", &certificates.server.0),
            ("--tls-key-file", &certificates.server.1),
        ] {
            let file = directory.path().join(option.trim_start_matches('-'));
            std::fs::write(&file, text).unwrap();
            arguments.extend([option.to_owned(), file.display().to_string()]);
        }
        let (port, tls) = (free_port(), free_port());
        arguments.extend(["--tls-port".to_owned(), tls.to_string()]);
        let server = OsString::from(REDIS_SERVER);
        let child = launch(&server, port, directory.path(), &arguments);
        let redis = Redis { port, child, server, directory, arguments };
        redis.wait_for_it();
        (redis, tls)
    }

    /// Returns the `store` section of a gateway.yaml, with an `on_store_failure`.
    pub(crate) fn store(&self, on_store_failure: &str) -> String {
        format!(
            "store: {{redis: {{url: \"redis://127.0.0.1:{}\"}}}}\non_store_failure: {on_store_failure}\n",
            self.port
        )
    }

    /// Returns the settings of a store on this server, for a test without a gateway.
    pub(crate) fn settings(&self) -> stores::redis::Settings {
        stores::redis::Settings {
            target: stores::redis::Target::at("127.0.0.1", self.port),
            login: stores::redis::Login::default(),
            timeout: Micros(5_000_000),
            prefix: "tollgate".to_owned(),
            breaker: stores::breaker::Settings::default(),
            gateways: 1,
        }
    }

    /// Returns the section of [`Redis::store`] with a longer timeout, for a test that loads the machine.
    pub(crate) fn patient_store(&self) -> String {
        let url = format!("redis://127.0.0.1:{}", self.port);
        format!("store: {{redis: {{url: \"{url}\", timeout: 10s}}}}\non_store_failure: deny\n")
    }

    /// Whether a call has arrived that the stopped server has not read.
    pub(crate) fn has_unread_calls(&self) -> bool {
        self.unread_bytes() > 0
    }

    /// Returns how many bytes have arrived that the stopped server has not read.
    pub(crate) fn unread_bytes(&self) -> u64 {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let at = format!(":{:04X}", self.port);
        let unread = |line: &str| {
            let fields: Vec<_> = line.split_whitespace().collect();
            // Of an established connection, the bytes that wait to be sent and to be read.
            let is_ours = fields[1].ends_with(&at) && fields[3] == "01";
            is_ours.then(|| u64::from_str_radix(fields[4].rsplit(':').next().unwrap(), 16).unwrap())
        };
        table.lines().filter_map(unread).sum()
    }

    pub(crate) fn connection(&self) -> Connection {
        let url = format!("redis://127.0.0.1:{}/", self.port);
        redis::Client::open(url).unwrap().get_connection_with_timeout(Duration::from_secs(5)).unwrap()
    }

    /// Runs any command.
    #[track_caller]
    pub(crate) fn command<T: FromRedisValue>(&self, words: &[&str]) -> T {
        let mut command = Cmd::new();
        for word in words {
            command.arg(*word);
        }
        command.query(&mut self.connection()).unwrap()
    }

    pub(crate) fn keys(&self) -> Vec<Vec<u8>> {
        let mut keys: Vec<Vec<u8>> = self.command(&["KEYS", "*"]);
        // The heartbeats of gateways are no buckets.
        keys.retain(|key| ![&b":gateways"[..], b":running", b":formats"].iter().any(|list| key.ends_with(list)));
        keys.sort();
        keys
    }

    pub(crate) fn signal(&self, name: &str) {
        let done = Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status().unwrap();
        assert!(done.success());
    }

    /// Kills the server, as a crash does.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts the server again on the same port, without data.
    #[track_caller]
    pub(crate) fn restart(&mut self) {
        self.child = launch(&self.server, self.port, self.directory.path(), &self.arguments);
        self.wait_for_it();
    }

    #[track_caller]
    fn wait_for_it(&self) {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}/", self.port)).unwrap();
        eventually("redis-server answers", || {
            let Ok(mut connection) = client.get_connection() else { return false };
            match Cmd::new().arg("PING").query::<String>(&mut connection) {
                Ok(_) => true,
                // It is ready, and wants a password first.
                Err(error) => error.code() == Some("NOAUTH"),
            }
        });
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the program that the tests use as Redis.
pub(super) fn server() -> OsString {
    std::env::var_os("TOLLGATE_REDIS_SERVER").unwrap_or_else(|| REDIS_SERVER.into())
}

fn launch(server: &OsStr, port: u16, directory: &Path, arguments: &[String]) -> Child {
    let mut command = Command::new(server);
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
    command.args(["--dir".as_ref(), directory.as_os_str()]).args(arguments);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    child.unwrap_or_else(|error| {
        panic!("{} cannot be started ({error}): run scripts/need redis-server", server.display())
    })
}

/// Returns the `nodes` of a cluster or of sentinels, for servers on these ports of this machine.
pub(crate) fn node_list(ports: impl IntoIterator<Item = u16>) -> String {
    let nodes: Vec<String> = ports.into_iter().map(|port| format!("\"127.0.0.1:{port}\"")).collect();
    format!("[{}]", nodes.join(", "))
}

/// Returns a port that was free a moment ago, because redis-server cannot choose a port. It is below the ports that the
/// system gives to connections, of which tests open thousands. No other call returns it.
pub(crate) fn free_port() -> u16 {
    static TRIED: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = std::process::id().wrapping_mul(331).wrapping_add(TRIED.fetch_add(1, Ordering::Relaxed));
        let port = u16::try_from(12_000 + number % 18_000).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
