//! Runs a Redis server with replicas and the sentinels that watch it, and ends them with the test.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use redis::{Cmd, ConnectionInfo, IntoConnectionInfo, Value};
use tempfile::TempDir;

use super::redis::{REDIS_SERVER, free_port, node_list, server};
use super::{Redis, eventually, eventually_within};

/// The name of the master.
pub(crate) const MASTER: &str = "mymaster";

/// Returns a command after which a sentinel decides as usual, but sooner. Intervals are in milliseconds. A replica becomes
/// the master only if its state is at most as old as the last five pings, and the state is requested once a second. A former
/// master becomes a replica only while the state of the new one is at most as old as the last two INFO commands. A sentinel
/// that has stood still for two seconds trusts nothing for another half minute, which is shortened too.
pub(crate) const fn sooner(info_period: &str) -> [&str; 12] {
    [
        "SENTINEL",
        "DEBUG",
        "info-period",
        info_period,
        "ask-period",
        "100",
        "ping-period",
        "500",
        "publish-period",
        "200",
        "tilt-period",
        "1000",
    ]
}

/// A command after which a sentinel has its default intervals.
pub(crate) const AS_SHIPPED: [&str; 10] = [
    "SENTINEL",
    "DEBUG",
    "info-period",
    "10000",
    "ask-period",
    "1000",
    "ping-period",
    "1000",
    "publish-period",
    "2000",
];

/// Several servers, one of which is the master, and their sentinels.
pub(crate) struct SentinelGroup {
    pub servers: Vec<Redis>,
    pub sentinels: Vec<Sentinel>,
}

/// The setup of a group.
pub(crate) struct SentinelSetup<'s> {
    pub replicas: usize,
    pub sentinels: usize,
    /// The silence after which a server counts as down, in milliseconds.
    pub down_after: u64,
    /// Settings of redis.conf, as arguments of each server.
    pub server: &'s [&'s str],
    /// Lines of each sentinel.conf.
    pub sentinel: &'s [&'s str],
}

pub(crate) struct Sentinel {
    pub port: u16,
    child: Child,
    /// The directory of its configuration. A sentinel rewrites its configuration.
    _directory: TempDir,
    password: Option<String>,
}

/// One replica, and three sentinels that soon notice that the master is down.
impl Default for SentinelSetup<'_> {
    fn default() -> Self {
        SentinelSetup { replicas: 1, sentinels: 3, down_after: 300, server: &[], sentinel: &[] }
    }
}

impl SentinelSetup<'_> {
    /// The same, but the sentinels never find that the master is down. For a test without a failover, because a busy machine may
    /// stand still for longer than 300 ms.
    pub(crate) fn without_failover() -> Self {
        SentinelSetup { down_after: 600_000, ..SentinelSetup::default() }
    }
}

impl SentinelGroup {
    /// Starts a group. Returns when the replicas have all data and the sentinels know each other.
    #[track_caller]
    pub(crate) fn with(setup: &SentinelSetup<'_>) -> SentinelGroup {
        // A replica that asks for everything gets it at once.
        let common = [&["--repl-diskless-sync-delay", "0"], setup.server].concat();
        let mut servers = vec![Redis::start_with(&common)];
        let master = servers[0].port.to_string();
        for _ in 0..setup.replicas {
            servers.push(Redis::start_with(&[&common[..], &["--replicaof", "127.0.0.1", &master]].concat()));
        }
        for replica in &servers[1..] {
            eventually("a replica is in step", || {
                replica.role().starts_with("slave") && replica.role().contains("connected")
            });
        }
        let sentinels: Vec<Sentinel> = (0..setup.sentinels).map(|_| Sentinel::start(servers[0].port, setup)).collect();
        let group = SentinelGroup { servers, sentinels };
        group.await_sentinels(setup);
        group
    }

    /// Returns `sentinel: {…}` with the master, the sentinels and these additional keys.
    pub(crate) fn section(&self, more: &str) -> String {
        let nodes = node_list(self.sentinels.iter().map(|sentinel| sentinel.port));
        format!("sentinel: {{master: {MASTER}, nodes: {nodes}{more}}}")
    }

    /// Returns the `store` section of a gateway.yaml, with an `on_store_failure`.
    pub(crate) fn store(&self, on_store_failure: &str) -> String {
        format!("store: {{redis: {{{}}}}}\non_store_failure: {on_store_failure}\n", self.section(""))
    }

    /// Returns the section of [`SentinelGroup::store`] with a longer timeout, for a test that loads the machine.
    pub(crate) fn patient_store(&self) -> String {
        format!("store: {{redis: {{{}, timeout: 10s}}}}\non_store_failure: deny\n", self.section(""))
    }

    /// Whether any sentinel names this server as the master.
    pub(crate) fn is_named(&self, server: usize) -> bool {
        self.sentinels.iter().any(|sentinel| sentinel.names() == Some(self.servers[server].port))
    }

    /// Makes this server the master without the sentinels, and then lets them watch it.
    #[track_caller]
    pub(crate) fn promote_by_hand(&self, server: usize) {
        let promoted = &self.servers[server];
        promoted.command::<()>(&["REPLICAOF", "NO", "ONE"]);
        for sentinel in &self.sentinels {
            sentinel.command(&["SENTINEL", "REMOVE", MASTER]);
            sentinel.command(&["SENTINEL", "MONITOR", MASTER, "127.0.0.1", &promoted.port.to_string(), "2"]);
        }
    }

    /// Waits until every sentinel knows the replicas and the other sentinels, because only then they can agree on a
    /// successor.
    #[track_caller]
    fn await_sentinels(&self, setup: &SentinelSetup<'_>) {
        for sentinel in &self.sentinels {
            sentinel.command(&sooner("100"));
            let count = |question: &str| match sentinel.command(&["SENTINEL", question, MASTER]) {
                Value::Array(list) => list.len(),
                _ => 0,
            };
            eventually("a sentinel knows all", || {
                count("REPLICAS") == setup.replicas && count("SENTINELS") + 1 == setup.sentinels
            });
        }
    }
}

impl Redis {
    /// Returns `master`, or `slave` and the state of its link to the master. Empty without an answer: a server whose role
    /// changes closes its connections.
    pub(crate) fn role(&self) -> String {
        role_at(self.port, None)
    }
}

impl Redis {
    /// Whether the server is a master with the replicas that it needs. In a cluster, only the master of the last third of the
    /// slots is.
    pub(crate) fn accepts_writes(&self) -> bool {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}/", self.port)).unwrap();
        let Ok(mut connection) = client.get_connection_with_timeout(Duration::from_secs(1)) else { return false };
        redis::cmd("SET").arg("foo").arg("").arg("PX").arg(1).exec(&mut connection).is_ok()
    }
}

/// Waits for a state to which sentinels must agree. An election without a majority is repeated after some seconds, and a sentinel that
/// has stood still takes part again only later, so on a busy machine this may take several elections.
#[track_caller]
pub(crate) fn after_elections(what: &str, holds: impl FnMut() -> bool) {
    eventually_within(Duration::from_secs(90), what, holds);
}

/// Returns [`Redis::role`] of the server on this port. `login` is a name and a password.
pub(crate) fn role_at(port: u16, login: Option<(&str, &str)>) -> String {
    let ask = || {
        let client = redis::Client::open(format!("redis://127.0.0.1:{port}/")).ok()?;
        let mut connection = client.get_connection_with_timeout(Duration::from_secs(1)).ok()?;
        if let Some((name, password)) = login {
            redis::cmd("AUTH").arg(name).arg(password).exec(&mut connection).ok()?;
        }
        let role: Vec<Value> = redis::cmd("ROLE").query(&mut connection).ok()?;
        let text = |index: usize| redis::from_redis_value::<String>(role.get(index)?.clone()).ok();
        let role = text(0)?;
        Some(if role == "slave" { format!("{role} {}", text(3)?) } else { role })
    };
    ask().unwrap_or_default()
}

impl Sentinel {
    /// Starts a sentinel that watches the server on this port.
    #[track_caller]
    pub(crate) fn start(master: u16, setup: &SentinelSetup<'_>) -> Sentinel {
        let (port, directory) = (free_port(), TempDir::new().unwrap());
        let file: PathBuf = directory.path().join("sentinel.conf");
        let quorum = setup.sentinels / 2 + 1;
        let mut lines = vec![
            format!("port {port}"),
            "bind 127.0.0.1".to_owned(),
            format!("dir {}", directory.path().display()),
            format!("sentinel monitor {MASTER} 127.0.0.1 {master} {quorum}"),
            format!("sentinel down-after-milliseconds {MASTER} {}", setup.down_after),
            format!("sentinel failover-timeout {MASTER} 2000"),
            format!("sentinel parallel-syncs {MASTER} 8"),
        ];
        lines.extend(setup.sentinel.iter().map(|line| (*line).to_owned()));
        let password = setup.sentinel.iter().find_map(|line| line.strip_prefix("requirepass ")).map(str::to_owned);
        std::fs::write(&file, lines.join("\n") + "\n").unwrap();
        // As of a server with TLS: other programs may be built without it.
        let has_tls = setup.sentinel.iter().any(|line| line.starts_with("tls-port "));
        let mut command = Command::new(if has_tls { REDIS_SERVER.into() } else { server() });
        let child = command.arg(&file).arg("--sentinel").stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.unwrap_or_else(|error| panic!("{error}: run scripts/need redis-server"));
        let sentinel = Sentinel { port, child, _directory: directory, password };
        eventually("a sentinel answers", || sentinel.names().is_some());
        sentinel
    }

    /// Returns the port of the server that the sentinel names.
    pub(crate) fn names(&self) -> Option<u16> {
        match self.try_command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER])? {
            Value::Array(address) => redis::from_redis_value(address.into_iter().nth(1)?).ok(),
            _ => None,
        }
    }

    /// Runs any command.
    #[track_caller]
    pub(crate) fn command(&self, words: &[&str]) -> Value {
        let answer = self.ask(words, Duration::from_secs(5));
        answer.unwrap_or_else(|| panic!("the sentinel refuses {words:?}"))
    }

    /// Runs any command; `None` if the sentinel refuses it.
    pub(crate) fn try_command(&self, words: &[&str]) -> Option<Value> {
        self.ask(words, Duration::from_secs(1))
    }

    fn ask(&self, words: &[&str], patience: Duration) -> Option<Value> {
        let mut info: ConnectionInfo = format!("redis://127.0.0.1:{}/", self.port).into_connection_info().unwrap();
        if let Some(password) = &self.password {
            info = info.clone().set_redis_settings(info.redis_settings().clone().set_password(password));
        }
        let mut connection = redis::Client::open(info).ok()?.get_connection_with_timeout(patience).ok()?;
        connection.set_read_timeout(Some(patience)).ok()?;
        let mut command = Cmd::new();
        for word in words {
            command.arg(*word);
        }
        command.query(&mut connection).ok()
    }

    pub(crate) fn signal(&self, name: &str) {
        let done = Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status().unwrap();
        assert!(done.success());
    }

    /// Kills the sentinel, as a crash does.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
