//! Client certificates: when they are required, which are valid, and the requirements of hosts.

use std::time::Duration;

use rustls::version::{TLS12, TLS13};

use super::{BOTH, before};
use crate::support::authority::{Authority, IssuedCertificate};
use crate::support::curl::curl;
use crate::support::http2_frames::{FrameClient, GOAWAY, get};
use crate::support::tls_client::TlsSettings;
use crate::support::{Gateway, Upstream, eventually, tollgate};

/// Whether a client with this certificate gets a response. With TLS 1.3, a client notices its refusal only then.
fn is_served(gateway: &Gateway, authority: &Authority, shows: Option<&IssuedCertificate>, host: &str) -> bool {
    let settings = TlsSettings::new(&authority.pem(), shows, &BOTH);
    settings
        .connect(gateway.http, host)
        .and_then(|mut client| client.try_get(host, "/"))
        .is_ok_and(|status| status == 200)
}

#[test]
fn a_client_is_asked_as_the_entry_of_its_name_says() {
    let (upstream, authority) = (Upstream::start(), Authority::new("ca"));
    let (clients, others) = (Authority::new("clients"), Authority::new("others"));
    let (off, optional, required) =
        (authority.issue(&["off.test"]), authority.issue(&["optional.test"]), authority.issue(&["required.test"]));
    let asks = |how: &str| format!(", client_ca_file: clients.pem, client_auth: {how}");
    let (ask_some, ask_all) = (asks("optional"), asks("required"));
    let entries = [("off", &off, ""), ("optional", &optional, &*ask_some), ("required", &required, &*ask_all)];
    let gateway = before(&upstream, &authority, &entries, "").file("clients.pem", &clients.pem()).start();
    let (client, stranger, expired) = (clients.issue(&["c"]), others.issue(&["c"]), clients.issue_until(&["c"], 2020));
    for (host, shown, served) in [
        ("off.test", None, true),
        ("off.test", Some(&stranger), true),
        ("optional.test", None, true),
        ("optional.test", Some(&client), true),
        ("optional.test", Some(&stranger), false),
        ("optional.test", Some(&expired), false),
        ("required.test", None, false),
        ("required.test", Some(&client), true),
        ("required.test", Some(&stranger), false),
        ("required.test", Some(&expired), false),
    ] {
        assert_eq!(is_served(&gateway, &authority, shown, host), served, "{host} {}", shown.is_some());
    }
    gateway.expect("tollgate_tls_handshakes_total", &["result=\"client_certificate\""], 5.0);
    std::fs::write(gateway.file("c.pem"), &client.certificate).unwrap();
    std::fs::write(gateway.file("c.key"), &client.key).unwrap();
    for version in ["1.2", "1.3"] {
        let output = curl(&gateway, "required.test", &["--cert", "c.pem", "--key", "c.key", "--tls-max", version]);
        assert_eq!(output.status, 200, "{output:?}");
    }
    // A host that would have asked for more is not served on the connection of another one.
    let with = TlsSettings::new(&authority.pem(), Some(&client), &BOTH);
    for (name, host, status) in [
        ("off.test", "optional.test", 421),
        ("off.test", "required.test", 421),
        ("optional.test", "required.test", 421),
        ("optional.test", "off.test", 200),
        ("required.test", "optional.test", 200),
        ("required.test", "off.test", 200),
        ("required.test", "unknown.test", 200),
    ] {
        assert_eq!(with.connect(gateway.http, name).unwrap().get(host, "/"), status, "{name} {host}");
    }
}

#[test]
fn a_revoked_certificate_is_refused_also_in_a_session_that_began_before() {
    let (upstream, authority, clients) = (Upstream::start(), Authority::new("ca"), Authority::new("clients"));
    let (good, bad) = (clients.issue(&["good"]), clients.issue(&["bad"]));
    let keys = ", client_ca_file: clients.pem, client_crl_file: revoked.pem, client_auth: required";
    let gateway = before(&upstream, &authority, &[("a", &authority.issue(&["a.test"]), keys)], "")
        .files(&[("clients.pem", &clients.pem()), ("revoked.pem", &clients.revoke(&[]))])
        .interval("watch", Duration::from_millis(50))
        .start();
    let settings = TlsSettings::new(&authority.pem(), Some(&bad), &BOTH);
    for attempt in 0..2 {
        let mut client = settings.connect(gateway.http, "a.test").unwrap();
        assert_eq!((client.get("a.test", "/"), client.is_resumed()), (200, attempt == 1));
    }
    gateway.replace("revoked.pem", &clients.revoke(&[&bad]));
    eventually("the list is in force", || gateway.has_logged("certificates reloaded"));
    let served = settings.connect(gateway.http, "a.test").and_then(|mut client| client.try_get("a.test", "/"));
    assert!(served.is_err(), "a revoked certificate is accepted in a resumed session");
    assert!(!is_served(&gateway, &authority, Some(&bad), "a.test"));
    assert!(is_served(&gateway, &authority, Some(&good), "a.test"));
    // Of a list that is out of date it is not known whom it would revoke by now.
    gateway.replace("revoked.pem", &clients.revoke_until(&[&bad], 2020));
    eventually("the list is in force", || !is_served(&gateway, &authority, Some(&good), "a.test"));
}

#[test]
fn idle_connections_of_a_revoked_certificate_end_and_those_of_others_stay() {
    let (upstream, authority, clients) = (Upstream::start(), Authority::new("ca"), Authority::new("clients"));
    let keys = ", client_ca_file: clients.pem, client_crl_file: revoked.pem, client_auth: required";
    let gateway = before(&upstream, &authority, &[("a", &authority.issue(&["a.test"]), keys)], "")
        .files(&[("clients.pem", &clients.pem()), ("revoked.pem", &clients.revoke(&[]))])
        .interval("watch", Duration::from_millis(50))
        .start();
    let connect = |shown| {
        let settings = TlsSettings::new(&authority.pem(), Some(shown), &BOTH);
        let mut http1 = settings.connect(gateway.http, "a.test").unwrap();
        assert_eq!(http1.get("a.test", "/"), 200);
        let mut http2 = FrameClient::connect_tls(&settings, gateway.http, "a.test");
        http2.write(&get(1, "/"));
        assert_eq!(http2.outcome(1), Ok(200));
        (http1, http2)
    };
    let (good, bad) = (clients.issue(&["good"]), clients.issue(&["bad"]));
    let ((mut kept, mut kept_http2), (mut ended, mut ended_http2)) = (connect(&good), connect(&bad));
    gateway.replace("revoked.pem", &clients.revoke(&[&bad]));
    // Nothing is sent.
    assert!(ended.is_closed_cleanly());
    assert_eq!(ended_http2.until(|frame| frame.kind == GOAWAY).error_code(), 0);
    ended_http2.rest();
    kept_http2.write(&get(3, "/"));
    assert_eq!((kept.get("a.test", "/"), kept_http2.outcome(3)), (200, Ok(200)));
}

#[test]
fn idle_connections_end_when_a_reload_asks_their_clients_for_a_certificate() {
    let (upstream, authority, clients) = (Upstream::start(), Authority::new("ca"), Authority::new("clients"));
    let issued = authority.issue(&["a.test"]);
    let with = |auth: &str| {
        let entry = format!("{{cert_file: a.pem, key_file: a.key, client_ca_file: clients.pem, client_auth: {auth}}}");
        format!("listeners: [{{address: 127.0.0.1:0, tls: {{certificates: [{entry}]}}}}]")
    };
    let files = [("a.pem", &*issued.certificate), ("a.key", &*issued.key), ("clients.pem", &*clients.pem())];
    let gateway = Gateway::before(&upstream).with(&with("optional")).files(&files).start();
    let known = clients.issue(&["c"]);
    let mut connections = [None, Some(&known)].map(|shown| {
        let mut client = TlsSettings::new(&authority.pem(), shown, &BOTH).connect(gateway.http, "a.test").unwrap();
        assert_eq!(client.get("a.test", "/"), 200);
        client
    });
    gateway.reload(&upstream, &with("required"));
    assert!(connections[0].is_closed_cleanly());
    assert_eq!(connections[1].get("a.test", "/"), 200);
}

#[test]
fn an_expired_certificate_is_refused_also_in_a_session_that_began_before() {
    let (upstream, authority, clients) = (Upstream::start(), Authority::new("ca"), Authority::new("clients"));
    let keys = ", client_ca_file: clients.pem, client_auth: required";
    let gateway = before(&upstream, &authority, &[("a", &authority.issue(&["a.test"]), keys)], "")
        .file("clients.pem", &clients.pem())
        .start();
    let shown = clients.issue_for(&["c"], Duration::from_secs(6));
    let settings = TlsSettings::new(&authority.pem(), Some(&shown), &BOTH);
    let connect = || settings.connect(gateway.http, "a.test").and_then(|mut client| client.try_get("a.test", "/"));
    // All but the first resume a session, which the certificate has no part in.
    (0..2).for_each(|_| assert_eq!(connect().unwrap(), 200));
    eventually("the certificate expires", || connect().is_err());
    assert!(gateway.metric("tollgate_tls_handshakes_total", &["result=\"resumed\""]) > 0.0);
    gateway.expect("tollgate_tls_handshakes_total", &["result=\"full\""], 1.0);
}

#[test]
fn a_session_is_not_resumed_once_a_revocation_list_is_out_of_date() {
    let (upstream, authority, clients) = (Upstream::start(), Authority::new("ca"), Authority::new("clients"));
    let keys = |auth: &str| format!(", client_ca_file: clients.pem, client_crl_file: revoked.pem, client_auth: {auth}");
    let entries = [
        ("a", &authority.issue(&["a.test"]), &*keys("required")),
        ("b", &authority.issue(&["b.test"]), &*keys("optional")),
    ];
    let gateway = before(&upstream, &authority, &entries, "")
        .files(&[("clients.pem", &clients.pem()), ("revoked.pem", &clients.revoke(&[]))])
        .interval("watch", Duration::from_millis(50))
        .start();
    let shown = clients.issue(&["c"]);
    let settings = [&TLS13, &TLS12].map(|version| TlsSettings::new(&authority.pem(), Some(&shown), &[version]));
    let connect = |settings: &TlsSettings| {
        settings.connect(gateway.http, "a.test").and_then(|mut client| client.try_get("a.test", "/"))
    };
    gateway.replace("revoked.pem", &clients.revoke_for(&[], Duration::from_secs(8)));
    eventually("the list is in force", || gateway.has_logged("certificates reloaded"));
    // The second one of each resumes the session of the first.
    settings.iter().for_each(|settings| (0..2).for_each(|_| assert_eq!(connect(settings).unwrap(), 200)));
    for settings in &settings {
        eventually("the list is out of date", || connect(settings).is_err());
        assert!(connect(settings).is_err());
    }
    // Of a client without a certificate it says nothing, but its session is not resumed either.
    let anonymous = TlsSettings::new(&authority.pem(), None, &BOTH);
    for _ in 0..2 {
        let mut client = anonymous.connect(gateway.http, "b.test").unwrap();
        assert_eq!((client.get("b.test", "/"), client.is_resumed()), (200, false));
    }
    assert!(gateway.metric("tollgate_tls_handshakes_total", &["result=\"resumed\""]) > 0.0);
    gateway.replace("revoked.pem", &clients.revoke(&[]));
    eventually("the new list is in force", || connect(&settings[0]).is_ok());
}

#[test]
fn mistakes_in_what_is_asked_of_clients_are_named() {
    let (authority, folder) = (Authority::new("ca"), tempfile::tempdir().unwrap());
    let issued = authority.issue(&["a.test"]);
    for (name, text) in [
        ("a.pem", &issued.certificate),
        ("a.key", &issued.key),
        ("ca.pem", &authority.pem()),
        ("crl.pem", &authority.revoke(&[])),
    ] {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    for (keys, report) in [
        ("client_ca_file: ca.pem", "client_auth: missing: without it no client is asked for a certificate"),
        ("client_auth: required", "client_ca_file: missing: it says which certificates of clients are believed"),
        ("client_crl_file: crl.pem", "client_ca_file: missing: it belongs to `client_crl_file`"),
        ("client_ca_file: a.key, client_auth: off", "client_ca_file: cannot be used: there is no certificate in it"),
        (
            "client_ca_file: ca.pem, client_auth: optional, client_crl_file: a.pem",
            "client_crl_file: cannot be used: there is no revocation list in it",
        ),
        ("client_ca_file: none.pem, client_auth: optional", "client_ca_file: must be a readable file"),
        ("client_ca_file: ca.pem, client_auth: always", "client_auth: must be off, optional or required, is `always`"),
    ] {
        let file = folder.path().join("gateway.yaml");
        let tls = format!("tls: {{certificates: [{{cert_file: a.pem, key_file: a.key, {keys}}}]}}");
        let listeners = format!("listeners: [{{address: 127.0.0.1:0, {tls}}}]\n");
        let allowed = "check: {allow: [readable_secret]}";
        std::fs::write(&file, format!("upstream: http://127.0.0.1:9\n{listeners}{allowed}\n")).unwrap();
        let output = tollgate(&["check", file.to_str().unwrap()]);
        assert!(output.err.contains(&format!("certificates[0].{report}")), "{keys}: {}", output.err);
        assert!(output.err.ends_with("\n1 problem\n"), "{keys}: {}", output.err);
    }
}

#[test]
fn rules_count_by_the_certificate_and_by_the_name_that_was_asked_for() {
    let (upstream, authority, clients) = (Upstream::start(), Authority::new("ca"), Authority::new("clients"));
    let keys = ", client_ca_file: clients.pem, client_auth: optional";
    let rule = |name: &str, keys: &str| {
        format!("  - {{name: {name}, limit_keys: [{keys}], algorithm_config: {{rate: 2/day, burst: 2}}}}\n")
    };
    let rules = [
        rule("uri", "tls:client_uri"),
        rule("subject", "\"tls:client_dns|tls:client_subject\""),
        rule("name", "tls:sni"),
    ];
    let log = "access_log: {to: log, attributes: [tls:client_dns, tls:client_fingerprint, tls:sni]}\n";
    let issued = authority.issue(&["a.test", "b.test"]);
    let gateway = before(&upstream, &authority, &[("a", &issued, keys)], "")
        .with(&format!("rules:\n{}{log}", rules.concat()))
        .file("clients.pem", &clients.pem())
        .start();
    let (one, other) = (clients.issue(&["one"]), clients.issue(&["other", "another"]));
    let service = clients.issue_with_uri(&["one"], "spiffe://x/service");
    let renewed = clients.issue_with_uri(&["two"], "spiffe://x/service");
    // 2 of each bucket pass, whatever the connection and, by its names, whatever the certificate.
    for (shown, name, statuses) in [
        (None, "a.test", [200, 200, 429]),
        (None, "b.test", [200, 200, 429]),
        (Some(&one), "a.test", [200, 200, 429]),
        (Some(&other), "a.test", [200, 200, 429]),
        (Some(&service), "a.test", [200, 200, 429]),
        (Some(&renewed), "b.test", [429, 429, 429]),
        (Some(&clients.issue(&["one"])), "b.test", [429, 429, 429]),
    ] {
        let settings = TlsSettings::new(&authority.pem(), shown, &BOTH);
        let found = statuses.map(|_| settings.connect(gateway.http, name).unwrap().get("a.test", "/"));
        assert_eq!(found, statuses, "{name} {shown:?}");
    }
    // Each listed attribute that a request has is there, as a keyed hash.
    let text = || std::fs::read_to_string(gateway.file("log")).unwrap();
    eventually("every request is logged", || text().lines().count() == 21);
    let count = |attribute: &str| text().lines().filter(|line| line.contains(&format!("\"{attribute}\":"))).count();
    assert_eq!(
        (count("tls:sni"), count("tls:client_fingerprint"), count("tls:client_dns")),
        (21, 15, 12),
        "{}",
        text()
    );
}

#[test]
fn a_route_forwards_the_certificate_that_has_verified_and_nothing_that_a_client_says() {
    let (upstream, authority, clients) = (Upstream::start(), Authority::new("ca"), Authority::new("clients"));
    let keys = ", client_ca_file: clients.pem, client_auth: optional";
    let routes = format!(
        "upstreams: {{api: {{endpoints: [\"http://{}\"]}}}}
routes:
  - {{name: forwarding, match: {{path: /}}, upstream: api, forward_client_cert: true}}
  - {{name: rest, upstream: api}}
",
        upstream.address
    );
    let issued = authority.issue(&["a.test"]);
    let gateway = before(&upstream, &authority, &[("a", &issued, keys)], "")
        .with(&routes)
        .file("clients.pem", &clients.pem())
        .start();
    let service = clients.issue_with_uri(&["one"], "spiffe://x/service");
    let forwarded = |shown: Option<&IssuedCertificate>, path: &str| {
        let settings = TlsSettings::new(&authority.pem(), shown, &BOTH);
        assert_eq!(settings.connect(gateway.http, "a.test").unwrap().get("a.test", path), 200);
        upstream.last().field("x-forwarded-client-cert").map(str::to_owned)
    };
    let field = forwarded(Some(&service), "/").unwrap();
    assert!(
        field.starts_with("Hash=") && field.contains(";URI=spiffe://x/service") && field.ends_with(";DNS=one"),
        "{field}"
    );
    assert_eq!((forwarded(None, "/"), forwarded(Some(&service), "/rest")), (None, None));
    let forged =
        curl(&gateway, "a.test", &["-H", "X-Forwarded-Client-Cert: Hash=00", "-H", "X_Forwarded_Client_Cert: Hash=00"]);
    assert_eq!(forged.status, 200, "{forged:?}");
    let names = upstream.last().fields.into_iter().map(|(name, _)| name.to_lowercase().replace('_', "-"));
    assert!(!names.into_iter().any(|name| name == "x-forwarded-client-cert"));
}

#[test]
fn explain_takes_a_certificate_and_a_name() {
    let (authority, folder) = (Authority::new("ca"), tempfile::tempdir().unwrap());
    let issued = authority.issue(&["a.test"]);
    let certificate = authority.issue_with_uri(&["api"], "spiffe://x/api").certificate;
    for (name, text) in
        [("a.pem", &issued.certificate), ("a.key", &issued.key), ("ca.pem", &authority.pem()), ("c.pem", &certificate)]
    {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let file = folder.path().join("gateway.yaml");
    let entry = "{cert_file: a.pem, key_file: a.key, client_ca_file: ca.pem, client_auth: optional}";
    let listeners = format!("listeners: [{{address: 127.0.0.1:0, tls: {{certificates: [{entry}]}}}}]\n");
    let rules = "rules: [{name: one, match: {tls:sni: a.test, tls:client_uri: \"spiffe://x/api\"}, limit_keys: [tls:client_dns], algorithm_config: {rps: 1, burst: 5}}]\n";
    std::fs::write(&file, format!("upstream: http://127.0.0.1:9\n{listeners}{rules}")).unwrap();
    let (file, shown) = (file.to_str().unwrap(), folder.path().join("c.pem"));
    let explain = |arguments: &[&str]| tollgate(&[&["explain", "-c", file], arguments].concat());
    let with = explain(&["--client-cert", shown.to_str().unwrap(), "https://a.test/"]);
    assert!(with.out.contains("tls:client_dns \"api\""), "{with:?}");
    let without = explain(&["https://a.test/"]);
    assert!(!without.out.contains("tls:client_dns \"api\""), "{without:?}");
    let missing = explain(&["--client-cert", "/nowhere.pem", "https://a.test/"]);
    assert!(
        missing.code == Some(1) && missing.err.contains("--client-cert: /nowhere.pem: No such file"),
        "{missing:?}"
    );
}

#[test]
fn explain_chooses_a_listener_and_knows_what_its_certificates_ask() {
    let (authority, folder) = (Authority::new("ca"), tempfile::tempdir().unwrap());
    let (a, b) = (authority.issue(&["a.test"]), authority.issue(&["b.test"]));
    for (name, text) in [
        ("a.pem", &a.certificate),
        ("a.key", &a.key),
        ("b.pem", &b.certificate),
        ("b.key", &b.key),
        ("ca.pem", &authority.pem()),
    ] {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let asks = "{cert_file: b.pem, key_file: b.key, client_ca_file: ca.pem, client_auth: required}";
    let tls = format!("tls: {{certificates: [{{cert_file: a.pem, key_file: a.key}}, {asks}], strict_sni: true}}");
    let file = folder.path().join("gateway.yaml");
    let doors = "{name: authz, address: 127.0.0.1:0, decide: [ext_authz], clients: [127.0.0.1]}, \
                 {name: rate, address: 127.0.0.1:0, decide: [rls], clients: [127.0.0.1]}";
    let listeners = format!(
        "listeners: [{{name: plain, address: 127.0.0.1:0}}, {{name: inner, address: 127.0.0.1:0}}, {{name: edge, address: 127.0.0.1:0, {tls}}}, {doors}]"
    );
    let rules = "rules: [{name: shown, match: {tls:sni: a.test}, limit_keys: [tls:client_dns], algorithm_config: {rps: 1, burst: 5}}, {name: one, limit_keys: [listener], algorithm_config: {rps: 1, burst: 5}}]";
    std::fs::write(&file, format!("upstream: http://127.0.0.1:9\n{listeners}\n{rules}\n")).unwrap();
    let shown = folder.path().join("b.pem");
    let shown = shown.to_str().unwrap();
    let file = file.to_str().unwrap();
    let explain = |arguments: &[&str]| {
        let output = tollgate(&[&["explain", "-c", file], arguments].concat());
        output.out + &output.err
    };
    for (arguments, expected) in [
        (&["https://a.test/"][..], "listener \"edge\""),
        (&["a.test/"], "listener \"plain\""),
        (&["--listener", "inner", "http://a.test/"], "listener \"inner\""),
        (&["--listener", "other", "/"], "--listener: must be one of plain, inner, edge, authz, rate, is `other`"),
        (&["-H", "Host: b.test", "https://a.test/"], "REFUSED 421 bad_request: TLS was negotiated for a.test"),
        (&["https://b.test/"], "no response: the listener `edge` requires a certificate of the client"),
        (&["https://c.test/"], "no response: the listener `edge` has no certificate for `c.test`"),
        (&["--client-cert", "a.pem", "/"], "--client-cert a.pem: the listener `plain` has no `tls`"),
        // What an Envoy may say of the connections of its clients.
        (
            &["--listener", "authz", "--client-cert", shown, "https://a.test/"],
            "YES  shown  key tls:client_dns \"b.test\"",
        ),
        (
            &["--listener", "authz", "--client-cert", shown, "/"],
            "decides for other proxies, and the URL does not say https",
        ),
        (
            &["--listener", "rate", "--client-cert", shown, "https://a.test/"],
            "what a client shows them is not known there",
        ),
    ] {
        let report = explain(arguments);
        assert!(report.contains(expected), "{arguments:?}: {report}");
    }
}
