//! Changes of buckets through the admin listener: from which address, through which socket and with which token they are accepted.

use std::net::SocketAddr;

use serde_json::json;

use crate::support::{Client, CommandOutput, Gateway, Response, Upstream, tollgate, tollgate_with};

const RULES: &str = "
check: {allow: [public_admin, unverified_key, open_policy, forgotten_period]}
rules:
  - {name: month, limit_keys: [header:x-user], algorithm: fixed_window, algorithm_config: {limit: 2, window: 366d}}
";
const TOKENS: &str = "# Who may change buckets.\nalice alice-0123456789abcdef\nbob bob-0123456789abcdef\n";

/// Starts a gateway with these settings of the admin listener, and spends what ann has.
fn start(upstream: &Upstream, admin: &str) -> Gateway {
    let gateway =
        Gateway::before(upstream).with(&format!("{RULES}admin: {admin}\n")).file("tokens.txt", TOKENS).start();
    let mut client = gateway.client();
    assert_eq!([(); 3].map(|()| client.get("/", &[("X-User", "ann")]).status), [200, 200, 429]);
    gateway
}

/// Where the gateway is reached although it listens on all addresses.
fn local(gateway: &Gateway) -> SocketAddr {
    SocketAddr::new([127, 0, 0, 1].into(), gateway.admin.port())
}

/// Asks for a raise by HTTP.
fn raise(gateway: &Gateway, fields: &[(&str, &str)]) -> Response {
    let host = local(gateway).to_string();
    let needed = [("Host", &*host), ("Tollgate-Operator", "raise"), ("Content-Type", "application/json")];
    let keys = json!({"header:x-user": "ann"});
    let body = json!({"rule": "month", "keys": keys, "amount": "1", "until": "period-end", "id": "t1"}).to_string();
    Client::connect(local(gateway)).send("POST", "/buckets/raise", &[&needed[..], fields].concat(), &body)
}

/// Runs a command about the bucket of ann.
fn bucket(act: &[&str], admin: &str, token: Option<&str>) -> CommandOutput {
    let arguments = [&["bucket"], act, &["--admin", admin]].concat();
    match token {
        Some(token) => tollgate_with(&arguments, &[("TOLLGATE_ADMIN_TOKEN", token)]),
        None => tollgate(&arguments),
    }
}

fn passes(gateway: &Gateway) -> bool {
    gateway.client().get("/", &[("X-User", "ann")]).status == 200
}

const RESET: [&str; 3] = ["reset", "month", "header:x-user=ann"];

#[test]
fn nobody_changes_buckets_at_an_address_that_is_not_loopback() {
    let upstream = Upstream::start();
    let gateway = start(&upstream, "0.0.0.0:0");
    let admin = local(&gateway).to_string();
    assert_eq!(raise(&gateway, &[]).status, 403);
    for act in [
        &RESET[..],
        &["grant", "month", "header:x-user=ann", "1"],
        &["raise", "month", "header:x-user=ann", "+1", "--until", "period-end", "--id", "a"],
    ] {
        let refused = bucket(act, &admin, None);
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(refused.err.contains("answered 403: this address is not loopback"), "{refused:?}");
    }
    // The file names the same listener.
    let config = gateway.file("gateway.yaml").display().to_string();
    let refused = tollgate(&[&["bucket"][..], &RESET, &["-c", &config, "--admin", &admin]].concat());
    assert!(refused.err.contains("answered 403: this address is not loopback"), "{refused:?}");
    // To look is allowed, at one's own client.
    assert_eq!(bucket(&["show", "month", "header:x-user=ann"], &admin, None).code, Some(0));
    let refused = bucket(&["list", "month"], &admin, None);
    assert!(refused.err.contains("answered 403: this address is not loopback"), "{refused:?}");
    assert!(!passes(&gateway));
}

#[test]
fn a_token_permits_changes_in_its_name() {
    let upstream = Upstream::start();
    let gateway = start(&upstream, "{address: 0.0.0.0:0, write: {token_file: tokens.txt}}");
    let admin = local(&gateway).to_string();
    for fields in [
        &[][..],
        &[("Authorization", "Bearer wrong-0123456789abcdef")],
        &[("Authorization", "Basic alice-0123456789abcdef")],
        &[("Authorization", "Bearer alice")],
    ] {
        assert_eq!(raise(&gateway, fields).status, 401, "{fields:?}");
    }
    for act in [&RESET[..], &["list", "month"], &["list", "month", "--banned"]] {
        let refused = bucket(act, &admin, None);
        assert!(refused.code == Some(1) && refused.err.contains("TOLLGATE_ADMIN_TOKEN"), "{refused:?}");
    }
    let listed = bucket(&["list", "month", "--banned"], &admin, Some("bob-0123456789abcdef"));
    assert!(listed.err.contains("has no `ban`"), "{listed:?}");
    assert!(!passes(&gateway));
    assert_eq!(raise(&gateway, &[("Authorization", "Bearer bob-0123456789abcdef")]).status, 200);
    assert!(passes(&gateway) && !passes(&gateway));
    gateway.expect_logged("bucket was raised by an operator user=bob ");
    assert_eq!(bucket(&RESET, &admin, Some("alice-0123456789abcdef")).code, Some(0));
    assert!(passes(&gateway));
    gateway.expect_logged("buckets were reset by an operator user=alice ");
    // With the file, its first token is used.
    let config = gateway.file("gateway.yaml").display().to_string();
    let reset = tollgate(&[&["bucket"][..], &RESET, &["-c", &config, "--admin", &admin]].concat());
    assert_eq!(reset.code, Some(0), "{reset:?}");
    assert!(!gateway.errors().contains("0123456789abcdef"), "{}", gateway.errors());
}

#[test]
fn a_change_on_loopback_is_logged_with_the_user_who_ran_the_command() {
    let gateway = start(&Upstream::start(), "127.0.0.1:0");
    let admin = local(&gateway).to_string();
    let user = nix::unistd::User::from_uid(nix::unistd::getuid()).unwrap().unwrap().name;
    for (act, logged) in
        [(&["grant", "month", "header:x-user=ann", "1"][..], "amounts were given back"), (&RESET, "buckets were reset")]
    {
        let done = bucket(act, &admin, None);
        assert_eq!(done.code, Some(0), "{done:?}");
        gateway.expect_logged(&format!("{logged} by an operator user={user} "));
    }
}

#[test]
fn a_socket_permits_changes_in_the_name_of_its_user() {
    use std::os::unix::fs::PermissionsExt;
    let (upstream, folder) = (Upstream::start(), tempfile::tempdir().unwrap());
    let socket = folder.path().join("admin.sock");
    let gateway = start(&upstream, &format!("{{address: 127.0.0.1:0, write: {{unix: {}}}}}", socket.display()));
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o660);
    let admin = local(&gateway).to_string();
    assert_eq!(raise(&gateway, &[("Authorization", "Bearer alice-0123456789abcdef")]).status, 403);
    let refused = bucket(&RESET, &admin, None);
    assert!(
        refused.err.contains("answered 403: buckets are changed, and clients listed, only through the socket"),
        "{refused:?}"
    );
    assert!(!passes(&gateway));
    let through_socket = format!("unix:{}", socket.display());
    let refused = bucket(&["list", "month", "--banned"], &admin, None);
    assert!(refused.err.contains("only through the socket"), "{refused:?}");
    let listed = bucket(&["list", "month", "--banned"], &through_socket, None);
    assert!(listed.err.contains("has no `ban`"), "{listed:?}");
    let reset = bucket(&RESET, &through_socket, None);
    assert_eq!(reset.code, Some(0), "{reset:?}");
    assert!(passes(&gateway));
    let user = nix::unistd::User::from_uid(nix::unistd::getuid()).unwrap().unwrap().name;
    gateway.expect_logged(&format!("buckets were reset by an operator user={user} "));
    // The command finds the socket in the file.
    let config = gateway.file("gateway.yaml").display().to_string();
    assert_eq!(tollgate(&[&["bucket"][..], &RESET, &["-c", &config]].concat()).code, Some(0));
}
