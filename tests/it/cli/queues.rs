//! The commands show the queues of leaky buckets: how much is taken, and how long a request would wait.

use serde_json::json;

use crate::support::{Gateway, Redis, Upstream, tollgate};

/// The queues are so slow that no request leaves them during a test.
const RULES: &str = "
rules:
  - name: line
    limit_keys: [header:x-user]
    algorithm: leaky_bucket
    algorithm_config: {rate: 4/hour, queue: 3, max_wait: 1h, delay_after: 1}
";

struct Setting {
    gateway: Gateway,
    place: [String; 4],
}

/// Runs a test in memory, and then in Redis. Two of five places of the queue are taken.
fn on_both_stores(play: impl Fn(&Setting)) {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    for store in ["", &redis.patient_store()] {
        let gateway = Gateway::start(&upstream, &format!("{RULES}{store}"));
        for _ in 0..2 {
            assert_eq!(gateway.client().get("/", &[("X-User", "ann")]).status, 200);
        }
        let file = gateway.file("gateway.yaml").display().to_string();
        let place = ["-c".to_owned(), file, "--admin".to_owned(), gateway.admin.to_string()];
        play(&Setting { gateway, place });
    }
}

impl Setting {
    fn say(&self, command: &[&str], arguments: &[&str]) -> String {
        let place: Vec<&str> = self.place.iter().map(String::as_str).collect();
        let reported = tollgate(&[command, &place, arguments].concat());
        assert_eq!(reported.code, Some(0), "{reported:?}");
        reported.out
    }

    #[track_caller]
    fn says(&self, command: &[&str], arguments: &[&str], part: &str) {
        let text = self.say(command, arguments);
        assert!(text.contains(part), "{command:?}: {text}");
    }
}

/// Returns the number after the text `before` in a page.
#[track_caller]
fn number(page: &str, before: &str) -> u64 {
    let after = page.split(before).nth(1).unwrap_or_else(|| panic!("no {before:?} in {page}"));
    after.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap()
}

#[test]
fn an_explanation_has_the_wait_of_a_request() {
    on_both_stores(|setting| {
        let ann = ["-H", "X-User: ann", "/"];
        let page = setting.say(&["explain", "--live"], &ann);
        assert!(page.contains("4/hour queue 3 max_wait 60m delay_after 1"), "{page}");
        assert!((890_000..=900_000).contains(&number(&page, "PASSES after ")), "{page}");
        setting.says(&["explain", "--live"], &["-H", "X-User: bob", "/"], "PASSES: ");
        let document = setting.say(&["explain", "--live", "--json"], &ann);
        let document: serde_json::Value = serde_json::from_str(&document).unwrap();
        let level = &document["policies"][0]["rules"][0]["charges"][0]["level"];
        assert_eq!((&level["pays"], &level["wait_us"]), (&json!(true), &json!(0)), "{document}");
        assert!(level["delay_us"].as_u64().unwrap() > 890_000_000, "{document}");
        // A gRPC call that gives up before.
        let call = ["-H", "X-User: ann", "-H", "content-type: application/grpc", "-H", "grpc-timeout: 10S", "/"];
        let page = setting.say(&["explain", "--live"], &call);
        assert!(page.contains("REFUSED 429 leaky_bucket_exceeded"), "{page}");
    });
}

#[test]
fn the_places_of_a_queue_are_shown_given_back_and_reset() {
    on_both_stores(|setting| {
        let key = &["line", "header:x-user=ann"][..];
        let page = setting.say(&["bucket", "show"], key);
        assert!(page.contains("3 left of 5, full in 1") && page.contains("; a request of 1 waits 8"), "{page}");
        let shown: serde_json::Value = serde_json::from_str(&setting.say(&["bucket", "show", "--json"], key)).unwrap();
        let bucket = &shown["buckets"][0];
        assert_eq!((&bucket["algorithm"], &bucket["quota"]), (&json!("leaky_bucket"), &json!(5)));
        assert!(bucket["delay_us"].as_u64().unwrap() > 890_000_000, "{shown}");
        let granted = setting.say(&["bucket", "grant"], &[key, &["1"]].concat());
        assert!(granted.contains("  gave back 1: 4 left of 5, had 3"), "{granted}");
        // One place is taken, and the first that is ahead is no reason to wait.
        setting.says(&["explain", "--live"], &["-H", "X-User: ann", "/"], "PASSES: ");
        setting.says(&["bucket", "reset"], key, "  had 4 of 5 left");
        assert_eq!(setting.gateway.client().get("/", &[("X-User", "ann")]).status, 200);
        setting.says(&["bucket", "show"], key, "4 left of 5");
    });
}

#[test]
fn a_check_against_the_old_file_names_a_queue_that_goes_on_and_one_that_begins_again() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, rules: &str| {
        let file = folder.path().join(name);
        let allowed = "check: {allow: [unverified_key, open_policy, unused_queue, short_drain]}\n";
        std::fs::write(&file, format!("upstream: http://a\n{allowed}{rules}")).unwrap();
        file.display().to_string()
    };
    let old = write("old.yaml", RULES);
    let against = |rules: &str| tollgate(&["check", "--against", &old, &write("new.yaml", rules)]).out;
    let kept = against(&RULES.replace("4/hour, queue: 3", "5/hour, queue: 4"));
    assert_eq!(
        kept,
        "buckets kept: policy default, limit line: was 4/hour queue 3 max_wait 60m delay_after 1, is 5/hour queue 4 \
         max_wait 60m delay_after 1; what was spent stays spent\nok\n"
    );
    let reset = against(
        &RULES.replace("leaky_bucket", "token_bucket").replace("queue: 3, max_wait: 1h, delay_after: 1", "burst: 5"),
    );
    assert!(
        reset.starts_with("buckets reset: policy default, limit line: algorithm was leaky_bucket, is token_bucket"),
        "{reset}"
    );
}
