//! Runs the real binary on free ports, and kills it at the end of the test.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use super::{Client, ConfigDirectory, Upstream, eventually, now};

/// A file next to gateway.yaml: the authorities that the gateway uses as those of the system.
pub(crate) const SYSTEM_ROOTS: &str = "system-roots.pem";

pub(crate) struct Gateway {
    /// The address of the first listener.
    pub http: SocketAddr,
    /// The addresses of all listeners, in the order in which the gateway announces them.
    pub listeners: Vec<SocketAddr>,
    pub admin: SocketAddr,
    child: Child,
    output: Option<BufReader<ChildStdout>>,
    directory: ConfigDirectory,
}

/// Metrics whose series appear with their first event.
const ON_USE: [&str; 7] = [
    "rate_limiter_fallback_decisions_total",
    "rate_limiter_store_errors_total",
    "tollgate_endpoint_failures_total",
    "tollgate_http2_errors_total",
    "tollgate_proxy_protocol_errors_total",
    "tollgate_upstream_errors_total",
    "tollgate_upstream_retries_total",
];

impl Gateway {
    /// Starts a gateway in front of `upstream`, with these lines in its gateway.yaml.
    #[track_caller]
    pub(crate) fn start(upstream: &Upstream, config: &str) -> Gateway {
        Gateway::before(upstream).with(config).start()
    }

    #[track_caller]
    pub(super) fn launch(mut command: Command, directory: ConfigDirectory) -> Gateway {
        let errors = File::create(directory.path().join("stderr")).unwrap();
        let roots = directory.path().join(SYSTEM_ROOTS);
        if roots.exists() {
            command.env("SSL_CERT_FILE", roots);
        }
        let mut child = command.stdout(Stdio::piped()).stderr(errors).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let lines: Vec<String> =
            output.by_ref().lines().map(Result::unwrap).take_while(|line| line != "ready").collect();
        let addresses = |name: &str| {
            let prefix = format!("listening {name} ");
            lines.iter().filter_map(|line| line.strip_prefix(&prefix)?.parse().ok()).collect::<Vec<SocketAddr>>()
        };
        let is_http = |line: &&String| line.starts_with("listening http");
        let http = lines.iter().filter(is_http).filter_map(|line| line.rsplit(' ').next()?.parse().ok());
        let (listeners, admin) = (http.collect::<Vec<SocketAddr>>(), addresses("admin"));
        let (&[http, ..], &[admin]) = (&*listeners, &*admin) else {
            let errors = std::fs::read_to_string(directory.path().join("stderr")).unwrap();
            panic!("no start: {lines:?}\n{errors}");
        };
        Gateway { http, listeners, admin, child, output: Some(output), directory }
    }

    /// Starts the gateway again after its exit, at the same addresses.
    #[track_caller]
    pub(crate) fn start_again(&mut self) {
        let file = self.file("gateway.yaml");
        let text = std::fs::read_to_string(&file).unwrap();
        let text = text.replace("listen: 127.0.0.1:0", &format!("listen: {}", self.http));
        std::fs::write(&file, text.replace("admin: 127.0.0.1:0", &format!("admin: {}", self.admin))).unwrap();
        let directory = std::mem::replace(&mut self.directory, ConfigDirectory::new());
        *self = Gateway::launch(Gateway::command(&file), directory);
    }

    /// Returns the text of a gateway.yaml. It has an admin listener of its own unless `rest` has one. It has two threads
    /// unless `rest` sets a number, and no upstream without a URL.
    pub(crate) fn text(upstream: &str, rest: &str) -> String {
        let listen = if rest.contains("listeners:") { "" } else { "listen: 127.0.0.1:0\n" };
        let threads = if rest.lines().any(|line| line.starts_with("threads:")) { "" } else { "threads: 2\n" };
        let has_admin = rest.lines().any(|line| line.starts_with("admin:"));
        let admin = if has_admin { "" } else { "admin: 127.0.0.1:0\n" };
        let is_named = upstream.is_empty() || rest.contains("upstreams:");
        let upstream = if is_named { String::new() } else { format!("upstream: {upstream}\n") };
        format!("{listen}{admin}{threads}{upstream}{rest}\n")
    }

    /// Replaces its gateway.yaml, sends SIGHUP, and waits until the new configuration is in force.
    #[track_caller]
    pub(crate) fn reload(&self, upstream: &Upstream, rest: &str) {
        self.reload_file(&Gateway::text(&format!("http://{}", upstream.address), rest));
    }

    /// Replaces gateway.yaml in the same way by a file that names several upstreams.
    #[track_caller]
    pub(crate) fn reload_text(&self, text: &str) {
        self.reload_file(&Gateway::text("", text));
    }

    #[track_caller]
    fn reload_file(&self, text: &str) {
        let before = self.successful_reloads();
        self.replace("gateway.yaml", text);
        self.signal("HUP");
        let wrong = self.errors().matches("configuration rejected").count();
        eventually("the configuration is in force", || {
            assert!(self.errors().matches("configuration rejected").count() == wrong, "{}", self.errors());
            self.successful_reloads() > before
        });
    }

    /// Returns how many changed configurations have come into force since the start.
    pub(crate) fn successful_reloads(&self) -> usize {
        self.errors().matches("configuration reloaded").count()
    }

    pub(crate) fn command(file: &Path) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.arg("run").arg("-c").arg(file);
        command
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.http)
    }

    /// Waits until the gateway has refused a head, which needs no store. A gateway with one thread has then noticed
    /// everything that happened to its connections before.
    #[track_caller]
    pub(crate) fn answers_without_the_store(&self) {
        let mut client = self.client();
        client.write("GET / HTTP/1.1\r\n\r\n");
        assert_eq!(client.response("GET").unwrap().status, 400);
    }

    /// Returns the sum of those series of a metric whose labels contain all of these.
    #[track_caller]
    pub(crate) fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        self.find_metric(name, labels).unwrap_or_else(|| panic!("there is no {name}"))
    }

    /// Returns the value of a metric; `None` if the metric has no series although it should.
    fn find_metric(&self, name: &str, labels: &[&str]) -> Option<f64> {
        let text = Client::connect(self.admin).get("/metrics", &[("Connection", "close")]).body;
        let of_metric = |line: &&str| line.starts_with(&format!("{name}{{")) || line.starts_with(&format!("{name} "));
        let series: Vec<_> = text.lines().filter(of_metric).collect();
        let chosen = series.iter().filter(|line| labels.iter().all(|label| line.contains(label)));
        let sum = chosen.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum();
        (!series.is_empty() || ON_USE.contains(&name)).then_some(sum)
    }

    /// Waits until a metric has this value, because a response may be counted a moment later.
    #[track_caller]
    pub(crate) fn expect(&self, name: &str, labels: &[&str], value: f64) {
        let deadline = now() + Duration::from_secs(20);
        loop {
            let found = self.find_metric(name, labels);
            if found == Some(value) {
                return;
            }
            assert!(now() < deadline, "{name} {labels:?} is {found:?}, should be {value}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn signal(&self, name: &str) {
        let done = Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status().unwrap();
        assert!(done.success());
    }

    /// Orders the gateway to exit, and waits until it drains.
    #[track_caller]
    pub(crate) fn drain(&self) {
        self.signal("TERM");
        self.expect_logged("draining");
    }

    /// Returns the CPU time that the gateway has used.
    pub(crate) fn cpu_time(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        // After the name, which may contain anything: the 12th and 13th fields are user and system time in ticks.
        let fields: Vec<_> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        let ticks: u64 = fields[11..=12].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum();
        Duration::from_millis(ticks * 10)
    }

    /// Returns the gateway's resident memory in bytes.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits until the gateway exits. Returns the status, and how long that took.
    #[track_caller]
    pub(crate) fn wait(&mut self) -> (ExitStatus, Duration) {
        let start = now();
        let mut status = None;
        eventually("the gateway leaves", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        (status.unwrap(), start.elapsed())
    }

    /// Returns the path of a file next to gateway.yaml.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Replaces the text of a file next to gateway.yaml in one step, so that the gateway never reads a part of it.
    pub(crate) fn replace(&self, name: &str, text: &str) {
        let new = self.file(&format!("{name}.new"));
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, self.file(name)).unwrap();
    }

    /// Returns the gateway's standard output after `ready`. Dropping it closes the pipe.
    pub(crate) fn output(&mut self) -> BufReader<ChildStdout> {
        self.output.take().unwrap()
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether the gateway has written this to standard error. For tests that wait. To check that a text is absent, or how
    /// often it occurs, use [`Gateway::errors`].
    pub(crate) fn has_logged(&self, text: &str) -> bool {
        std::fs::read_to_string(self.directory.path().join("stderr")).unwrap().contains(text)
    }

    /// Waits until the gateway has written this to standard error.
    #[track_caller]
    pub(crate) fn expect_logged(&self, text: &str) {
        let deadline = now() + Duration::from_secs(20);
        while !self.has_logged(text) {
            assert!(now() < deadline, "never logged: {text}\n{}", self.errors());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns what the gateway has written to standard error. A separate thread writes it, so a line may be late: this
    /// function waits until the text no longer grows.
    pub(crate) fn errors(&self) -> String {
        let read = || std::fs::read_to_string(self.directory.path().join("stderr")).unwrap();
        let mut errors = read();
        loop {
            std::thread::sleep(Duration::from_millis(30));
            let again = read();
            if again.len() == errors.len() {
                return errors;
            }
            errors = again;
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
