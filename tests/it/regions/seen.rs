//! Clients and operators see the level of a limit over several regions when home was last heard, and when that was.

use serde_json::json;

use super::{Region, ask, rules};
use crate::support::bucket_command::says;
use crate::support::{Redis, Upstream};

#[test]
fn usage_and_bucket_show_tell_when_home_was_heard() {
    let (upstream, home) = (Upstream::start(), Redis::start());
    let rules = format!("usage: {{path: /limits}}\n{}", rules(100));
    let [eu, us] = ["eu", "us"].map(|name| Region::start(name, home.port, &rules, &upstream));
    let usage = |region: &Region| {
        let answer = region.gateway.client().get("/limits", &[("X-User", "a")]);
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()["limits"][0].clone()
    };
    assert_eq!(usage(&eu)["as_of"], json!(null));
    for _ in 0..3 {
        assert_eq!(ask(&mut eu.gateway.client(), "a").status, 200);
    }
    assert_eq!(ask(&mut us.gateway.client(), "a").status, 200);
    // The second region has heard of the lease of the first.
    let (of_eu, of_us) = (usage(&eu), usage(&us));
    assert_eq!((&of_eu["used"], &of_us["used"]), (&json!(3), &json!(6)));
    assert!(of_eu["as_of"].as_str().unwrap().ends_with('Z') && of_us["as_of"].is_string(), "{of_eu} {of_us}");
    says(&eu.gateway, &["show", "year", "header:x-user=a"], 0, " at home, as heard at 2");
    says(&us.gateway, &["show", "year", "header:x-user=b"], 0, "home was never heard");
}
