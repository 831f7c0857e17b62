//! Slots in PostgreSQL: two gateways, lost answers, a gateway that is killed, rows that are lost, and a database that is
//! stopped.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use base::time::Micros;
use ledger::bucket_key::BucketKey;
use ledger::charge::Plan;
use stores::StoreError;
use stores::postgres::Settings;

use crate::support::charge::{plan, spend, unrefilled};
use crate::support::slots::{EndOfLoad, Member, ask, crowd, is_granted, slot, take, take_all};
use crate::support::{Answers, Postgres, Relay, now};
use ledger::cost::Cost;

/// The largest delay of a timer on a busy machine.
const LATE: Duration = Duration::from_millis(1500);

async fn member(settings: Settings) -> Member {
    Member::of(&settings.into()).await
}

fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
}

fn slots_of(slots: u64) -> Plan {
    plan([slot(BucketKey([1; 16]), slots)])
}

#[test]
fn two_gateways_share_slots_and_take_them_with_tokens_or_not_at_all() {
    let postgres = Postgres::start();
    run(async {
        let [one, other] = [member(postgres.settings()).await, member(postgres.settings()).await];
        let tokens = spend(BucketKey([2; 16]), unrefilled(4), Cost::ONE);
        let both = plan([slot(BucketKey([1; 16]), 3), tokens]);
        let mut held = take(&one.store, &both, 2).await;
        held.extend(take(&other.store, &both, 10).await);
        assert_eq!(held.len(), 3, "a refused slot spends no token");
        // A long request keeps its slot.
        tokio::time::sleep(Duration::from_secs(8)).await;
        assert!(ask(&other.store, &both).await.unwrap().is_none());
        held.pop();
        held.extend(take_all(&one.store, &both, 1).await.0);
        held.clear();
        assert!(ask(&one.store, &both).await.unwrap().is_none(), "no token is left");
        take_all(&one.store, &slots_of(3), 3).await;
    });
}

#[test]
fn a_gateway_that_ends_without_a_report_frees_its_slots_within_seven_seconds() {
    let postgres = Postgres::start();
    run(async {
        let [one, other] = [member(postgres.settings()).await, member(postgres.settings()).await];
        let three = slots_of(3);
        let held = take(&one.store, &three, 3).await;
        drop(one);
        let (_, after) = take_all(&other.store, &three, 3).await;
        assert!(after > Duration::from_secs(4) && after < Duration::from_secs(7) + LATE, "{after:?}");
        drop(held);
    });
}

#[test]
fn what_is_held_is_reported_again_to_a_table_that_lost_it_and_to_a_server_that_was_stopped() {
    let postgres = Postgres::start();
    run(async {
        let settings = || Settings { timeout: Micros(500_000), ..postgres.settings() };
        let [one, other] = [member(settings()).await, member(settings()).await];
        let three = slots_of(3);
        let held = take(&one.store, &three, 3).await;
        postgres.sql("DELETE FROM tollgate_bucket");
        tokio::time::sleep(Duration::from_secs(2) + LATE).await;
        assert!(!is_granted(&other.store, &three).await);
        postgres.signal("STOP");
        tokio::time::sleep(Duration::from_secs(8)).await;
        postgres.signal("CONT");
        tokio::time::sleep(Duration::from_secs(2) + LATE).await;
        assert!(!is_granted(&other.store, &three).await);
        drop(held);
        take_all(&other.store, &three, 3).await;
    });
}

/// The answers to one gateway are lost now and then.
#[test]
fn no_more_run_than_there_are_slots_although_answers_are_lost() {
    const SLOTS: u64 = 4;
    let postgres = Postgres::start();
    let relay = Relay::start(postgres.port);
    run(async {
        let direct = Settings { timeout: Micros(300_000), ..postgres.settings() };
        let mut through = direct.clone();
        through.hosts[0].port = relay.port;
        let [one, other] = [member(direct).await, member(through).await];
        let (plan, done) = (slots_of(SLOTS), Arc::new(AtomicBool::new(false)));
        let faults = async {
            let _ends = EndOfLoad(Arc::clone(&done));
            let until = now() + Duration::from_secs(8);
            while now() < until {
                relay.set(Answers::Lost);
                tokio::time::sleep(Duration::from_millis(350)).await;
                relay.set(Answers::Pass);
                tokio::time::sleep(Duration::from_millis(900)).await;
            }
        };
        let load = crowd([&one.store, &other.store], &plan, 24, Arc::clone(&done));
        let (counts, ()) = tokio::join!(load, faults);
        assert!(counts.most <= 4 && counts.granted > 100, "{} ran at once, {} in all", counts.most, counts.granted);
        take_all(&one.store, &plan, 4).await;
    });
}

/// The server proves the rollback, so the next call does not report that what was asked is held.
#[test]
fn what_a_call_asked_that_was_rolled_back_is_not_held() {
    let postgres = Postgres::start();
    run(async {
        let one = member(postgres.settings()).await;
        let single = slots_of(1);
        drop(take(&one.store, &single, 1).await);
        one.store.all_reported().await;
        let failures = [("40001", StoreError::Busy), ("55P03", StoreError::Busy), ("P0001", StoreError::Refused)];
        for (code, error) in failures {
            postgres.sql(&format!(
                "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS
                   $$ BEGIN RAISE EXCEPTION 'made up' USING ERRCODE = '{code}'; END $$;
                 CREATE TRIGGER fail BEFORE UPDATE ON tollgate_bucket FOR EACH STATEMENT EXECUTE FUNCTION fail()"
            ));
            assert_eq!(ask(&one.store, &single).await.unwrap_err(), error);
            postgres.sql("DROP TRIGGER fail ON tollgate_bucket; DROP FUNCTION fail");
            assert!(ask(&one.store, &single).await.unwrap().is_some(), "{code}");
            one.store.all_reported().await;
        }
    });
}
