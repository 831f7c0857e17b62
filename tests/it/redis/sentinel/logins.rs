//! The login to the sentinels is separate from the login to the server: passwords, users, TLS.

use std::path::Path;

use super::discovery::{STEADY, is_decided, store};
use crate::redis::connection::says;
use crate::support::sentinel::{MASTER, Sentinel, SentinelGroup, SentinelSetup};
use crate::support::{Certificates, Gateway, Redis, Upstream, free_port};

/// Returns the user of docs/stores.md as a line of sentinel.conf.
fn documented_user(password: &str) -> String {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/stores.md")).unwrap();
    let line = page.lines().find(|line| line.starts_with("ACL SETUSER gateway ")).expect("the page has the line");
    line.replace("ACL SETUSER ", "user ").replace("SECRET", password)
}

#[test]
fn sentinels_and_the_server_have_their_own_users_and_passwords() {
    let user = documented_user("one");
    let lines = ["requirepass s3cret", "sentinel sentinel-pass s3cret", &user];
    let group = SentinelGroup::with(&SentinelSetup { sentinel: &lines, ..STEADY });
    group.servers[0].command::<()>(&["ACL", "SETUSER", "tollgate", "on", ">data", "~*", "+@all"]);
    let upstream = Upstream::start();
    let text = |sentinel: &str, data: &str| store(&group.section(sentinel), data);
    let (sentinel, data) = (", username: gateway, password: one", ", username: tollgate, password: data");
    is_decided(&Gateway::start(&upstream, &text(sentinel, data)));
    is_decided(&Gateway::start(&upstream, &text(", password: s3cret", data)));
    // The password of the one is not sent to the other.
    for (sentinel, data, words) in [
        ("", data, ["unauthorized", "NOAUTH", "sentinel 127.0.0.1:"]),
        (", password: wrong", data, ["unauthorized", "WRONGPASS", "sentinel 127.0.0.1:"]),
        (
            sentinel,
            ", username: tollgate, password: one",
            ["unauthorized", "authentication failed", "named by sentinel"],
        ),
    ] {
        let gateway = Gateway::start(&upstream, &text(sentinel, data));
        says(&gateway, &words);
        assert_eq!(gateway.client().get("/", &[("X-User", "a")]).status, 503);
    }
    // A reload brings another password for the sentinels.
    let gateway = Gateway::start(&upstream, &text(sentinel, data));
    is_decided(&gateway);
    for sentinel in &group.sentinels {
        sentinel.command(&["ACL", "SETUSER", "gateway", "resetpass", ">two"]);
    }
    gateway.reload(&upstream, &text(", username: gateway, password: two", data));
    assert!(!gateway.errors().contains("only after a restart"), "{}", gateway.errors());
    for sentinel in &group.sentinels {
        sentinel.command(&["CLIENT", "KILL", "USER", "gateway"]);
    }
    group.servers[0].command::<()>(&["CLIENT", "KILL", "USER", "tollgate"]);
    is_decided(&gateway);
}

#[test]
fn sentinels_and_the_server_have_tls_of_their_own() {
    let (certificates, others) = (Certificates::new(), Certificates::new());
    let ((redis, server), upstream) = (Redis::start_tls(&certificates), Upstream::start());
    redis.command::<()>(&["CONFIG", "SET", "tls-auth-clients", "no"]);
    let folder = tempfile::TempDir::new().unwrap();
    let path = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).unwrap();
        folder.path().join(name).display().to_string()
    };
    let port = free_port();
    let lines = [
        format!("tls-port {port}"),
        "tls-replication yes".to_owned(),
        "tls-auth-clients no".to_owned(),
        format!("tls-ca-cert-file {}", path("ca.pem", &certificates.authority)),
        format!("tls-cert-file {}", path("server.pem", &certificates.server.0)),
        format!("tls-key-file {}", path("server.key", &certificates.server.1)),
    ];
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let _sentinel = Sentinel::start(server, &SentinelSetup { sentinels: 1, sentinel: &lines, ..STEADY });
    let start = |sentinel: &str, data: &str| {
        let sentinels = format!("sentinel: {{master: {MASTER}, nodes: [\"localhost:{port}\"]{sentinel}}}");
        let files = [("ca.pem", &*certificates.authority), ("other.pem", &*others.authority)];
        Gateway::before(&upstream).with(&store(&sentinels, data)).files(&files).start()
    };
    let (sentinel, data) = (", tls: {ca_file: ca.pem}", ", tls: {ca_file: ca.pem, server_name: localhost}");
    is_decided(&start(sentinel, data));
    for (sentinel, data, words) in [
        (", tls: {ca_file: other.pem}", data, ["unreachable", "sentinel localhost:", "TLS: "]),
        (
            sentinel,
            ", tls: {ca_file: other.pem, server_name: localhost}",
            ["unreachable", "named by sentinel", "TLS: "],
        ),
        // Without a name it is the address that the sentinels name, which the certificate does not have.
        (sentinel, ", tls: {ca_file: ca.pem}", ["unreachable", "named by sentinel", "it is not for `"]),
    ] {
        says(&start(sentinel, data), &words);
    }
}
