//! Plays bans on a shared store, for tests that call a store without a gateway.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::time::Micros;
use ledger::algorithm::ban::Ban;
use ledger::algorithm::budget::Budget;
use ledger::algorithm::{Algorithm, AlgorithmKind};
use ledger::bucket_key::BucketKey;
use ledger::cost::Cost;
use ledger::outcome::{Outcome, Verdict};
use stores::{Settings, Worker};

use super::budgets::{books, daily, reserve};
use super::charge::plan_of;
use super::slots::{Member, ask};

const BUCKET: BucketKey = BucketKey([9; 16]);

/// Five wrong guesses a day, with bans of five seconds and of a day.
fn guesses() -> Budget {
    let ban = Ban::new(&[Micros(5_000_000), Micros(86_400_000_000)], Micros(7 * 86_400_000_000)).unwrap();
    daily(5).with_ban(ban)
}

async fn outcome(member: &Member) -> Outcome {
    let plan = plan_of(reserve(BUCKET, guesses(), 1));
    member.store.take(Worker(0), &plan, None).await.unwrap().unwrap().settlement.enforced[0]
}

/// Lets 64 guess at once through two gateways. Each seventh guess is right. Returns how many wrong ones have passed.
async fn guess(gateways: &[Member; 2]) -> u64 {
    let wrong = Arc::new(AtomicU64::new(0));
    let guesser = |guess: usize| {
        let (store, wrong) = (Arc::clone(&gateways[guess % 2].store), Arc::clone(&wrong));
        tokio::spawn(async move {
            for attempt in 0..4 {
                let Some(mut guessing) = ask(&store, &plan_of(reserve(BUCKET, guesses(), 1))).await.unwrap() else {
                    continue;
                };
                tokio::time::sleep(Duration::from_millis(3)).await;
                if !(guess + attempt).is_multiple_of(7) {
                    guessing.settle(&BUCKET, Cost::ONE);
                    wrong.fetch_add(1, Ordering::Relaxed);
                }
            }
        })
    };
    let guessers: Vec<_> = (0..64).map(guesser).collect();
    for guesser in guessers {
        guesser.await.unwrap();
    }
    for gateway in gateways {
        gateway.store.all_reported().await;
    }
    wrong.load(Ordering::Relaxed)
}

/// Plays guesses, their bans and an operator's acts on this store.
pub(crate) async fn play(settings: &Settings) {
    let gateways = [Member::of(settings).await, Member::of(settings).await];
    let [one, other] = &gateways;
    let mut wrong = guess(&gateways).await;
    assert!(wrong <= 5, "{wrong} wrong guesses passed");
    assert_eq!(books(settings, BUCKET, guesses()).await, (wrong, 0), "right guesses cost nothing");
    // The rest of the five, and the beginning of the ban if it has not begun.
    while wrong < 5 {
        let guessing = ask(&one.store, &plan_of(reserve(BUCKET, guesses(), 1))).await.unwrap();
        guessing.expect("fewer than five were wrong").settle(&BUCKET, Cost::ONE);
        one.store.all_reported().await;
        wrong += 1;
    }
    for gateway in [one, other, one] {
        let banned = outcome(gateway).await;
        assert_eq!((banned.verdict, banned.ban.map(|ban| ban.step)), (Verdict::Banned, Some(1)));
        assert!(banned.retry_after <= Micros(5_000_000));
    }
    let mut inspector = settings.inspect().await.unwrap();
    let (now, states) = inspector.states(&[BUCKET]).await.unwrap();
    let ban = guesses().running_ban(states[0].as_deref(), now).expect("the ban is part of the state");
    tokio::time::sleep(Duration::from_millis(5_100)).await;
    // Nothing is spent since the ban ended, so no other ban begins.
    let refused = outcome(one).await;
    assert_eq!((refused.verdict, refused.ban), (Verdict::Deny, None));
    let kind = Algorithm::Budget(guesses()).kind();
    assert_eq!(kind, AlgorithmKind::WindowBudgetWithBan);
    inspector.give_back(&[(BUCKET, kind)], Cost::ONE).await.unwrap();
    let (now, states) = inspector.states(&[BUCKET]).await.unwrap();
    assert_eq!(guesses().last_ban(states[0].as_deref(), now), Some(ban), "a grant keeps the step");
    // One more wrong guess, and the second ban lasts a day.
    let guessing = ask(&one.store, &plan_of(reserve(BUCKET, guesses(), 1))).await.unwrap();
    guessing.expect("one was given back").settle(&BUCKET, Cost::ONE);
    one.store.all_reported().await;
    let banned = outcome(other).await;
    assert_eq!((banned.verdict, banned.ban.map(|ban| (ban.step, ban.begins))), (Verdict::Banned, Some((2, true))));
    assert!(banned.retry_after > Micros(86_000_000_000));
    assert_eq!(outcome(one).await.ban.map(|ban| (ban.step, ban.begins)), Some((2, false)));
    // By hand.
    let hour = Micros(3_600_000_000);
    let (now, set) = inspector.set_ban(&[(BUCKET, Algorithm::Budget(guesses()))], hour).await.unwrap();
    let ban = guesses().running_ban(set[0].after.as_deref(), now).unwrap();
    assert_eq!((ban.end, ban.step), (now.plus(hour), 2));
    let never = BucketKey([10; 16]);
    inspector.set_ban(&[(never, Algorithm::Budget(guesses()))], hour).await.unwrap();
    let banned = one.store.take(Worker(0), &plan_of(reserve(never, guesses(), 1)), None).await.unwrap().unwrap();
    assert_eq!(banned.settlement.enforced[0].verdict, Verdict::Banned);
    // A reset lifts the ban for all gateways within a second.
    inspector.reset(&[(BUCKET, None)]).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1_050)).await;
    for gateway in [one, other] {
        assert_eq!(outcome(gateway).await.verdict, Verdict::Allow);
    }
    let (now, states) = inspector.states(&[BUCKET]).await.unwrap();
    assert_eq!(guesses().last_ban(states[0].as_deref(), now), None, "the step is forgotten");
}
