//! Tests of the import from nginx: which server and which location decides, and numbers that gateway.yaml does not have.

use super::nginx;

/// Returns the names of rules with their conditions, one line for each rule.
fn places(rules: &str) -> Vec<String> {
    let mut places: Vec<String> = Vec::new();
    for line in rules.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("- name: ") {
            places.push(name.trim_matches('"').to_owned());
        } else if let (Some(conditions), Some(last)) = (line.strip_prefix("match: "), places.last_mut()) {
            last.push(' ');
            last.push_str(conditions);
        }
    }
    // The first line is the policy.
    places.into_iter().skip(1).collect()
}

const ZONE: &str = "limit_req_zone $binary_remote_addr zone=a:1m rate=10r/s;\n";

fn places_of(text: &str) -> (Vec<String>, Vec<String>) {
    let (rules, losses) = nginx(&format!("{ZONE}{text}"));
    (places(&rules), losses)
}

/// Returns the conditions of rules on the path.
fn paths_of(rules: &[String]) -> Vec<&str> {
    rules.iter().filter_map(|rule| rule.split_once(" {path: ")).map(|(_, path)| path).collect()
}

#[test]
fn a_server_that_redirects_to_tls_does_not_hide_the_limits_of_the_other() {
    let other = "server { listen 8080 default_server; server_name z.example.com; }\n";
    for pair in [
        "server { listen 80; server_name s.example.com; return 301 https://$host; }
server { listen 443 ssl; server_name s.example.com; limit_req zone=a; }",
        "server { listen 443 ssl; server_name s.example.com; limit_req zone=a; }
server { listen 80; server_name s.example.com; return 301 https://$host; }",
    ] {
        let (rules, losses) = places_of(&format!("{other}{pair}"));
        let hosts = ["not-a {host: [\"z.example.com\"]}", "a {host: [\"s.example.com\"]}"];
        assert_eq!(rules, [hosts[0], hosts[1], "a-2"], "{pair}");
        let differ =
            "differ by listen, which no rule knows: they are one here, with the limits of all, the first ones first";
        assert!(
            losses.contains(&format!("nginx.conf:4:1: listen: the servers of s.example.com {differ}")),
            "{losses:?}"
        );
        assert!(losses.iter().all(|loss| loss.contains(": listen: the servers of ")), "{losses:?}");
    }
}

#[test]
fn servers_with_one_name_keep_the_limits_of_both() {
    let (rules, losses) = places_of(
        "server { listen 8080 default_server; }
server { listen 80; server_name s.example.com t.example.com; location /x/ { limit_req zone=a; } }
server { listen 8443; server_name t.example.com; location /y/ { limit_req zone=a; } }",
    );
    assert_eq!(
        rules[..6],
        [
            "a {host: [\"s.example.com\"], path: {prefix: \"/x/\"}}",
            "not-a {host: [\"s.example.com\"]}",
            "a-2 {host: [\"t.example.com\"], path: {prefix: \"/x/\"}}",
            "a-3 {host: [\"t.example.com\"], path: {prefix: \"/y/\"}}",
            "not-a-2 {host: [\"t.example.com\"]}",
            "a-4 {path: {prefix: \"/x/\"}}",
        ]
    );
    assert!(losses[0].starts_with("nginx.conf:3:1: listen: the servers of other hosts differ"), "{losses:?}");
    // The same limits of both are no difference.
    let (rules, losses) = places_of(
        "limit_req zone=a; server { listen 80; server_name s.example.com; } server { listen 81; server_name s.example.com; }",
    );
    assert_eq!((rules, losses), (vec!["a {host: [\"s.example.com\"]}".to_owned(), "a-2".to_owned()], Vec::new()));
}

#[test]
fn a_limit_of_the_rest_hides_no_location_of_another_server() {
    let (rules, _) = places_of(
        "limit_req zone=a burst=9;
server { listen 80; server_name s.example.com; }
server { listen 81; server_name s.example.com; location /login { limit_req zone=a; } }
server { listen 82 default_server; }",
    );
    assert_eq!(
        rules[..2],
        ["a {host: [\"s.example.com\"], path: {prefix: \"/login\"}}", "a-2 {host: [\"s.example.com\"]}"]
    );
}

#[test]
fn what_returns_is_not_limited() {
    let (rules, losses) = places_of(
        "limit_req zone=a;
server { listen 80; location /x { limit_req zone=a burst=9; } return 301 https://$host; }
server { listen 80; server_name s.example.com; location /health { return 200; } }",
    );
    assert_eq!(
        rules,
        ["not-a {host: [\"s.example.com\"], path: {prefix: \"/health\"}}", "a {host: [\"s.example.com\"]}"]
    );
    assert_eq!(losses, [""; 0]);
}

#[test]
fn the_first_server_of_each_address_is_the_default_there() {
    let (rules, _) = places_of(
        "server { listen 80; server_name _; return 301 https://$host; }
server { listen 443 ssl; server_name _; limit_req zone=a; }",
    );
    assert_eq!(rules, ["a"]);
}

#[test]
fn a_server_to_which_no_host_leads_is_named() {
    let (rules, losses) = places_of(
        "server { server_name a.example.com; }
server { server_name _; limit_req zone=a; }
server { server_name a.example.com; limit_req zone=a; }
server { server_name _; }",
    );
    assert_eq!(rules, [""; 0]);
    let lost = "server: no host leads to this server here: its limits are left out";
    assert_eq!(losses, [format!("nginx.conf:3:1: {lost}"), format!("nginx.conf:4:1: {lost}")]);
}

#[test]
fn the_longest_prefix_decides_whether_or_not_it_has_a_sign() {
    let (rules, losses) = places_of(
        "server {
  location ^~ /a/ { limit_req zone=a burst=1; }
  location /a/b/ { limit_req zone=a burst=2; }
  location ^~ /a/b/c/ { limit_req zone=a burst=3; }
}",
    );
    let paths = ["/a/b/c/", "/a/b/", "/a/"].map(|path| format!("{{path: {{prefix: \"{path}\"}}}}"));
    assert_eq!(rules, [format!("a {}", paths[0]), format!("a-2 {}", paths[1]), format!("a-3 {}", paths[2])]);
    assert_eq!(losses, [""; 0]);
    let (rules, losses) = places_of(
        "server {
  location ~ \\.php$ { limit_req zone=a; }
  location ^~ /a/ { limit_req zone=a burst=1; }
  location /a/b/ { limit_req zone=a burst=2; }
  location ^~ /c/ { limit_req zone=a burst=3; }
  location ^~ /c/d/ { limit_req zone=a burst=4; }
}",
    );
    let php = r#"regex: "\\.php$$""#;
    assert_eq!(
        paths_of(&rules),
        [
            // Only the longer path in `^~` has the regular expression before it.
            format!("{{prefix: \"/a/b/\", {php}}}}}"),
            "{prefix: \"/a/b/\"}}".to_owned(),
            "{prefix: \"/c/d/\"}}".to_owned(),
            "{prefix: \"/a/\"}}".to_owned(),
            "{prefix: \"/c/\"}}".to_owned(),
            format!("{{{php}}}}}"),
        ]
    );
    assert_eq!(losses, [""; 0]);
    let (rules, _) =
        places_of("server { limit_req zone=a; location ^~ / { limit_req zone=a burst=1; } location ~ x {} }");
    assert_eq!(rules, ["a"]);
}

#[test]
fn a_regular_expression_in_a_prefix_has_only_paths_of_that_prefix() {
    let (rules, losses) = places_of(
        "server {
  location /app {
    limit_req zone=a burst=1;
    location ~ \\.php$ { limit_req zone=a burst=2; }
    location /app/deep/ { limit_req zone=a burst=3; }
    location = /app/exact { limit_req zone=a burst=4; }
  }
  location /app/other/ { limit_req zone=a burst=5; }
  location ~ \\.js$ { limit_req zone=a burst=6; }
  location /img { limit_req zone=a burst=7; }
}",
    );
    let (php, js) = (r#"regex: "\\.php$$""#, r#"regex: "\\.js$$""#);
    assert_eq!(
        paths_of(&rules),
        [
            format!("{{prefix: \"/app/other/\", {js}}}}}"),
            "{prefix: \"/app/other/\"}}".to_owned(),
            "\"/app/exact\"}".to_owned(),
            format!("{{prefix: \"/app\", {php}}}}}"),
            format!("{{prefix: \"/app\", {js}}}}}"),
            "{prefix: \"/app/deep/\"}}".to_owned(),
            "{prefix: \"/app\"}}".to_owned(),
            format!("{{{js}}}}}"),
            "{prefix: \"/img\"}}".to_owned(),
        ]
    );
    assert_eq!(losses, [""; 0]);
}

#[test]
fn a_location_in_a_regular_expression_is_named() {
    let (rules, losses) =
        places_of("server { location ~ ^/a { limit_req zone=a; location ~ x$ { limit_req zone=a burst=9; } } }");
    assert_eq!(rules, ["a {path: {regex: \"x$$\"}}", "a-2 {path: {regex: \"^/a\"}}"]);
    assert_eq!(losses, ["nginx.conf:2:45: location: lies in a regular expression, which is not compared for it"]);
}

#[test]
fn many_prefixes_with_many_regular_expressions_stay_a_file() {
    let prefix = |number| format!("location ^~ /{number}/ {{}} location /{number}/x/ {{}} ");
    let prefixes: String = (0..50).map(prefix).collect();
    let regexes: String = (0..50).map(|number| format!("location ~ {number}$ {{ limit_req zone=a; }} ")).collect();
    let (rules, losses) = places_of(&format!("server {{ {prefixes}{regexes} }}"));
    assert!((200..=1_300).contains(&rules.len()), "{}", rules.len());
    let what = "lies with others in too many prefixes: in some of them it is left out";
    assert!(losses.iter().any(|loss| loss.ends_with(what)), "{losses:?}");
}

#[test]
fn an_exact_path_that_ends_as_a_pattern_is_exact() {
    let (rules, _) = places_of("server { location = /a/* { limit_req zone=a; } }");
    assert_eq!(rules, [r#"a {path: {regex: "^/a/\\*$$"}}"#]);
}

#[test]
fn a_location_without_the_limit_of_its_server_has_none() {
    let (rules, losses) = nginx(
        "limit_req_zone $binary_remote_addr zone=a:1m rate=10r/s;
limit_req_zone $binary_remote_addr zone=b:1m rate=10r/s;
server { limit_req zone=a; location / { limit_req zone=b; } }
server { server_name x.example.com; limit_req zone=a; location / { limit_req zone=b; } }",
    );
    assert_eq!(losses, [""; 0]);
    assert!(!rules.contains("name: \"a\""), "{rules}");
}

#[test]
fn a_wait_longer_than_an_hour_is_an_hour() {
    let text = "limit_req_zone $binary_remote_addr zone=a:1m rate=1r/m;
server {
  limit_req zone=a burst=100;
}";
    let (rules, losses) = nginx(text);
    assert!(rules.contains("algorithm_config: {rate: 1/min, queue: 60, max_wait: 3600s}"), "{rules}");
    assert_eq!(
        losses,
        ["nginx.conf:3:3: limit_req: lets requests wait for up to 6000 s: here for up to 1h, so at most 60 wait"]
    );
}

#[test]
fn all_numbers_of_nginx_make_a_valid_file() {
    for rate in ["1r/s", "7r/s", "1000000r/s", "1r/m", "61r/m", "1000000r/m"] {
        for burst in ["", "burst=0", "burst=1", "burst=59 delay=7", "burst=1000000", "burst=1000000 nodelay"] {
            nginx(&format!(
                "limit_req_zone $uri zone=über:1m rate={rate}; limit_conn_zone $scheme zone=c:1m;
server {{ limit_req zone=über {burst}; limit_conn c 0; location /x {{ limit_req zone=über; limit_conn c 1000000; }} }}"
            ));
        }
    }
}

#[test]
fn a_regular_expression_that_is_not_possible_is_named() {
    let (rules, losses) =
        places_of("server { location ~ ^/(?!x) { limit_req zone=a; } location /y { limit_req zone=a; } }");
    assert_eq!(rules, ["a {path: {prefix: \"/y\"}}"]);
    assert_eq!(
        losses,
        ["nginx.conf:2:10: location: has a regular expression that is not possible here: it is left out"]
    );
}
