//! Runs the services of docker-compose.yml as local processes.

use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::root;
use crate::support::{Client, eventually, free_port, not_checked};

/// The processes that deploy/processes starts on free ports. They are ended with the test.
struct Processes {
    child: Child,
    directory: TempDir,
}

impl Processes {
    #[track_caller]
    fn start() -> Processes {
        let directory = TempDir::new().unwrap();
        let file = |name: &str| std::fs::File::create(directory.path().join(name)).unwrap();
        let mut command = Command::new(root().join("deploy/processes"));
        command.env("TOLLGATE", env!("CARGO_BIN_EXE_tollgate")).env("TMPDIR", directory.path());
        for name in ["UPSTREAM_PORT", "PORT_1", "PORT_2", "ADMIN_PORT_1", "ADMIN_PORT_2"] {
            command.env(name, "0");
        }
        for name in ["REDIS_PORT", "PROMETHEUS_PORT"] {
            command.env(name, free_port().to_string());
        }
        // The machine may be busy with other tests.
        command.env("STORE_TIMEOUT", "5s");
        command.stdin(Stdio::null()).stdout(file("stdout")).stderr(file("stderr"));
        let mut processes = Processes { child: command.spawn().unwrap(), directory };
        eventually("all processes are ready", || {
            let left = processes.child.try_wait().unwrap();
            assert!(left.is_none(), "{}", processes.said("stderr"));
            processes.said("stdout").lines().any(|line| line == "ready")
        });
        processes
    }

    fn said(&self, name: &str) -> String {
        std::fs::read_to_string(self.directory.path().join(name)).unwrap()
    }

    /// Returns the address at this index in the line of a process; `None` if the process was not started.
    fn address(&self, name: &str, index: usize) -> Option<std::net::SocketAddr> {
        let said = self.said("stdout");
        let line = said.lines().find(|line| line.split(' ').next() == Some(name))?;
        Some(line.split(' ').nth(index).unwrap().parse().unwrap())
    }

    /// Ends the processes as Ctrl-C does.
    fn end(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = Command::new("kill").arg(self.child.id().to_string()).status();
            let _ = self.child.wait();
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.end();
    }
}

#[test]
fn two_gateways_from_the_files_of_compose_hold_one_limit_together() {
    let mut processes = Processes::start();
    let gateways = ["gateway-1", "gateway-2"].map(|name| processes.address(name, 1).unwrap());
    let admins = ["gateway-1", "gateway-2"].map(|name| processes.address(name, 3).unwrap());
    for admin in admins {
        let ready = Client::connect(admin).get("/readyz", &[("Connection", "close")]);
        assert_eq!(ready.json()["store"]["up"], true, "{}", processes.said("stderr"));
    }
    let mut granted = [0; 2];
    for _ in 0..10 {
        for (index, gateway) in gateways.into_iter().enumerate() {
            match Client::connect(gateway).get("/trial", &[]).status {
                200 => granted[index] += 1,
                429 => {}
                status => panic!("{status}: {}", processes.said("stderr")),
            }
        }
    }
    assert_eq!(granted, [5, 5], "of ten in an hour, asked for in turn");
    if let Some(prometheus) = processes.address("prometheus", 1) {
        let query = "/api/v1/query?query=sum(rate_limiter_rejected_total%7Brule%3D%22ten%22%7D)";
        eventually("Prometheus has counted the refusals of both", || {
            let answer = Client::connect(prometheus).get(query, &[("Connection", "close")]).json();
            answer["data"]["result"][0]["value"][1] == "10"
        });
    } else {
        not_checked("Prometheus is not installed: run scripts/need promtool");
    }
    processes.end();
    for address in gateways.into_iter().chain(admins) {
        assert!(std::net::TcpStream::connect(address).is_err(), "{address} still answers");
    }
}
