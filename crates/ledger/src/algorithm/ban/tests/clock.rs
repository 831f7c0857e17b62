//! Bans when the clock is set back.

use super::*;

#[test]
fn a_clock_that_is_set_back_prolongs_no_ban_beyond_its_length() {
    let plan = plan([charge(1, banning(window(5)))]);
    let mut buckets = Buckets::of(&plan);
    buckets.drain(&plan, NOW);
    for back in [20 * SECOND, HOUR, 300 * DAY] {
        let now = Timestamp(NOW.0 - back);
        let refused = buckets.take(&plan, now).enforced[0];
        assert_eq!((refused.verdict, refused.retry_after), (Verdict::Banned, Micros(15 * MINUTE)), "{back}");
        // The correction is stored, so that the ban goes on.
        let refused = buckets.take(&plan, now.plus(Micros(MINUTE))).enforced[0];
        assert_eq!(refused.retry_after, Micros(14 * MINUTE), "{back}");
    }
}

#[test]
fn a_ban_that_is_over_does_not_begin_anew_if_the_clock_is_set_back() {
    let end = NOW.plus(Micros(15 * MINUTE));
    for back in [20 * SECOND, 10 * MINUTE, HOUR, 300 * DAY] {
        for limit in [window(5), bucket(20)] {
            let plan = plan([charge(1, banning(limit))]);
            let mut buckets = Buckets::of(&plan);
            buckets.drain(&plan, NOW);
            assert!(buckets.take(&plan, end).is_granted());
            let (granted, refused) = buckets.drain(&plan, Timestamp(end.0 - back));
            assert!(granted > 0, "{back}");
            assert_eq!((refused.ban, refused.retry_after), (begun(2), Micros(HOUR)), "{back}");
        }
        // A report that settles nothing also shows that the ban is over.
        let end = NOW.plus(Micros(5 * MINUTE));
        let budget = Budget::settling(window(5)).with_ban(Ban::new(&[Micros(5 * MINUTE)], Micros(DAY)).unwrap());
        let asked = |state: &State, now| budget.step(Some(state), Cost::ONE, now).charge;
        let state = report(&budget, None, 1, 0, 5, NOW);
        let ChargeResult::Banned { begins: Some(begins), .. } = asked(&state, NOW) else { panic!("no ban begins") };
        let state = report(&budget, Some(&begins.entry.state), 2, 0, 5, end);
        for now in [end, Timestamp(end.0 - back)] {
            assert!(matches!(asked(&state, now), ChargeResult::Short { .. }), "{back}");
        }
    }
}

#[test]
fn a_forgotten_ban_is_not_counted_if_the_clock_is_set_back() {
    let plan = plan([charge(1, banning(window(5)))]);
    let mut buckets = Buckets::of(&plan);
    buckets.drain(&plan, NOW);
    let forgotten = NOW.plus(Micros(15 * MINUTE + 7 * DAY + 1));
    assert!(buckets.take(&plan, forgotten).is_granted());
    assert_eq!(buckets.drain(&plan, Timestamp(forgotten.0 - SECOND)).1.ban, begun(1));
}
