//! Certificates in files: invalid files are reported, and changed files are applied.

use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rustls::version::TLS12;

use super::{BOTH, before};
use crate::support::authority::{Authority, IssuedCertificate};
use crate::support::tls_client::{TlsClient, TlsSettings};
use crate::support::{Gateway, Upstream, eventually, print_measured, short_or_long, tollgate};

const EXPIRY: &str = "tollgate_tls_certificate_expiry_timestamp_seconds";

fn replace_pair(gateway: &Gateway, issued: &IssuedCertificate) {
    gateway.replace("a.pem", &issued.certificate);
    gateway.replace("a.key", &issued.key);
}

#[test]
fn a_renewed_certificate_is_presented_and_a_wrong_one_never() {
    let (upstream, authority) = (Upstream::start(), Authority::new("ca"));
    let first = authority.issue(&["a.test"]);
    let gateway =
        before(&upstream, &authority, &[("a", &first, "")], "").interval("watch", Duration::from_millis(50)).start();
    let settings = TlsSettings::new(&authority.pem(), None, &BOTH);
    let presented = || settings.connect(gateway.http, "a.test").unwrap().certificate();
    let mut open = settings.connect(gateway.http, "a.test").unwrap();
    assert_eq!(open.get("a.test", "/"), 200);
    let (before, label) = (presented(), format!("certificate=\"{}\"", gateway.file("a.pem").display()));
    gateway.expect(EXPIRY, &[&label], 3_786_912_000.0);
    let second = authority.issue_until(&["a.test"], 2091);
    replace_pair(&gateway, &second);
    eventually("the renewed certificate is presented", || presented() != before);
    gateway.expect(EXPIRY, &[&label], 3_818_448_000.0);
    let renewed = presented();
    for (certificate, key, reason) in [
        (&second.certificate, &first.key, "a.key: must be the key of the certificate in `cert_file`"),
        (&"nothing".to_owned(), &second.key, "a.pem: cannot be used: there is no certificate in it"),
        (&second.certificate, &"nothing".to_owned(), "a.key: cannot be used: there is no private key in it"),
    ] {
        gateway.replace("a.key", key);
        gateway.replace("a.pem", certificate);
        eventually("the reason is logged", || gateway.has_logged(reason));
    }
    let expired = authority.issue_until(&["a.test"], 2020);
    replace_pair(&gateway, &expired);
    eventually("the reason is logged", || gateway.has_logged("a.pem: has expired"));
    std::fs::remove_file(gateway.file("a.key")).unwrap();
    eventually("the reason is logged", || gateway.has_logged("a.key: must be a readable file"));
    assert_eq!(presented(), renewed);
    gateway.expect("tollgate_config_last_reload_successful", &[], 0.0);
    gateway.signal("HUP");
    eventually("asked for, it is logged again", || gateway.errors().matches("must be a readable file").count() == 2);
    assert_eq!(open.get("a.test", "/"), 200, "connections go on");
    replace_pair(&gateway, &first);
    eventually("the first one is presented again", || presented() == before);
    gateway.expect("tollgate_config_last_reload_successful", &[], 1.0);
    assert_eq!(open.get("a.test", "/"), 200, "connections go on");
}

#[test]
fn a_pair_that_kubernetes_renews_by_its_links_is_presented() {
    let (upstream, authority) = (Upstream::start(), Authority::new("ca"));
    let first = authority.issue(&["a.test"]);
    let gateway =
        before(&upstream, &authority, &[("a", &first, "")], "").interval("watch", Duration::from_millis(50)).start();
    // Each version is a folder; the files lead through one link, which is replaced at once.
    let renew = |version: &str, issued: &IssuedCertificate| {
        std::fs::create_dir(gateway.file(version)).unwrap();
        std::fs::write(gateway.file(version).join("a.pem"), &issued.certificate).unwrap();
        std::fs::write(gateway.file(version).join("a.key"), &issued.key).unwrap();
        symlink(version, gateway.file("..data_tmp")).unwrap();
        std::fs::rename(gateway.file("..data_tmp"), gateway.file("..data")).unwrap();
    };
    renew("..1", &first);
    for name in ["a.pem", "a.key"] {
        symlink(format!("..data/{name}"), gateway.file("link")).unwrap();
        std::fs::rename(gateway.file("link"), gateway.file(name)).unwrap();
    }
    let settings = TlsSettings::new(&authority.pem(), None, &BOTH);
    let presented = || settings.connect(gateway.http, "a.test").unwrap().certificate();
    let mut open = settings.connect(gateway.http, "a.test").unwrap();
    for version in ["..2", "..3"] {
        let before = presented();
        renew(version, &authority.issue(&["a.test"]));
        eventually("the renewed certificate is presented", || presented() != before);
    }
    assert_eq!(open.get("a.test", "/"), 200, "connections go on");
    gateway.expect("tollgate_config_last_reload_successful", &[], 1.0);
}

#[test]
fn a_reload_adds_and_removes_certificates_without_a_restart() {
    let (upstream, authority) = (Upstream::start(), Authority::new("ca"));
    let (a, b) = (authority.issue(&["a.test"]), authority.issue(&["b.test"]));
    let gateway = before(&upstream, &authority, &[("a", &a, "")], "").start();
    gateway.replace("b.pem", &b.certificate);
    gateway.replace("b.key", &b.key);
    let settings = TlsSettings::new(&authority.pem(), None, &BOTH);
    assert!(settings.connect(gateway.http, "b.test").is_err());
    let mut client = settings.connect(gateway.http, "a.test").unwrap();
    assert_eq!(client.get("a.test", "/"), 200);
    let listeners =
        |certificates: &str| format!("listeners: [{{address: 127.0.0.1:0, tls: {{certificates: [{certificates}]}}}}]");
    let [first, second] = ["{cert_file: a.pem, key_file: a.key}", "{cert_file: b.pem, key_file: b.key}"];
    gateway.reload(&upstream, &listeners(&format!("{first}, {second}")));
    assert_eq!(settings.connect(gateway.http, "b.test").unwrap().get("b.test", "/"), 200);
    assert!(settings.connect(gateway.http, "a.test").unwrap().is_resumed(), "sessions go on");
    gateway.reload(&upstream, &listeners(second));
    assert!(settings.connect(gateway.http, "a.test").is_err());
    assert_eq!(client.get("a.test", "/"), 200, "connections go on");
    assert!(!gateway.has_logged("after a restart"), "{}", gateway.errors());
    gateway.reload(&upstream, "listeners: [{address: 127.0.0.1:0}]");
    eventually("it is logged", || gateway.has_logged("take effect only after a restart"));
    assert_eq!(settings.connect(gateway.http, "b.test").unwrap().get("b.test", "/"), 200);
}

#[test]
fn a_reload_to_an_expired_certificate_keeps_the_one_before_until_it_is_renewed() {
    let (upstream, authority) = (Upstream::start(), Authority::new("ca"));
    let (first, expired) = (authority.issue(&["a.test"]), authority.issue_until(&["a.test"], 2020));
    let gateway =
        before(&upstream, &authority, &[("a", &first, "")], "").interval("watch", Duration::from_millis(50)).start();
    let settings = TlsSettings::new(&authority.pem(), None, &BOTH);
    let presented = || settings.connect(gateway.http, "a.test").unwrap().certificate();
    let known = presented();
    gateway.replace("b.pem", &expired.certificate);
    gateway.replace("b.key", &expired.key);
    let other = "tls: {min_version: 1.3, certificates: [{cert_file: b.pem, key_file: b.key}]}";
    gateway
        .reload(&upstream, &format!("listeners: [{{address: 127.0.0.1:0, {other}}}]\nlimits: {{target_bytes: 100B}}"));
    assert_eq!(presented(), known);
    assert_eq!(gateway.errors().matches("take effect only after a restart").count(), 0);
    eventually("the reason is logged", || {
        gateway.errors().lines().any(|line| {
            line.contains("certificates rejected") && line.contains("listener=") && line.contains("b.pem: has expired")
        })
    });
    gateway.expect("tollgate_config_last_reload_successful", &[], 0.0);
    let expiry = |file: &str| format!("certificate=\"{}\"", gateway.file(file).display());
    gateway.expect(EXPIRY, &[&expiry("a.pem")], 3_786_912_000.0);
    let old = TlsSettings::new(&authority.pem(), None, &[&TLS12]);
    let mut client = old.connect(gateway.http, "a.test").unwrap();
    assert_eq!(client.get("a.test", &format!("/{}", "x".repeat(100))), 414, "the rest of the file is in force");
    // Also the same pair as before: it comes into force with the settings of the file.
    gateway.replace("b.pem", &first.certificate);
    gateway.replace("b.key", &first.key);
    eventually("the settings are in force", || old.connect(gateway.http, "a.test").is_err());
    assert_eq!(presented(), known);
    gateway.expect("tollgate_config_last_reload_successful", &[], 1.0);
    gateway.expect(EXPIRY, &[&expiry("b.pem")], 3_786_912_000.0);
}

/// Every open connection is served before, between and after the changes, and so is every new one.
#[test]
fn certificates_swapped_under_many_connections_lose_nothing() {
    // As many as a machine has connections for whose open-file limit is 20000.
    let (many, swaps) = (short_or_long(120, 9_500), short_or_long(6, 100));
    rlimit::increase_nofile_limit(u64::try_from(many).unwrap() + 500).unwrap();
    let (upstream, authority) = (Upstream::start(), Authority::new("ca"));
    let pairs = [authority.issue(&["a.test"]), authority.issue(&["a.test"])];
    let bounds = format!("limits: {{connections: {}, idle_timeout: 1h}}\n", many + 100);
    let gateway = before(&upstream, &authority, &[("a", &pairs[0], "")], "")
        .with(&bounds)
        .interval("watch", Duration::from_millis(20))
        .start();
    let (done, served, connected) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    let settings = TlsSettings::new(&authority.pem(), None, &BOTH);
    let get = |client: &mut TlsClient| {
        assert_eq!(client.get("a.test", "/"), 200);
        served.fetch_add(1, Ordering::Relaxed);
    };
    let connect = || settings.connect(gateway.http, "a.test").unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut kept: Vec<_> = (0..many / 4).map(|_| connect()).collect();
                kept.iter_mut().for_each(get);
                connected.fetch_add(kept.len(), Ordering::Relaxed);
                while !done.load(Ordering::Relaxed) {
                    get(&mut connect());
                    let index = fastrand::usize(..kept.len());
                    get(&mut kept[index]);
                }
                kept.iter_mut().for_each(get);
            });
        }
        while connected.load(Ordering::Relaxed) < many {
            assert!(!gateway.has_logged("panicked"), "{}", gateway.errors());
            std::thread::sleep(Duration::from_millis(10));
        }
        for swap in 1..=swaps {
            replace_pair(&gateway, &pairs[swap % 2]);
            eventually("they are in force", || gateway.errors().matches("certificates reloaded").count() >= swap);
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(served.load(Ordering::Relaxed) > 2 * many + swaps);
    assert_eq!(upstream.count(), served.load(Ordering::Relaxed));
    print_measured(&format!("{swaps} swaps under {many} connections, {} requests", upstream.count()));
}

#[test]
fn check_names_the_file_and_the_reason() {
    let (authority, folder) = (Authority::new("ca"), tempfile::tempdir().unwrap());
    let (right, other, expired) =
        (authority.issue(&["a.test"]), authority.issue(&["b.test"]), authority.issue_until(&["a.test"], 2020));
    let check = |certificate: &str, key: &str| {
        std::fs::write(folder.path().join("a.pem"), certificate).unwrap();
        std::fs::write(folder.path().join("a.key"), key).unwrap();
        let file = folder.path().join("gateway.yaml");
        let tls = "tls: {certificates: [{cert_file: a.pem, key_file: a.key}]}";
        let allowed = "check: {allow: [readable_secret]}";
        let listeners = format!("listeners: [{{address: 127.0.0.1:0, {tls}}}]");
        std::fs::write(&file, format!("upstream: http://127.0.0.1:9\n{listeners}\n{allowed}\n")).unwrap();
        let output = tollgate(&["check", file.to_str().unwrap()]);
        output.out + &output.err
    };
    assert_eq!(check(&right.certificate, &right.key), "ok\n");
    let mismatched = check(&right.certificate, &other.key);
    let expected = "listeners[0].tls.certificates[0].key_file: must be the key of the certificate in `cert_file`";
    assert!(mismatched.contains(expected), "{mismatched}");
    let expired = check(&expired.certificate, &expired.key);
    let expected = "warning expired_certificate: listeners[0].tls.certificates[0].cert_file: has expired";
    assert!(expired.contains(expected), "{expired}");
}
