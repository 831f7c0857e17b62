//! Bans while the store is away.

use super::doors::{LISTENERS, ask};
use super::{guess, limit, reason, send, upstream};
use crate::support::{Gateway, Redis, eventually};

/// Stops the store, and waits until requests of a user who has sent none yet get this status.
fn lose(redis: &mut Redis, gateway: &Gateway, expected: u16) {
    redis.kill();
    eventually("the store is away", || {
        let response = send(gateway, "bob", 200);
        response.status == expected && gateway.metric("rate_limiter_fallback_decisions_total", &[]) > 0.0
    });
}

#[test]
fn a_known_ban_refuses_whatever_on_store_failure_says() {
    let upstream = upstream();
    for (policy, others) in [("deny", 503), ("local", 200), ("allow", 200)] {
        let mut redis = Redis::start();
        let gateway = Gateway::start(&upstream, &(redis.patient_store().replace("deny", policy) + &limit("for: [1h]")));
        guess(&gateway, "ann");
        eventually("the ban begins", || reason(&send(&gateway, "ann", 200)).as_deref() == Some("banned"));
        lose(&mut redis, &gateway, others);
        let denied = || gateway.metric("rate_limiter_rejected_total", &["reason=\"store_unavailable\""]);
        let before = denied();
        for _ in 0..5 {
            let banned = send(&gateway, "ann", 200);
            assert_eq!((banned.status, reason(&banned).as_deref()), (429, Some("banned")), "{policy}");
            assert!(banned.number("retry-after") > 3500, "{policy}: {banned:?}");
        }
        assert!(denied() == before, "{policy}");
        assert_eq!(send(&gateway, "bob", 200).status, others, "{policy}");
    }
}

#[test]
fn a_decision_is_refused_only_by_a_known_ban() {
    let upstream = upstream();
    for policy in ["deny", "local", "allow"] {
        let mut redis = Redis::start();
        let config = redis.patient_store().replace("deny", policy) + LISTENERS + &limit("for: [1h]");
        let gateway = Gateway::start(&upstream, &config);
        guess(&gateway, "ann");
        // The store shows that nothing is left.
        eventually("the costs are reported", || send(&gateway, "ann", 200).status == 429);
        let banned = ask(&gateway, "ann");
        assert_eq!((banned.status, reason(&banned).as_deref()), (429, Some("banned")), "{policy}");
        guess_again(&gateway, "eve");
        redis.kill();
        eventually("the store is away", || {
            ask(&gateway, "ann");
            send(&gateway, "bob", 200);
            gateway.metric("rate_limiter_fallback_decisions_total", &[]) > 0.0
        });
        let before = gateway.metric("rate_limiter_fallback_decisions_total", &[]);
        for _ in 0..5 {
            assert_eq!(ask(&gateway, "eve").status, 200, "{policy}");
            assert_eq!(reason(&ask(&gateway, "ann")).as_deref(), Some("banned"), "{policy}");
        }
        // Such a limit decides nothing there.
        assert!(gateway.metric("rate_limiter_fallback_decisions_total", &[]) == before, "{policy}");
    }
}

/// Sends three wrong passwords of a second user, and waits until they are spent.
fn guess_again(gateway: &Gateway, user: &str) {
    for _ in 0..3 {
        assert_eq!(send(gateway, user, 401).status, 401);
    }
    eventually("the answers are counted", || gateway.metric("rate_limiter_settled_total", &[]) >= 6.0);
    // The reply to this request shows the level, and its limit refuses no decision.
    eventually("the costs are reported", || ask(gateway, user).status == 200);
}
