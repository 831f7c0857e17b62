//! API keys: known, unknown and missing keys, and changes of the key file.

use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use identity::api_key_file;
use request::identity::KnownKey;

use crate::support::{Client, Gateway, GatewayBuilder, Lateness, Upstream, eventually, now};

const GOLD: &str = "gold-3fQk0bCz7LrYw1xA";
const OLD_GOLD: &str = "gold-pV9sTn2mXe8uHd4J";
const SILVER: &str = "silver-Zc5Gy6RtKo0iWq1";
const UNKNOWN: &str = "nobody-8aJd2LmPq7sVx4Bn";

const RULES: &str = "
rules:
  - {name: gold, match: {key:plan: gold}, limit_keys: [key:id], algorithm_config: {rate: 3/day}}
  - {name: silver, match: {key:plan: silver}, limit_keys: [key:id], algorithm_config: {rate: 1/day}}
  - {name: anonymous, limit_keys: [ip:address], algorithm_config: {rate: 2/day}}";

type Fields<'f> = &'f [(&'f str, &'f str)];

fn line(key: &[u8], id: &str, plan: &str) -> String {
    api_key_file::line(key, &KnownKey::new(id, plan)) + "\n"
}

fn keys() -> String {
    let remark = "# Keys of our friends.\n\n";
    let lines = [(GOLD, "acme", "gold"), (OLD_GOLD, "acme", "gold"), (SILVER, "initech", "silver")];
    lines.iter().fold(remark.to_owned(), |text, (key, id, plan)| text + &line(key.as_bytes(), id, plan))
}

fn before(upstream: &Upstream, api_keys: &str, rest: &str) -> GatewayBuilder {
    let text = format!("api_keys: {{{api_keys}, file: api-keys.txt}}\n{rest}");
    Gateway::before(upstream).with(&text).file("api-keys.txt", &keys())
}

fn start(upstream: &Upstream, api_keys: &str, rest: &str) -> Gateway {
    before(upstream, api_keys, rest).start()
}

fn start_by_header(upstream: &Upstream) -> Gateway {
    start(upstream, "from: header:x-api-key", RULES)
}

fn status(gateway: &Gateway, key: &str) -> u16 {
    gateway.client().get("/", &[("X-API-Key", key)]).status
}

#[test]
fn a_known_key_has_the_limit_of_its_plan() {
    let upstream = Upstream::start();
    let gateway = start_by_header(&upstream);
    let mut client = gateway.client();
    for _ in 0..3 {
        let granted = client.get("/", &[("x-api-key", GOLD)]);
        assert_eq!(granted.status, 200);
        assert_eq!(granted.field("ratelimit-policy").as_deref(), Some("\"gold\";q=3;w=86400"));
    }
    // The key goes on as it was sent.
    assert_eq!(upstream.last().field("x-api-key"), Some(GOLD));
    assert_eq!(client.get("/", &[("x-api-key", GOLD)]).status, 429);
    assert_eq!(client.get("/", &[("x-api-key", SILVER)]).status, 200);
    assert_eq!(client.get("/", &[("x-api-key", SILVER)]).status, 429);
}

#[test]
fn keys_of_one_id_share_a_bucket() {
    let upstream = Upstream::start();
    let gateway = start_by_header(&upstream);
    let answers = [GOLD, OLD_GOLD, GOLD, OLD_GOLD, GOLD].map(|key| status(&gateway, key));
    assert_eq!(answers, [200, 200, 200, 429, 429]);
}

#[test]
fn a_key_that_is_not_known_is_refused_and_charges_nothing() {
    let upstream = Upstream::start();
    let gateway = start_by_header(&upstream);
    let mut client = gateway.client();
    let refused = client.get("/", &[("X-API-Key", UNKNOWN), ("X-Request-Id", "abc-1")]);
    assert_eq!(refused.status, 401);
    for (name, value) in [
        ("x-tollgate-reason", "key_invalid"),
        ("www-authenticate", "ApiKey"),
        ("content-type", "application/problem+json"),
        ("cache-control", "no-store"),
    ] {
        assert_eq!(refused.field(name).as_deref(), Some(value));
    }
    for name in ["ratelimit", "ratelimit-policy", "retry-after"] {
        assert_eq!(refused.field(name), None);
    }
    let problem = serde_json::json!({
        "type": "about:blank", "title": "Unauthorized", "status": 401, "request_id": "abc-1",
    });
    assert_eq!(refused.json(), problem);
    assert_eq!((upstream.count(), gateway.metric("rate_limiter_requests_total", &[])), (0, 0.0));
    gateway.expect("tollgate_refused_requests_total", &["reason=\"key_invalid\""], 1.0);
    gateway.expect("rate_limiter_decisions_total", &["refused"], 1.0);
    gateway.expect("rate_limiter_decisions_total", &[], 1.0);
    // The connection goes on, and nobody else has paid.
    assert_eq!([(); 3].map(|()| client.get("/", &[]).status), [200, 200, 429]);
}

#[test]
fn a_key_that_is_not_known_is_refused_to_grpc_in_its_own_way() {
    let upstream = Upstream::start();
    let gateway = start_by_header(&upstream);
    let refused = gateway.client().get("/", &[("X-API-Key", UNKNOWN), ("Content-Type", "application/grpc")]);
    let fields = ["grpc-status", "grpc-message"].map(|name| refused.field(name).unwrap());
    assert_eq!((refused.status, fields), (200, ["16".to_owned(), "key_invalid".to_owned()]));
}

#[test]
fn a_request_without_a_key_is_anonymous() {
    let upstream = Upstream::start();
    let gateway = start_by_header(&upstream);
    let mut client = gateway.client();
    for fields in [&[][..], &[("x-api-key", "")], &[("x-api-key", "  ")]] {
        let answer = client.get("/", fields);
        let policy = answer.field("ratelimit-policy");
        assert_eq!(policy.as_deref(), Some("\"anonymous\";q=2;w=86400"), "{fields:?}");
    }
}

#[test]
fn an_unknown_key_counts_as_missing_if_configured() {
    let upstream = Upstream::start();
    let gateway = start(&upstream, "from: header:x-api-key, on_invalid: anonymous", RULES);
    let mut client = gateway.client();
    assert_eq!([(); 3].map(|()| client.get("/", &[("X-API-Key", UNKNOWN)]).status), [200, 200, 429]);
    assert_eq!(upstream.last().field("x-api-key"), Some(UNKNOWN));
    assert_eq!(client.get("/", &[("X-API-Key", GOLD)]).status, 200);
    // Only a request that can be read in one way has an identity, or none.
    assert_eq!(client.get("/", &[("X-API-Key", GOLD), ("X-API-Key", GOLD)]).status, 400);
}

#[test]
fn a_key_with_several_readings_is_refused() {
    let upstream = Upstream::start();
    let cases: [(&str, &str, Fields<'_>); 6] = [
        ("header:x-api-key", "/", &[("X-API-Key", GOLD), ("x-api-key", GOLD)]),
        ("header:x-api-key", "/", &[("X-API-Key", UNKNOWN), ("x-api-key", GOLD)]),
        ("header:x-api-key", "/", &[("X-API-Key", GOLD), ("Connection", "X-API-Key")]),
        ("query:key", "/?key=a&k%65y=b", &[]),
        ("cookie:key", "/", &[("Cookie", "key=a; key=b")]),
        ("cookie:key", "/", &[("Cookie", "key=a"), ("Connection", "cookie")]),
    ];
    for (from, target, fields) in cases {
        // Also without any rule: that a key is read is enough.
        let gateway = start(&upstream, &format!("from: \"{from}\""), "");
        let refused = gateway.client().get(target, fields);
        let reason = refused.field("x-tollgate-reason");
        assert_eq!((refused.status, reason.as_deref()), (400, Some("ambiguous_request")), "{from} {target} {fields:?}");
    }
    assert_eq!(upstream.count(), 0);
}

#[test]
fn ambiguity_is_checked_before_the_key_and_deny_after_it() {
    let upstream = Upstream::start();
    let gateway = start(
        &upstream,
        "from: header:x-api-key",
        "
exempt: [{method: HEAD}]
rules:
  - {name: no, match: {path: /no}, action: deny}
  - {name: user, limit_keys: [header:x-user], algorithm_config: {rate: 1/day}}",
    );
    let mut client = gateway.client();
    let mut reason = |target: &str, fields: &[(&str, &str)]| {
        let answer = client.get(target, &[&[("X-API-Key", UNKNOWN)], fields].concat());
        answer.field("x-tollgate-reason").unwrap()
    };
    assert_eq!(reason("/", &[("X-User", "a"), ("X-User", "b")]), "ambiguous_request");
    assert_eq!(reason("/%2f", &[]), "bad_request");
    assert_eq!(reason("/no", &[]), "key_invalid");
    assert_eq!(client.send("HEAD", "/", &[("X-API-Key", UNKNOWN)], "").status, 401);
}

#[test]
fn a_key_may_be_in_a_query_parameter_or_a_cookie() {
    let upstream = Upstream::start();
    let odd = "a+b/c=d&e f;0123";
    let text = keys() + &line(odd.as_bytes(), "odd", "silver");
    let start = |from: &str| {
        let rest = format!("api_keys: {{from: \"{from}\", file: api-keys.txt}}\n{RULES}");
        Gateway::before(&upstream).with(&rest).file("api-keys.txt", &text).start()
    };
    let gateway = start("query:api_key");
    let mut client = gateway.client();
    let granted = client.get(&format!("/?a=b&api_key={GOLD}"), &[]);
    assert_eq!(granted.field("ratelimit").as_deref(), Some("\"gold\";r=2;t=28800"));
    assert_eq!(upstream.last().line, format!("GET /?a=b&api_key={GOLD} HTTP/1.1"));
    assert_eq!(client.get("/?api_key=a%2Bb/c%3Dd%26e+f%3B0123", &[]).status, 200);
    // To some upstreams the key ends at the semicolon.
    assert_eq!(client.get("/?api_key=a%2Bb/c%3Dd%26e+f;0123", &[]).status, 400);
    assert_eq!(client.get(&format!("/?api_key={UNKNOWN}"), &[]).status, 401);
    assert_eq!(client.get(&format!("/?API_KEY={UNKNOWN}"), &[]).status, 200);
    let gateway = start("cookie:key");
    let mut client = gateway.client();
    let granted = client.get("/", &[("Cookie", &format!("a=b; key={GOLD}"))]);
    assert_eq!(granted.field("ratelimit").as_deref(), Some("\"gold\";r=2;t=28800"));
    assert_eq!(client.get("/", &[("Cookie", &format!("key={UNKNOWN}"))]).status, 401);
}

#[test]
fn a_key_is_any_bytes_up_to_a_maximum_length() {
    let upstream = Upstream::start();
    let gateway = start_by_header(&upstream);
    let bytes = b"k\xe9y-\xff-0123456789abcdef";
    let longest = "k".repeat(1024);
    let text = keys() + &line(bytes, "bytes", "gold") + &line(longest.as_bytes(), "long", "gold");
    std::fs::write(gateway.file("api-keys.txt"), text).unwrap();
    eventually("the keys are in force", || gateway.has_logged("keys=5"));
    let ask = |key: &[u8]| {
        let mut client = gateway.client();
        // The gateway may not read a head to its end.
        let request = [b"GET / HTTP/1.1\r\nHost: a\r\nX-API-Key: ", key, b"\r\n\r\n"].concat();
        let sent = client.write_bytes(&request);
        client.response("GET").map(|answer| answer.status).or(sent.map(|()| 0)).unwrap_or(0)
    };
    assert_eq!(ask(bytes), 200);
    assert_eq!(ask(b"k\xef\xbf\xbdy-\xff-0123456789abcdef"), 401);
    assert_eq!(ask(longest.as_bytes()), 200);
    assert_eq!(ask("k".repeat(1025).as_bytes()), 401);
    assert_eq!(ask("k".repeat(10_000).as_bytes()), 401);
    // No head at all, long before it is a key.
    let huge = ask("k".repeat(1 << 20).as_bytes());
    assert!(matches!(huge, 0 | 400 | 431), "{huge}");
    assert_eq!((ask(GOLD.as_bytes()), upstream.count()), (200, 3));
}

/// A way to replace the content of a file: the arguments are a name for temporary files, and the new text.
type Way<'w> = &'w dyn Fn(&str, &str);

#[test]
fn a_changed_file_is_applied_however_it_is_changed() {
    let upstream = Upstream::start();
    let rules = "rules: [{name: known, limit_keys: [key:id], algorithm_config: {rate: 1000/day}}]";
    let gateway = start(&upstream, "from: header:x-api-key, max_shrink: 100%", rules);
    let file = gateway.file("api-keys.txt");
    let write = |path: &Path, text: &str| std::fs::write(path, text).unwrap();
    let ways: [Way<'_>; 4] = [
        &|_, text| write(&file, text),
        &|name, text| {
            write(&gateway.file(name), text);
            std::fs::rename(gateway.file(name), &file).unwrap();
        },
        &|name, text| {
            write(&gateway.file(name), text);
            symlink(name, gateway.file("link")).unwrap();
            std::fs::rename(gateway.file("link"), &file).unwrap();
        },
        // As Kubernetes does: the file leads into a folder that is itself a link.
        &|name, text| {
            std::fs::create_dir(gateway.file(name)).unwrap();
            write(&gateway.file(name).join("api-keys.txt"), text);
            symlink(name, gateway.file("link")).unwrap();
            std::fs::rename(gateway.file("link"), gateway.file("data")).unwrap();
            symlink("data/api-keys.txt", gateway.file("link")).unwrap();
            std::fs::rename(gateway.file("link"), &file).unwrap();
        },
    ];
    let late = Lateness::measure();
    let mut before = GOLD.to_owned();
    for (number, way) in [0, 1, 2, 3, 3].into_iter().enumerate() {
        let key = format!("another-key-{number}-0123456789");
        let start = now();
        ways[way](&format!("file-{number}"), &line(key.as_bytes(), "acme", "gold"));
        eventually("the new key is known", || status(&gateway, &key) == 200);
        assert!(start.elapsed() < Duration::from_secs(2) + late.of_a_request(), "{:?}", start.elapsed());
        assert_eq!(status(&gateway, &before), 401, "change {number}");
        before = key;
    }
    gateway.expect("tollgate_config_reloads_total", &["success"], 5.0);
    // The bucket is that of the id, whatever the key.
    assert!(gateway.metric("rate_limiter_allowed_total", &["known"]) >= 5.0);
}

#[test]
fn an_invalid_file_of_keys_changes_nothing_and_is_logged_once() {
    let upstream = Upstream::start();
    let watch = Duration::from_millis(50);
    let settings = "from: header:x-api-key, max_shrink: 100%";
    let gateway = before(&upstream, settings, RULES).short_interval("watch", watch).start();
    let file = gateway.file("api-keys.txt");
    let said = |line: &str| gateway.errors().matches(line).count();
    // Renamed over, since the watch would see a file that is written in place while it is empty.
    gateway.replace("api-keys.txt", &format!("{}{UNKNOWN} acme gold\n{UNKNOWN}\n", keys()));
    eventually("it is said", || said("WARN API keys rejected") == 1);
    // That the same wrong file is not reported again, a test of the watch shows without waiting; here the numbers below do.
    gateway.expect_logged("problems=2");
    gateway.expect_logged("6:1: hash: must be");
    assert!(!gateway.errors().contains(UNKNOWN));
    assert_eq!((status(&gateway, GOLD), status(&gateway, UNKNOWN)), (200, 401));
    gateway.expect("tollgate_config_reloads_total", &["failure"], 1.0);
    gateway.expect("tollgate_config_last_reload_successful", &[], 0.0);
    std::fs::remove_file(&file).unwrap();
    eventually("it is said", || said("must be a readable file") == 1);
    assert_eq!(status(&gateway, SILVER), 200);
    gateway.replace("api-keys.txt", "# Nobody any more.\n");
    eventually("it is mended", || said("INFO API keys reloaded") == 1);
    assert_eq!(said("API keys rejected"), 2);
    assert_eq!(status(&gateway, GOLD), 401);
    gateway.expect("tollgate_config_last_reload_successful", &[], 1.0);
}

#[test]
fn a_file_that_has_lost_too_many_keys_changes_nothing_and_keeps_a_new_configuration_out() {
    let upstream = Upstream::start();
    let gateway = start(&upstream, "from: header:x-api-key, max_shrink: 40%", RULES);
    let entries = || gateway.metric("tollgate_list_entries", &["file=\"api-keys.txt\""]);
    assert_eq!(entries(), 3.0);
    let one_less =
        keys().lines().filter(|line| !line.contains("silver")).fold(String::new(), |text, l| text + l + "\n");
    gateway.replace("api-keys.txt", &one_less);
    eventually("one of three may go", || entries() == 2.0);
    assert_eq!((status(&gateway, SILVER), status(&gateway, OLD_GOLD)), (401, 200));
    let one = line(GOLD.as_bytes(), "acme", "gold");
    gateway.replace("api-keys.txt", &one);
    eventually("one of two may not", || gateway.has_logged("the file has 1 of 2 keys left, and may lose 40% at once"));
    gateway.expect("tollgate_config_last_reload_successful", &[], 0.0);
    assert_eq!((status(&gateway, OLD_GOLD), entries()), (200, 2.0));
    // Nor with another configuration that was meant for all, until it says so or the file is whole.
    let text = std::fs::read_to_string(gateway.file("gateway.yaml")).unwrap();
    gateway.replace("gateway.yaml", &text.replace("rate: 2/day", "rate: 9/day"));
    eventually("it is kept out", || gateway.has_logged("the list has 1 of 2 entries left, and may lose 40% at once"));
    let anonymous = || gateway.client().get("/", &[]).number("ratelimit-limit");
    assert_eq!((anonymous(), status(&gateway, OLD_GOLD)), (2, 200));
    gateway.replace("api-keys.txt", &keys());
    eventually("both are in force", || anonymous() == 9 && entries() == 3.0);
    gateway.replace("gateway.yaml", &text.replace("40%", "90%"));
    eventually("the former limit is in force", || anonymous() == 2);
    gateway.replace("api-keys.txt", &one);
    eventually("two of three may go", || entries() == 1.0);
    // The other key of the same bucket has used that up.
    assert_eq!((status(&gateway, OLD_GOLD), status(&gateway, GOLD)), (401, 429));
    gateway.expect("tollgate_config_last_reload_successful", &[], 1.0);
}

#[test]
fn sighup_reads_the_file_and_logs_it() {
    let upstream = Upstream::start();
    let gateway = start_by_header(&upstream);
    gateway.signal("HUP");
    eventually("it is said", || gateway.has_logged("API keys reloaded"));
    gateway.expect_logged("keys=3");
    assert_eq!(status(&gateway, GOLD), 200);
}

fn key_command(arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.arg("key").args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A command that refuses its arguments does not read.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

#[test]
fn the_line_that_the_command_prints_makes_a_key_valid() {
    let upstream = Upstream::start();
    let gateway = start_by_header(&upstream);
    assert_eq!(status(&gateway, UNKNOWN), 401);
    let output = key_command(&["new@example.com", "gold"], &format!("{UNKNOWN}\n"));
    assert_eq!((output.status.code(), &*output.stderr), (Some(0), &b""[..]));
    let mut file = std::fs::OpenOptions::new().append(true).open(gateway.file("api-keys.txt")).unwrap();
    file.write_all(&output.stdout).unwrap();
    eventually("the key is known", || status(&gateway, UNKNOWN) == 200);
    assert_eq!(status(&gateway, GOLD), 200);
}

#[test]
fn the_command_rejects_an_invalid_key_and_prints_no_key() {
    let output = |arguments: &[&str], input: &str| {
        let output = key_command(arguments, input);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(output.stdout.is_empty() && !errors.contains("0123456789"), "{errors}");
        (output.status.code().unwrap(), errors)
    };
    let short = "a key must have 16 to 1024 characters in one line\n";
    for input in ["", "\n", "0123456789abcde\n"] {
        assert_eq!(output(&["acme", "gold"], input), (1, format!("standard input: {short}")));
    }
    assert_eq!(output(&["acme", "gold"], "0123456789 abcdef\n").0, 1);
    let name = "must be 1 to 128 of letters, digits, `_`, `.`, `@` and `-`";
    assert_eq!(output(&["ac me", "gold"], GOLD), (1, format!("ID: {name}, is `ac me`\n")));
    assert_eq!(output(&["acme", ""], GOLD), (1, format!("PLAN: {name}, is ``\n")));
    assert_eq!(output(&["acme"], GOLD).0, 2);
}

#[test]
fn an_invalid_file_of_keys_prevents_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("gateway.yaml");
    std::fs::write(
        &file,
        "upstream: http://127.0.0.1:9\napi_keys: {from: header:x-api-key, file: keys/a.txt}\nlisen: 1\n",
    )
    .unwrap();
    std::fs::create_dir(directory.path().join("keys")).unwrap();
    std::fs::write(directory.path().join("keys/a.txt"), format!("# {GOLD}\n{GOLD} acme gold\n")).unwrap();
    let (yaml, keys) = (file.display(), directory.path().join("keys/a.txt"));
    let expected = format!(
        "{yaml}:3:1: lisen: unknown key\n  hint: did you mean `listen`?\n{}:2:1: hash: must be SHA-256 of a key, as 64 \
         hexadecimal digits; the value is not shown: it may be a key\n2 problems\n",
        keys.display()
    );
    for command in ["check", "run"] {
        let mut command = match command {
            "run" => Gateway::command(&file),
            _ => Command::new(env!("CARGO_BIN_EXE_tollgate")),
        };
        if command.get_args().count() == 0 {
            command.arg("check").arg(&file);
        }
        let output = command.output().unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
        assert_eq!(String::from_utf8(output.stderr).unwrap(), expected);
    }
}

#[test]
fn a_key_is_never_logged_or_counted_by_its_value() {
    let upstream = Upstream::start();
    for from in ["header:x-api-key", "query:key", "cookie:key"] {
        let gateway = start(&upstream, &format!("from: \"{from}\""), &format!("{RULES}\nlog: {{level: trace}}"));
        for key in [GOLD, UNKNOWN] {
            let (target, cookie) = (format!("/?key={key}"), format!("key={key}"));
            let (target, field) = match from {
                "query:key" => (&*target, ("X-Other", "a")),
                "cookie:key" => ("/", ("Cookie", &*cookie)),
                _ => ("/", ("X-API-Key", key)),
            };
            let answers = [(); 5].map(|()| gateway.client().get(target, &[field]).status);
            assert!(answers.iter().all(|status| matches!(status, 200 | 401 | 429)), "{answers:?}");
        }
        let metrics = Client::connect(gateway.admin).get("/metrics", &[]).body;
        for written in [gateway.errors(), metrics] {
            assert!(!written.is_empty());
            for secret in [GOLD, UNKNOWN, line(GOLD.as_bytes(), "", "").split(' ').next().unwrap(), "acme"] {
                assert!(!written.contains(secret), "{from}: {secret} in {written}");
            }
        }
    }
}
