//! Tests of the import from several files of nginx, which include each other.

use super::super::{Import, ImportedFile, checked, import_nginx};
use super::rules;

const MAIN: &str = "include modules/*.conf;
events { include events.conf; }
http {
  limit_req_zone $binary_remote_addr zone=a:1m rate=10r/s;
  limit_req zone=a burst=3;
  include mime.types;
  include /etc/nginx/conf.d/*.conf;
}
stream { include stream.conf; }
";

#[track_caller]
fn imported(files: &[(&str, &str)]) -> (String, Vec<String>) {
    let files: Vec<_> = files.iter().map(|(name, text)| ImportedFile { name, bytes: text.as_bytes() }).collect();
    rules(import_nginx(&files).unwrap_or_else(|problems| panic!("{problems}")))
}

#[test]
fn the_limits_of_http_are_those_of_the_files_that_it_includes() {
    let site = ("conf.d/site.conf", "server { server_name s.example.com; location /x { limit_req zone=a; } }");
    for files in [[("nginx.conf", MAIN), site], [site, ("nginx.conf", MAIN)]] {
        let (rules, losses) = imported(&files);
        assert_eq!(rules.matches("{rps: 10, queue: 3, max_wait: 1s}").count(), 1, "{rules}");
        assert_eq!(rules.matches("{rps: 10, queue: 0, max_wait: 1s}").count(), 1, "{rules}");
        let what = "modules/*.conf is not read: name the files that it includes too, if they have limits";
        assert_eq!(losses, [format!("nginx.conf:1:1: include: {what}")]);
    }
    // A file with another path than that of the `include` is in `http` too.
    let (rules, losses) = imported(&[("nginx.conf", MAIN), ("copy.conf", site.1)]);
    assert_eq!(rules.matches("{rps: 10, queue: 3, max_wait: 1s}").count(), 1, "{rules}");
    assert_eq!(losses.len(), 2, "{losses:?}");
}

#[test]
fn an_included_file_is_read_where_it_is_included() {
    let main = "http {
  include zones.conf;
  server { listen 80; include snippets/limit.conf; location /free { limit_req_dry_run on; include snippets/none.conf; } }
  server { listen 80; server_name s.example.com; include snippets/limit.conf; }
}";
    let files = [
        ("nginx.conf", main),
        ("zones.conf", "limit_req_zone $binary_remote_addr zone=a:1m rate=10r/s;"),
        ("snippets/limit.conf", "limit_req zone=a;\nlimit_rate 1k;\nlocation /x { limit_req zone=a burst=9; }"),
        ("snippets/none.conf", "# nothing"),
    ];
    let (rules, losses) = imported(&files);
    assert_eq!(rules.matches("path: {prefix: \"/x\"}").count(), 2, "{rules}");
    assert_eq!(losses, ["snippets/limit.conf:2:1: limit_rate: the speed of a response is not limited"]);
}

#[test]
fn limits_outside_of_every_server_are_named() {
    let (rules, losses) = imported(&[
        ("nginx.conf", MAIN),
        ("part.conf", "limit_req zone=a;\nlocation /x {\n limit_req zone=a; }\nlocation /y {}"),
    ]);
    assert_eq!(rules, "");
    let what = "stands in no `http` or `server`, and no named file includes it: it is left out";
    let stray: Vec<_> = losses.iter().filter(|loss| loss.starts_with("part.conf")).collect();
    assert_eq!(stray, [&format!("part.conf:1:1: limit_req: {what}"), &format!("part.conf:2:1: location: {what}")]);
    let none = "limits nothing, because no `server` is among the files";
    assert!(losses.contains(&format!("nginx.conf:5:3: limit_req: {none}")), "{losses:?}");
    let (_, losses) = imported(&[("part.conf", "location /x { limit_req zone=a; }")]);
    assert_eq!(
        losses,
        ["part.conf:1:1: location: stands in no `server`, and no named file includes it: it is left out"]
    );
}

#[test]
fn files_that_include_each_other_are_read() {
    let zone = "limit_req_zone $binary_remote_addr zone=a:1m rate=10r/s; server { limit_req zone=a; }";
    let (rules, _) = imported(&[("a.conf", &format!("include b.conf; {zone}")), ("b.conf", "include a.conf;")]);
    assert_eq!(rules.matches("name: \"a\"").count(), 2, "{rules}");
    let many = "include b.conf; ".repeat(200);
    let (first, second) = (many.clone(), many.replace('b', "c"));
    let (_, losses) = imported(&[("a.conf", &first), ("b.conf", &second), ("c.conf", "")]);
    assert!(losses[0].contains("is not read"), "{losses:?}");
}

#[test]
fn a_text_that_is_no_gateway_yaml_is_an_error_with_the_imported_place() {
    let text = "upstream: http://127.0.0.1:9000
policies:
  - name: \"a\"
    rules:
      # nginx.conf:7
      - name: \"a\"
        algorithm: leaky_bucket
        limit_keys: []
        expose: true
        algorithm_config: {rps: 1, queue: 1, max_wait: 2h}
";
    let import = Import { text: text.to_owned(), losses: Vec::new() };
    let problems = checked(import).unwrap_err();
    let what = "cannot be imported: must be at most 1h: a client would not wait for so long, is `2h`";
    let place = "nginx.conf:7: policies[0].rules[0].algorithm_config.max_wait";
    assert_eq!(problems.report(), [format!("{place}: {what}"), "1 problem".to_owned()]);
}

#[test]
fn a_key_that_counts_otherwise_than_in_nginx_is_named() {
    let of_key = |key: &str| {
        let zone = format!("limit_req_zone {key} zone=a:1m rate=1r/s; server {{ limit_req zone=a; }}");
        imported(&[("nginx.conf", &zone)]).1
    };
    let rest = |optional: &str| {
        let what = format!("counts a request without {optional} by the rest of its key: here it is not limited");
        vec![format!("nginx.conf:1:1: limit_req_zone: {what}")]
    };
    assert_eq!(of_key("$binary_remote_addr$http_x_key"), rest("header:x-key"));
    assert_eq!(of_key("key-${arg_k}"), rest("query:k"));
    for alone in ["${http_x_key}", "$arg_k", "$binary_remote_addr$uri", "all"] {
        assert_eq!(of_key(alone), [""; 0], "{alone}");
    }
    let host = "nginx.conf:1:1: limit_req_zone: counts by `$server_name`: here by the host of the request, which a client can vary";
    assert_eq!(of_key("$binary_remote_addr$server_name"), [host]);
}
