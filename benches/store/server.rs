//! Runs a redis-server on a free port, and reads what the server has done and how much processor time it used.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, Connection, RedisConnectionInfo};
use tempfile::TempDir;
use tokio::net::TcpStream;

use super::Failure;

pub struct Server {
    pub port: u16,
    child: Child,
    connection: Connection,
    _folder: TempDir,
}

impl Server {
    pub async fn start() -> Result<Server, Failure> {
        let need = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/need");
        if !Command::new(need).arg("redis-server").status()?.success() {
            return Err("redis-server is missing".into());
        }
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let folder = TempDir::new()?;
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        let mut child = command.args(["--dir".as_ref(), folder.path().as_os_str()]).stdout(Stdio::null()).spawn()?;
        let client = Client::open(format!("redis://127.0.0.1:{port}/"))?;
        for _ in 0..200 {
            if let Ok(connection) = client.get_connection() {
                return Ok(Server { port, child, connection, _folder: folder });
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        child.kill()?;
        Err(format!("redis-server does not listen on port {port}").into())
    }

    /// A connection that waits as long as it takes; what it does not do, a timer for each answer, costs it nothing.
    pub async fn connect(&self) -> Result<MultiplexedConnection, Failure> {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
        stream.set_nodelay(true)?;
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let info = RedisConnectionInfo::default();
        let (connection, driver) = MultiplexedConnection::new_with_config(&info, stream, config).await?;
        tokio::spawn(driver);
        Ok(connection)
    }

    pub fn forget_everything(&mut self) -> Result<(), Failure> {
        Ok(Cmd::new().arg("FLUSHALL").query(&mut self.connection)?)
    }

    pub fn version(&mut self) -> Result<String, Failure> {
        let info: String = Cmd::new().arg("INFO").arg("server").query(&mut self.connection)?;
        let version = info.lines().find_map(|line| line.strip_prefix("redis_version:"));
        Ok(version.unwrap_or("unknown").trim().to_owned())
    }

    /// How often it has run these commands.
    pub fn calls(&mut self, commands: &[&str]) -> Result<u64, Failure> {
        let info: String = Cmd::new().arg("INFO").arg("commandstats").query(&mut self.connection)?;
        let calls = |line: &str| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            let calls = rest.split(',').next()?;
            commands.contains(&name).then(|| calls.parse::<u64>())
        };
        Ok(info.lines().filter_map(calls).sum::<Result<u64, _>>()?)
    }

    pub fn processor_time(&self) -> Result<Duration, Failure> {
        processor_time(&self.child.id().to_string())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What all threads of a process have used, by the kernel's account; `self` is this process.
pub fn processor_time(process: &str) -> Result<Duration, Failure> {
    let mut nanoseconds = 0;
    for thread in std::fs::read_dir(format!("/proc/{process}/task"))? {
        let text = std::fs::read_to_string(thread?.path().join("schedstat"))?;
        nanoseconds += text.split(' ').next().unwrap_or_default().parse::<u64>()?;
    }
    Ok(Duration::from_nanos(nanoseconds))
}
