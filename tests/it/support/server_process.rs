//! An upstream in a separate process, so that a test can kill or stop it: `tollgate echo`.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

pub(crate) struct ServerProcess {
    pub address: SocketAddr,
    child: Child,
}

impl ServerProcess {
    pub(crate) fn start() -> ServerProcess {
        ServerProcess::listening("127.0.0.1:0")
    }

    fn listening(address: &str) -> ServerProcess {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        let mut child = command.args(["echo", "--listen", address]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().rsplit(' ').next().unwrap().parse().unwrap();
        ServerProcess { address, child }
    }

    /// Kills the server (SIGKILL).
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts the killed server again, at the same address.
    pub(crate) fn start_again(&mut self) {
        *self = ServerProcess::listening(&self.address.to_string());
    }

    #[track_caller]
    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status();
        assert!(sent.unwrap().success());
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
