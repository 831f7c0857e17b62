//! `tollgate explain` shows what the gateway does with a request, and why.

use std::io::Write;
use std::path::PathBuf;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::mint::{Signer, epoch, es256};
use crate::support::{Upstream, free_port, tollgate};

/// A file in its own folder. The folder is removed when this value is dropped.
struct ConfigFile {
    directory: TempDir,
}

impl ConfigFile {
    fn new(text: &str) -> ConfigFile {
        let directory = TempDir::new().unwrap();
        std::fs::write(directory.path().join("gateway.yaml"), text).unwrap();
        ConfigFile { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn file(&self) -> String {
        self.path("gateway.yaml").display().to_string()
    }
}

const PLANS: &str = r#"upstream: http://127.0.0.1:9000
jwt: {algorithms: [HS256], keys: {secret: 0123456789abcdef0123456789abcdef}}
policies:
  - name: plan
    rules:
      - {name: enterprise, match: {jwt:plan: enterprise}, limit_keys: [jwt:sub], algorithm_config: {rps: 1000, burst: 2000}}
      - {name: free, match: {jwt:plan: free}, limit_keys: [jwt:sub], algorithm_config: {rps: 10, burst: 20}}
      - {name: anonymous, limit_keys: [ip:address], algorithm_config: {rps: 1, burst: 5}}
  - name: export
    match: {path: "/v1/export/*"}
    rules:
      - {name: export, limit_keys: [jwt:sub], algorithm_config: {rate: 10/min, fixed_cost: 10}}
  - name: plan-next
    mode: shadow
    rules:
      - {name: free-next, match: {jwt:plan: free}, limit_keys: [jwt:sub], algorithm_config: {rps: 5, burst: 10}}
"#;

#[test]
fn every_rule_is_listed_with_its_line_and_reason() {
    let written = ConfigFile::new(PLANS);
    let claims = r#"{"plan":"free","sub":"acme"}"#;
    let url = "https://api.example.com/v1/./export/7?a=b";
    let reported = tollgate(&["explain", "-c", &written.file(), "--claims", claims, "--ip", "203.0.113.7", url]);
    // The bucket's names are those of the public key, and so the same everywhere.
    let expected = "\
request  GET api.example.com /v1/export/7 (sent /v1/./export/7?a=b)
client   203.0.113.7 (TCP peer)
token    claims as given, not verified
policy plan                                                                                             FILE:4
  no   enterprise  jwt:plan is \"free\", wants \"enterprise\"                                               FILE:6
  YES  free        key jwt:sub \"acme\"  cost 1   10/s burst 20    bucket 0c2a66c52aa3a5b6                FILE:7
  -    anonymous   not tried, `free` decided                                                            FILE:8
policy export      match path \"/v1/export/*\": holds                                                     FILE:9
  YES  export      key jwt:sub \"acme\"  cost 10  10/min burst 10  bucket BUCKET  FILE:12
policy plan-next   shadow                                                                               FILE:13
  YES  free-next   key jwt:sub \"acme\"  cost 1   5/s burst 10     bucket c39fb44e1b6fa7c0  shadow        FILE:16
PASSES if free holds 1 and export holds 10
the store was not read: --live shows what the buckets hold
";
    let squeeze = |text: &str| {
        let text = text.replace(&written.file(), "FILE");
        let lines = text.lines().map(|line| {
            let (text, place) = line.rsplit_once("  ").unwrap_or((line, ""));
            if place.starts_with("FILE") { format!("{} {place}\n", text.trim_end()) } else { format!("{line}\n") }
        });
        lines.collect::<String>()
    };
    let json = tollgate(&["explain", "-c", &written.file(), "--claims", claims, "--json", url]).json();
    let bucket = json["policies"][1]["rules"][0]["charges"][0]["bucket"].as_str().unwrap();
    assert_eq!(squeeze(&reported.out), squeeze(&expected.replace("BUCKET", bucket)), "{}", reported.err);
    assert_eq!((reported.code, &*reported.err), (Some(0), ""));
    assert_eq!(json["answer"]["verdict"], "depends");
    assert_eq!(json["policies"][0]["rules"][0]["applies"], "no");
    assert_eq!(json["policies"][0]["rules"][1]["charges"][0]["cost"], 1);
}

#[test]
fn a_descriptor_is_explained_in_place_of_a_request() {
    let written = ConfigFile::new(
        r#"upstream: http://127.0.0.1:9000
policies:
  - name: edge
    match: {descriptor:domain: edge}
    rules:
      - {name: exact, match: {descriptor:entries: tenant/path}, limit_keys: ["descriptor:tenant"], algorithm_config: {rps: 1, burst: 5}}
      - {name: tenant, limit_keys: ["descriptor:tenant"], algorithm_config: {rps: 10, burst: 20}}
  - name: addresses
    rules:
      - {name: local, match: {ip:address: {cidr: [0.0.0.0/0]}}, limit_keys: [], algorithm_config: {rps: 1, burst: 1}}
      - {name: address, limit_keys: [ip:address], algorithm_config: {rps: 1, burst: 5}}
"#,
    );
    let explain = |arguments: &[&str]| {
        let file = written.file();
        tollgate(&[&["explain", "-c", &file], arguments].concat())
    };
    let reported = explain(&["--domain", "edge", "--descriptor", "tenant=a=b", "--descriptor", "path=/x"]);
    assert_eq!((reported.code, &*reported.err), (Some(0), ""));
    assert!(reported.out.starts_with("descriptor  tenant=\"a=b\", path=\"/x\" in domain \"edge\"\npolicy edge"));
    for line in [
        "YES  exact    key descriptor:tenant \"a=b\"  cost 1",
        "no   local    ip:address is missing, wants cidr 0.0.0.0/0",
        "no   address  limit key ip:address has no value",
        "PASSES if exact holds 1",
    ] {
        assert!(reported.out.contains(line), "{line}: {}", reported.out);
    }
    let other = explain(&["--descriptor", "tenant=a", "--json"]).json();
    assert_eq!(other["descriptor"]["entries"][0], json!({"key": "tenant", "value": "a"}));
    assert_eq!((&other["request"], &other["answer"]["verdict"]), (&Value::Null, &json!("passes")));
    // A second entry of a key has a number, as in a call.
    let repeated = explain(&["--descriptor", "tenant=a", "--descriptor", "tenant=b"]);
    assert_eq!((repeated.code, &*repeated.err), (Some(0), ""));
    assert!(repeated.out.starts_with("descriptor  tenant=\"a\", tenant=\"b\" in domain \"\""), "{}", repeated.out);
    // Beside a request, they are what Envoy knows of its route.
    let beside = explain(&["--descriptor", "tenant=a", "--json", "/x"]).json();
    let applies = &beside["policies"][1]["rules"][0]["applies"];
    assert_eq!((&beside["request"]["door"], applies), (&json!("ext_authz"), &json!("yes")));
    for (arguments, problem) in [
        (&["--descriptor", "tenant=a", "-H", "a: b"][..], "without a URL there is no request"),
        (&["--descriptor", "a=1", "--listener", "x"], "--listener: the file has no listener `x`"),
    ] {
        let failed = explain(arguments);
        assert_eq!((failed.code, failed.err.contains(problem)), (Some(1), true), "{}", failed.err);
    }
}

#[test]
fn the_page_fits_the_usual_width() {
    let written = ConfigFile::new(PLANS);
    std::fs::copy(written.file(), written.path("g.yaml")).unwrap();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["explain", "-c", "g.yaml", "--claims", r#"{"plan":"free","sub":"acme"}"#, "/v1/export/7"])
        .current_dir(written.directory.path())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("g.yaml:7") && text.lines().all(|line| line.chars().count() <= 120), "{text}");
}

/// The bucket is that of the network, and `cidr` compares the address.
#[test]
fn an_ipv6_client_is_shown_whole_where_a_network_is_compared() {
    let written = ConfigFile::new(
        r#"upstream: http://127.0.0.1:9000
rules:
  - {name: one, match: {ip:address: {cidr: ["2001:db8::5"]}}, limit_keys: [ip:address], algorithm_config: {rps: 1, burst: 5}}
  - {name: rest, limit_keys: [ip:address], algorithm_config: {rps: 1, burst: 5}}
"#,
    );
    let reported = tollgate(&["explain", "-c", &written.file(), "--ip", "2001:db8::6", "http://a/"]);
    let expected = "ip:address is \"2001:db8::6\", wants cidr 2001:db8::5/128";
    assert!(reported.out.contains(expected), "{reported:?}");
    assert!(reported.out.contains("2001:db8::/64"), "{reported:?}");
}

#[test]
fn an_error_of_explain_names_the_remedy() {
    let jwks = format!("http://127.0.0.1:{}/jwks", free_port());
    let fetched =
        format!("upstream: http://127.0.0.1:9\njwt: {{algorithms: [RS256], keys: {{jwks_url: \"{jwks}\"}}}}\n");
    let (fetched, plain) = (ConfigFile::new(&fetched), ConfigFile::new("upstream: http://127.0.0.1:9\n"));
    let live = ConfigFile::new(&format!("{PLANS}admin: 127.0.0.1:{}\n", free_port()));
    let header = json!({"alg": "RS256"});
    let unverified = Signer::Nobody.token(&header, &json!({"exp": epoch() + 600}));
    for (written, arguments, expected) in [
        (&fetched, &["--jwt", &*unverified, "/"][..], "fetch them with --live"),
        (&plain, &["--claims", "{}", "/"], "has no `jwt`"),
        (&plain, &["--jwt", "a.b.c", "/"], "has no `jwt`"),
        (&plain, &["ftp://a/"], "must begin with http://"),
        (&live, &["--live", "/"], "no gateway answers there"),
        (&ConfigFile::new(PLANS), &["--live", "/"], "admin: missing"),
        (&plain, &["--id", "a", "--log", "no-such-file"], "no-such-file: must be a readable file: No such file"),
        (&plain, &["--id", "a"], "--log: missing: "),
    ] {
        let reported = tollgate(&[&["explain", "-c", &*written.file()], arguments].concat());
        assert_eq!((reported.code, &*reported.out), (Some(1), ""), "{arguments:?}");
        assert!(reported.err.contains(expected), "{arguments:?}: {}", reported.err);
    }
    let reported = tollgate(&["explain", "-c", &fetched.file(), "--live", "--json", "--jwt", &unverified, "/"]);
    let answer = &reported.json()["answer"];
    assert_eq!((&answer["code"], &answer["reason"]), (&json!(503), &json!("keys_unavailable")), "{reported:?}");
    for (wrong, expected) in [
        (&[][..], "Usage"),
        (&["--id", "a", "/"], "Usage"),
        (&["--jwt", "a", "--claims", "{}", "/"], "Usage"),
        (&["--claims", "[]", "/"], "must be a JSON object, is []"),
        (&["--claims", "{", "/"], "must be a JSON object: EOF"),
        (&["-H", "X Key: a", "/"], "must be 'name: value'"),
        (&["--descriptor", "tenant"], "must be 'key=value'"),
        (&["--id", ""], "a value is required"),
    ] {
        let reported = tollgate(&[&["explain"], wrong].concat());
        assert_eq!((reported.code, reported.err.contains(expected)), (Some(2), true), "{wrong:?} {reported:?}");
    }
}

#[test]
fn a_request_that_is_refused_by_its_head_is_named_with_what_is_wrong() {
    let rules = "upstream: http://127.0.0.1:9
rules: [{name: a, limit_keys: [\"query:u\", \"header:x-user\"], \
                 algorithm_config: {rps: 1, burst: 5}}]
";
    let file = ConfigFile::new(rules);
    let explain = |arguments: &[&str]| tollgate(&[&["explain", "-c", &*file.file()], arguments].concat()).out;
    for (arguments, expected) in [
        (&["http://a/?u=1&u=2"][..], "query:u is there more than once, and the file reads it"),
        (&["-H", "x-user: a", "-H", "x-user: b", "http://a/"], "header:x-user is there more than once"),
        (&["-H", "x_user: a", "http://a/"], "header:x-user is there as header:x_user, which servers may read as"),
        (&["-H", "x-user: a", "-H", "connection: x-user", "http://a/"], "header:x-user is named in Connection"),
    ] {
        let out = explain(arguments);
        assert!(out.contains(expected), "{arguments:?}: {out}");
    }
    // A head that the parser refuses has a host nevertheless, as far as one was typed.
    let host = |arguments: &[&str]| explain(arguments).lines().next().map(str::to_owned).unwrap_or_default();
    let refused = ["-X", "TRACE", "http://a.example/x"];
    assert!(host(&refused).contains("TRACE a.example /x"), "{}", explain(&refused));
}

#[test]
fn a_preflight_is_answered_by_the_proxy_and_decided_without_credentials_at_a_door() {
    let rules = "upstream: http://127.0.0.1:9
listeners:
  - {name: public, address: 127.0.0.1:0}
  - {name: edge, address: 127.0.0.1:0, clients: [127.0.0.0/8], decide: [http], original_request: x-forwarded}
cors: [{origins: [\"https://app.example\"]}]
api_keys: {from: header:x-key, file: keys.txt}
rules:
  - {name: gone, match: {path: /gone}, action: deny}
  - {name: addresses, limit_keys: [ip:address], algorithm_config: {rate: 2/day}}
";
    let file = ConfigFile::new(rules);
    let hash = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    std::fs::write(file.path("keys.txt"), format!("{hash} a gold\n")).unwrap();
    let preflight = ["-X", "OPTIONS", "-H", "origin: https://app.example", "-H", "access-control-request-method: PUT"];
    for (arguments, expected) in [
        (&["--listener", "public", "http://a/gone"][..], "ANSWERED 204: a preflight, by cors[0]"),
        (&["--listener", "edge", "http://a/gone"], "REFUSED 403 denied: by rule gone"),
        // No key is looked at.
        (&["--listener", "edge", "-H", "x-key: guess", "http://a/x"], "PASSES if addresses holds 1"),
    ] {
        let explained = tollgate(&[&["explain", "-c", &*file.file()], &preflight[..], arguments].concat());
        assert!(explained.out.contains(expected), "{arguments:?}: {explained:?}");
    }
}

#[test]
fn of_several_issuers_that_of_the_claim_is_a_part_of_the_bucket() {
    let written = ConfigFile::new(
        "upstream: http://127.0.0.1:9
jwt:
  issuers:
    - {issuer: one, algorithms: [HS256], keys: {secret: 0123456789abcdef0123456789abcdef}}
    - {issuer: two, algorithms: [HS256], keys: {secret: fedcba9876543210fedcba9876543210}}
rules: [{name: free, limit_keys: [jwt:sub], algorithm_config: {rate: 2/day}}]
store: {redis: {url: \"redis://127.0.0.1:1\"}}
",
    );
    let file = written.file();
    let bucket = |claims: &Value| {
        let reported = tollgate(&["explain", "-c", &file, "--json", "--claims", &claims.to_string(), "/"]);
        reported.json()["policies"][0]["rules"][0]["charges"][0]["bucket"].as_str().unwrap().to_owned()
    };
    let (one, two) = (bucket(&json!({"iss": "one", "sub": "a"})), bucket(&json!({"iss": "two", "sub": "a"})));
    assert_ne!(one, two);
    let claims = json!({"iss": "two", "sub": "a", "exp": epoch() + 600});
    let token = Signer::hs256("fedcba9876543210fedcba9876543210").token(&json!({"alg": "HS256"}), &claims);
    let reported = tollgate(&["explain", "-c", &file, "--jwt", &token, "/"]);
    assert!(
        reported.out.contains(&two) && reported.out.contains("token    valid, iss \"two\", sub \"a\", expires in "),
        "{reported:?}"
    );
    for (arguments, expected) in [
        (&["explain", "--claims", r#"{"sub": "a"}"#, "/"][..], "iss must be one of one, two"),
        (&["bucket", "show", "free", "jwt:sub=a"], "--issuer: must be one of one, two"),
        (&["bucket", "show", "free", "jwt:sub=a", "--issuer", "six"], "--issuer: must be one of one, two"),
        (&["bucket", "show", "free", "jwt:sub=a", "--issuer", "two"], "unreachable: "),
    ] {
        let reported = tollgate(&[arguments, &["-c", &file]].concat());
        assert!(reported.code == Some(1) && reported.err.contains(expected), "{arguments:?}: {reported:?}");
    }
}

#[test]
fn keys_of_an_issuer_are_fetched_with_live() {
    let minted = es256();
    let set = json!({"keys": [minted.jwk_as("k")]}).to_string();
    let issuer = Upstream::answering(move |_, stream| {
        let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{set}", set.len());
    });
    let keys = format!("{{algorithms: [ES256], keys: {{jwks_url: \"http://{}/\"}}}}", issuer.address);
    let rules = "rules: [{name: blocked, match: {jwt:sub: a}, action: deny}]";
    let written = ConfigFile::new(&format!("upstream: http://127.0.0.1:9\njwt: {keys}\n{rules}\n"));
    let reported = |token: &str, live: &[&str]| {
        tollgate(&[&["explain", "-c", &written.file(), "--jwt", token], live, &["/"]].concat())
    };
    let token = minted.signer.token(&json!({"alg": "ES256", "kid": "k"}), &json!({"sub": "a", "exp": epoch() + 600}));
    let refused = reported(&token, &["--live"]);
    assert!(
        refused.out.contains("token    valid, sub \"a\"") && refused.out.contains("REFUSED 403 denied"),
        "{refused:?}"
    );
    let forged = es256().signer.token(&json!({"alg": "ES256", "kid": "k"}), &json!({"sub": "a", "exp": epoch() + 600}));
    assert!(
        reported(&forged, &["--live"])
            .out
            .contains("REFUSED 401 token_invalid: the token is invalid: its signature is wrong")
    );
    let unasked = reported(&token, &[]);
    assert!(
        unasked.code == Some(1) && unasked.err.contains(&format!("fetched from http://{}/", issuer.address)),
        "{unasked:?}"
    );
    // What is wrong before any key is looked at needs none.
    let expired = minted.signer.token(&json!({"alg": "ES256", "kid": "k"}), &json!({"sub": "a", "exp": epoch() - 600}));
    assert!(reported(&expired, &[]).out.contains("it has expired"));
}

#[test]
fn a_kill_switch_is_shown_with_its_end() {
    let rule =
        |name: &str, until: &str| format!("{{name: {name}, match: {{path: /{name}}}, action: deny, expires: {until}}}");
    let rules = [rule("over", "2001-01-01T00:00:00Z"), rule("held", "2999-01-01T01:00:00+01:00")].join(", ");
    let written = ConfigFile::new(&format!("upstream: http://127.0.0.1:9\nrules: [{rules}]\n"));
    let reported = |path: &str| tollgate(&["explain", "-c", &written.file(), path]).out;
    let (over, held) = (reported("/over"), reported("/held"));
    assert!(
        over.contains("no   over  over since 2001-01-01T00:00:00Z") && over.contains("PASSES: no limit applies"),
        "{over}"
    );
    assert!(
        held.contains("YES  held  deny: refuses with 403, before any charge; until 2999-01-01T00:00:00Z"),
        "{held}"
    );
    assert!(held.contains("REFUSED 403 denied: by rule held of policy default\nno bucket is charged"), "{held}");
}
