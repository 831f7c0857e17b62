//! Bans when a gateway is killed or replaced.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{guess, limit, reason, send, upstream};
use crate::support::{Gateway, Orphan, Redis, Upstream, eventually};

#[test]
fn an_upgrade_hands_a_ban_in_memory_over() {
    let upstream = upstream();
    let mut gateway = Gateway::start(&upstream, &limit("for: [1h, 2h]"));
    guess(&gateway, "ann");
    assert_eq!(reason(&send(&gateway, "ann", 200)).as_deref(), Some("banned"));
    gateway.signal("USR2");
    let next = Orphan::of(&gateway, 1);
    gateway.wait();
    let banned = send(&gateway, "ann", 200);
    assert_eq!(reason(&banned).as_deref(), Some("banned"));
    let wait = banned.number("retry-after");
    assert!((3_000..=3_600).contains(&wait), "{wait}");
    assert_eq!(send(&gateway, "bob", 200).status, 200);
    assert!(next.is_running());
}

/// Starts an upstream that answers 401 once it may.
fn slow_upstream() -> (Upstream, &'static AtomicBool) {
    let may_answer: &'static AtomicBool = Box::leak(Box::default());
    let upstream = Upstream::answering(move |_, stream| {
        while !may_answer.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
        }
        // The gateway may have left.
        let _ = std::io::Write::write_all(stream, b"HTTP/1.1 401 Some\r\nContent-Length: 2\r\n\r\nok");
    });
    (upstream, may_answer)
}

#[test]
fn a_gateway_that_is_killed_before_it_has_settled_forgets_at_most_what_it_held() {
    let ((upstream, may_answer), redis) = (slow_upstream(), Redis::start());
    let config = limit("for: [1h]") + "\n" + &redis.patient_store();
    let [killed, other] = [(); 2].map(|()| Gateway::start(&upstream, &config));
    let mut statuses = std::thread::scope(|scope| {
        let guesses: Vec<_> = (0..3).map(|_| scope.spawn(|| send(&killed, "ann", 401).status)).collect();
        eventually("all are held", || upstream.count() == 3);
        // Nothing is written from now on, so nothing is settled.
        redis.command::<()>(&["CLIENT", "PAUSE", "60000", "WRITE"]);
        may_answer.store(true, Ordering::Relaxed);
        guesses.into_iter().map(|guess| guess.join().unwrap()).collect::<Vec<_>>()
    });
    statuses.dedup();
    assert_eq!(statuses, [401]);
    killed.signal("KILL");
    // What it has sent is dropped with its connections.
    std::thread::sleep(Duration::from_millis(500));
    redis.command::<()>(&["CLIENT", "UNPAUSE"]);
    let held = send(&other, "ann", 401);
    assert_eq!((held.status, reason(&held).as_deref()), (429, Some("budget_held")));
    // The entry of the killed gateway ends after 7 seconds. Then three more pass, and the next guess begins a ban.
    eventually("the next guesses are banned", || reason(&send(&other, "ann", 401)).as_deref() == Some("banned"));
    assert_eq!(upstream.count(), 6);
}
