//! HTTP/2 clients of other projects: curl, nghttp and h2load.

use std::process::Command;

use super::before;
use crate::support::authority::Authority;
use crate::support::curl::curl;
use crate::support::{Gateway, Upstream};

fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    text
}

#[test]
fn curl_negotiates_what_a_listener_speaks() {
    let (upstream, authority) = (Upstream::start(), Authority::new("ca"));
    let issued = authority.issue(&["a.test"]);
    for (protocols, wanted, spoken) in [
        ("", "--http2", "HTTP/2 200"),
        ("", "--http1.1", "HTTP/1.1 200"),
        (", protocols: [h2, http/1.1]", "--http2", "HTTP/2 200"),
        (", protocols: [h2]", "--http2", "HTTP/2 200"),
        (", protocols: [http/1.1]", "--http2", "HTTP/1.1 200"),
    ] {
        let tls = "tls: {certificates: [{cert_file: a.pem, key_file: a.key}]}";
        let gateway = Gateway::before(&upstream)
            .with(&format!("listeners: [{{address: 127.0.0.1:0, {tls}{protocols}}}]"))
            .files(&[("ca.pem", &authority.pem()), ("a.pem", &issued.certificate), ("a.key", &issued.key)])
            .start();
        let output = curl(&gateway, "a.test", &[wanted]);
        assert!(output.text.contains(spoken), "{protocols} {output:?}");
        assert_eq!(upstream.last().field("x-forwarded-proto"), Some("https"));
    }
}

#[test]
fn clients_that_know_beforehand_speak_http2_without_tls() {
    let upstream = Upstream::start();
    let gateway = before(&upstream).start();
    let url = format!("http://{}/a", gateway.http);
    let curl = output("curl", &["--silent", "--include", "--http2-prior-knowledge", &url]);
    assert!(curl.contains("HTTP/2 200"), "{curl}");
    // An upgrade is not offered any more (RFC 9113, section 3.1): it stays HTTP/1.1.
    let upgrade = output("curl", &["--silent", "--include", "--http2", &url]);
    assert!(upgrade.contains("HTTP/1.1 200"), "{upgrade}");
    let nghttp = output("nghttp", &["--verbose", "--no-dep", &url, &format!("{url}b")]);
    assert_eq!(nghttp.matches(":status: 200").count(), 2, "{nghttp}");
    assert!(nghttp.contains("SETTINGS_MAX_CONCURRENT_STREAMS(0x03):100"), "{nghttp}");
    assert!(nghttp.contains("SETTINGS_MAX_HEADER_LIST_SIZE(0x06):65536"), "{nghttp}");
}

#[test]
fn many_streams_on_few_connections_are_all_answered() {
    let upstream = Upstream::start();
    let rule = "rules: [{name: all, limit_keys: [ip:address], algorithm_config: {rate: 1000000/s}}]";
    let gateway = before(&upstream).with(rule).start();
    let url = format!("http://{}/", gateway.http);
    let load = output("h2load", &["-n", "3000", "-c", "4", "-m", "25", &url]);
    assert!(load.contains("3000 succeeded, 0 failed, 0 errored"), "{load}");
    assert_eq!(upstream.count(), 3000);
    gateway.expect("rate_limiter_allowed_total", &[], 3000.0);
    gateway.expect("tollgate_http_connections", &[], 0.0);
}
