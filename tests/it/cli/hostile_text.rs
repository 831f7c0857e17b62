//! Text with control characters, given to every command by files, logs, arguments and servers, is printed and logged escaped.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;

use crate::support::{Client, Gateway, Upstream, eventually, serve_fake_redis, subcommands};

/// Text that clears the screen, beeps, deletes, colours, ends lines, reverses and joins text, and adds a line.
const HOSTILE: &str =
    "\u{1b}[2J\u{7}\u{8}\u{7f}\u{85}\u{9b}31m\u{2028}\u{2029}\u{202e}\u{2066}\u{200b}\u{2060}\u{feff}\r\nforged line\n";
/// The same text, without characters that are invalid in an argument of a request line or in an ASCII name.
const HOSTILE_LINE: &str = "\u{1b}[2J\u{7f}\u{9b}31m\u{2028}\u{202e}\u{200b}";

fn is_hidden(character: char) -> bool {
    let invisible =
        matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}');
    character.is_control() && character != '\n' || invisible
}

#[track_caller]
fn check(what: &str, printed: &[u8]) {
    let text = std::str::from_utf8(printed).unwrap_or_else(|error| panic!("{what}: {error} in {printed:?}"));
    assert!(!text.contains(is_hidden), "{what}: {text:?}");
    assert!(!text.lines().any(|line| line.trim_start().starts_with("forged")), "{what}: {text:?}");
}

/// Runs a command to its end, with hostile text on standard input.
#[track_caller]
fn run(arguments: &[String]) -> Vec<u8> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A command may end without reading it.
    let _ = child.stdin.take().unwrap().write_all(HOSTILE.as_bytes());
    let output = child.wait_with_output().unwrap();
    check(&format!("{arguments:?}"), &output.stdout);
    check(&format!("{arguments:?}"), &output.stderr);
    if arguments.iter().any(|argument| argument == "--json") {
        for document in serde_json::Deserializer::from_slice(&output.stdout).into_iter::<serde_json::Value>() {
            assert!(document.is_ok(), "{arguments:?}: {document:?}");
        }
    }
    [output.stdout, output.stderr].concat()
}

/// Starts a server that answers every request with this text.
fn serve(answer: String) -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut head = [0; 4096];
            let _ = stream.read(&mut head);
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    address
}

/// Starts a Redis server that answers every call with a hostile error.
fn serve_redis() -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                serve_fake_redis(stream, format!("-ERR {HOSTILE_LINE} script\r\n").as_bytes());
            });
        }
    });
    address
}

/// The hostile inputs of the commands.
struct Hostile {
    directory: tempfile::TempDir,
    admin: String,
    redis: String,
    address: String,
}

impl Hostile {
    fn new() -> Hostile {
        let body = json!({"now": HOSTILE, "buckets": [{"key": HOSTILE, "state": HOSTILE}], "lines": [HOSTILE],
            "document": {HOSTILE: HOSTILE}})
        .to_string();
        let new = Hostile {
            directory: tempfile::tempdir().unwrap(),
            admin: serve(format!("HTTP/1.1 500 {HOSTILE_LINE}\r\n\r\n{HOSTILE}")),
            redis: serve_redis(),
            address: serve(format!("HTTP/1.1 200 OK\r\n\r\n{body}")),
        };
        let text = json!(HOSTILE).to_string();
        new.write("invalid", &format!("upstream: {text}\n{text}: {text}\nrules: [{{name: {text}}}]\nlisen: 1\n"));
        new.write("not-yaml", &format!("a: [{HOSTILE}\n"));
        let rules = |numbers: &str| {
            format!(
                "upstream: http://127.0.0.1:9\nadmin: {}\n\
                 rules:\n  - name: few\n    match: {{header:x-plan: {text}, path: {text}}}\n    \
                 limit_keys: [{}]\n    algorithm_config: {{{numbers}}}\n\
                 \x20 - {{name: all, limit_keys: [], algorithm_config: {{rate: 5/s}}}}\n",
                new.address,
                json!(format!("query:a{HOSTILE}")),
            )
        };
        new.write("good", &rules("rate: 1/s"));
        new.write("changed", &rules("rate: 2/s"));
        let good = rules("rate: 1/s");
        new.write("redis", &format!("{good}store: {{redis: {{url: 'redis://{}'}}}}\n", new.redis));
        let tree = "key: T, metadata: {T: 1}, rate_limit: {unit: day, replaces: [{name: T}]}";
        let tree =
            format!("domain: T\ndescriptors:\n  - {{{tree}}}\n  - {{key: a, value: T, rate_limit: {{unit: day}}}}\n");
        new.write("ratelimit", &tree.replace('T', &text));
        let nginx = "limit_req_zone $binary_remote_addr zone=a:10m rate=1r/s;\nlimit_req_zone $arg_x zone='T':10m rate='T';\n\
            server { server_name 'T'; 'T' 'T'; location '/T' { limit_req zone='T'; limit_req zone=a burst=2; } }\n";
        new.write("nginx", &nginx.replace('T', HOSTILE));
        let kong = "_format_version: '3.0'\nservices: [{name: T, url: T, routes: [{name: T, paths: [T], T: T}]}]\n\
            plugins: [{name: rate-limiting, service: T, config: {minute: 5, T: T}}, {name: T, route: T}]\n";
        new.write("kong", &kong.replace('T', &text));
        let line = json!({
            "time": "2026-11-21T14:51:52.123456Z", "request_id": "a", "kind": "refused", "route": HOSTILE, "method": HOSTILE,
            "code": 429, "origin": "gateway", "duration_us": 210, "decision_us": 90, "request_bytes": 0,
            "response_bytes": 250, "reason": HOSTILE, "policy": HOSTILE, "rule": HOSTILE, "cost": 1, "remaining": 0.25,
            "bucket": "0123456789abcdef", "retry_after": 52, "source": "cached",
            "limits": [{"policy": HOSTILE, "rule": HOSTILE, "mode": "enforce", "verdict": "deny", "cost": 1,
                        "bucket": "0123456789abcdef"}],
            "attributes": {HOSTILE: "0123456789abcdef"}, "more": HOSTILE,
        });
        new.write("log", &format!("{line}\n{}\n", line.to_string().replace("429", "\t\r 429")));
        let at = "2026-11-01T00:00:00Z";
        let record = json!({"specversion": "1.0", "id": HOSTILE, "source": HOSTILE, "type": "tollgate.usage", "time": at,
            "data": {"meter": HOSTILE, "rule": HOSTILE, "subject": HOSTILE, "subject_from": HOSTILE, "unit": HOSTILE,
                "quantity": 1, "requests": 1, "refused": 0, "from": at, "to": at, "period_begin": null, "period_end": null}});
        let garbled = record.to_string().replace("\"quantity\":1", &format!("\"quantity\":{}", json!(HOSTILE)));
        new.write("records", &format!("{record}\n{garbled}\n{}\n", garbled.replace("2026", HOSTILE_LINE)));
        new.write("other-log", &format!("{HOSTILE}\n"));
        let mapped = json!({"t": "2026-11-21T14:51:52Z", "ip": "203.0.113.7", "m": "GET", "p": "/x?a=1", "u": HOSTILE});
        new.write("mapped-log", &format!("{mapped}\n{}\n", json!({"t": HOSTILE})));
        new
    }

    /// Returns the path of a file whose name is hostile too.
    fn file(&self, name: &str) -> String {
        self.directory.path().join(format!("{name}{HOSTILE}.yaml")).display().to_string()
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(Path::new(&self.file(name)), text).unwrap();
    }

    /// Returns the invocations of a command. `@name` stands for a hostile text, an address, or the file with this name.
    fn invocations(&self, command: &str) -> Vec<Vec<String>> {
        let words = |text: &str| -> Vec<String> {
            let word = |word: &str| match word.split_once('@') {
                Some(("", "admin")) => self.admin.clone(),
                Some(("", "address")) => self.address.clone(),
                Some(("", "name")) => format!("x-plan: {HOSTILE_LINE}"),
                Some(("", "text")) => HOSTILE.to_owned(),
                Some(("", "line")) => HOSTILE_LINE.to_owned(),
                Some(("", "url")) => format!("http://h/x?a={HOSTILE_LINE}"),
                Some(("", "claims")) => json!({HOSTILE: HOSTILE}).to_string(),
                Some(("", "pair")) => format!("query:a{HOSTILE}={HOSTILE}"),
                Some(("", "map")) => format!("time=t,ip:address=ip,method=m,path=p,jwt:sub=u,cookie:{HOSTILE_LINE}=u"),
                Some(("", file)) => self.file(file),
                _ => word.to_owned(),
            };
            text.split_whitespace().map(word).collect()
        };
        let lines: &[&str] = match command {
            "run" => &["run -c @invalid", "run -c @not-yaml", "run -c @missing", "run @text", "-c @invalid", "@text"],
            "check" => &[
                "check @invalid",
                "check --json @invalid",
                "check @not-yaml",
                "check @missing",
                "check @good",
                "check --strict @good",
                "check --json @good",
                "check --against @good @changed",
                "check --json --against @good @changed",
                "check --against @invalid @good",
                "check @good @text",
            ],
            "explain" => &[
                "explain -c @invalid /",
                "explain -c @good @url",
                "explain -c @good --json @url",
                "explain -c @good @text",
                "explain -c @good -H @name /",
                "explain -c @good -H @name --json /",
                "explain -c @good -H @text /",
                "explain -c @good -X @line /",
                "explain -c @good --claims @claims /",
                "explain -c @good --jwt @text /",
                "explain -c @good --ip @text /",
                "explain -c @good --live --admin @admin /",
                "explain -c @good --live --admin @address /",
                "explain -c @good --live @url",
                "explain -c @redis --live /",
                "explain -c @good --descriptor @pair --domain @text",
                "explain -c @good --descriptor @text",
                "explain -c @good --descriptor @pair --descriptor @pair --json",
                "explain -c @good --descriptor @pair --listener @text",
                "explain -c @good --id a --log @log",
                "explain -c @good --id a --json --log @log",
                "explain -c @good --id a --live --log @log",
                "explain -c @good --id @text --log @log",
                "explain -c @good --id a --log @other-log",
                "explain -c @good --id a --log @missing",
            ],
            "bucket grant" => &[
                "BUCKET few @pair 5",
                "BUCKET few @text",
                "BUCKET @text 5 -c @good",
                "BUCKET few @pair 5 -c @good",
                "BUCKET few @pair @text -c @good",
                "BUCKET few @text 5 -c @good",
                "BUCKET all 5 -c @good --admin @admin",
                "BUCKET all 5 --admin @address",
                "BUCKET few @pair 5 -c @redis",
                "BUCKET few @pair 5 -c @redis --json",
                "BUCKET all 5 --issuer @text -c @good",
                "BUCKET all 5 -c @invalid",
            ],
            "bucket raise" => &[
                "BUCKET few @pair +5 --until 2200-01-01T00:00:00Z --id a",
                "BUCKET few @pair @text --until 2200-01-01T00:00:00Z --id a -c @good",
                "BUCKET few @pair +5 --until @text --id a -c @good",
                "BUCKET few @pair +5 --until 2200-01-01T00:00:00Z --id @text -c @good",
                "BUCKET few @pair +5 --until 2200-01-01T00:00:00Z --id a --reason @text -c @good",
                "BUCKET @text +5 --until 2200-01-01T00:00:00Z --id a -c @good",
                "BUCKET few @text +5 --until period-end --id a -c @redis",
                "BUCKET few @pair +5 --until 2200-01-01T00:00:00Z --id @line --reason @line -c @redis",
                "BUCKET few @pair +5 --until 2200-01-01T00:00:00Z --id a -c @redis --json",
                "BUCKET all +5 --until 2200-01-01T00:00:00Z --id a --admin @address",
            ],
            "bucket ban" => &[
                "BUCKET few @pair --for 1h",
                "BUCKET @text --for 1h -c @good",
                "BUCKET few @pair --for @text -c @good",
                "BUCKET few @pair --for 1h -c @redis",
                "BUCKET few @pair --for 1h --admin @address",
                "BUCKET few --hash @text --for 1h -c @good",
            ],
            "bucket list" => &[
                "BUCKET few --banned",
                "BUCKET @text --banned -c @good",
                "BUCKET @text --banned -c @redis",
                "BUCKET few --banned -c @redis",
                "BUCKET few --banned --admin @admin",
                "BUCKET few --banned --json --admin @address",
            ],
            "bucket show" | "bucket reset" => &[
                "BUCKET few",
                "BUCKET @text",
                "BUCKET few @pair",
                "BUCKET few @text",
                "BUCKET all -c @good",
                "BUCKET all -c @redis",
                "BUCKET few @pair -c @good",
                "BUCKET few @text -c @good",
                "BUCKET @text -c @good",
                "BUCKET all -c @good --admin @admin",
                "BUCKET all --admin @admin",
                "BUCKET all --admin @address",
                "BUCKET all --admin @address --json",
                "BUCKET few @pair -c @redis",
                "BUCKET few @pair -c @redis --json",
                "BUCKET --hash 0123456789abcdef -c @good",
                "BUCKET --hash 01234567 -c @redis",
                "BUCKET --hash @text",
                "BUCKET all --issuer @text -c @good",
                "BUCKET all -c @invalid",
            ],
            "records check" => &[
                "records check @records -c @good",
                "records check @records -c @redis",
                "records check @records -c @good --admin @address",
                "records check @other-log -c @good",
                "records check @missing -c @good",
                "records check @records -c @invalid",
                "records check @records -c @redis --issuer @text",
                "records check",
            ],
            "replay" => &[
                "replay -c @invalid @log",
                "replay -c @good @log",
                "replay -c @good --json @log",
                "replay -c @good @missing",
                "replay -c @good --against @changed @log",
                "replay -c @good @other-log",
                "replay -c @good -",
                "replay -c @good --map @map @mapped-log",
                "replay -c @good --against @changed --map @map @mapped-log",
                "replay -c @good --json --map @map @mapped-log",
                "replay -c @good --map @text @log",
                "replay -c @good --map @line=a @log",
                "replay -c @good --absent @text @log",
                "replay -c @good --fail-above @text @log",
                "replay -c @good --picture @no-folder/x @log",
                "replay -c @good --picture @picture @log",
            ],
            "healthcheck" => &[
                "healthcheck -c @invalid",
                "healthcheck -c @missing",
                "healthcheck -c @good",
                "healthcheck --admin @admin",
                "healthcheck --admin @text",
                "healthcheck --admin @address --ready",
            ],
            "key" => &["key @text free", "key a @text", "key a free", "key a free @text"],
            "echo" => &["echo --listen @text", "echo @text"],
            "import ratelimit" => &[
                "import ratelimit @ratelimit",
                "import ratelimit @ratelimit @ratelimit",
                "import ratelimit @good",
                "import ratelimit @not-yaml",
                "import ratelimit @missing",
                "import ratelimit @text",
            ],
            "import nginx" => &[
                "import nginx @nginx",
                "import nginx @nginx @nginx",
                "import nginx @good",
                "import nginx @missing",
                "import nginx @text",
                "import nginx @nginx -o @no-folder/x",
            ],
            "import kong" => &[
                "import kong @kong",
                "import kong @good",
                "import kong @not-yaml",
                "import kong @missing",
                "import kong @text",
                "import kong @kong -o @no-folder/x",
            ],
            "init" => &["init @text", "init jwt @invalid", "init ip @no-folder/x", "init ip @new"],
            "schema" => &["schema", "schema @text"],
            "store init" => &[
                "store init -c @invalid",
                "store init -c @missing",
                "store init -c @good",
                "store init --print -c @good",
                "store init -c @good --user @text",
                "store init -c @good --user @text --password-file @missing",
                "store init @text",
            ],
            "completions" => &["completions bash", "completions zsh", "completions fish", "completions @text"],
            "man" => &["man", "man @text"],
            other => panic!("a new command: say here what `{other}` is given that others wrote"),
        };
        lines.iter().map(|line| words(&line.replace("BUCKET", command))).collect()
    }
}

/// Returns the name of every command that can be run, such as `bucket show`.
fn commands() -> Vec<String> {
    let mut commands = Vec::new();
    for command in subcommands(&[]) {
        let inner = subcommands(&[&command]);
        match inner.is_empty() {
            true => commands.push(command),
            false => commands.extend(inner.iter().map(|inner| format!("{command} {inner}"))),
        }
    }
    commands
}

#[test]
fn no_command_prints_what_others_wrote_unescaped() {
    let hostile = Hostile::new();
    for valid in ["good", "changed", "redis"] {
        let printed = String::from_utf8(run(&["check".to_owned(), hostile.file(valid)])).unwrap();
        assert!(printed.ends_with("\nok\n") || printed.starts_with("ok\n"), "{printed}");
    }
    let commands = commands();
    assert!(commands.len() >= 12, "{commands:?}");
    for command in &commands {
        let mut escaped = 0;
        let invocations = hostile.invocations(command);
        for arguments in &invocations {
            let printed = run(arguments);
            escaped += usize::from(printed.windows(5).any(|part| part == b"\\u{1b" || part == b"\\u001"));
        }
        // The text did get there.
        assert!(escaped > 0, "{command}: nothing that it printed was hostile");
    }
}

#[test]
fn problems_are_reported_with_the_hostile_text_escaped() {
    let hostile = Hostile::new();
    let printed = run(&["check".to_owned(), hostile.file("invalid")]);
    let text = String::from_utf8(printed).unwrap();
    let key = r"\u{1b}[2J\u{7}\u{8}\u{7f}\u{85}\u{9b}31m\u{2028}\u{2029}\u{202e}\u{2066}\u{200b}\u{2060}\u{feff}\r\nforged line\n";
    assert!(text.contains(&format!("{key}.yaml:2:1: {key}: unknown key\n")), "{text}");
    // Each problem and hint is a line, and there is one that counts.
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.last().unwrap().ends_with(" problems"), "{text}");
    let is_one = |line: &&str| line.starts_with("  hint: ") || line.contains(".yaml:");
    assert!(lines[..lines.len() - 1].iter().all(is_one), "{text}");
}

#[test]
fn no_log_and_no_document_has_hidden_characters() {
    for format in ["text", "json"] {
        let upstream = Upstream::start();
        let (redis, name) = (serve_redis(), json!(format!("x{HOSTILE}")));
        let config = format!(
            "log: {{format: {format}, level: debug}}\nstore: {{redis: {{url: 'redis://{redis}'}}}}\n\
             access_log: {{to: stderr, attributes: [{}]}}\n\
             jwt: {{issuers: [{{issuer: {name}, audience: a, algorithms: [RS256], keys: {{jwks_url: 'http://127.0.0.1:9/'}}}}]}}\n\
             rules: [{{name: few, limit_keys: [{}], algorithm_config: {{rate: 1/s}}}}]\n",
            json!(format!("cookie:a{HOSTILE_LINE}")),
            json!(format!("query:a{HOSTILE}")),
        );
        let gateway = Gateway::start(&upstream, &config);
        for value in ["a", "b"] {
            gateway.client().get("/", &[("X-Forwarded-For", "\u{9b}31m, \u{202e}"), ("Cookie", value)]);
        }
        let invalid = format!("{}: 1\n", json!(HOSTILE));
        std::fs::write(gateway.file("gateway.yaml"), invalid).unwrap();
        gateway.signal("HUP");
        eventually("the invalid file is rejected", || gateway.errors().contains("configuration rejected"));
        check(format, gateway.errors().as_bytes());
        gateway.expect_logged("forged line");
        for path in ["/metrics", "/status.json", "/history.json", "/"] {
            let document = Client::connect(gateway.admin).get(path, &[]);
            check(path, document.body.as_bytes());
        }
    }
}
