//! `tollgate bucket grant` gives back spent amounts to a client, up to an amount, while requests continue.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde_json::{Value, json};

use crate::support::{Client, CommandOutput, Gateway, Redis, Upstream, eventually, tollgate};

const RULES: &str = "
check: {allow: [unverified_key, open_policy, forgotten_period]}
rules:
  - name: plan
    match: {header:x-plan: {present: true}}
    limit_keys: [header:x-user]
    limits:
      burst: {rate: 9/day}
      year: {algorithm: fixed_window, limit: 5, window: year, timezone: Asia/Kathmandu}
  - name: year
    limit_keys: [header:x-user]
    algorithm: fixed_window
    algorithm_config: {limit: 60, window: year}
  - {name: everybody, limit_keys: [], algorithm_config: {rate: 1/day}}
";

struct Setting {
    gateway: Gateway,
    file: String,
    admin: String,
}

/// Runs a test in memory, and then in Redis.
fn on_both_stores(play: impl Fn(&Setting)) {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    for store in ["", &redis.patient_store()] {
        play(&Setting::new(&upstream, store));
    }
}

impl Setting {
    fn new(upstream: &Upstream, store: &str) -> Setting {
        let gateway = Gateway::start(upstream, &format!("{RULES}{store}"));
        let (file, admin) = (gateway.file("gateway.yaml").display().to_string(), gateway.admin.to_string());
        Setting { gateway, file, admin }
    }

    fn run(&self, arguments: &[&str]) -> CommandOutput {
        let place = ["-c", &self.file, "--admin", &self.admin];
        tollgate(&[&["bucket"], &arguments[..1], &place, &arguments[1..]].concat())
    }

    fn bucket(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let reported = self.run(arguments);
        (reported.code, format!("{}{}", reported.out, reported.err))
    }

    #[track_caller]
    fn says(&self, arguments: &[&str], code: i32, part: &str) {
        let (found, text) = self.bucket(arguments);
        assert!(found == Some(code) && text.contains(part), "{arguments:?}: {found:?} {text}");
    }

    #[track_caller]
    fn json(&self, arguments: &[&str]) -> Value {
        self.run(&[arguments, &["--json"]].concat()).json()
    }

    fn ask(&self, fields: &[(&str, &str)]) -> u16 {
        self.gateway.client().get("/", fields).status
    }
}

#[test]
fn a_client_gets_back_what_it_has_spent_and_no_more() {
    on_both_stores(|setting| {
        let ann: &[_] = &[("X-User", "ann"), ("X-Plan", "free")];
        let key = "header:x-user=ann";
        setting.says(&["grant", "plan.year", key, "2"], 0, "  nothing is spent: 5 left of 5");
        assert_eq!((0..6).map(|_| setting.ask(ann)).collect::<Vec<_>>(), [200, 200, 200, 200, 200, 429]);
        setting.says(&["grant", "plan.year", key, "1.5"], 0, "  gave back 1.5: 1.5 left of 5, had 0\ngiven back in ");
        eventually("a refusal that was known before is forgotten", || setting.ask(ann) == 200);
        assert_eq!(setting.ask(ann), 429);
        // Without the name of a limit both are meant. Four of the bucket's nine tokens were spent.
        let (code, text) = setting.bucket(&["grant", "default/plan", key, "7"]);
        assert_eq!(code, Some(0), "{text}");
        for part in ["gave back 4.5, which is all that was spent: 5 left of 5, had 0.5", "9 left of 9, had 3"] {
            assert!(text.replace("3.001", "3").contains(part), "{part}: {text}");
        }
        eventually("the whole limit is there", || setting.ask(ann) == 200);
        setting.says(&["show", "plan.year", key], 0, "  4 left of 5, full in ");
        // Nobody else has got anything.
        setting.says(&["show", "plan.year", "header:x-user=bob"], 0, "  5 left of 5");
    });
}

#[test]
fn the_document_has_the_words_of_the_algorithm() {
    on_both_stores(|setting| {
        let ann: &[_] = &[("X-User", "ann"), ("X-Plan", "free")];
        assert_eq!(setting.ask(ann), 200);
        let shown = setting.json(&["show", "plan", "header:x-user=ann"]);
        let [bucket, year] = &shown["buckets"].as_array().unwrap()[..] else { panic!("{shown}") };
        assert_eq!((&bucket["algorithm"], &bucket["burst"]), (&json!("token_bucket"), &json!(9)));
        assert!(bucket.get("quota").is_none() && bucket.get("period").is_none(), "{bucket}");
        let numbers = "5/year Asia/Kathmandu";
        let found = (&year["algorithm"], &year["numbers"], &year["quota"], &year["spent"], &year["left"]);
        assert_eq!(found, (&json!("fixed_window"), &json!(numbers), &json!(5), &json!(1), &json!(4)));
        for end in [&year["period"]["begin"], &year["resets_at"]] {
            assert!(end.as_str().unwrap().ends_with("-01-01T00:00:00+05:45"), "{year}");
        }
        assert_eq!(year["period"]["end"], year["resets_at"]);
        let granted = setting.json(&["grant", "plan.year", "header:x-user=ann", "3"]);
        assert_eq!((&granted["act"], &granted["buckets"][0]["given_back"]), (&json!("grant"), &json!(1)));
        assert_eq!((&granted["buckets"][0]["spent"], &granted["buckets"][0]["left"]), (&json!(0), &json!(5)));
    });
}

/// Sets the flag also when an assertion fails, because threads would otherwise wait for it forever.
struct SetWhenDropped<'d>(&'d AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Requests and grants run at the same time. In the end, the passed requests are the limit and the given-back amounts.
#[test]
fn no_grant_is_lost_and_none_counts_twice_while_requests_are_charged() {
    const CLIENTS: usize = 4;
    on_both_stores(|setting| {
        let (passed, done) = (AtomicU64::new(0), AtomicBool::new(false));
        let spend = || {
            let mut client = setting.gateway.client();
            while !done.load(Ordering::Relaxed) {
                passed.fetch_add(u64::from(client.get("/", &[("X-User", "eve")]).status == 200), Ordering::Relaxed);
            }
        };
        let given = std::thread::scope(|scope| {
            (0..CLIENTS).for_each(|_| drop(scope.spawn(spend)));
            let _end = SetWhenDropped(&done);
            let mut given = 0;
            for _ in 0..5 {
                let granted = setting.json(&["grant", "year", "header:x-user=eve", "25"]);
                given += granted["buckets"][0]["given_back"].as_u64().unwrap();
            }
            let shows = |left: &str| setting.bucket(&["show", "year", "header:x-user=eve"]).1.contains(left);
            eventually("all is spent", || shows("  0 left of 60"));
            given
        });
        assert!(given > 0, "nothing was given back");
        assert_eq!(passed.load(Ordering::Relaxed), 60 + given);
    });
}

#[test]
fn an_amount_or_a_client_that_is_wrong_changes_nothing() {
    let setting = Setting::new(&Upstream::start(), "");
    let key = "header:x-user=ann";
    assert_eq!(setting.ask(&[("X-User", "ann")]), 200);
    let must = "AMOUNT: must be a number above 0 with at most 3 decimals, after the values of the limit keys; is ";
    for amount in ["0", "0.0001", "1e3", "five", "+1", ""] {
        setting.says(&["grant", "year", key, amount], 2, &format!("{must}\"{amount}\""));
    }
    setting.says(&["grant", "year", "5", key], 2, &format!("{must}\"{key}\""));
    setting.says(&["grant", "year", "5"], 1, "no value is given for header:x-user");
    setting.says(&["grant", "year", key, "header:x-plan=a", "5"], 1, "header:x-plan=a: no limit key");
    setting.says(&["grant", "month", key, "5"], 1, "no rule is called \"month\"");
    setting.says(&["grant", "year"], 2, "Usage: tollgate bucket grant [OPTIONS] <RULE> [KEY=VALUE]... <AMOUNT>");
    setting.says(&["show", "year", key], 0, "  59 left of 60");
    // One bucket for everybody has no key.
    setting.says(&["grant", "everybody", "5"], 0, "nothing is spent: 1 left of 1");
    let offline = tollgate(&["bucket", "grant", "-c", &setting.file, "--admin", "127.0.0.1:1", "year", key, "5"]);
    assert!(offline.code == Some(1) && offline.err.contains("no gateway answers there"), "{}", offline.err);
}

#[test]
fn a_gateways_own_user_may_give_back_in_redis_and_what_is_no_bucket_stays() {
    let redis = Redis::start();
    // What docs/stores.md gives a gateway.
    let permits = "reset on >secret ~tollgate:* resetchannels -@all +evalsha +script|load +get +set +time +role";
    redis.command::<()>(&[&["ACL", "SETUSER", "limited"][..], &permits.split(' ').collect::<Vec<_>>()].concat());
    let store = format!(
        "store: {{redis: {{url: \"redis://127.0.0.1:{}\", username: limited, password: secret, timeout: 5s}}}}\n",
        redis.port
    );
    let setting = Setting::new(&Upstream::start(), &store);
    let key = "header:x-user=ann";
    assert_eq!(setting.ask(&[("X-User", "ann")]), 200);
    let (name, mut connection) = (redis.keys().remove(0), redis.connection());
    let mut lifetime = || redis::cmd("PTTL").arg(&name).query::<u64>(&mut connection).unwrap();
    let before = lifetime();
    setting.says(&["grant", "year", key, "5"], 0, "  gave back 1, which is all that was spent: 60 left of 60, had 59");
    let after = lifetime();
    assert!(after <= before && before - after < 60_000, "{before} {after}");
    for command in ["SET", "RPUSH"] {
        redis::cmd("DEL").arg(&name).exec(&mut connection).unwrap();
        redis::cmd(command).arg(&name).arg("x").exec(&mut connection).unwrap();
        setting.says(
            &["grant", "year", key, "5"],
            0,
            "its state is invalid and counts as empty: `tollgate bucket reset`",
        );
    }
    redis.command::<()>(&["ACL", "SETUSER", "limited", "-set"]);
    redis::cmd("DEL").arg(&name).exec(&mut connection).unwrap();
    setting.says(&["grant", "year", key, "5"], 0, "nothing is spent");
    redis.command::<()>(&["ACL", "SETUSER", "limited", "-evalsha"]);
    setting.says(&["grant", "year", key, "5"], 1, "forbidden: ");
}

/// With Redis no gateway takes part in the change, so the command logs it, whatever the gateway's log level.
#[test]
fn the_command_logs_who_changed_which_bucket_by_how_much() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    for store in ["", &redis.patient_store()] {
        let setting = Setting::new(&upstream, &format!("log: {{level: error, format: json}}\n{store}"));
        let key = "header:x-user=secret-user";
        assert_eq!([(); 3].map(|()| setting.ask(&[("X-User", "secret-user"), ("X-Plan", "free")])), [200; 3]);
        let logged = |arguments: &[&str]| {
            let reported = setting.run(&[arguments, &["--json"]].concat());
            assert!(!reported.err.contains("secret"), "{}", reported.err);
            let bucket = reported.json()["buckets"][0]["bucket"].clone();
            let mut line: Value = serde_json::from_str(reported.err.trim_end()).unwrap();
            assert_eq!((line["bucket"].take(), line["level"].take()), (bucket, json!("info")));
            assert!(line["store"].as_str().is_some_and(|store| store.contains("127.0.0.1:")), "{line}");
            let id = std::process::Command::new("id").arg("-un").output().unwrap().stdout;
            let user = String::from_utf8(id).unwrap();
            assert!(line["user"].as_str().unwrap().starts_with(user.trim()), "{line} {user}");
            line
        };
        let grant = logged(&["grant", "plan.year", key, "2"]);
        let numbers = ["message", "policy", "limit", "amount", "given_back", "had", "left"];
        let expected = ["amount given back by an operator", "default", "plan.year", "2", "2", "2", "4"];
        assert_eq!(numbers.map(|name| grant[name].clone()), expected.map(|text| json!(text)));
        let reset = logged(&["reset", "plan.year", key]);
        let expected = ["bucket reset by an operator", "default", "plan.year", "4", "5"];
        assert_eq!(
            ["message", "policy", "limit", "had", "left"].map(|name| reset[name].clone()),
            expected.map(|text| json!(text))
        );
        assert_eq!(setting.run(&["show", "plan.year", key]).err, "");
    }
}

#[test]
fn what_is_given_back_in_redis_is_in_its_log() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("redis.log");
    let redis = Redis::start_with(&["--logfile", &log.display().to_string()]);
    let setting = Setting::new(&Upstream::start(), &redis.patient_store());
    let key = "header:x-user=ann";
    setting.says(&["grant", "year", key, "5"], 0, "nothing is spent");
    let lines = || {
        let text = std::fs::read_to_string(&log).unwrap();
        text.lines().filter_map(|line| Some(line.split_once("tollgate: ")?.1.to_owned())).collect::<Vec<_>>()
    };
    assert_eq!(lines(), [""; 0]);
    assert_eq!(setting.ask(&[("X-User", "ann"), ("X-Plan", "free")]), 200);
    for (amount, buckets) in [("0.05", 2), ("100", 2)] {
        setting.says(&["grant", "plan", key, amount], 0, "  gave back ");
        let line = format!("amounts were given back by an operator buckets={buckets} amount={amount}");
        assert_eq!(lines().last(), Some(&line));
    }
}

#[test]
fn no_foreign_page_can_give_back() {
    let setting = Setting::new(&Upstream::start(), "");
    let mut admin = Client::connect(setting.gateway.admin);
    let (host, permit) = (setting.admin.clone(), ("Tollgate-Operator", "grant"));
    let key = "0123456789abcdef".repeat(2);
    let path = format!("/buckets/{key}?amount=5&algorithms=fixed_window");
    let given = admin.send("PATCH", &path, &[("Host", &host), permit], "");
    assert_eq!((given.status, &given.json()["buckets"][0]["state"]), (200, &Value::Null));
    for fields in [
        &[("Host", &*host)][..],
        &[("Host", &*host), ("Tollgate-Operator", "reset")],
        &[("Host", "evil.example"), permit],
    ] {
        assert_eq!(admin.send("PATCH", &path, fields, "").status, 403, "{fields:?}");
    }
    assert_eq!(admin.send("DELETE", &path, &[("Host", &host), permit], "").status, 403);
    for (query, status) in [
        ("", 400),
        ("?amount=5", 400),
        ("?amount=-5&algorithms=fixed_window", 400),
        ("?amount=5&algorithms=fixed_windows", 400),
        ("?amount=5&algorithms=fixed_window,token_bucket", 400),
    ] {
        let path = format!("/buckets/{key}{query}");
        assert_eq!(admin.send("PATCH", &path, &[("Host", &host), permit], "").status, status, "{query}");
    }
    assert_eq!(admin.send("PATCH", "/buckets", &[("Host", &host), permit], "").status, 405);
    let name = base::pseudonym::PseudonymKey::default()
        .bucket(&[0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef].repeat(2).try_into().unwrap());
    let logged = &format!("amounts were given back by an operator user=unknown buckets={name} amount=5");
    eventually("it is logged", || setting.gateway.has_logged(logged));
}
