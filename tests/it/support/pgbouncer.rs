//! Runs a real pgbouncer in transaction mode before a PostgreSQL server, and ends it with the test.

use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::redis::free_port;
use super::{Postgres, eventually};

pub(crate) struct PgBouncer {
    pub port: u16,
    child: Child,
    _directory: TempDir,
}

impl PgBouncer {
    /// Starts a pgbouncer. Its clients share this many connections to the server.
    #[track_caller]
    pub(crate) fn before(postgres: &Postgres, connections: usize) -> PgBouncer {
        let (port, directory) = (free_port(), TempDir::new().unwrap());
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let (settings, users) = (directory.path().join("pgbouncer.ini"), directory.path().join("users.txt"));
        std::fs::write(&users, "\"tollgate\" \"\"\n").unwrap();
        let text = format!(
            "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\nauth_type = trust\nauth_file = {}\npool_mode = transaction\n\
             default_pool_size = {connections}\n",
            postgres.port,
            users.display()
        );
        std::fs::write(&settings, text).unwrap();
        // It ends with the thread of its test, also if that is killed.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]);
        if nix::unistd::geteuid().is_root() {
            // It refuses root, as PostgreSQL does.
            command.args(["--reuid", "postgres", "--regid", "postgres", "--clear-groups"]);
        }
        let child =
            command.arg("/usr/sbin/pgbouncer").arg(&settings).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child =
            child.unwrap_or_else(|error| panic!("no pgbouncer ({error}): run scripts/need /usr/sbin/pgbouncer"));
        eventually("pgbouncer listens", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        PgBouncer { port, child, _directory: directory }
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
