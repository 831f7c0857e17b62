//! Questions about other requests, and the rules that apply to them.

use super::{USAGE, ask, ask_with, limits, names, send};
use crate::support::{Gateway, Upstream, tollgate};

const CONFIG: &str = "
upstreams: {one: {endpoints: [http://127.0.0.1:9]}, two: {endpoints: [http://127.0.0.1:9]}}
routes:
  - {name: api, match: {path: /v1/*}, upstream: one}
  - {name: other, match: {path: /other/*}, upstream: two}
exempt: [{path: /health}]
policies:
  - {name: routed, rules: [{name: routed, match: {route: api}, limit_keys: [header:x-user], algorithm_config: {rate: 9/day}}]}
  - {name: hosted, rules: [{name: hosted, match: {host: b.example}, limit_keys: [header:x-user], algorithm_config: {rate: 9/day}}]}
  - {name: queried, rules: [{name: queried, match: {query:kind: big}, limit_keys: [query:kind], algorithm_config: {rate: 9/day}}]}
  - name: paths
    rules:
      - {name: block, match: {path: /v1/blocked}, action: deny}
      - {name: free, match: {path: /v1/free}, action: allow}
      - {name: body, match: {\"request_json:/a\": {present: false}}, limit_keys: [header:x-user], algorithm_config: {rate: 9/day}}
      - {name: by-body, limit_keys: [\"request_json:/a|header:x-user\"], algorithm_config: {rate: 9/day}}
      - {name: upload, match: {method: PUT, path: /v1/*}, limit_keys: [header:x-user], algorithm_config: {rate: 9/day}}
      - {name: rest, limit_keys: [header:x-user], algorithm_config: {rate: 9/day}}
";

#[test]
fn the_query_names_the_request_and_the_rest_is_that_of_the_question() {
    let gateway = Gateway::before_url("").with(&format!("{USAGE}{CONFIG}")).start();
    let check = |query: &str, expected: &[&str]| assert_eq!(names(&ask(&gateway, query, "ann")), expected, "{query}");
    check("", &["rest"]);
    check("?path=/v1/x", &["routed", "rest"]);
    check("?path=%2Fv1%2F.%2Fx", &["routed", "rest"]);
    check("?path=/v1/x&method=PUT", &["routed", "upload"]);
    check("?method=PUT&path=/other/x", &["rest"]);
    check("?host=b.example:8080", &["hosted", "rest"]);
    check("?path=/x%3Fkind%3Dbig", &["queried", "rest"]);
    // The query of the question is not that of the request in question.
    check("?kind=big", &["rest"]);
    check("?path=/v1/free", &["routed"]);
    check("?path=/v1/blocked", &[]);
    check("?path=/health", &[]);
    assert_eq!(names(&ask_with(&gateway, "?path=/v1/x", &[])), [] as [&str; 0], "without a user");
    for query in ["?path=v1", "?path=/a&path=/b", "?method=", "?host=a/b", "?path=/a%20b", "?path=/a%252fb"] {
        let refused = ask(&gateway, query, "ann");
        assert_eq!(
            (refused.status, refused.field("x-tollgate-reason").as_deref()),
            (400, Some("bad_request")),
            "{query}"
        );
    }
    let twice = ask(&gateway, "?path=/%3Fkind%3Da%26kind%3Db", "ann");
    assert_eq!(twice.field("x-tollgate-reason").as_deref(), Some("ambiguous_request"));
}

#[test]
fn a_file_can_change_the_path_and_explain_says_who_answers() {
    let upstream = Upstream::start();
    let rule = "rules: [{name: all, limit_keys: [header:x-user], algorithm_config: {rate: 9/day}}]\n";
    let gateway = Gateway::start(&upstream, rule);
    assert_eq!(ask(&gateway, "", "ann").body, "ok", "without the key it is a request like any other");
    gateway.reload(&upstream, &format!("{USAGE}{rule}"));
    assert_eq!(limits(&ask(&gateway, "", "ann"))[0]["used"], 1);
    let file = gateway.file("gateway.yaml");
    let explain = |arguments: &[&str]| {
        let output = tollgate(&[&["explain", "-c", file.to_str().unwrap()], arguments].concat());
        assert_eq!(output.code, Some(0), "{output:?}");
        output.out
    };
    let answer = explain(&["/.well-known/ratelimit?path=/v1/x"]);
    assert!(answer.contains("ANSWERED 200 by `usage`: what the limits of GET \"/v1/x\" have left"), "{answer}");
    assert!(explain(&["-X", "POST", "/.well-known/ratelimit"]).contains("REFUSED 405 bad_request"));
    assert!(explain(&["/.well-known/ratelimit?path=x"]).contains("REFUSED 400 bad_request"));
    // A log of another proxy has questions too: they charge nothing.
    let line =
        "198.51.100.1 - - [29/Nov/2026:12:00:00 +0000] \"GET /.well-known/ratelimit HTTP/1.1\" 200 2 \"-\" \"-\"\n";
    let log = gateway.file("access.log");
    std::fs::write(&log, line.repeat(20)).unwrap();
    let by_address = rule.replace("header:x-user", "ip:address");
    std::fs::write(&file, Gateway::text("http://127.0.0.1:9", &format!("{USAGE}{by_address}"))).unwrap();
    let replayed = tollgate(&["replay", "-c", file.to_str().unwrap(), "--json", log.to_str().unwrap()]);
    let found = replayed.json();
    assert_eq!((&found["requests"], &found["files"][0]["refused"]), (&20.into(), &0.into()), "{found}");
    assert_eq!(send(&gateway, 1, "/", "ann"), [200]);
}
