//! Slots in memory over an upgrade: the next process counts what the previous one still holds.

use std::time::Duration;

use super::upstream::SlowUpstream;
use super::{begin, get, slots};
use crate::support::{Gateway, Orphan, eventually, now, tollgate};

#[test]
fn the_next_process_counts_the_slots_of_the_previous_one_until_they_end() {
    let slow = SlowUpstream::start();
    let mut gateway = Gateway::start(&slow.upstream, &slots(2));
    let mut running = begin(&gateway, "/hold", "ann");
    slow.expect_running(1);
    gateway.signal("USR2");
    let next = Orphan::of(&gateway, 1);
    let left = |gateway: &Gateway, user: &str| get(gateway, "/", user).field("ratelimit");
    assert_eq!(
        left(&gateway, "ann").as_deref(),
        Some("\"in-flight\";r=0"),
        "one of two is held, and this is the other"
    );
    assert_eq!(left(&gateway, "bob").as_deref(), Some("\"in-flight\";r=1"));
    let admin = gateway.admin.to_string();
    let shown = tollgate(&["bucket", "show", "--admin", &admin, "in-flight", "header:x-user=ann"]);
    assert!(shown.out.contains("1 of 2 held, 1 free\n    the previous process holds 1 since 20"), "{shown:?}");
    let second = begin(&gateway, "/hold", "ann");
    slow.expect_running(2);
    assert_eq!(get(&gateway, "/", "ann").status, 429);
    // One of the two ends, whichever it is.
    slow.finish(1);
    eventually("a slot is free", || get(&gateway, "/", "ann").status == 200);
    slow.finish(1);
    assert_eq!(running.response("GET").unwrap().status, 200);
    assert_eq!(gateway.wait().0.code(), Some(0));
    eventually("both slots are free", || left(&gateway, "ann").as_deref() == Some("\"in-flight\";r=1"));
    drop((second, next));
}

#[test]
fn after_two_upgrades_in_a_row_the_slots_of_the_first_process_count_until_they_end() {
    let slow = SlowUpstream::start();
    let mut gateway = Gateway::start(&slow.upstream, &slots(3));
    let left = |gateway: &Gateway| get(gateway, "/", "ann").field("ratelimit");
    let mut of_first = begin(&gateway, "/hold", "ann");
    slow.expect_running(1);
    gateway.signal("USR2");
    let second = Orphan::of(&gateway, 1);
    let of_second = begin(&gateway, "/hold", "ann");
    slow.expect_running(2);
    second.signal("USR2");
    let third = Orphan::of(&gateway, 2);
    assert_eq!(left(&gateway).as_deref(), Some("\"in-flight\";r=0"), "two are held, and this is the third");
    let admin = gateway.admin.to_string();
    let shown = tollgate(&["bucket", "show", "--admin", &admin, "in-flight", "header:x-user=ann"]);
    assert!(shown.out.contains("2 of 3 held, 1 free\n    the previous process holds 2 since 20"), "{shown:?}");
    // The second process has no request any more, and still reports that of the first one.
    drop(of_second);
    eventually("the slot of the second process is free", || left(&gateway).as_deref() == Some("\"in-flight\";r=1"));
    // Longer than a process without requests drains.
    let start = now();
    while start.elapsed() < Duration::from_secs(3) {
        assert!(second.is_running());
        assert_ne!(left(&gateway).as_deref(), Some("\"in-flight\";r=2"));
    }
    slow.finish(2);
    assert_eq!(of_first.response("GET").unwrap().status, 200);
    assert_eq!(gateway.wait().0.code(), Some(0));
    eventually("all slots are free", || left(&gateway).as_deref() == Some("\"in-flight\";r=2"));
    eventually("the second process leaves", || !second.is_running());
    drop(third);
}

#[test]
fn a_process_that_cannot_report_its_slots_says_so() {
    let slow = SlowUpstream::start();
    let gateway = Gateway::start(&slow.upstream, &slots(2));
    // The second request keeps the first process alive until it has noticed that its reports do not arrive.
    let running = [begin(&gateway, "/hold", "ann"), begin(&gateway, "/hold", "ann")];
    slow.expect_running(2);
    gateway.signal("USR2");
    Orphan::of(&gateway, 1).signal("KILL");
    slow.finish(1);
    gateway.expect_logged("WARN the next process does not learn which slots end");
    drop(running);
}
