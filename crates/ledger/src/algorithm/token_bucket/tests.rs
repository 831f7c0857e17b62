//! Tests the token bucket.

use super::*;
use proptest::prelude::*;

fn per_second(amount: &str) -> Rate {
    let amount = Cost::parse(amount.as_bytes(), crate::cost::ExtraDecimals::Refuse).unwrap();
    Rate { amount, period: Micros(1_000_000) }
}

#[test]
fn a_burst_that_53_bits_cannot_keep_is_refused_with_the_largest_that_they_can() {
    let unfit = TokenBucket::new(per_second("0.001"), u64::MAX).unwrap_err();
    let InvalidNumbers::TooLarge { largest } = unfit else { panic!("{unfit:?}") };
    assert!(TokenBucket::new(per_second("0.001"), largest.whole()).is_ok());
    assert!(TokenBucket::new(per_second("0.001"), largest.whole() + 1).is_err());
    assert!(TokenBucket::of_amount(per_second("0.001"), largest).is_ok());
    assert!(TokenBucket::of_amount(per_second("0.001"), largest.plus(Cost::from_thousandths(1))).is_err());
}

#[test]
fn numbers_print_as_an_operator_would_write_them() {
    let minute = 60_000_000;
    for (amount, period, printed) in [
        ("10", minute / 60, "10/s burst 20"),
        ("0.5", minute / 60, "0.5/s burst 20"),
        ("10", minute, "10/min burst 20"),
        ("600", 60 * minute, "10/min burst 20"),
        ("10000", 1_440 * minute, "10000/day burst 20"),
        ("7", 11 * minute, "0.35/33s burst 20"),
    ] {
        let amount = Cost::parse(amount.as_bytes(), crate::cost::ExtraDecimals::Refuse).unwrap();
        let bucket = TokenBucket::new(Rate { amount, period: Micros(period) }, 20).unwrap();
        assert_eq!(bucket.to_string(), printed);
    }
}

#[test]
fn an_impossible_state_is_an_empty_bucket_never_a_full_one() {
    let bucket = TokenBucket::new(per_second("1"), 2).unwrap();
    for state in [&[][..], &[1, 2], &[0, 0, 0], &[1, 2, 3, 4], &[0, 1, EXACT + 1]] {
        let step = bucket.step(Some(state), Cost::ONE, Timestamp(5));
        assert_eq!(step.charge, ChargeResult::Short { wait: Micros(1_000_000) }, "{state:?}");
    }
}

#[test]
fn equal_shares_give_what_the_whole_gives_and_each_at_least_one_cost() {
    let whole = TokenBucket::new(per_second("10"), 12).unwrap();
    for (cost, of, at_once, wait) in
        [(1, 1, 12, 100), (1, 3, 4, 300), (2, 3, 2, 600), (5, 4, 1, 2000), (1, 50, 1, 5000)]
    {
        let (share, price) = whole.share(Cost::from_tokens(cost), of);
        let (mut state, now) = (None, Timestamp(1 << 50));
        for number in 0..=at_once {
            let step = share.step(state.as_deref(), price, now);
            match step.charge {
                ChargeResult::Fits { entry, .. } if number < at_once => state = Some(entry.state),
                ChargeResult::Short { wait: short } if number == at_once => {
                    // If the burst is not a multiple of the price, its rest shortens the wait.
                    assert!(short <= Micros(wait * 1000), "{cost} {of}: {short:?}");
                    let refilled = share.step(state.as_deref(), price, now.plus(short));
                    assert!(matches!(refilled.charge, ChargeResult::Fits { .. }));
                }
                other => panic!("{cost} of {of}: {other:?}"),
            }
        }
    }
    let (share, cost) = whole.share(Cost::from_thousandths(u64::MAX), u64::MAX);
    assert!(matches!(share.step(None, cost, Timestamp(5)).charge, ChargeResult::Fits { .. }));
}

#[test]
fn what_was_spent_in_one_unit_is_never_less_in_another() {
    let rates = [
        per_second("10"),
        per_second("997.123"),
        per_second("0.001"),
        Rate { amount: Cost::from_tokens(9973), period: Micros(86_400_000_000) },
    ];
    for from in rates {
        for to in rates {
            let (from, to) = (TokenBucket::new(from, 1000).unwrap(), TokenBucket::new(to, 1000).unwrap());
            for spent in [1, from.unit - 1, from.unit, from.unit + 1, 12_345 * from.unit + 1] {
                let converted = to.convert(spent, from.unit);
                let (before, after) =
                    (u128::from(spent) * u128::from(to.unit), u128::from(converted) * u128::from(from.unit));
                assert!(after >= before, "{spent} of {} became {converted} of {}", from.unit, to.unit);
                assert!(after - before <= u128::from(from.unit) * u128::from(to.unit));
            }
        }
    }
}

/// Generates rates, each with a burst.
fn buckets() -> impl Strategy<Value = (Rate, u64)> {
    let periods = prop::sample::select(vec![1_000_000, 60_000_000, 900_000_000, 86_400_000_000]);
    (1u64..20_000, periods, 1u64..40).prop_map(|(amount, period, burst)| {
        let rate = Rate { amount: Cost::from_thousandths(amount), period: Micros(period) };
        (rate, burst)
    })
}

#[test]
fn a_bucket_is_refilled_at_most_as_fast_as_the_fastest_of_those_that_charge_it() {
    let bucket = |rate: &str| TokenBucket::new(per_second(rate), 100).unwrap();
    let (slow, fast) = (bucket("0.3"), bucket("7"));
    let shared = slow.alongside(&fast);
    assert_eq!((shared.refill, shared.burst), (slow.refill, slow.burst));
    // The units differ, so the fastest rate is rounded up.
    let fastest = shared.at_fastest();
    let by = |bucket: &TokenBucket| u128::from(bucket.refill) * 1_000_000 / u128::from(bucket.unit);
    assert!((7_000..=7_001).contains(&by(&fastest)), "{fastest:?}");
    assert_eq!(fast.alongside(&slow), fast);
    assert_eq!(fast.at_fastest(), fast);
}

proptest! {
    /// The guarantee: any window of length T grants at most burst + rate·T, even if the clock is set back.
    #[test]
    fn no_window_ever_grants_more_than_burst_and_rate(
        (rate, burst) in buckets(),
        requests in prop::collection::vec((-2_000_000i64..20_000_000, 1u64..5_000), 1..80),
    ) {
        let bucket = TokenBucket::new(rate, burst).unwrap();
        let (mut state, mut now, mut grants) = (None::<State>, 1u64 << 50, Vec::new());
        for (step, cost) in requests {
            now = now.saturating_add_signed(step);
            let cost = Cost::from_thousandths(cost);
            if let ChargeResult::Fits { entry, .. } = bucket.step(state.as_deref(), cost, Timestamp(now)).charge {
                // After the clock was set back, the grant counts at the last moment of the bucket.
                grants.push((entry.state[2], u128::from(cost.thousandths())));
                state = Some(entry.state);
            }
        }
        for (first, (begin, _)) in grants.iter().enumerate() {
            let mut granted = 0;
            for (end, cost) in &grants[first..] {
                granted += cost;
                let window = u128::from(end - begin);
                let refilled = u128::from(rate.amount.thousandths()) * window;
                let most = u128::from(burst) * 1000 * u128::from(rate.period.0) + refilled;
                prop_assert!(granted * u128::from(rate.period.0) <= most, "{granted} in {window} µs");
            }
        }
    }

    /// Requests under several limits that charge one bucket together get at most the largest burst and rate. After a
    /// refusal, no request is granted until the bucket could pay at the fastest rate.
    #[test]
    fn several_numbers_grant_together_at_most_the_largest(
        numbers in prop::collection::vec(buckets(), 2..4),
        requests in prop::collection::vec((0u64..20_000_000, any::<prop::sample::Index>(), 1u64..5_000), 1..80),
    ) {
        let own: Vec<_> = numbers.iter().map(|(rate, burst)| TokenBucket::new(*rate, *burst).unwrap()).collect();
        let all = own.iter().fold(own[0], |all, one| all.alongside(one));
        let shared: Vec<_> = own.iter().map(|one| one.alongside(&all)).collect();
        let (mut state, mut now, mut grants) = (None::<State>, 1u64 << 50, Vec::new());
        let mut short: Vec<(TokenBucket, State, Cost)> = Vec::new();
        for (step, which, cost) in requests {
            now += step;
            let (bucket, cost, at) = (which.get(&shared), Cost::from_thousandths(cost), Timestamp(now));
            match bucket.step(state.as_deref(), cost, at).charge {
                ChargeResult::Fits { entry, .. } => {
                    for (known, seen, least) in short.iter().filter(|(known, _, least)| known == bucket && *least <= cost) {
                        let bound = known.at_fastest().step(Some(seen), *least, at).charge;
                        let fits = matches!(bound, ChargeResult::Fits { .. });
                        prop_assert!(fits, "it was known to be short: {bound:?}");
                    }
                    grants.push((now, u128::from(cost.thousandths())));
                    state = Some(entry.state);
                }
                ChargeResult::Short { .. } => short.extend(state.clone().map(|seen| (*bucket, seen, cost))),
                ChargeResult::Never => {}
                ChargeResult::Held | ChargeResult::Banned { .. } => prop_assert!(false, "nothing is held"),
            }
        }
        let burst = numbers.iter().map(|(_, burst)| u128::from(*burst) * 1000).max().unwrap();
        for (first, (begin, _)) in grants.iter().enumerate() {
            let mut granted = 0;
            for (end, cost) in &grants[first..] {
                granted += cost;
                let refilled = |rate: &Rate| {
                    (u128::from(rate.amount.thousandths()) * u128::from(end - begin)).div_ceil(u128::from(rate.period.0))
                };
                let most = burst + numbers.iter().map(|(rate, _)| refilled(rate)).max().unwrap();
                prop_assert!(granted <= most, "{granted} of {most} in {} µs", end - begin);
            }
        }
    }

    /// The wait of a refusal ends exactly when the same request would be granted, to the microsecond.
    #[test]
    fn a_wait_is_exact((rate, burst) in buckets(), spent in 1u64..40_000, cost in 1u64..40_000) {
        let bucket = TokenBucket::new(rate, burst).unwrap();
        let (capacity, now) = (burst * 1000, Timestamp(1 << 50));
        let (spent, cost) = (Cost::from_thousandths(1 + spent % capacity), Cost::from_thousandths(1 + cost % capacity));
        let ChargeResult::Fits { entry, .. } = bucket.step(None, spent, now).charge else { panic!("a full bucket refused") };
        if let ChargeResult::Short { wait } = bucket.step(Some(&entry.state), cost, now).charge {
            let at = |wait: u64| bucket.step(Some(&entry.state), cost, now.plus(Micros(wait))).charge;
            let (fits, short) = (at(wait.0), at(wait.0 - 1));
            prop_assert!(matches!(fits, ChargeResult::Fits { .. }), "{fits:?} after {wait:?}");
            prop_assert_eq!(short, ChargeResult::Short { wait: Micros(1) });
        }
    }
}
