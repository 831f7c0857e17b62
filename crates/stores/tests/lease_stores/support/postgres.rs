//! Runs a PostgreSQL server.

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use base::host_port::HostPort;
use stores::postgres::{Durability, Settings, TableName, schema};
use stores::redis::Login;
use stores::{Micros, breaker};
use tempfile::TempDir;

use super::{eventually, free_port};

/// The superuser, who needs no password.
const ADMIN: &str = "admin";

/// The settings of the server, which can wait for the disk for nothing.
const SETTINGS: &str = "\
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
fsync = off
full_page_writes = off
shared_buffers = 32MB
";

pub(crate) struct Postgres {
    pub port: u16,
    directory: TempDir,
    programs: PathBuf,
    /// The server. `None` while it is stopped.
    child: Option<Child>,
}

impl Postgres {
    pub(crate) fn start() -> Postgres {
        let directory = TempDir::new().unwrap();
        // The server's user must reach its folder.
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut postgres = Postgres { port: free_port(), directory, programs: programs(), child: None };
        let data = postgres.data();
        std::fs::create_dir(&data).unwrap();
        if is_root() {
            assert!(Command::new("chown").arg("postgres").arg(&data).status().unwrap().success());
        }
        let mut initdb = postgres.program("initdb");
        let made = initdb.args(["--auth=trust", "--no-sync", "--username", ADMIN, "-D"]).arg(&data).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let file = data.join("postgresql.conf");
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, format!("{text}\n{SETTINGS}")).unwrap();
        postgres.launch();
        postgres.psql("postgres", "CREATE DATABASE limits").unwrap();
        postgres
    }

    /// Starts the server, with the data that it had.
    pub(crate) fn launch(&mut self) {
        let log = File::create(self.directory.path().join("log")).unwrap();
        let mut command = self.program("postgres");
        command.args(["-p", &self.port.to_string(), "-D"]).arg(self.data()).stdin(Stdio::null());
        self.child = Some(command.stdout(Stdio::null()).stderr(log).spawn().unwrap());
        eventually("PostgreSQL answers", || self.psql("postgres", "SELECT 1").is_ok());
    }

    /// Ends the server as `pg_ctl stop` does, in this mode. `immediate` is a crash.
    pub(crate) fn stop(&mut self, mode: &str) {
        let data = self.data();
        let done = self.program("pg_ctl").args(["stop", "-s", "-w", "-m", mode, "-D"]).arg(data).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        self.child.take().unwrap().wait().unwrap();
    }

    /// Returns the settings of a store, after the tables were created.
    pub(crate) fn settings(&self, durability: Durability) -> Settings {
        let settings = Settings {
            hosts: vec![HostPort::new("127.0.0.1", self.port)],
            database: "limits".to_owned(),
            login: Login { username: Some("tollgate".to_owned()), ..Login::default() },
            timeout: Micros(5_000_000),
            table: TableName::default(),
            durability,
            breaker: breaker::Settings::default(),
            gateways: 1,
        };
        self.sql(&schema::statements(&settings));
        settings
    }

    /// Runs statements as the administrator. Returns the rows; their columns are separated by `|`.
    pub(crate) fn sql(&self, text: &str) -> String {
        self.psql("limits", text).unwrap()
    }

    /// Returns a command that runs statements as the administrator.
    pub(crate) fn psql_command(&self, database: &str, text: &str) -> Command {
        let url = format!("postgres://{ADMIN}@127.0.0.1:{}/{database}", self.port);
        let mut command = Command::new(self.programs.join("psql"));
        command.args(["-XqAt", "-v", "ON_ERROR_STOP=1", "-c", text, &url]);
        command
    }

    fn psql(&self, database: &str, text: &str) -> Result<String, String> {
        let output = self.psql_command(database, text).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// Returns a command for one of PostgreSQL's programs, as the server's user. It ends with the thread of the test.
    fn program(&self, name: &str) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "QUIT"]);
        if is_root() {
            command.args(["--reuid", "postgres", "--regid", "postgres", "--clear-groups"]);
        }
        command.arg(self.programs.join(name));
        command.current_dir(self.directory.path());
        command
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let Some(child) = &mut self.child else { return };
        let _ = Command::new("kill").args(["-QUIT", &child.id().to_string()]).status();
        let _ = child.wait();
    }
}

/// Whether the tests run as root. PostgreSQL refuses to run as root.
fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    status.lines().any(|line| line.starts_with("Uid:") && line.split_whitespace().nth(2) == Some("0"))
}

/// Returns the folder of PostgreSQL's programs: the one that `TOLLGATE_POSTGRES` names, or that of the newest installed version.
fn programs() -> PathBuf {
    if let Ok(folder) = std::env::var("TOLLGATE_POSTGRES") {
        return folder.into();
    }
    let folders = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let has_server = |path: &PathBuf| Path::new(path).join("initdb").exists();
    let mut found: Vec<PathBuf> = folders.map(|version| version.path().join("bin")).filter(has_server).collect();
    found.sort();
    found.pop().unwrap_or_else(|| panic!("PostgreSQL is missing: run scripts/need /usr/lib/postgresql"))
}
