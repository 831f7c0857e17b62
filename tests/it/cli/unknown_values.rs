//! Commands that do not connect need no secrets: an unknown value is only a warning, unless rules depend on it.

use std::os::unix::fs::PermissionsExt;

use tempfile::TempDir;

use crate::support::{CommandOutput, Gateway, Upstream, tollgate_with};

const FILE: &str = r#"listen: ${LISTEN_UNSET}
upstream: "${UPSTREAM_UNSET}"
store:
  redis:
    url: ${REDIS_UNSET}
    password: pre-${PASSWORD_UNSET}
    timeout: ${TIMEOUT_UNSET}
    tls: {ca_file: ca.pem, cert_file: cert.pem, key_file: /nowhere/gw.key}
  gateways: 2
jwt:
  issuers:
    - {issuer: a, algorithms: [HS256], keys: {secret: "${PASSWORD_UNSET}"}}
    - {issuer: b, algorithms: [HS256], keys: {secret_file: /nowhere/secret}}
hash_key: ${HASH_KEY_UNSET}
access_log: {to: stdout, attributes: [jwt:plan, jwt:sub, ip:address]}
rules:
  - {name: free, match: {jwt:plan: free}, limit_keys: [jwt:sub], algorithm_config: {rps: 10, burst: 20}}
  - {name: rest, limit_keys: [ip:address], algorithm_config: {rps: 1, burst: 5}}
"#;

/// Makes a folder with this configuration file and the files that are not secret.
fn folder(text: &str) -> TempDir {
    let folder = TempDir::new().unwrap();
    let certificates = crate::support::Certificates::shared();
    std::fs::write(folder.path().join("ca.pem"), &certificates.authority).unwrap();
    std::fs::write(folder.path().join("cert.pem"), &certificates.client.0).unwrap();
    std::fs::write(folder.path().join("gateway.yaml"), text).unwrap();
    folder
}

/// Runs a command with `FILE` and `LOG` replaced by files of the folder.
fn run(folder: &TempDir, arguments: &[&str]) -> CommandOutput {
    run_with(folder, arguments, &[])
}

/// Runs a command as `run` does, with these environment variables.
fn run_with(folder: &TempDir, arguments: &[&str], variables: &[(&str, &str)]) -> CommandOutput {
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (file, log) = (path("gateway.yaml"), path("access.log"));
    let arguments: Vec<&str> = arguments
        .iter()
        .map(|argument| match *argument {
            "FILE" => file.as_str(),
            "LOG" => log.as_str(),
            other => other,
        })
        .collect();
    let mut output = tollgate_with(&arguments, variables);
    output.err = output.err.replace(&format!("{}/", folder.path().display()), "");
    output
}

const UNKNOWN: &str = "\
gateway.yaml:1:9: warning unknown_value: listen: `${LISTEN_UNSET}` is not set, so that the value is not known here
HINT
gateway.yaml:2:11: warning unknown_value: upstream: `${UPSTREAM_UNSET}` is not set, so that the value is not known here
HINT
gateway.yaml:5:10: warning unknown_value: store.redis.url: `${REDIS_UNSET}` is not set, so that the value is not known here
HINT
gateway.yaml:6:15: warning unknown_value: store.redis.password: `${PASSWORD_UNSET}` is not set, so that the value is not known here
HINT
gateway.yaml:7:14: warning unknown_value: store.redis.timeout: `${TIMEOUT_UNSET}` is not set, so that the value is not known here
HINT
gateway.yaml:8:59: warning unknown_value: store.redis.tls.key_file: `/nowhere/gw.key` cannot be read here (No such file or directory (os error 2))
FILE_HINT
gateway.yaml:13:60: warning unknown_value: jwt.issuers[1].keys.secret_file: `/nowhere/secret` cannot be read here (No such file or directory (os error 2))
FILE_HINT
gateway.yaml:14:11: warning unknown_value: hash_key: `${HASH_KEY_UNSET}` is not set, so that the value is not known here
HINT
8 warnings
";

fn unknown() -> String {
    let hint = "  hint: a gateway needs it to start; set it where this command runs, too, if what depends on it is to be checked";
    UNKNOWN.replace("FILE_HINT", &hint.replace("set it", "make it readable")).replace("HINT", hint)
}

#[test]
fn check_warns_once_of_each_and_fails_only_if_it_is_strict() {
    let folder = folder(FILE);
    let checked = run(&folder, &["check", "FILE"]);
    assert_eq!((checked.code, &*checked.out, checked.err), (Some(0), "ok\n", unknown()));
    let strict = run(&folder, &["check", "--strict", "FILE"]);
    assert_eq!((strict.code, &*strict.out, strict.err), (Some(1), "", unknown()));
    let compared = run(&folder, &["check", "--against", "FILE", "FILE"]);
    assert_eq!((compared.code, &*compared.out), (Some(0), "ok\n"));
}

#[test]
fn a_silenced_warning_is_not_printed() {
    let folder = folder(&format!("{FILE}check: {{allow: [unknown_value]}}\n"));
    let checked = run(&folder, &["check", "--strict", "FILE"]);
    assert_eq!((checked.code, &*checked.out, &*checked.err), (Some(0), "ok\n", ""));
}

#[test]
fn explain_decides_by_claims_and_does_not_pretend_to_verify() {
    let folder = folder(FILE);
    let claims = r#"{"iss": "a", "plan": "free", "sub": "ann"}"#;
    let explained = run(&folder, &["explain", "-c", "FILE", "--claims", claims, "http://a/"]);
    assert_eq!((explained.code, explained.err), (Some(0), unknown()));
    assert!(explained.out.contains("YES  free"), "{}", explained.out);
    assert!(explained.out.contains("bucket (hash_key is not known)"), "{}", explained.out);
    let bare = run(&folder, &["explain", "-c", "FILE", "http://a/"]);
    assert!(bare.out.contains("YES  rest"), "{}{}", bare.out, bare.err);
    // An HS256 token of issuer a, whose signature nobody can check here.
    let token = "eyJhbGciOiJIUzI1NiJ9.eyJpc3MiOiJhIiwiZXhwIjo0MTAyNDQ0ODAwfQ.AAAA";
    let refused = run(&folder, &["explain", "-c", "FILE", "--jwt", token, "http://a/"]);
    let expected = "the token's signature cannot be checked: the secret in `jwt` is not known here\n  \
                    hint: set it, or say with --claims what a good token would hold\n";
    assert_eq!((refused.code, refused.err), (Some(1), unknown() + expected));
    // To read the buckets, everything must be known.
    let live = run(&folder, &["explain", "--live", "-c", "FILE", "http://a/"]);
    assert_eq!(live.code, Some(1));
    assert!(live.err.contains("store.redis.url: `${REDIS_UNSET}` must be set in the environment"), "{}", live.err);
}

#[test]
fn replay_reads_every_log_but_ours_without_the_hash_key() {
    let folder = folder(FILE);
    let line = "192.0.2.7 - - [21/Nov/2026:12:00:00 +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"curl\"\n";
    std::fs::write(folder.path().join("access.log"), line.repeat(7)).unwrap();
    let replayed = run(&folder, &["replay", "--absent", "jwt:plan", "-c", "FILE", "LOG"]);
    assert_eq!((replayed.code, replayed.err), (Some(0), unknown()));
    assert!(replayed.out.contains("ip:address 192.0.2.7"), "{}", replayed.out);
    let ours = r#"{"time":"2026-11-21T12:00:00.500000Z","request_id":"r","kind":"allowed","route":"default","method":"GET","code":200,"origin":"upstream","duration_us":900,"decision_us":40,"request_bytes":0,"response_bytes":5,"policy":"default","rule":"rest","cost":1,"remaining":1,"bucket":"0123456789abcdef","source":"store"}"#;
    std::fs::write(folder.path().join("access.log"), ours).unwrap();
    let replayed = run(&folder, &["replay", "-c", "FILE", "LOG"]);
    assert_eq!(replayed.code, Some(1), "{replayed:?}");
    assert!(replayed.err.contains("hash_key: must be known to replay a log of ours"), "{}", replayed.err);
}

#[test]
fn what_decides_rules_must_be_known() {
    for (from, to, expected) in [
        (
            "jwt:plan: free",
            "jwt:plan: \"${PLAN_UNSET}\"",
            "17:36: rules[0].match.jwt:plan: `${PLAN_UNSET}` must be set",
        ),
        ("burst: 20", "burst: \"${BURST_UNSET}\"", "algorithm_config.burst: `${BURST_UNSET}` must be set"),
        (
            "attributes: [jwt:plan,",
            "attributes: [\"${LOGGED_UNSET}\",",
            "access_log.attributes[0]: `${LOGGED_UNSET}` must be set",
        ),
        ("rules:", "exempt: [{path: \"${PATH_UNSET}\"}]\nrules:", "exempt[0].path: `${PATH_UNSET}` must be set"),
        (
            "rules:",
            "client_ip: {ipv6_prefix: \"${N_UNSET}\"}\nrules:",
            "client_ip.ipv6_prefix: `${N_UNSET}` must be set",
        ),
        ("rules:", "api_keys: {from: \"header:k\", file: keys.txt}\nrules:", "api_keys.file: must be a readable file"),
        ("- {issuer: a,", "- {issuer: \"${ISSUER_UNSET}\",", "jwt.issuers[0].issuer: `${ISSUER_UNSET}` must be set"),
        ("ca.pem", "nowhere.pem", "store.redis.tls.ca_file: must be a readable file"),
    ] {
        assert!(FILE.contains(from));
        let checked = run(&folder(&FILE.replacen(from, to, 1)), &["check", "FILE"]);
        assert_eq!((checked.code, &*checked.out), (Some(1), ""), "{to}");
        assert!(checked.err.contains(expected) && checked.err.contains("\n1 problem\n"), "{to}: {}", checked.err);
    }
}

/// A configuration in which no rule reads the unknown value.
const DECIDES_NOTHING: &str = r#"upstreams: {a: {endpoints: ["http://a:1"]}}
routes:
  - name: secret
    match: {path: /v1/*}
    upstream: a
    rewrite: {host: "${A_UNSET}"}
    request_headers: {set: {X-Api-Secret: "${B_UNSET}", X-Tenant: "t-${C_UNSET}"}}
    response_headers: {set: {x-region: "${D_UNSET}"}}
  - {name: moved, match: {scheme: http}, redirect: {scheme: http, host: "${E_UNSET}"}}
  - {name: rest, respond: {status: 404, body: "${F_UNSET}", headers: {x-a: "${G_UNSET}"}}}
headers: [ratelimit, "${H_UNSET}"]
retry_after_jitter: {share: "${I_UNSET}"}
cors: [{origins: ["https://a.example", "${J_UNSET}"]}]
error_pages: [{body_file: gateway.yaml, content_type: "${K_UNSET}", headers: {x-a: "${L_UNSET}"}}]
access_log: {to: "${M_UNSET}"}
listeners:
  - address: 127.0.0.1:8080
    tls: {certificates: [{cert_file: "${N_UNSET}/a.pem", key_file: "${N_UNSET}/a.key"}]}
hash_key: a-secret-of-16-bytes
rules: [{name: all, limit_keys: [], algorithm_config: {rps: 1, burst: 5}}]
"#;

#[test]
fn what_no_rule_reads_may_be_unknown() {
    let folder = folder(DECIDES_NOTHING);
    let checked = run(&folder, &["check", "FILE"]);
    assert_eq!((checked.code, &*checked.out), (Some(0), "ok\n"), "{}", checked.err);
    assert!(checked.err.ends_with("14 warnings\n"), "{}", checked.err);
    assert_eq!(checked.err.matches("warning unknown_value: ").count(), 14, "{}", checked.err);
    let explained = run(&folder, &["explain", "-c", "FILE", "https://a/v1/x"]);
    assert_eq!(explained.code, Some(0), "{explained:?}");
}

#[test]
fn an_address_that_is_not_known_is_nobody_elses() {
    let text = "listen: \"${LISTEN_UNSET}\"\nadmin: 127.0.0.1:8080\nupstream: http://a\n";
    let checked = run(&folder(text), &["check", "FILE"]);
    assert_eq!((checked.code, &*checked.out), (Some(0), "ok\n"), "{}", checked.err);
    // Nor is that of a listener whose problem is another one: warnings appear beside it.
    let text = "listeners: [{address: 127.0.0.1:9000, protocols: [h9]}]\nadmin: 0.0.0.0:8080\nupstream: http://a\n";
    let checked = run(&folder(text), &["check", "FILE"]);
    let seen = ["protocols[0]: ", "warning public_admin: admin: "].map(|text| checked.err.contains(text));
    assert_eq!((checked.code, seen), (Some(1), [true, true]), "{}", checked.err);
}

#[test]
fn an_error_is_not_a_warning_as_well() {
    // A status must be known: nothing could stand for it.
    let text = DECIDES_NOTHING.replace("status: 404", "status: \"${STATUS_UNSET}\"");
    let checked = run(&folder(&text), &["check", "FILE"]);
    assert_eq!(checked.err.matches("STATUS_UNSET").count(), 1, "{}", checked.err);
    // What must be a list is found out by its reader, though it is among what need not be known.
    let text = DECIDES_NOTHING.replace("[\"http://a:1\"]", "\"${LIST_UNSET}/${B_UNSET}\"");
    let checked = run(&folder(&text), &["check", "FILE"]);
    let expected = "gateway.yaml:1:28: upstreams.a.endpoints: `${LIST_UNSET}` must be set in the environment or have a \
                    default, is neither\n";
    assert!(checked.err.starts_with(expected), "{}", checked.err);
    assert_eq!((checked.err.matches("LIST_UNSET").count(), checked.code), (1, Some(1)), "{}", checked.err);
}

#[test]
fn the_gateway_does_not_start_without_them_and_check_can_say_so() {
    for text in [FILE, DECIDES_NOTHING] {
        let folder = folder(text);
        let started = run(&folder, &["run", "-c", "FILE"]);
        assert_eq!(started.code, Some(1));
        assert!(started.err.contains("_UNSET}` must be set in the environment"), "{}", started.err);
        let checked = run(&folder, &["check", "--require-secrets", "FILE"]);
        assert_eq!((checked.code, &*checked.out), (Some(1), ""));
        assert!(checked.err.starts_with(&started.err), "{}\n{}", started.err, checked.err);
        assert!(!checked.err.contains("unknown_value"), "{}", checked.err);
    }
    // Warnings are no reason to stop, and the previous file may lack its secrets.
    let (complete, previous) = (folder("upstream: http://a\n"), folder(FILE));
    let previous = previous.path().join("gateway.yaml").display().to_string();
    let checked = run(&complete, &["check", "--require-secrets", "--against", &previous, "FILE"]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
}

#[test]
fn a_check_before_a_reload_does_without_the_credentials_that_systemd_shows_to_the_gateway_alone() {
    let text =
        "upstream: http://a\njwt: {algorithms: [HS256], keys: {secret_file: \"${CREDENTIALS_DIRECTORY}/token\"}}\n";
    let folder = folder(text);
    let check = |credentials: &str| {
        run_with(&folder, &["check", "--require-secrets", "FILE"], &[("CREDENTIALS_DIRECTORY", credentials)])
    };
    let hidden = check("/nowhere/credentials");
    assert_eq!((hidden.code, &*hidden.out), (Some(0), "ok\n"), "{}", hidden.err);
    let expected = "gateway.yaml:2:48: warning unknown_value: jwt.keys.secret_file: `/nowhere/credentials/token` is a \
                    credential, and systemd does not show it to this command\n";
    assert!(hidden.err.starts_with(expected), "{}", hidden.err);
    // In a folder that is open, it has to be there.
    let open = folder.path().to_str().unwrap();
    let missing = check(open);
    assert_eq!((missing.code, &*missing.out), (Some(1), ""));
    assert!(missing.err.contains("keys.secret_file: must be a readable file (No such file"), "{}", missing.err);
    let token = folder.path().join("token");
    std::fs::write(&token, "0123456789abcdef0123456789abcdef").unwrap();
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o400)).unwrap();
    let there = check(open);
    assert_eq!((there.code, &*there.out, &*there.err), (Some(0), "ok\n", ""));
    // Another secret is not a credential, and a start needs all of them.
    std::fs::write(folder.path().join("gateway.yaml"), text.replace("${CREDENTIALS_DIRECTORY}", "/nowhere")).unwrap();
    for credentials in ["/nowhere/credentials", ""] {
        assert_eq!(check(credentials).code, Some(1), "{credentials}");
    }
    std::fs::write(folder.path().join("gateway.yaml"), text).unwrap();
    let started = run_with(&folder, &["run", "-c", "FILE"], &[("CREDENTIALS_DIRECTORY", "/nowhere/credentials")]);
    assert_eq!(started.code, Some(1));
    assert!(started.err.contains("keys.secret_file: must be a readable file (No such file"), "{}", started.err);
}

#[test]
fn buckets_are_reached_without_the_secrets_of_others() {
    let rules = "hash_key: a-secret-of-16-bytes
rules: [{name: free, limit_keys: [ip:address], algorithm_config: {rps: 1, burst: 5}}]\n";
    let gateway = Gateway::start(&Upstream::start(), rules);
    assert_eq!(gateway.client().get("/", &[]).status, 200);
    let text = "upstream: \"${UPSTREAM_UNSET}\"\nadmin: \"${ADMIN_UNSET}\"\nhash_key: \"${HASH_KEY_UNSET}\"\n\
                jwt: {algorithms: [HS256], keys: {secret: \"${PASSWORD_UNSET}\"}}\n\
                rules: [{name: free, limit_keys: [ip:address], algorithm_config: {rps: 1, burst: 5}}]\n";
    let folder = folder(text);
    let admin = gateway.admin.to_string();
    let shown = run(&folder, &["bucket", "show", "-c", "FILE", "--admin", &admin, "free", "ip:address=127.0.0.1"]);
    assert!(shown.out.contains("bucket (hash_key is not known)") && shown.out.contains(" left of 5"), "{shown:?}");
    assert!(shown.err.ends_with("4 warnings\n"), "{}", shown.err);
    let live = run(&folder, &["explain", "--live", "-c", "FILE", "--admin", &admin, "/"]);
    assert!(live.out.contains("PASSES: free would pay 1"), "{live:?}");
    let unnamed = run(&folder, &["bucket", "show", "-c", "FILE", "free", "ip:address=127.0.0.1"]);
    assert_eq!(unnamed.code, Some(1));
    assert!(unnamed.err.contains("admin: not known here"), "{}", unnamed.err);
    let health = run(&folder, &["healthcheck", "-c", "FILE"]);
    assert_eq!(health.code, Some(1));
    assert!(health.err.contains("admin: not known here"), "{}", health.err);
    assert_eq!(run(&folder, &["healthcheck", "-c", "FILE", "--admin", &admin]).out, "ok\n");
}

#[test]
fn a_shared_store_needs_its_own_secrets_and_no_others() {
    let text = "upstream: http://a\nhash_key: \"${HASH_KEY_UNSET}\"\n\
                store: {redis: {url: \"redis://127.0.0.1:1\", password: \"${REDIS_UNSET:-}\"}}\n\
                rules: [{name: free, limit_keys: [ip:address], algorithm_config: {rps: 1, burst: 5}}]\n";
    let folder = folder(text);
    let show = |which: &[&str]| run(&folder, &[&["bucket", "show", "-c", "FILE", "free"], which].concat());
    // Nothing answers at that address, which is what was asked for.
    let asked = show(&["ip:address=127.0.0.1"]);
    assert!(asked.err.contains("127.0.0.1:1: "), "{}", asked.err);
    let named = show(&["--hash", "0123456789abcdef"]);
    assert!(named.err.contains("hash_key: must be known to find a bucket by its name"), "{}", named.err);
}

#[test]
fn addresses_of_upstreams_may_be_unknown() {
    let text = "upstreams: {a: {endpoints: [\"${A_UNSET}\", \"${B_UNSET}\"]}}\nroutes: [{name: all, upstream: a}]\n";
    let checked = run(&folder(text), &["check", "FILE"]);
    assert_eq!((checked.code, &*checked.out), (Some(0), "ok\n"), "{}", checked.err);
    assert!(checked.err.ends_with("2 warnings\n"), "{}", checked.err);
}
