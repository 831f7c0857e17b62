//! `tollgate replay`: its reports about logs.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use flate2::Compression;
use flate2::write::GzEncoder;
use tempfile::TempDir;

const NOON: u64 = 1_795_262_400;

const TODAY: &str = "\
upstream: http://127.0.0.1:9000
rules: [{name: each, limit_keys: [ip:address], algorithm_config: {rate: 2/min}}]
";

/// Runs a command in a folder with these files. `input` is its standard input.
pub(super) fn play(files: &[(&str, &[u8])], arguments: &str, input: &[u8]) -> Output {
    let folder = TempDir::new().unwrap();
    for (name, bytes) in files {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.arg("replay").args(arguments.split(' ').filter(|argument| !argument.is_empty()));
    command.current_dir(folder.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // It may have left without having read anything.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

pub(super) fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Returns the output without the duration, which differs from run to run.
pub(super) fn reported(output: &Output) -> String {
    let text = text(&output.stdout);
    let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
    let first = match (first.find(" in "), first.find(" s, ")) {
        (Some(from), Some(to)) => format!("{}{}", &first[..from], &first[to + 2..]),
        (Some(from), None) => first[..from].to_owned(),
        _ => first.to_owned(),
    };
    format!("{first}\n{rest}")
}

#[track_caller]
pub(super) fn json(output: &Output) -> serde_json::Value {
    assert_eq!(text(&output.stderr), "");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Returns a line of nginx's log for each request: seconds after noon, and a client.
fn nginx(requests: &[(u64, &str)]) -> String {
    let line = |(second, client): &(u64, &str)| {
        let (hour, minute, second) = (12 + second / 3600, second / 60 % 60, second % 60);
        format!(
            "{client} - - [21/Nov/2026:{hour}:{minute:02}:{second:02} +0000] \"GET /a?b=c HTTP/1.1\" 200 5 \"-\" \"curl/8\"\n"
        )
    };
    requests.iter().map(line).collect()
}

fn application(requests: &[(u64, &str)]) -> String {
    let line = |(second, client): &(u64, &str)| {
        format!("{{\"at\":{}.5,\"http\":{{\"ip\":\"{client}\",\"uri\":\"/a\"}}}}\n", NOON + second)
    };
    requests.iter().map(line).collect()
}

fn ours(requests: &[(u64, &str)]) -> String {
    let line = |(second, client): &(u64, &str)| {
        let bucket = client.bytes().fold(7u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)));
        let (minute, second) = (second / 60, second % 60);
        format!(
            "{{\"time\":\"2026-11-21T12:{minute:02}:{second:02}.500000Z\",\"request_id\":\"r\",\"kind\":\"allowed\",\
             \"route\":\"default\",\"method\":\"GET\",\"code\":200,\"origin\":\"upstream\",\"duration_us\":900,\
             \"decision_us\":40,\"request_bytes\":0,\"response_bytes\":5,\"policy\":\"default\",\"rule\":\"each\",\
             \"cost\":1,\"remaining\":1,\"bucket\":\"{bucket:016x}\",\"source\":\"store\"}}\n"
        )
    };
    requests.iter().map(line).collect()
}

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

const MAP: &str = "--map time=at,ip:address=http.ip,path=http.uri";

/// Seven requests of two clients. Each client may send two at once, and one more after thirty seconds, so two are refused.
const REQUESTS: [(u64, &str); 7] = [
    (0, "203.0.113.7"),
    (1, "203.0.113.7"),
    (2, "203.0.113.7"),
    (3, "203.0.113.8"),
    (40, "203.0.113.7"),
    (41, "203.0.113.7"),
    (42, "203.0.113.8"),
];

#[test]
fn the_same_requests_have_the_same_result_in_every_format() {
    for (log, map) in [(nginx(&REQUESTS), ""), (application(&REQUESTS), MAP), (ours(&REQUESTS), "")] {
        for bytes in [log.clone().into_bytes(), gzip(&log)] {
            let files = [("gateway.yaml", TODAY.as_bytes()), ("access.log", &bytes)];
            let found = json(&play(&files, &format!("{map} --json access.log"), b""));
            let counts = ["lines", "requests"].map(|key| found[key].as_u64().unwrap());
            assert_eq!(counts, [7, 7], "{found}");
            let file = &found["files"][0];
            let counts = ["allowed", "refused", "undecided"].map(|key| file[key].as_u64().unwrap());
            assert_eq!(counts, [5, 2, 0], "{found}");
            assert_eq!(file["by"], serde_json::json!([{"name": "default/each", "refused": 2, "keys": 1}]), "{found}");
            assert_eq!((&file["top"][0]["asked"], &file["top"][0]["refused"]), (&5.into(), &2.into()), "{found}");
            // A log of ours hides its clients.
            let is_ours = log.starts_with('{') && map.is_empty();
            assert_eq!(file["top"][0]["name"] == "ip:address 203.0.113.7", !is_ours, "{found}");
            let from_input = json(&play(&files[..1], &format!("{map} --json -"), &bytes));
            assert_eq!(from_input, found);
        }
    }
}

#[test]
fn the_text_report_has_every_part() {
    let log = nginx(&REQUESTS) + "not a line\n\n";
    let output = play(&[("gateway.yaml", TODAY.as_bytes()), ("a.log", log.as_bytes())], "a.log", b"");
    let reported = reported(&output);
    let (above, below) = reported.split_once("most refused  ").unwrap();
    let expected = "\
read 8 lines, Sat 21 Nov 12:00 to Sat 21 Nov 12:00 UTC
! 1 line unreadable, the first a.log:8: must have a time in brackets
! times in whole seconds are spread evenly within the second
allowed         5  71.4 %
refused         2  28.6 %
  default/each  2           1 key
worst minute  Sat 21 Nov 12:00 UTC, 2 refused
";
    assert_eq!(above, expected);
    assert_eq!(below.split_once("  ").unwrap().1, "default/each  2 of 5 (40.0 %)\n");
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
}

#[test]
fn two_files_are_compared_side_by_side() {
    let tomorrow = TODAY.replace("2/min", "1/min");
    let log = application(&REQUESTS);
    let files =
        [("gateway.yaml", TODAY.as_bytes()), ("tomorrow.yaml", tomorrow.as_bytes()), ("app.log", log.as_bytes())];
    let output = play(&files, &format!("-c gateway.yaml --against tomorrow.yaml {MAP} app.log"), b"");
    let reported = reported(&output);
    let (above, below) = reported.split_once("newly refused  ").unwrap();
    let expected = "\
read 7 lines, Sat 21 Nov 12:00 to Sat 21 Nov 12:00 UTC
                gateway.yaml  tomorrow.yaml  change
allowed            5  71.4 %      2  28.6 %      -3
refused            2  28.6 %      5  71.4 %      +3
  default/each     2              5              +3   2 keys, 1 never refused before
worst minute  Sat 21 Nov 12:00 UTC, 2 → 5 refused
";
    assert_eq!(above, expected);
    assert_eq!(below.lines().count(), 2, "{below}");
}

#[test]
fn several_logs_are_merged_by_time() {
    let (one, two): (Vec<_>, Vec<_>) = REQUESTS.iter().copied().partition(|(second, _)| second % 2 == 0);
    let (one, two) = (nginx(&one), gzip(&nginx(&two)));
    let files = [("gateway.yaml", TODAY.as_bytes()), ("1.log", one.as_bytes()), ("2.log", &two)];
    let found = json(&play(&files, "--json 2.log 1.log", b""));
    assert_eq!((&found["files"][0]["allowed"], &found["files"][0]["refused"]), (&5.into(), &2.into()), "{found}");
    assert_eq!(found["late"], 0);
}

#[test]
fn all_attributes_that_stand_in_the_way_are_named_at_once() {
    let file = "\
upstream: http://127.0.0.1:9000
jwt: {algorithms: [HS256], keys: {secret: 0123456789abcdef0123456789abcdef}}
exempt: [{cookie:c: \"1\"}]
rules:
  - {name: a, match: {header:x-a: \"1\"}, limit_keys: [], algorithm_config: {rps: 1, burst: 5}}
  - {name: b, match: {\"words(jwt:scope)\": read, method: GET}, limit_keys: [ip:address], algorithm_config: {rps: 1, burst: 5}}
  - {name: c, match: {host: a.example}, limit_keys: [scheme], algorithm_config: {rps: 1, burst: 5}}
";
    let log = nginx(&REQUESTS);
    let files = [("gateway.yaml", file.as_bytes()), ("a.log", log.as_bytes())];
    let found = json(&play(&files, "--json a.log", b""));
    let lacking = ["header:x-a", "jwt:scope", "host", "scheme", "cookie:c"];
    assert_eq!(found["files"][0]["lacking"], serde_json::json!(lacking));
    let decided = json(&play(&files, &format!("--json --absent {} a.log", lacking.join(",")), b""));
    assert_eq!(
        (&decided["files"][0]["undecided"], &decided["files"][0]["lacking"]),
        (&0.into(), &serde_json::json!([]))
    );
}

#[test]
fn undecidable_rules_are_named_and_counted() {
    let file = "\
upstream: http://127.0.0.1:9000
jwt: {algorithms: [HS256], keys: {secret: 0123456789abcdef0123456789abcdef}}
policies:
  - name: ceiling
    rules: [{name: each, limit_keys: [ip:address], algorithm_config: {rate: 2/min}}]
  - name: plan
    rules:
      - {name: free, match: {jwt:plan: free}, limit_keys: [jwt:sub], algorithm_config: {rate: 1/min}}
      - {name: anonymous, limit_keys: [ip:address], algorithm_config: {rate: 1/min}}
";
    let log = nginx(&REQUESTS);
    let files = [("gateway.yaml", file.as_bytes()), ("a.log", log.as_bytes())];
    let found = json(&play(&files, "--json a.log", b""));
    let counts = ["allowed", "refused", "undecided"].map(|key| found["files"][0][key].as_u64().unwrap());
    assert_eq!(counts, [0, 2, 5], "{found}");
    let expected = serde_json::json!([{"name": "plan/free", "lines": 7, "attributes": ["jwt:plan", "jwt:sub"]}]);
    assert_eq!(found["files"][0]["undecidable"], expected);
    let printed = text(&play(&files, "a.log", b"").stdout).to_owned();
    assert!(printed.contains("had none of these, --absent 'jwt:plan,jwt:sub', or take them from"), "{printed}");
    // What was refused is no share of what nobody could decide.
    let output = play(&files, "--fail-above 50% a.log", b"");
    assert_eq!(text(&output.stderr), "--fail-above: gateway.yaml: none of 7 requests could be decided\n");
    assert_eq!(output.status.code(), Some(1));
    let found = json(&play(&files, "--absent jwt:plan --json a.log", b""));
    let counts = ["allowed", "refused", "undecided"].map(|key| found["files"][0][key].as_u64().unwrap());
    assert_eq!(counts, [2, 5, 0], "{found}");
    // Those that were refused at the ceiling were asked for their plan as well.
    let expected = serde_json::json!([{"attribute": "jwt:plan", "lines": 7}]);
    assert_eq!(found["files"][0]["missing"], expected);
}

#[test]
fn a_share_that_is_too_large_fails_and_one_that_is_not_does_not() {
    let log = nginx(&REQUESTS);
    let files = [("gateway.yaml", TODAY.as_bytes()), ("a.log", log.as_bytes())];
    let output = play(&files, "--fail-above 28% a.log", b"");
    let expected = "--fail-above: gateway.yaml: refuses 2 of 7 decided requests, more than 28 %\n";
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(1), expected));
    assert!(text(&output.stdout).contains("refused         2  28.6 %"), "{output:?}");
    assert_eq!(play(&files, "--fail-above 29% a.log", b"").status.code(), Some(0));
    for wrong in ["1", "x%", "101%"] {
        assert_eq!(play(&files, &format!("--fail-above {wrong} a.log"), b"").status.code(), Some(2), "{wrong}");
    }
}

#[test]
fn an_empty_log_is_accepted_and_one_without_a_readable_line_is_not() {
    let files =
        [("gateway.yaml", TODAY.as_bytes()), ("empty", b""), ("words", b"to be\nor not\n"), ("other", b"{\"a\":1}\n")];
    let output = play(&files, "empty", b"");
    assert_eq!(reported(&output), "read 0 lines\nallowed  0  0.0 %\nrefused  0  0.0 %\n");
    for (log, expected) in [
        ("words", "words:1: must have a time in brackets\nno line could be read, of 2\n".to_owned()),
        (
            "other",
            "other:1: no line of ours: missing field `time` at line 1 column 7; other JSON needs --map to be read\n\
             no line could be read, of 1\n"
                .to_owned(),
        ),
    ] {
        let output = play(&files, log, b"");
        let found = (output.status.code(), text(&output.stdout), text(&output.stderr));
        assert_eq!(found, (Some(1), "", &*expected));
    }
    let output = play(&files, "nowhere", b"");
    assert!(text(&output.stderr).starts_with("nowhere: must be a readable file: "), "{output:?}");
    let mut cut = gzip(&nginx(&REQUESTS).repeat(100));
    cut.truncate(cut.len() - 9);
    let output = play(&[files[0], ("cut.gz", &cut)], "cut.gz", b"");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).starts_with("cut.gz:"), "{output:?}");
}

#[test]
fn our_log_without_allowed_requests_has_a_warning() {
    let refused = ours(&REQUESTS[..2]).replace("\"kind\":\"allowed\"", "\"kind\":\"refused\"");
    let beside = refused.lines().next().unwrap().replace("\"decision_us\":40,", "") + "\n";
    let log = refused + &beside;
    let output = play(&[("gateway.yaml", TODAY.as_bytes()), ("a.log", log.as_bytes())], "a.log", b"");
    let reported = reported(&output);
    assert!(reported.contains("\n! requests that were allowed are not in this log (access_log.when)"), "{reported}");
    assert!(reported.contains("\n! 1 line skipped: answered before any rule was checked\n"), "{reported}");
}

#[test]
fn a_picture_shows_every_part_of_the_time() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("gateway.yaml"), TODAY).unwrap();
    std::fs::write(folder.path().join("a.log"), nginx(&REQUESTS)).unwrap();
    let run = |picture: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(["replay", "--picture", picture, "a.log"]).current_dir(folder.path()).output().unwrap()
    };
    let output = run("replay.svg");
    assert!(text(&output.stdout).ends_with("picture  replay.svg\n"), "{output:?}");
    let svg = std::fs::read_to_string(folder.path().join("replay.svg")).unwrap();
    assert!(svg.starts_with("<svg xmlns=") && svg.ends_with("</svg>\n"), "{svg}");
    assert!(svg.contains("<title>Sat 21 Nov 12:00:40: 1 allowed, 0 refused, 0 undecided</title>"), "{svg}");
    let output = run("no/such/folder.svg");
    assert!(text(&output.stderr).starts_with("no/such/folder.svg: must be writable: "), "{output:?}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn options_that_contradict_each_other_are_refused() {
    let files = [("gateway.yaml", TODAY.as_bytes()), ("a.log", &b""[..])];
    for (arguments, expected) in [
        ("--format json a.log", "--format json: needs --map, which names its fields\n"),
        ("--format combined --map time=t a.log", "--map: applies only to --format json\n"),
        ("--map path=p a.log", "--map: must say which field is the time: time=FIELD\n"),
    ] {
        let output = play(&files, arguments, b"");
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(1), expected), "{arguments}");
    }
    for arguments in ["", "--map ts a.log", "--map ip=x a.log", "--absent plan a.log", "--format other a.log"] {
        assert_eq!(play(&files, arguments, b"").status.code(), Some(2), "{arguments}");
    }
}

#[test]
fn the_documented_example_is_the_real_output() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/replay.md")).unwrap();
    let block = |language: &str, number: usize| {
        let start = page.split(&format!("```{language}\n")).nth(number + 1).unwrap();
        start.split("```").next().unwrap()
    };
    let files = [
        ("gateway.yaml", block("yaml", 0).as_bytes()),
        ("tomorrow.yaml", block("yaml", 1).as_bytes()),
        ("access.log", block("text", 0).as_bytes()),
    ];
    let (command, expected) = block("console", 0).split_once('\n').unwrap();
    let mut output = play(&files, command.strip_prefix("$ tollgate replay ").unwrap(), b"");
    let found = reported(&output);
    output.stdout = expected.as_bytes().to_vec();
    assert_eq!(found, reported(&output));
}

#[test]
fn new_numbers_of_an_old_rule_can_be_tried_on_a_log_without_attributes() {
    let log = ours(&REQUESTS);
    let finer = TODAY.replace(
        "algorithm_config: {rate: 2/min}",
        "limits: {minute: {rate: 2/min}, hour: {rate: 3/hour, shadow: {rate: 2/hour}}}",
    );
    // Another way to tell clients apart: of whose requests are whose then, the log says nothing.
    let coarser = TODAY.replace("limit_keys: [ip:address]", "limit_keys: []");
    let files = [
        ("gateway.yaml", TODAY.as_bytes()),
        ("finer.yaml", finer.as_bytes()),
        ("coarser.yaml", coarser.as_bytes()),
        ("other.yaml", &TODAY.replace("ip:address", "host").into_bytes()),
        ("a.log", log.as_bytes()),
    ];
    let counts = |found: &serde_json::Value, file: usize| {
        ["allowed", "refused", "undecided"].map(|key| found["files"][file][key].as_u64().unwrap())
    };
    let found = json(&play(&files, "--against finer.yaml --json a.log", b""));
    assert_eq!((counts(&found, 0), counts(&found, 1)), ([5, 2, 0], [5, 2, 0]), "{found}");
    let as_logged = serde_json::json!([{"policy": "default", "lines": 7, "lacking": ["ip:address"]}]);
    assert_eq!(found["files"][1]["as_logged"], as_logged);
    // Of one file it is not known whether its rules were those of the log: the report says so, and what to log.
    let printed = text(&play(&files, "a.log", b"").stdout).to_owned();
    let assumed = "as if `match`, keys and order of its rules were the same then (-c FORMER --against THIS compares)";
    let to_log = "log access_log: {attributes: [ip:address]}";
    assert!(printed.contains(assumed) && printed.contains(to_log), "{printed}");
    let printed = text(&play(&files, "--against other.yaml a.log", b"").stdout).to_owned();
    assert!(
        !printed.contains(assumed) && printed.contains("log what is missing, access_log: {values: [host]}"),
        "{printed}"
    );
    assert!(!printed.contains("--absent"), "{printed}");
    // What the log answers, no option needs to answer.
    assert_eq!(found["files"][1]["lacking"], serde_json::json!([]));
    let shadow = serde_json::json!([{"name": "default/each.hour", "asked": 5, "would_refuse": 1}]);
    assert_eq!(found["files"][1]["shadows"], shadow, "{found}");
    let found = json(&play(&files, "--against coarser.yaml --json a.log", b""));
    assert_eq!(counts(&found, 1), [3, 4, 0], "{found}");
    let found = json(&play(&files, "--against other.yaml --json a.log", b""));
    assert_eq!(counts(&found, 1), [0, 0, 7], "{found}");
    let expected = serde_json::json!([{"name": "default/each", "lines": 7, "attributes": ["host"]}]);
    assert_eq!(found["files"][1]["undecidable"], expected);
    assert_eq!(found["files"][1]["lacking"], serde_json::json!(["host"]));
}

/// The requests of the log take ten seconds each.
#[test]
fn slots_are_held_for_as_long_as_the_requests_of_the_log_took() {
    let log = ours(&REQUESTS).replace("\"duration_us\":900", "\"duration_us\":10000000");
    let with = |numbers: &str| {
        let slots = format!("limits: {{rate: {{rate: 100/min}}, slots: {{algorithm: concurrency, {numbers}}}}}");
        TODAY.replace("algorithm_config: {rate: 2/min}", &slots).into_bytes()
    };
    // Of the first client, two requests are in flight when the third comes.
    for (numbers, refused) in [("limit: 2", 1), ("limit: 1", 3), ("limit: 3", 0), ("limit: 2, max_hold: 1s", 0)] {
        let other = with(numbers);
        let files = [("gateway.yaml", TODAY.as_bytes()), ("slots.yaml", &other), ("a.log", log.as_bytes())];
        let found = json(&play(&files, "--against slots.yaml --json a.log", b""));
        assert_eq!(found["files"][1]["refused"], refused, "{numbers}: {found}");
    }
}

/// The line about a stream of two hours is written when it ends.
#[test]
fn a_stream_of_hours_holds_its_slot_from_its_beginning() {
    let stream = ours(&[(0, "203.0.113.7")]).replace("\"duration_us\":900", "\"duration_us\":7200000000");
    let log = ours(&[(600, "203.0.113.7"), (1200, "203.0.113.7"), (1800, "203.0.113.8")]) + &stream;
    let slots = TODAY
        .replace("algorithm_config: {rate: 2/min}", "algorithm: concurrency, algorithm_config: {limit: 1}")
        .into_bytes();
    let compressed = gzip(&log);
    let files = [
        ("gateway.yaml", TODAY.as_bytes()),
        ("slots.yaml", &slots),
        ("a.log", log.as_bytes()),
        ("a.log.gz", &compressed),
    ];
    for name in ["a.log", "a.log.gz"] {
        let found = json(&play(&files, &format!("--against slots.yaml --json {name}"), b""));
        assert_eq!((&found["files"][1]["refused"], &found["late"]), (&2.into(), &0.into()), "{name}: {found}");
        assert_eq!((&found["lines"], &found["requests"]), (&4.into(), &4.into()), "{name}: {found}");
    }
    // A pipe can be read only once: the stream is decided after the first request.
    let found = json(&play(&files, "--against slots.yaml --json -", log.as_bytes()));
    assert_eq!((&found["files"][1]["refused"], &found["late"]), (&1.into(), &1.into()), "{found}");
}

#[test]
fn a_request_denied_in_the_log_counts_as_denied_only_by_its_own_rule() {
    let today = "\
upstream: http://127.0.0.1:9000
policies:
  - {name: block, rules: [{name: bad, match: {host: bad.example}, action: deny}]}
  - {name: default, rules: [{name: each, limit_keys: [ip:address], algorithm_config: {rate: 2/min}}]}
";
    let tomorrow = today.replace("bad.example", "worse.example");
    let allowed = ours(&REQUESTS[..1]);
    let (before, _) = allowed.split_once(",\"policy\"").unwrap();
    let denied = before.replace("\"allowed\"", "\"refused\"").replace("200", "403") + ",\"reason\":\"denied\"}\n";
    let log = allowed + &denied;
    let files = [("gateway.yaml", today.as_bytes()), ("tomorrow.yaml", tomorrow.as_bytes()), ("a.log", log.as_bytes())];
    let found = json(&play(&files, "--against tomorrow.yaml --json a.log", b""));
    let by = serde_json::json!([{"name": "denied, says the log", "refused": 1}]);
    assert_eq!((&found["files"][0]["by"], &found["files"][0]["undecided"]), (&by, &0.into()), "{found}");
    // Whom the new rule means, the log does not say.
    assert_eq!((&found["files"][1]["refused"], &found["files"][1]["undecided"]), (&0.into(), &2.into()), "{found}");
}
