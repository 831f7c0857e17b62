//! Runs a PostgreSQL server for the benchmark, with both rate limiters in it.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base::host_port::HostPort;
use base::time::Micros;
use stores::breaker;
use stores::postgres::{Durability, Settings, TableName, schema};
use stores::redis::Login;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_postgres::{Client, Config, NoTls};

use super::Failure;

const ADMIN: &str = "admin";

/// The published function. It is meant for serializable transactions, which fail if another one writes the same row.
/// Here it runs with the default isolation, under which each call succeeds.
const FUNCTION: &str = include_str!("function.sql");

pub struct Server {
    port: u16,
    directory: TempDir,
    programs: PathBuf,
    child: Option<Child>,
}

impl Server {
    pub async fn start() -> Result<Server, Failure> {
        let directory = TempDir::new()?;
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let mut versions: Vec<PathBuf> =
            std::fs::read_dir("/usr/lib/postgresql")?.flatten().map(|version| version.path().join("bin")).collect();
        versions.sort();
        let programs = versions.pop().ok_or("PostgreSQL is missing: run scripts/need /usr/lib/postgresql")?;
        let mut server = Server { port, directory, programs, child: None };
        if nix::unistd::geteuid().is_root() {
            run(Command::new("chown").arg("postgres").arg(server.directory.path()))?;
        }
        run(server.program("initdb").args(["--auth=trust", "--username", ADMIN, "-D"]).arg(server.data()))?;
        let mut command = server.program("postgres");
        command.args(["-p", &port.to_string(), "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]);
        command.arg("-D").arg(server.data()).stdout(Stdio::null()).stderr(Stdio::null());
        server.child = Some(command.spawn()?);
        while TcpStream::connect(("127.0.0.1", port)).await.is_err() || server.connect().await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(server)
    }

    pub fn settings(&self, durability: Durability) -> Settings {
        Settings {
            hosts: vec![HostPort::new("127.0.0.1", self.port)],
            database: "postgres".to_owned(),
            login: Login { username: Some("tollgate".to_owned()), ..Login::default() },
            timeout: Micros(5_000_000),
            table: TableName::default(),
            durability,
            breaker: breaker::Settings::default(),
            gateways: 1,
        }
    }

    /// Both limiters, with nothing spent.
    pub async fn initialize(&self, durability: Durability) -> Result<(), Failure> {
        let admin = self.connect().await?;
        admin.batch_execute(&schema::statements(&self.settings(durability))).await?;
        admin.batch_execute(FUNCTION).await?;
        admin.batch_execute("TRUNCATE tollgate_bucket, rate_limiting_token_bucket; CHECKPOINT").await?;
        Ok(())
    }

    /// As a user who may do everything.
    pub async fn connect(&self) -> Result<Client, Failure> {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
        stream.set_nodelay(true)?;
        let (client, connection) = Config::new().user(ADMIN).dbname("postgres").connect_raw(stream, NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    pub async fn version(&self) -> Result<String, Failure> {
        let row = self.connect().await?.query_one("SELECT split_part(version(), ' on ', 1)", &[]).await?;
        Ok(row.try_get(0)?)
    }

    fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// Returns the command for one of PostgreSQL's programs, as a user that PostgreSQL accepts. The program ends with
    /// this process.
    fn program(&self, name: &str) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "QUIT"]);
        if nix::unistd::geteuid().is_root() {
            command.args(["--reuid", "postgres", "--regid", "postgres", "--clear-groups"]);
        }
        command.arg(self.programs.join(name));
        command.current_dir(self.directory.path());
        command
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let Some(child) = &mut self.child else { return };
        let _ = Command::new("kill").arg("-QUIT").arg(child.id().to_string()).status();
        let _ = child.wait();
    }
}

fn run(command: &mut Command) -> Result<(), Failure> {
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status()?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}").into()) }
}
