//! Lists in files: `in_file` and `cidr_file`. Changed files are read again, like the configuration.

use crate::support::{Gateway, Upstream, eventually, tollgate};

const CONFIG: &str = "
client_ip: {trusted_proxies: [127.0.0.1]}
rules:
  - {name: blocked, match: {ip:address: {cidr_file: blocked.txt}}, action: deny}
  - {name: partner, match: {header:x-partner: {in_file: {file: partners.txt, max_shrink: 40%}}}, action: allow}
  - {name: rest, limit_keys: [ip:address], algorithm_config: {rps: 0.001, burst: 1}}
check: {allow: [unverified_key]}
";
const PARTNERS: &str = "# ours\r\nacme\r\nglobex # since 2024\n\ninitech\numbrella\n";

fn start() -> Gateway {
    let files = [("blocked.txt", "192.0.2.0/24\n2001:db8::/32\n198.51.100.7\n"), ("partners.txt", PARTNERS)];
    Gateway::before(&Upstream::start()).with(CONFIG).files(&files).start()
}

fn status(gateway: &Gateway, address: &str, partner: &str) -> u16 {
    gateway.client().get("/", &[("X-Forwarded-For", address), ("X-Partner", partner)]).status
}

#[test]
fn a_list_in_a_file_is_compared_and_followed() {
    let gateway = start();
    for (address, code) in
        [("192.0.2.9", 403), ("198.51.100.7", 403), ("198.51.100.8", 200), ("2001:db8:1::1", 403), ("2001:db9::1", 200)]
    {
        assert_eq!(status(&gateway, address, "x"), code, "{address}");
    }
    for partner in ["acme", "globex", "umbrella"] {
        for _ in 0..2 {
            assert_eq!(status(&gateway, "203.0.113.1", partner), 200, "{partner}");
        }
    }
    assert_eq!((status(&gateway, "203.0.113.2", "# ours"), status(&gateway, "203.0.113.2", "acm")), (200, 429));
    gateway.expect("tollgate_list_entries", &["file=\"blocked.txt\""], 3.0);
    gateway.expect("tollgate_list_entries", &["file=\"partners.txt\""], 4.0);
    assert!(gateway.metric("tollgate_list_last_success_timestamp_seconds", &["file=\"partners.txt\""]) > 1e9);
    std::fs::write(gateway.file("blocked.txt"), "203.0.113.0/24\n2001:db8::/32\n198.51.100.7\n").unwrap();
    eventually("the list has changed", || status(&gateway, "203.0.113.9", "x") == 403);
    assert_eq!(status(&gateway, "192.0.2.77", "x"), 200);
}

#[test]
fn a_wrong_line_and_a_list_that_has_shrunk_change_nothing_and_are_named() {
    let gateway = start();
    std::fs::write(gateway.file("blocked.txt"), "203.0.113.0/24\n10.0.0.0/33\n").unwrap();
    let wrong = "blocked.txt:2:1: rules[0].match.ip:address.cidr_file: must be a network like 10.0.0.0/8 or 2001:db8::/32, is `10.0.0.0/33`";
    eventually("the line is named", || gateway.has_logged(wrong));
    assert_eq!((status(&gateway, "192.0.2.9", "x"), status(&gateway, "203.0.113.9", "x")), (403, 200));
    let file = gateway.file("gateway.yaml");
    let checked = tollgate(&["check", file.to_str().unwrap()]);
    assert!(checked.err.contains(wrong) && checked.err.ends_with("1 problem\n"), "{checked:?}");
    std::fs::write(gateway.file("blocked.txt"), "192.0.2.0/24\n2001:db8::/32\n").unwrap();
    eventually("it is repaired", || gateway.metric("tollgate_list_entries", &["file=\"blocked.txt\""]) == 2.0);
    // Two of four are more than 40 %, and the reload takes nothing of it.
    std::fs::write(gateway.file("partners.txt"), "acme\nglobex\n").unwrap();
    eventually("it is refused", || gateway.has_logged("the list has 2 of 4 entries left, and may lose 40% at once"));
    assert_eq!((status(&gateway, "203.0.113.3", "initech"), status(&gateway, "203.0.113.3", "initech")), (200, 200));
    std::fs::write(gateway.file("partners.txt"), "acme\nglobex\ninitech\n").unwrap();
    eventually("one of four may go", || gateway.metric("tollgate_list_entries", &["file=\"partners.txt\""]) == 3.0);
}

#[test]
fn explain_and_replay_know_what_is_in_a_list() {
    let gateway = start();
    let file = gateway.file("gateway.yaml");
    let file = file.to_str().unwrap();
    let explained = tollgate(&["explain", "-c", file, "--ip", "192.0.2.1", "/"]);
    assert!(explained.out.contains("REFUSED 403 denied"), "{explained:?}");
    let other = tollgate(&["explain", "-c", file, "--ip", "203.0.113.1", "-H", "X-Partner: nobody", "/"]);
    assert!(other.out.contains("cidr_file blocked.txt") && other.out.contains("in_file partners.txt"), "{other:?}");
    let line =
        |address: &str| format!("{address} - - [21/Nov/2026:12:00:00 +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"curl\"\n");
    let log = gateway.file("a.log");
    std::fs::write(&log, line("192.0.2.1") + &line("203.0.113.1")).unwrap();
    let replayed = tollgate(&["replay", "-c", file, "--absent", "header:x-partner", "--json", log.to_str().unwrap()]);
    assert_eq!(replayed.json()["files"][0]["refused"], 1, "{replayed:?}");
}
