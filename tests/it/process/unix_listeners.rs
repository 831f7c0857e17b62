//! Listeners at the path of a Unix domain socket: the client of a request, the permissions, and the process that is
//! connected.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::authority::Authority;
use crate::support::{Gateway, GatewayBuilder, Orphan, Upstream, await_more, hand_over, short_or_long};

/// Returns a gateway with a listener at `path` and a second one with an address.
fn before(upstream: &Upstream, path: &Path) -> GatewayBuilder {
    Gateway::before(upstream)
        .with(&format!("listeners: [{{address: 127.0.0.1:0}}, {{name: local, address: \"unix:{}\"}}]", path.display()))
}

/// Sends a request on a new connection, and returns all received bytes.
fn get(path: &Path, target: &str, fields: &str) -> std::io::Result<String> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(Duration::from_secs(15)))?;
    write!(stream, "GET {target} HTTP/1.1\r\nHost: a.test\r\n{fields}Connection: close\r\n\r\n")?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    Ok(response)
}

fn status(path: &Path) -> u16 {
    get(path, "/", "").unwrap().split(' ').nth(1).expect("no response").parse().unwrap()
}

#[test]
fn a_client_of_a_path_is_one_of_this_machine() {
    let (upstream, folder) = (Upstream::start(), tempfile::TempDir::new().unwrap());
    let path = folder.path().join("gateway.sock");
    let rules = "
rules:
  - {name: local, match: {listener: local, path: /local}, action: deny}
  - {name: ip, limit_keys: [ip:address], algorithm_config: {rate: 3/day}}";
    let gateway = before(&upstream, &path).with(rules).start();
    assert_eq!(gateway.listeners.len(), 1, "a path is no address");
    let _idle = UnixStream::connect(&path).unwrap();
    gateway.expect("tollgate_http_connections", &["listener=\"local\""], 1.0);
    assert!(get(&path, "/local", "").unwrap().starts_with("HTTP/1.1 403 "));
    // Nobody believes what it forwards, and it shares the bucket of those that come over TCP.
    assert!(get(&path, "/", "X-Forwarded-For: 203.0.113.1\r\n").unwrap().starts_with("HTTP/1.1 200 "));
    assert_eq!(upstream.last().field("x-forwarded-for"), Some("127.0.0.1"));
    assert_eq!((gateway.client().get("/", &[]).status, status(&path), status(&path)), (200, 200, 429));

    // The same address is that of a proxy that is believed.
    let trusted = format!("client_ip: {{trusted_proxies: [127.0.0.1]}}\n{rules}");
    let listeners =
        format!("listeners: [{{address: 127.0.0.1:0}}, {{name: local, address: \"unix:{}\"}}]\n", path.display());
    gateway.reload(&upstream, &format!("{listeners}{trusted}"));
    assert!(!gateway.has_logged("only after a restart"), "{}", gateway.errors());
    let response = get(&path, "/", "X-Forwarded-For: 203.0.113.1\r\n").unwrap();
    assert!(response.contains("RateLimit-Remaining: 2\r\n"), "{response}");
    assert_eq!(upstream.last().field("x-forwarded-for"), Some("203.0.113.1, 127.0.0.1"));
    // Another path takes effect after a restart.
    gateway.reload(&upstream, &listeners.replace("gateway.sock", "other.sock"));
    gateway.expect_logged("only after a restart");
    assert_eq!(status(&path), 200);
}

#[test]
fn everything_that_is_spoken_over_tcp_is_spoken_at_a_path() {
    let (upstream, folder, authority) = (Upstream::start(), tempfile::TempDir::new().unwrap(), Authority::new("ca"));
    let [tls, h2c, proxied] = ["tls", "h2c", "proxied"].map(|name| folder.path().join(name));
    let issued = authority.issue(&["a.test"]);
    let listeners = format!(
        "listeners:
  - {{address: 127.0.0.1:0}}
  - {{address: \"unix:{}\", tls: {{certificates: [{{cert_file: a.pem, key_file: a.key}}]}}}}
  - {{address: \"unix:{}\", protocols: [h2c, http/1.1]}}
  - {{address: \"unix:{}\", proxy_protocol: {{from: [127.0.0.1]}}}}",
        tls.display(),
        h2c.display(),
        proxied.display()
    );
    let files = [("ca.pem", &*authority.pem()), ("a.pem", &issued.certificate), ("a.key", &issued.key)];
    let gateway = Gateway::before(&upstream).with(&listeners).files(&files).start();
    let curl = |path: &Path, arguments: &[&str]| {
        let ca = gateway.file("ca.pem");
        let mut command = Command::new("curl");
        command.args(["--silent", "--include", "--max-time", "20", "--cacert"]).arg(ca);
        let output = command.arg("--unix-socket").arg(path).args(arguments).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    for (path, arguments, spoken) in [
        (&tls, &["https://a.test/"][..], "HTTP/2 200"),
        (&tls, &["--http1.1", "https://a.test/"], "HTTP/1.1 200"),
        (&h2c, &["--http2-prior-knowledge", "http://a.test/"], "HTTP/2 200"),
        (&h2c, &["http://a.test/"], "HTTP/1.1 200"),
        (&proxied, &["--haproxy-protocol", "http://a.test/"], "HTTP/1.1 200"),
    ] {
        let text = curl(path, arguments);
        assert!(text.contains(spoken), "{arguments:?}: {text}");
    }
    // By default a listener has the name of its address.
    gateway.expect("tollgate_http_connections", &[&format!("listener=\"unix:{}\"", tls.display())], 0.0);
    let mut client = UnixStream::connect(&proxied).unwrap();
    write!(client, "PROXY TCP4 203.0.113.9 192.0.2.1 1 2\r\nGET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        .unwrap();
    client.read_to_string(&mut String::new()).unwrap();
    assert_eq!(upstream.last().field("x-forwarded-for"), Some("203.0.113.9"));
}

#[test]
fn a_path_belongs_to_one_process_and_outlives_it() {
    let (upstream, folder) = (Upstream::start(), tempfile::TempDir::new().unwrap());
    let path = folder.path().join("gateway.sock");
    let mut gateway = before(&upstream, &path).shell("umask 027").start();
    let permissions = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    assert_eq!(permissions(), 0o750, "not what the umask leaves");
    // By another configuration of the same path.
    let other = folder.path().join("other.yaml");
    let text = format!("listen: unix:{}\nupstream: http://{}\n", path.display(), upstream.address);
    std::fs::write(&other, &text).unwrap();
    let refused = Gateway::command(&other).output().unwrap();
    let errors = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{errors}");
    assert!(errors.contains(&format!("unix:{}: cannot listen: Address already in use", path.display())), "{errors}");
    assert_eq!(status(&path), 200);
    // Its file is still there after the end, and the next process takes its place.
    gateway.signal("KILL");
    gateway.wait();
    assert!(path.exists() && UnixStream::connect(&path).is_err());
    gateway.start_again();
    assert_eq!(status(&path), 200);
    // What is no socket is left alone.
    drop(gateway);
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "mine").unwrap();
    let refused = Gateway::command(&other).output().unwrap();
    let errors = String::from_utf8_lossy(&refused.stderr);
    assert!(errors.contains("a file of another kind"), "{errors}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
}

#[test]
fn the_file_of_a_path_has_the_mode_that_is_set() {
    let (upstream, folder) = (Upstream::start(), tempfile::TempDir::new().unwrap());
    let path = folder.path().join("gateway.sock");
    let permissions = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    let with_mode = |mode: &str| {
        let address = format!("address: \"unix:{}\"{mode}", path.display());
        format!("listeners: [{{address: 127.0.0.1:0}}, {{name: local, {address}}}]")
    };
    let gateway = Gateway::before(&upstream).with(&with_mode(", socket_mode: 660")).shell("umask 077").start();
    assert_eq!((permissions(), status(&path)), (0o660, 200));
    // Another one is for the next process, also for one that gets the socket of this one.
    gateway.reload(&upstream, &with_mode(", socket_mode: 600"));
    gateway.expect_logged("only after a restart");
    assert_eq!(permissions(), 0o660);
    gateway.signal("USR2");
    let next = Orphan::of(&gateway, 1);
    assert_eq!((permissions(), status(&path)), (0o600, 200));
    drop(next);
}

#[test]
fn upgrades_and_a_drain_lose_no_request_at_a_path() {
    let (upstream, folder) = (Upstream::start(), tempfile::TempDir::new().unwrap());
    let path = folder.path().join("gateway.sock");
    let mut gateway = before(&upstream, &path).start();
    let (done, served) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    assert_eq!(status(&path), 200);
                    served.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        hand_over(&mut gateway, short_or_long(2, 50), || await_more(std::slice::from_ref(&served)));
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(upstream.count(), served.load(Ordering::Relaxed));
}
