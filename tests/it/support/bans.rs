//! Plays bans on a shared store, for tests that call a store without a gateway.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::time::Micros;
use ledger::algorithm::ban::Ban;
use ledger::algorithm::budget::Budget;
use ledger::algorithm::{Algorithm, AlgorithmKind};
use ledger::bucket_key::BucketKey;
use ledger::charge::Plan;
use ledger::cost::Cost;
use ledger::outcome::{BanNotice, Outcome, Verdict};
use stores::{Settings, Worker};

use super::budgets::{books, daily, reserve};
use super::charge::{plan, plan_of, spend, unrefilled};
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

/// Checks on a store that `fill` makes full, and `free` not full, that requests beyond a limit are refused although their
/// ban cannot be stored.
pub(crate) async fn refuse_without_room(settings: &Settings, fill: impl Fn(), free: impl Fn()) {
    let member = Member::of(settings).await;
    let ban = Ban::new(&[Micros(3_600_000_000)], Micros(86_400_000_000)).unwrap();
    for (bucket, budget) in [(1, Budget::banning(*daily(3).limit(), ban)), (2, daily(3).with_ban(ban))] {
        let key = BucketKey([bucket; 16]);
        let plan = plan_of(reserve(key, budget, 1));
        for _ in 0..3 {
            ask(&member.store, &plan).await.unwrap().unwrap().settle(&key, Cost::ONE);
        }
        member.store.all_reported().await;
        let decided = async || {
            let taken = member.store.take(Worker(0), &plan, None).await;
            taken.map(|reply| reply.unwrap().settlement.enforced[0]).map(|outcome| (outcome.verdict, outcome.ban))
        };
        fill();
        for _ in 0..3 {
            let outcome = decided().await.unwrap_or_else(|failure| panic!("{failure:?} of bucket {bucket}"));
            assert_eq!(outcome, (Verdict::Deny, None), "bucket {bucket}");
        }
        free();
        let outcome = decided().await.unwrap();
        assert_eq!(outcome, (Verdict::Banned, Some(BanNotice { step: 1, begins: true })), "bucket {bucket}");
    }
}

/// Checks that a store keeps a bucket for longer after the next request, if bans are remembered for longer. `kept_for`
/// returns for how many seconds the store keeps its only bucket.
pub(crate) async fn remember_for_longer(settings: &Settings, kept_for: impl Fn() -> u64) {
    const DAY: u64 = 86_400;
    let keeping = |days: u64| {
        let ban = Ban::new(&[Micros(3_600_000_000)], Micros(days * DAY * 1_000_000)).unwrap();
        plan_of(reserve(BUCKET, Budget::banning(*daily(1).limit(), ban), 1))
    };
    let [one, other] = [Member::of(settings).await, Member::of(settings).await];
    let before = keeping(3);
    let decided = async |member: &Member, plan| {
        let settlement = member.store.take(Worker(0), plan, None).await.unwrap().unwrap().settlement;
        settlement.enforced[0].verdict
    };
    for expected in [Verdict::Allow, Verdict::Banned] {
        assert_eq!(decided(&one, &before).await, expected);
    }
    let kept = kept_for();
    assert!((3 * DAY..=3 * DAY + 2 * 3600).contains(&kept), "{kept}");
    // This gateway knows of no ban yet, so it asks the store.
    assert_eq!(decided(&other, &keeping(7)).await, Verdict::Banned);
    let kept = kept_for();
    assert!((7 * DAY..=7 * DAY + 2 * 3600).contains(&kept), "{kept}");
}

/// Checks that a gateway forgets a ban that was lifted as soon as the store shows that it does not run, also if another
/// limit refuses the request.
pub(crate) async fn forget_a_lifted_ban(settings: &Settings) {
    let member = Member::of(settings).await;
    let ban = Ban::new(&[Micros(3_600_000_000)], Micros(86_400_000_000)).unwrap();
    let banning = Algorithm::Budget(Budget::banning(*daily(1).limit(), ban));
    let banned = plan_of(spend(BUCKET, banning, Cost::ONE));
    let drained = spend(BucketKey([8; 16]), unrefilled(1), Cost::ONE);
    let both = plan([banned.enforced[0].clone(), drained.clone()]);
    for plan in [&plan_of(drained), &banned, &banned] {
        member.store.take(Worker(0), plan, None).await.unwrap();
    }
    assert!(member.store.refuse_banned(&both).is_some());
    settings.inspect().await.unwrap().reset(&[(BUCKET, None)]).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1_050)).await;
    let settlement = member.store.take(Worker(0), &both, None).await.unwrap().unwrap().settlement;
    let verdicts = settlement.enforced.iter().map(|outcome| outcome.verdict).collect::<Vec<_>>();
    assert_eq!(verdicts, [Verdict::Allow, Verdict::Deny]);
    assert!(member.store.refuse_banned(&both).is_none());
}

/// Checks that each limit of a meter begins its ban, whatever their order.
pub(crate) async fn ban_by_each_limit_of_a_meter(settings: &Settings) {
    let member = Member::of(settings).await;
    let ban = Ban::new(&[Micros(3_600_000_000)], Micros(86_400_000_000)).unwrap();
    for (bucket, sizes) in [[2, 9], [9, 2], [2, 2]].into_iter().enumerate() {
        for settles in [true, false] {
            let limit = |size| match (daily(size), settles) {
                (budget, true) => budget.with_ban(ban),
                (budget, false) => Budget::banning(*budget.limit(), ban),
            };
            let key = BucketKey([u8::try_from(2 * bucket).unwrap() + u8::from(settles); 16]);
            let mut both = Plan::default();
            for size in sizes {
                both.enforce(reserve(key, limit(size), 1));
            }
            // The charges are one of their sum: two.
            ask(&member.store, &both).await.unwrap().unwrap().settle(&key, Cost::from_tokens(2));
            member.store.all_reported().await;
            for begins in [true, false] {
                let reply = member.store.take(Worker(0), &both, None).await.unwrap().unwrap();
                for (outcome, size) in reply.settlement.enforced.iter().zip(sizes) {
                    let ban = (size == 2 || !begins).then_some(BanNotice { step: 1, begins });
                    assert_eq!(outcome.ban, ban, "{sizes:?}, settles: {settles}");
                }
            }
        }
    }
}
