//! `tollgate bucket` shows the level of a client's bucket, and resets the bucket to full.

use crate::support::{Client, Gateway, Redis, Upstream, eventually, tollgate};

const RULES: &str = "
policies:
  - name: plan
    rules:
      - name: free
        limit_keys: [\"header:x-user|ip:address\"]
        overrides: {\"header:x-user=vip\": {rate: 4/day}}
        algorithm_config: {rate: 2/day}
      # Its name begins as another's.
      - {name: free2, limit_keys: [ip:address], algorithm_config: {rate: 3/day}}
  - name: several
    match: {header:x-several: \"1\"}
    rules:
      - name: many
        limit_keys: [ip:address, \"lower(query:user)\"]
        limits: {minute: {rate: 60/min, shadow: {rate: 30/min}}, day: {rate: 1000/day}}
  - name: closed
    match: {method: DELETE}
    rules: [{name: shut, action: deny}]
";

struct Setting {
    gateway: Gateway,
    file: String,
    admin: String,
}

impl Setting {
    fn new(upstream: &Upstream, store: &str) -> Setting {
        let gateway = Gateway::start(upstream, &format!("{RULES}{store}"));
        let (file, admin) = (gateway.file("gateway.yaml").display().to_string(), gateway.admin.to_string());
        Setting { gateway, file, admin }
    }

    /// Runs `tollgate bucket`. Returns its exit code and one line of its output.
    fn bucket(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let reported = tollgate(
            &[&["bucket"], &arguments[..1], &["-c", &self.file, "--admin", &self.admin], &arguments[1..]].concat(),
        );
        (reported.code, format!("{}{}", reported.out, reported.err))
    }

    #[track_caller]
    fn says(&self, arguments: &[&str], code: i32, part: &str) {
        let (found, text) = self.bucket(arguments);
        assert!(found == Some(code) && text.contains(part), "{arguments:?}: {found:?} {text}");
    }

    fn ask(&self, user: &str) -> u16 {
        self.gateway.client().get("/", &[("X-User", user)]).status
    }
}

#[test]
fn a_refused_client_is_freed_at_once_where_buckets_are_in_memory() {
    let setting = Setting::new(&Upstream::start(), "");
    assert_eq!([setting.ask("ann"), setting.ask("bob"), setting.ask("ann"), setting.ask("ann")], [200, 200, 200, 429]);
    setting.says(&["show", "free", "header:x-user=ann"], 0, "  0 left of 2, full in 86");
    setting.says(&["show", "plan/free", "header:x-user=bob"], 0, "  1 left of 2");
    setting.says(&["reset", "free", "header:x-user=ann"], 0, "  had 0 of 2 left\nfull from now on, in the gateway");
    setting.says(&["show", "free", "header:x-user=ann"], 0, "  2 left of 2, full\n");
    assert_eq!([setting.ask("ann"), setting.ask("ann"), setting.ask("ann")], [200, 200, 429]);
    setting.says(&["show", "free", "header:x-user=bob"], 0, "  1 left of 2");
    // What is not kept was full.
    setting.says(&["reset", "free", "header:x-user=eve"], 0, "had 2 of 2 left");
}

#[test]
fn a_refused_client_is_freed_within_a_second_where_buckets_are_in_redis() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    let setting = Setting::new(&upstream, &redis.patient_store());
    let other = Setting::new(&upstream, &redis.patient_store());
    assert_eq!([setting.ask("ann"), other.ask("ann"), setting.ask("ann"), other.ask("ann")], [200, 200, 429, 429]);
    setting.says(&["show", "free", "header:x-user=ann"], 0, "  0 left of 2, full in 86");
    setting.says(&["reset", "free", "header:x-user=ann"], 0, "reads it again within a second");
    eventually("she passes at one", || setting.ask("ann") == 200);
    eventually("she passes at the other", || other.ask("ann") == 200);
    setting.says(&["show", "free", "header:x-user=ann"], 0, "  0 left of 2");
}

#[test]
fn a_bucket_is_found_by_its_name_in_the_log() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    for store in ["", &redis.patient_store()] {
        let setting = Setting::new(&upstream, store);
        (0..50).for_each(|number| assert_eq!(setting.ask(&format!("user-{number}")), 200));
        let (_, text) = setting.bucket(&["show", "free", "header:x-user=user-7", "--json"]);
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let name = json["buckets"][0]["bucket"].as_str().unwrap();
        assert_eq!((name.len(), &json["buckets"][0]["burst"]), (16, &2.into()));
        setting.says(&["show", "--hash", name], 0, &format!("bucket {name}  something is spent"));
        setting.says(&["show", "free", "--hash", &name[..8]], 0, "plan/free  2/day burst 2  bucket");
        setting.says(&["show", "free", "--hash", &name[..8]], 0, "  1 left of 2");
        setting.says(&["show", "many", "--hash", name], 1, "several limits: name one of many.minute, many.day");
        setting.says(&["show", "many.day", "--hash", name], 0, "several/many.day  1000/day burst 1000  bucket");
        setting.says(&["reset", "--hash", &name[..8]], 0, "was: something is spent");
        setting.says(&["show", "--hash", name], 1, "a full bucket is not stored");
        setting.says(&["show", "free", "header:x-user=user-7"], 0, "  2 left of 2");
        setting.says(&["show", "free", "header:x-user=user-8"], 0, "  1 left of 2");
        setting.says(&["show", "--hash", "1234567"], 2, "must be 8 to 16 hexadecimal digits");
    }
}

#[test]
fn the_values_must_match_the_limit_keys_of_the_rule() {
    let setting = Setting::new(&Upstream::start(), "");
    setting.says(&["show", "fre", "header:x-user=a"], 1, "rules with limits are plan/free, plan/free2, several/many");
    setting.says(&["show", "shut"], 1, "it charges no bucket");
    setting.says(&["show", "free"], 1, "counts by header:x-user|ip:address: no value is given");
    setting.says(&["show", "free", "jwt:sub=a"], 1, "no value is given");
    setting.says(&["show", "free", "header:x-user=a", "jwt:sub=a"], 1, "jwt:sub=a: no limit key; rule free counts by");
    setting.says(&["show", "free", "header:x-user=a", "ip:address=::1"], 1, "each limit key takes one value");
    setting.says(&["show", "free", "ip:address=here"], 1, "must be an IP address");
    setting.says(&["show", "free", "header:x-user="], 1, "must have a value");
    setting.says(&["show", "free", "ip:address=2001:db8::1"], 0, "ip:address \"2001:db8::/64\"");
    setting.says(&["show", "free", "ip:address=::1", "--issuer", "a"], 1, "no issuer is a part of this bucket");
    setting.says(&["show", "free", "header:x-user=vip"], 0, "4/day burst 4 (override)");
    let several = ["show", "many", "lower(query:user)=ANN", "ip:address=127.0.0.1"];
    let (code, text) = setting.bucket(&several);
    assert!(code == Some(0) && text.contains("\"ann\""), "{text}");
    for part in ["many.minute  ip", "many.minute  shadow  ip", "many.day  ip", "1/s burst 60", "0.5/s burst 30"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(setting.gateway.client().get("/?user=aNN", &[("X-Several", "1")]).status, 200);
    setting.says(&["show", "many.day", "lower(query:user)=ann", "ip:address=127.0.0.1"], 0, "  999");
    setting.says(&["show", "many", "--hash", "0123456789abcdef"], 1, "no bucket in");
}

#[test]
fn reading_a_bucket_needs_few_permissions_and_names_a_missing_one() {
    let redis = Redis::start();
    // What docs/stores.md gives a gateway.
    let permits = "reset on >secret ~tollgate:* resetchannels -@all +evalsha +script|load +get +set +time +role";
    let user = [&["ACL", "SETUSER", "limited"][..], &permits.split(' ').collect::<Vec<_>>()].concat();
    redis.command::<()>(&user);
    let store = format!(
        "store: {{redis: {{url: \"redis://127.0.0.1:{}\", username: limited, password: secret, timeout: 10s}}}}\n",
        redis.port
    );
    let setting = Setting::new(&Upstream::start(), &format!("{store}on_store_failure: deny\n"));
    assert_eq!(setting.ask("ann"), 200);
    setting.says(&["show", "free", "header:x-user=ann"], 0, "  1 left of 2");
    setting.says(&["reset", "free", "header:x-user=ann"], 1, "forbidden: ");
    setting.says(&["show", "--hash", "01234567"], 1, "hint: docs/stores.md");
    setting.says(&["show", "free", "header:x-user=ann"], 0, "  1 left of 2");
    redis.command::<()>(&["ACL", "SETUSER", "limited", "+del", "+scan"]);
    setting.says(&["reset", "free", "header:x-user=ann"], 0, "had 1 of 2 left");
    setting.says(&["show", "--hash", "01234567"], 1, "no bucket in Redis");
}

#[test]
fn no_foreign_page_can_reset_a_bucket() {
    let setting = Setting::new(&Upstream::start(), "");
    let mut admin = Client::connect(setting.gateway.admin);
    let host = setting.admin.clone();
    let permit = ("Tollgate-Operator", "reset");
    let path = format!("/buckets/{}", "0123456789abcdef".repeat(2));
    let hosts = [&*host, "localhost:1", "[::1]:9901"];
    for host in hosts {
        let response = admin.send("DELETE", &path, &[("Host", host), permit], "");
        assert_eq!((response.status, &response.json()["buckets"][0]["state"]), (200, &serde_json::Value::Null));
    }
    for (method, fields, status) in [
        // A form or a script of another site: without our field, or by way of its own name.
        ("DELETE", &[("Host", &*host)][..], 403),
        ("DELETE", &[("Host", &*host), ("Tollgate-Operator", "show")], 403),
        ("DELETE", &[("Host", "evil.example"), permit], 403),
        ("DELETE", &[("Host", "127.0.0.1.evil.example"), permit], 403),
        ("GET", &[("Host", "evil.example"), permit], 403),
        ("POST", &[("Host", &*host), permit], 405),
        ("OPTIONS", &[("Host", &*host), permit], 405),
    ] {
        assert_eq!(admin.send(method, &path, fields, "").status, status, "{method} {fields:?}");
    }
    for (path, status) in [
        ("/buckets/", 400),
        ("/buckets/0123", 400),
        ("/buckets", 400),
        ("/buckets?name=0123456", 400),
        ("/buckets?name=%30123456", 400),
        ("/buckets?name=01234567", 200),
    ] {
        assert_eq!(admin.get(path, &[("Host", &host)]).status, status, "{path}");
    }
    let many = vec!["0123456789abcdef0123456789abcdef"; 257].join(",");
    assert_eq!(admin.get(&format!("/buckets/{many}"), &[("Host", &host)]).status, 400);
    assert_eq!(admin.send("DELETE", "/buckets", &[("Host", &host), permit], "").status, 405);
    // Nothing else on this listener changes anything.
    assert_eq!(admin.send("DELETE", "/metrics", &[("Host", &host), permit], "").status, 405);
}

#[test]
fn a_running_gateway_needs_no_file_to_be_asked() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    let shared = format!(
        "\nhash_key: the-key-of-all-names\nstore: {{redis: {{url: \"redis://127.0.0.1:{}\", timeout: 10s}}}}",
        redis.port
    );
    for store in ["\nhash_key: the-key-of-all-names", &shared] {
        let setting = Setting::new(&upstream, store);
        // In a folder without gateway.yaml.
        let asked = |arguments: &[&str]| {
            let arguments = [&["bucket"], &arguments[..1], &["--admin", &setting.admin], &arguments[1..]].concat();
            let reported = tollgate(&arguments);
            (reported.code, format!("{}{}", reported.out, reported.err))
        };
        let says = |arguments: &[&str], code: i32, part: &str| {
            let (found, text) = asked(arguments);
            assert!(found == Some(code) && text.contains(part), "{arguments:?}: {found:?} {text}");
        };
        assert_eq!([setting.ask("ann"), setting.ask("ann"), setting.ask("ann")], [200, 200, 429]);
        says(&["show", "plan/free", "header:x-user=ann"], 0, "0 left of 2");
        says(&["show", "free", "header:x-user=vip"], 0, "4 left of 4, full");
        let (_, text) = asked(&["show", "free", "header:x-user=ann", "--json"]);
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        let name = document["buckets"][0]["bucket"].as_str().unwrap().to_owned();
        says(&["show", "free", "--hash", &name], 0, "0 left of 2");
        says(&["grant", "free", "header:x-user=ann", "1"], 0, "gave back 1: 1 left of 2, had 0");
        says(&["reset", "free", "--hash", &name], 0, "of 2");
        eventually("it is full", || setting.ask("ann") == 200);
        says(&["show", "fre"], 1, "hint: rules with limits are plan/free");
        says(&["show", "free", "--hash", "0123456789"], 1, "no bucket is called 0123456789");
        says(&["grant", "free", "header:x-user=ann", "x"], 2, "AMOUNT: must be a number above 0");
        eventually("it is an event", || {
            Client::connect(setting.gateway.admin)
                .get("/status.json", &[])
                .body
                .contains("buckets reset by an operator")
        });
        // A page of another site cannot send the field that a change needs.
        let query = "eyJhY3QiOiJyZXNldCIsInJ1bGUiOiJmcmVlIiwia2V5cyI6W10sImhhc2giOm51bGwsImlzc3VlciI6bnVsbCwidXNlciI6IiIsImdhdGV3YXkiOiIifQ";
        let sent = |query: &str| {
            Client::connect(setting.gateway.admin)
                .get("/buckets", &[("Host", &setting.admin), ("Tollgate-Bucket", query)])
        };
        let unpermitted = sent(query);
        assert_eq!((unpermitted.status, unpermitted.body.contains("Tollgate-Operator: reset")), (403, true));
        assert_eq!(sent("%%%").status, 400);
    }
}
