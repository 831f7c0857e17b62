//! Regions without home whose limits have `on_failure: local`: each decides by its share, less what it has leased.

use super::{Region, ask, on_redis, rules, store};
use crate::support::{Answers, Client, Gateway, Postgres, Redis, Relay, Upstream, eventually};

/// Sends requests until one is refused. Returns how many passed.
fn spend(client: &mut Client, user: &str) -> u64 {
    let mut passed = 0;
    loop {
        let response = ask(client, user);
        match response.status {
            200 => passed += 1,
            429 => {
                let reason = response.field("X-Tollgate-Reason");
                assert_eq!(reason.as_deref(), Some("fixed_window_exceeded"), "{response:?}");
                return passed;
            }
            other => panic!("{other}: {response:?}"),
        }
    }
}

/// Returns a limit of 90 over three regions, at most 9 of it in each purse.
fn local_rules() -> String {
    rules(90).replace("window: year}", "window: year}\n    lease: {share: 10%}")
}

fn local(store: &str) -> String {
    // A short timeout, since a request waits for home in vain before it is known to be away.
    store.replace("    timeout: 2s\n", "    timeout: 300ms\n    on_failure: local\n    return_after: 4s\n")
}

#[test]
fn without_home_each_region_passes_its_share_less_what_it_has_leased_and_pays_it_back() {
    let (upstream, home, postgres) = (Upstream::start(), Redis::start(), Postgres::start());
    postgres.settings();
    let relay = Relay::start(home.port);
    let (redis, other) = (Redis::start(), Redis::start());
    let eu = local(&store(&redis, "eu", &on_redis(relay.port))) + &local_rules();
    let us = local(&store(&other, "us", &on_redis(relay.port))) + &local_rules();
    // The second region has a PostgreSQL.
    let of_redis = format!("redis: {{url: \"redis://127.0.0.1:{}\", timeout: 2s}}", other.port);
    let of_postgres =
        format!("postgres: {{url: \"postgres://tollgate@127.0.0.1:{}/limits\", timeout: 5s}}", postgres.port);
    assert!(us.contains(&of_redis));
    let gateways = [eu, us.replace(&of_redis, &of_postgres)].map(|text| Gateway::start(&upstream, &text));
    gateways.iter().for_each(|gateway| gateway.expect_logged("home is up"));
    let mut clients: Vec<Client> = gateways.iter().map(Gateway::client).collect();
    for _ in 0..10 {
        assert_eq!(ask(&mut clients[0], "a").status, 200);
    }
    relay.set(Answers::Lost);
    // It has leased less than its share, and passes 30. The other one has leased nothing.
    assert_eq!([spend(&mut clients[0], "a"), spend(&mut clients[1], "a")], [20, 30]);
    let labels = ["rule=\"year\"", "mode=\"enforce\""];
    for gateway in &gateways {
        assert!(gateway.metric("rate_limiter_without_home_total", &labels) > 10.0);
    }
    // What they passed alone is paid from their next leases: all regions together pass the limit.
    relay.set(Answers::Pass);
    for client in clients.iter_mut().rev() {
        eventually("it has paid", || ask(client, "a").status == 200);
    }
    let mut passed = 62;
    eventually("all of the limit has passed, and nothing is left", || {
        passed += clients.iter_mut().map(|client| spend(client, "a")).sum::<u64>();
        passed >= 90
    });
    std::thread::sleep(std::time::Duration::from_secs(5));
    let more: u64 = clients.iter_mut().map(|client| spend(client, "a")).sum();
    assert_eq!((passed, more), (90, 0));
}

#[test]
fn what_another_region_has_leased_beyond_its_share_passes_once_more() {
    let (upstream, home) = (Upstream::start(), Redis::start());
    let relay = Relay::start(home.port);
    let redis = Redis::start();
    let eu = Region::start("eu", home.port, &local_rules(), &upstream);
    let us = Gateway::start(&upstream, &(local(&store(&redis, "us", &on_redis(relay.port))) + &local_rules()));
    us.expect_logged("home is up");
    // Home knows both regions.
    let (mut first, mut second) = (eu.gateway.client(), us.client());
    assert_eq!(ask(&mut second, "another").status, 200);
    relay.set(Answers::Lost);
    let leased = spend(&mut first, "a");
    assert!(leased >= 88, "{leased}");
    assert_eq!(spend(&mut second, "a"), 30);
    relay.set(Answers::Pass);
    std::thread::sleep(std::time::Duration::from_secs(5));
    // What it leases now pays what it has passed.
    assert_eq!(spend(&mut second, "a"), 0);
    assert!(spend(&mut first, "a") + leased <= 90);
}
