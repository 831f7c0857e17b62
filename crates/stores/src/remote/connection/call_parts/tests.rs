//! Tests how the reports of a call are bounded in a store with several parts.

use std::sync::Arc;

use smallvec::smallvec;

use super::super::StoreState;
use super::*;
use crate::breaker;
use crate::error::{Fault, StoreError};
use crate::events::{EventSink, RunningGateway};
use crate::lease_acts::{ActResults, BucketAct};
use crate::memory::local_holds::SlotBook;
use crate::remote::fault_injection::Hooks;
use crate::remote::heartbeat::ConnectedWorkers;
use crate::remote::holds::{GatewaySlots, PartIndices, WorkerHolds};
use crate::remote::settings::Settings;
use crate::remote::transport::{CallLimits, CallReply, DrivenLink, LiveGateways, ReadStates};
use crate::worker::Worker;
use base::time::{Clock, Micros};
use ledger::algorithm::Algorithm;
use ledger::algorithm::concurrency::Concurrency;
use ledger::bucket_key::BucketKey;
use ledger::charge::Charge;
use ledger::cost::Cost;
use ledger::holds::SlotTerms;

/// A server with all four parts of a store. The first byte of a bucket's key is the index of its part.
#[derive(Debug)]
struct FourParts;

impl Transport for FourParts {
    type Link = ();

    const CALLS: CallLimits = CallLimits { charges: 128, requests: 512, at_once: 5, parted: true };

    async fn connect(&self) -> Result<DrivenLink<()>, Fault> {
        Err(Fault::new(StoreError::Unreachable, "a test"))
    }

    async fn take(&self, (): &mut (), _: &[CallPart<'_>], _near: Timestamp) -> Result<CallReply, Fault> {
        Err(Fault::new(StoreError::Unreachable, "a test"))
    }

    async fn read(&self, (): &mut (), _: &[BucketKey], _: Route) -> Result<ReadStates, Fault> {
        Err(Fault::new(StoreError::Unreachable, "a test"))
    }

    async fn act(&self, (): &mut (), _: &[BucketAct], _: Timestamp, _: Route) -> Result<ActResults, Fault> {
        Err(Fault::new(StoreError::Unreachable, "a test"))
    }

    async fn beat(&self, (): &mut (), _: [u8; 8], _: &RunningGateway) -> Result<Option<LiveGateways>, Fault> {
        Ok(None)
    }

    fn part_of(&self, bucket: &BucketKey) -> usize {
        usize::from(bucket.0[0])
    }

    fn own_parts(&self) -> PartIndices {
        smallvec![0, 1, 2, 3]
    }
}

fn connection() -> Connection<FourParts> {
    let (clock, events) = (Clock::system(), EventSink::new(|_| {}));
    let settings = Settings { timeout: Micros(1_000_000), breaker: breaker::Settings::default(), gateways: 1 };
    let state = StoreState::new(&settings, &clock, Hooks::default());
    let holds = WorkerHolds::new([1; 8], Worker(0), 4, events.clone(), &state.fallback);
    let connected = Arc::<ConnectedWorkers>::default();
    Connection::new(holds, Arc::new(FourParts), settings.timeout, clock, events, state, connected)
}

fn key(part: usize, number: usize) -> BucketKey {
    let mut key = [0; 16];
    key[0] = u8::try_from(part).unwrap();
    key[8..].copy_from_slice(&number.to_le_bytes());
    BucketKey(key)
}

fn plan(part: usize) -> Plan {
    let slots = Algorithm::Concurrency(Concurrency::new(9).unwrap());
    let mut plan = Plan::default();
    plan.enforce(Charge::new(key(part, 0), slots, Cost::ONE));
    plan
}

#[test]
fn all_parts_of_a_call_together_have_at_most_256_reports_about_buckets_of_which_nothing_is_asked() {
    let connection = connection();
    let terms = SlotTerms { amount: Cost::ONE, algorithm: Algorithm::Concurrency(Concurrency::MOST) };
    let now = Timestamp(1 << 50);
    let workers = [Arc::clone(&connection.holds)];
    let slots = GatewaySlots { workers: &workers, worker: 0, part: |key: &BucketKey| usize::from(key.0[0]), now };
    let held: Vec<_> = (0..800).map(|number| slots.hold(key(number % 4, 1 + number), terms)).collect();
    let plans = [plan(1), plan(3)];
    let plans: Vec<&Plan> = plans.iter().collect();
    let routes = [Route::Owner; 2];
    let count = |parts: &CallParts<'_>| {
        let reports = parts.iter().filter_map(|part| part.reports.as_ref());
        reports.map(|call| call.reports.len()).collect::<Vec<_>>()
    };
    // A part has a report about the bucket that its plan asks for.
    let first = connection.parts(&plans, &routes, true, now);
    assert_eq!(count(&first), [201, 55]);
    let second = connection.parts(&[], &[], false, now);
    assert_eq!(count(&second), [200, 56]);
    let third = connection.parts(&[], &[], false, now);
    assert_eq!(count(&third), [144, 112]);
    let last = connection.parts(&[], &[], false, now);
    assert_eq!(count(&last), [34]);
    drop(held);
}
