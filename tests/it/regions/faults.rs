//! Home is away, a region is cut off or flushed, a gateway is killed: never more than the limit passes, and it goes on.

use std::time::Duration;

use super::{Region, ask, on_redis, rules, store};
use crate::support::{Answers, Gateway, Postgres, Redis, Relay, Upstream, eventually, now};

#[test]
fn a_region_that_is_cut_off_spends_its_purse_and_then_refuses_with_503_until_home_answers() {
    let (upstream, home) = (Upstream::start(), Redis::start());
    let rules = rules(1000).replace("window: year}", "window: year}\n    lease: {share: 2%}");
    let region = Region::start("eu", home.port, &rules, &upstream);
    let mut client = region.gateway.client();
    assert_eq!(ask(&mut client, "a").status, 200);
    region.relay.set(Answers::Lost);
    let mut passed = 1;
    let refused = loop {
        let response = ask(&mut client, "a");
        if response.status != 200 {
            break response;
        }
        passed += 1;
    };
    assert!(passed <= 40, "{passed}");
    assert_eq!((refused.status, refused.field("X-Tollgate-Reason").as_deref()), (503, Some("home_unavailable")));
    assert!((3..=5).contains(&refused.number("Retry-After")), "{refused:?}");
    let labels = ["rule=\"year\"", "reason=\"home_unavailable\""];
    eventually("refusals are counted", || region.gateway.metric("rate_limiter_rejected_total", &labels) >= 1.0);
    region.relay.set(Answers::Pass);
    eventually("home answers again", || ask(&mut client, "a").status == 200);
}

#[test]
fn a_home_that_lacks_a_replica_is_down_for_what_it_says() {
    let (upstream, home) = (Upstream::start(), Redis::start());
    let region = Region::start("eu", home.port, &rules(1000), &upstream);
    home.command::<()>(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let mut client = region.gateway.client();
    eventually("home is down", || {
        assert_eq!(ask(&mut client, "a").status, 503);
        region.gateway.has_logged("home is down")
    });
    let log = region.gateway.errors();
    let line = log.lines().find(|line| line.contains("home is down")).unwrap();
    assert!(line.contains("kind=refused") && line.contains("NOREPLICAS"), "{line}");
}

#[test]
fn what_one_region_was_given_while_it_was_cut_off_is_given_once() {
    let (upstream, home) = (Upstream::start(), Redis::start());
    let rules = rules(60).replace("window: year}", "window: year}\n    lease: {share: 50%}");
    let regions = ["eu", "us"].map(|name| Region::start(name, home.port, &rules, &upstream));
    let mut clients: Vec<_> = regions.iter().map(|region| region.gateway.client()).collect();
    // Home knows the script for words. It debits, and the answer is lost.
    assert_eq!(ask(&mut clients[0], "another").status, 200);
    regions[0].relay.set(Answers::Lost);
    assert_eq!(ask(&mut clients[0], "a").status, 503);
    while ask(&mut clients[1], "a").status == 200 {}
    let before = upstream.count() - 1;
    assert!(before < 60, "{before}");
    regions[0].relay.set(Answers::Pass);
    eventually("the region gets what home has debited for it", || ask(&mut clients[0], "a").status == 200);
    let mut others = 0;
    while others < 20 {
        others += usize::from(clients.iter_mut().all(|client| ask(client, "a").status != 200));
    }
    assert_eq!(upstream.count() - 1, 60);
}

#[test]
fn a_region_whose_store_is_flushed_loses_its_purse_and_spends_nothing_twice() {
    let (upstream, home) = (Upstream::start(), Redis::start());
    let region = Region::start("eu", home.port, &rules(200), &upstream);
    let mut client = region.gateway.client();
    for round in 0..300 {
        if round % 20 == 10 {
            region.redis.command::<()>(&["FLUSHALL"]);
        }
        ask(&mut client, "a");
    }
    let passed = upstream.count();
    assert!((100..=200).contains(&passed), "{passed}");
}

#[test]
fn a_gateway_that_is_killed_between_debit_and_credit_loses_nothing() {
    let (upstream, home, redis) = (Upstream::start(), Redis::start(), Redis::start());
    let relay = Relay::start(home.port);
    let rules = rules(40).replace("window: year}", "window: year}\n    lease: {share: 100%}");
    let text = store(&redis, "eu", &on_redis(relay.port)) + &rules;
    let first = Gateway::start(&upstream, &text);
    first.expect_logged("home is up");
    let mut client = first.client();
    // Home knows the script for words.
    assert_eq!(ask(&mut client, "another").status, 200);
    let known = home.keys().len();
    relay.set(Answers::Lost);
    let writer = client.writer();
    client.write("GET / HTTP/1.1\r\nHost: a\r\nX-User: a\r\n\r\n");
    eventually("home has debited", || home.keys().len() > known);
    first.signal("KILL");
    drop(writer);
    relay.set(Answers::Pass);
    let second = Gateway::start(&upstream, &text);
    let mut client = second.client();
    eventually("the next gateway gets the same answer", || ask(&mut client, "a").status == 200);
    while ask(&mut client, "a").status == 200 {}
    assert_eq!(upstream.count() - 1, 40);
}

#[test]
fn a_home_that_is_restarted_empty_grants_anew_and_the_gateways_connect_again() {
    let (upstream, mut home) = (Upstream::start(), Redis::start());
    let region = Region::start("eu", home.port, &rules(1000), &upstream);
    let mut client = region.gateway.client();
    assert_eq!(ask(&mut client, "a").status, 200);
    home.kill();
    region.gateway.expect_logged("home is down");
    eventually("home is away", || region.gateway.metric("rate_limiter_home_up", &[]) == 0.0);
    // No purse has anything for this user.
    assert_eq!(ask(&mut client, "b").status, 503);
    home.restart();
    eventually("home is back", || ask(&mut client, "b").status == 200);
}

#[test]
fn an_outage_of_home_is_logged_once_however_many_calls_are_not_made() {
    let (upstream, mut home) = (Upstream::start(), Redis::start());
    let region = Region::start("eu", home.port, &rules(1000), &upstream);
    let mut client = region.gateway.client();
    home.kill();
    region.gateway.expect_logged("home is down");
    let failed = || region.gateway.metric("rate_limiter_home_errors_total", &[]);
    let before = failed();
    // For longer than a second, for which one line would be logged.
    for user in 0..50 {
        assert_eq!(ask(&mut client, &format!("user {user}")).status, 503);
        std::thread::sleep(Duration::from_millis(50));
    }
    eventually("the calls are counted", || failed() >= before + 50.0);
    let log = region.gateway.errors();
    assert_eq!(log.matches("home is down").count(), 1, "{log}");
    assert_eq!(log.matches("call to home failed").count(), 0, "{log}");
    home.restart();
    eventually("home answers again", || ask(&mut client, "a").status == 200);
}

#[test]
fn requests_wait_while_a_connection_that_home_has_closed_is_made_again() {
    let (upstream, home) = (Upstream::start(), Redis::start());
    let region = Region::start("eu", home.port, &rules(100), &upstream);
    let mut client = region.gateway.client();
    // To connect again takes some answers.
    region.relay.set(Answers::Late(Duration::from_millis(20)));
    for round in 0..20 {
        home.command::<()>(&["CLIENT", "KILL", "TYPE", "normal"]);
        assert_eq!(ask(&mut client, &format!("user {round}")).status, 200, "{round}");
    }
    // A word whose answer is lost with the connection is sent again.
    region.relay.set(Answers::Late(Duration::from_millis(200)));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| ask(&mut client, "cut off").status);
        std::thread::sleep(Duration::from_millis(100));
        home.command::<()>(&["CLIENT", "KILL", "TYPE", "normal"]);
        assert_eq!(waiting.join().unwrap(), 200);
    });
}

#[test]
fn a_late_answer_of_a_database_refuses_only_requests_that_have_waited_as_long_as_they_may() {
    let (upstream, postgres, redis) = (Upstream::start(), Postgres::start(), Redis::start());
    postgres.settings();
    let relay = Relay::start(postgres.port);
    let home = format!("postgres: {{url: \"postgres://tollgate@127.0.0.1:{}/limits\"}}", relay.port);
    let gateway = Gateway::start(&upstream, &(store(&redis, "eu", &home) + &rules(100)));
    gateway.expect_logged("home is up");
    relay.set(Answers::Late(Duration::from_millis(2400)));
    std::thread::scope(|scope| {
        let first = scope.spawn(|| ask(&mut gateway.client(), "a").status);
        std::thread::sleep(Duration::from_millis(1500));
        let second = scope.spawn(|| ask(&mut gateway.client(), "a").status);
        assert_eq!(first.join().unwrap(), 503);
        // The connection is given up, and made again in some round trips.
        relay.set(Answers::Late(Duration::from_millis(20)));
        let mut client = gateway.client();
        for user in 0..20 {
            assert_eq!(ask(&mut client, &user.to_string()).status, 200, "{user}");
        }
        assert_eq!(second.join().unwrap(), 200);
    });
}

#[test]
fn a_home_without_memory_is_down_and_hardly_a_request_waits_for_it() {
    let (upstream, home) = (Upstream::start(), Redis::start());
    let region = Region::start("eu", home.port, &rules(1000), &upstream);
    let mut client = region.gateway.client();
    assert_eq!(ask(&mut client, "a").status, 200);
    home.command::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    let (mut asked, mut longest) = (0, Duration::ZERO);
    eventually("home is down", || {
        for user in ["b", "c"] {
            let sent = now();
            assert_eq!(ask(&mut client, user).status, 503);
            longest = longest.max(sent.elapsed());
            asked += 1;
        }
        region.gateway.metric("rate_limiter_home_up", &[]) == 0.0
    });
    region.gateway.expect_logged("home is down");
    assert!(region.gateway.has_logged("out_of_memory"), "{}", region.gateway.errors());
    assert!(region.gateway.metric("rate_limiter_home_errors_total", &["kind=\"out_of_memory\""]) > 0.0);
    // Home answers at once, and its timeout is 2 s.
    assert!(longest < Duration::from_millis(1500), "{longest:?} of {asked}");
    home.command::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    eventually("home answers again", || ask(&mut client, "b").status == 200);
    eventually("home is up", || region.gateway.metric("rate_limiter_home_up", &[]) == 1.0);
}

#[test]
fn a_bucket_at_home_that_another_program_has_written_is_reported() {
    let (upstream, home) = (Upstream::start(), Redis::start());
    let region = Region::start("eu", home.port, &rules(40), &upstream);
    let before = home.keys();
    let mut client = region.gateway.client();
    assert_eq!(ask(&mut client, "a").status, 200);
    for key in home.keys().into_iter().filter(|key| !before.contains(key)) {
        ::redis::cmd("SET").arg(key).arg("garbage").arg("KEEPTTL").exec(&mut home.connection()).unwrap();
    }
    while ask(&mut client, "a").status == 200 {}
    region.gateway.expect_logged("impossible buckets at home were reset, with nothing left");
    assert!(region.gateway.metric("rate_limiter_home_errors_total", &["kind=\"impossible_bucket\""]) >= 1.0);
}
