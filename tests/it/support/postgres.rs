//! Runs a real PostgreSQL server on a free port, and ends it with the test.

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use base::host_port::HostPort;
use base::time::Micros;
use stores::breaker;
use stores::postgres::{Durability, Settings, TableName, schema};
use stores::redis::Login;
use tempfile::TempDir;

use super::redis::free_port;
use super::{Certificates, eventually};

/// The settings of the server. Its data need not outlive the test.
const SETTINGS: &str = "\
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
fsync = off
full_page_writes = off
shared_buffers = 32MB
max_connections = 60
logging_collector = off
log_destination = 'stderr'
autovacuum_naptime = 1s
";

/// The superuser. From this machine it needs no password.
const ADMIN: &str = "admin";

pub(crate) struct Postgres {
    pub port: u16,
    directory: TempDir,
    programs: PathBuf,
    certificates: Option<TempDir>,
    /// The server; `None` while it is stopped.
    child: Option<Child>,
}

impl Postgres {
    #[track_caller]
    pub(crate) fn start() -> Postgres {
        Postgres::start_with("")
    }

    /// Starts a server with TLS. Clients may also connect without TLS.
    #[track_caller]
    pub(crate) fn start_tls(certificates: &Certificates) -> Postgres {
        let folder = TempDir::new().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut settings = "ssl = on\n".to_owned();
        for (name, text) in [("ssl_cert_file", &certificates.server.0), ("ssl_key_file", &certificates.server.1)] {
            let file = folder.path().join(name);
            std::fs::write(&file, text).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
            give_away(&file);
            settings += &format!("{name} = '{}'\n", file.display());
        }
        let mut postgres = Postgres::start_with(&settings);
        postgres.certificates = Some(folder);
        postgres
    }

    /// Starts a server with additional lines of postgresql.conf.
    #[track_caller]
    pub(crate) fn start_with(settings: &str) -> Postgres {
        let directory = TempDir::new().unwrap();
        // The user that the server runs as must reach its folder.
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let data = directory.path().join("data");
        std::fs::create_dir(&data).unwrap();
        give_away(&data);
        let mut postgres =
            Postgres { port: free_port(), directory, programs: programs(), certificates: None, child: None };
        let made = postgres
            .program("initdb")
            .args(["--auth=trust", "--no-sync", "--username", ADMIN, "-D"])
            .arg(&data)
            .output();
        let made = made.unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let file = data.join("postgresql.conf");
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, format!("{text}\n{SETTINGS}{settings}\n")).unwrap();
        postgres.launch();
        postgres.run("CREATE DATABASE limits");
        postgres
    }

    /// Returns the `store` section of a gateway.yaml, with an `on_store_failure`. The timeout is long, for a busy machine.
    pub(crate) fn store(&self, on_store_failure: &str) -> String {
        self.store_with(", timeout: 2s", on_store_failure)
    }

    /// Returns the section of [`Postgres::store`], with additional keys of `postgres`.
    pub(crate) fn store_with(&self, keys: &str, on_store_failure: &str) -> String {
        format!(
            "store: {{postgres: {{url: \"postgres://tollgate@127.0.0.1:{}/limits\"{keys}}}}}\n\
             on_store_failure: {on_store_failure}\n",
            self.port
        )
    }

    /// Returns the settings of a store, after the tables were created. Timeouts are long, for tests that load the machine.
    #[track_caller]
    pub(crate) fn settings(&self) -> Settings {
        let settings = Settings {
            hosts: vec![HostPort::new("127.0.0.1", self.port)],
            database: "limits".to_owned(),
            login: Login { username: Some("tollgate".to_owned()), ..Login::default() },
            timeout: Micros(5_000_000),
            table: TableName::default(),
            durability: Durability::default(),
            breaker: breaker::Settings::default(),
            gateways: 1,
        };
        self.sql(&schema::statements(&settings));
        settings
    }

    /// Creates the tables for a configuration, as an administrator does.
    #[track_caller]
    pub(crate) fn init(&self, file: &Path) {
        let output = self.try_init(file);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    pub(crate) fn try_init(&self, file: &Path) -> std::process::Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(["store", "init", "--user", ADMIN, "-c"]).arg(file);
        command.output().unwrap()
    }

    /// Runs statements as the administrator. Returns the rows; their columns are separated by `|`.
    #[track_caller]
    pub(crate) fn sql(&self, text: &str) -> String {
        self.sql_as(ADMIN, text).unwrap()
    }

    /// Runs statements as any user.
    ///
    /// # Errors
    /// Returns the error of the server.
    pub(crate) fn sql_as(&self, user: &str, text: &str) -> Result<String, String> {
        self.psql(user, "limits", &["-c", text])
    }

    /// Runs statements as the administrator, each in its own transaction, until one fails.
    ///
    /// # Errors
    /// Returns the error of the server.
    pub(crate) fn run_script(&self, text: &str) -> Result<String, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        self.psql(ADMIN, "limits", &["-f", file.path().to_str().unwrap()])
    }

    #[track_caller]
    fn run(&self, text: &str) {
        self.psql(ADMIN, "postgres", &["-c", text]).unwrap();
    }

    fn psql(&self, user: &str, database: &str, arguments: &[&str]) -> Result<String, String> {
        let url = format!("postgres://{user}@127.0.0.1:{}/{database}", self.port);
        let mut command = Command::new(self.programs.join("psql"));
        let output = command.args(["-XqAt", "-v", "ON_ERROR_STOP=1"]).args(arguments).arg(&url).output().unwrap();
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
    }

    /// Runs statements in a session that continues after this call, and waits until the session sleeps in one of them.
    pub(crate) fn hold(&self, text: &str) {
        let url = format!("postgres://{ADMIN}@127.0.0.1:{}/limits", self.port);
        let mut command = Command::new(self.programs.join("psql"));
        command.args(["-Xq", "-c", text, &url]).stdout(Stdio::null()).stderr(Stdio::null());
        let sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
        let others: u64 = self.sql(sleeping).parse().unwrap();
        let mut session = command.spawn().unwrap();
        std::thread::spawn(move || session.wait());
        eventually("the session runs", || self.sql(sleeping).parse::<u64>().unwrap() > others);
    }

    /// Returns the child processes of the server: those that serve connections, and others.
    fn children(&self) -> Vec<String> {
        let server = self.process();
        let children = std::fs::read_to_string(format!("/proc/{server}/task/{server}/children")).unwrap();
        children.split_whitespace().map(str::to_owned).collect()
    }

    /// Sends a signal to the server and to all processes that serve connections.
    pub(crate) fn signal(&self, name: &str) {
        // A server that stands still neither starts processes nor forgets those that have ended.
        let is_continued = name == "CONT";
        if !is_continued {
            self.signal_server(name);
        }
        let done = Command::new("kill").arg(format!("-{name}")).args(self.children()).status().unwrap();
        assert!(done.success());
        if is_continued {
            self.signal_server(name);
        }
    }

    /// Starts a replica of this server.
    #[track_caller]
    pub(crate) fn replica(&self) -> Postgres {
        let directory = TempDir::new().unwrap();
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut replica =
            Postgres { port: free_port(), directory, programs: programs(), certificates: None, child: None };
        give_away(replica.directory.path());
        let url = format!("postgres://{ADMIN}@127.0.0.1:{}", self.port);
        let mut copy = replica.program("pg_basebackup");
        let copied =
            copy.args(["-R", "-X", "stream", "-c", "fast", "--no-sync", "-d", &url, "-D"]).arg(replica.data()).output();
        let copied = copied.unwrap();
        assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
        replica.launch();
        replica
    }

    /// Makes a replica a primary, and waits until it is one.
    #[track_caller]
    pub(crate) fn promote(&self) {
        let done = self.program("pg_ctl").args(["promote", "-W", "-D"]).arg(self.data()).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        eventually("the replica is a primary", || self.sql("SELECT pg_is_in_recovery()") == "f");
    }

    /// Changes a setting of the server.
    #[track_caller]
    pub(crate) fn set(&self, name: &str, value: &str) {
        self.sql(&format!("ALTER SYSTEM SET {name} = {value}"));
        self.signal_server("HUP");
    }

    /// Ends the server as `kill -9` does. The processes that it has started end by themselves.
    #[track_caller]
    pub(crate) fn kill(&mut self) {
        let children = self.children();
        self.signal_server("KILL");
        self.child.take().unwrap().wait().unwrap();
        let runs = |process: &String| {
            let status = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
            !status.is_empty() && !status.contains(") Z")
        };
        eventually("its processes have ended", || !children.iter().any(runs));
    }

    /// Returns the log of the server since its start.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap()
    }

    /// Ends the server as `pg_ctl stop` does, in this mode. `immediate` is a crash.
    #[track_caller]
    pub(crate) fn stop(&mut self, mode: &str) {
        let data = self.data();
        let done = self.program("pg_ctl").args(["stop", "-s", "-w", "-m", mode, "-D"]).arg(data).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        self.child.take().unwrap().wait().unwrap();
    }

    /// Starts the server on the same port, with its old data.
    #[track_caller]
    pub(crate) fn launch(&mut self) {
        let log = File::create(self.directory.path().join("log")).unwrap();
        let mut command = self.program("postgres");
        command.args(["-p", &self.port.to_string(), "-D"]).arg(self.data()).stdin(Stdio::null());
        self.child = Some(command.stdout(Stdio::null()).stderr(log).spawn().unwrap());
        eventually("PostgreSQL answers", || self.psql(ADMIN, "postgres", &["-c", "SELECT 1"]).is_ok());
    }

    /// Replaces the rules for who may log in, and how.
    pub(crate) fn set_hba(&self, text: &str) {
        std::fs::write(self.data().join("pg_hba.conf"), text).unwrap();
        self.signal_server("HUP");
    }

    pub(crate) fn signal_server(&self, name: &str) {
        let done = Command::new("kill").arg(format!("-{name}")).arg(self.process().to_string()).status().unwrap();
        assert!(done.success());
    }

    fn process(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// Returns a command for one of PostgreSQL's programs, as the server's user. It ends with the thread of the test, even if
    /// this is killed.
    fn program(&self, name: &str) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "QUIT"]);
        if let Some(user) = user() {
            command.args(["--reuid", user, "--regid", user, "--clear-groups"]);
        }
        command.arg(self.programs.join(name));
        command.current_dir(self.directory.path());
        command
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let Some(child) = &mut self.child else { return };
        // One that was stopped for a test would not end.
        for signal in ["CONT", "QUIT"] {
            let _ = Command::new("kill").arg(format!("-{signal}")).arg(child.id().to_string()).status();
        }
        let _ = child.wait();
    }
}

/// Returns the server's user if the tests run as root, because PostgreSQL refuses to run as root.
fn user() -> Option<&'static str> {
    nix::unistd::geteuid().is_root().then_some("postgres")
}

fn give_away(folder: &Path) {
    if let Some(user) = user() {
        let done = Command::new("chown").arg(user).arg(folder).status().unwrap();
        assert!(done.success());
    }
}

/// Returns the folder of PostgreSQL's programs: the one that `TOLLGATE_POSTGRES` names, or that of the newest installed
/// version.
fn programs() -> PathBuf {
    if let Ok(folder) = std::env::var("TOLLGATE_POSTGRES") {
        return folder.into();
    }
    let folders = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> =
        folders.map(|version| version.path().join("bin")).filter(|path| path.join("initdb").exists()).collect();
    found.sort();
    found.pop().unwrap_or_else(|| panic!("PostgreSQL is missing: run scripts/need /usr/lib/postgresql"))
}
