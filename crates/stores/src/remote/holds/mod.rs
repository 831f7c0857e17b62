//! Keeps the slots that the requests of one worker hold.
//!
//! A worker is an owner in the protocol of [`ledger::holds`]. Its connection sends the reports, also after the
//! connection was made again. A cluster has several parts, its hash tags. The reports about each part have sequences of
//! their own. They are sent on the connection to the node that has the part at that time. As long as no request of a
//! worker has held anything, each call only reads one flag here.

mod part;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::Notify;

use crate::events::EventSink;
use crate::fallback::FallbackShare;
use crate::memory::local_holds::SlotBook;
use crate::reservation::{Reservation, held_asks};
use crate::worker::Worker;
use base::time;
use base::time::{Clock, Micros, Timestamp};
use ledger::bucket_key::BucketKey;
use ledger::charge::Plan;
use ledger::cost::Cost;
use ledger::holds::{MOST_SUMS, Owner, SlotTerms};
pub(crate) use part::{ConnectionNumber, HoldResult, OldReport, PartHolds};

/// The interval at which a connection checks the reports about parts of other servers. Such a part may move to the
/// connection's server.
const ELSEWHERE: Micros = Micros(250_000);

/// The interval at which a process that is about to exit checks whether all its reports are answered.
const POLL: Duration = Duration::from_millis(2);

/// The indices of the parts that a server has.
pub(crate) type PartIndices = SmallVec<[usize; 16]>;

/// The slots that the requests of one worker hold, by the parts of the store.
#[derive(Debug)]
pub struct WorkerHolds {
    pub(crate) worker: Worker,
    parts: Box<[Arc<PartHolds>]>,
    signals: Arc<PartSignals>,
}

/// The slots that the requests of all workers of a gateway hold. A decision without the store counts all these slots,
/// and adds the slots that it grants to the slots of one worker.
pub(crate) struct GatewaySlots<'h, P> {
    pub workers: &'h [Arc<WorkerHolds>],
    /// The worker whose request is decided about.
    pub worker: usize,
    /// Returns the index of the part that has a bucket.
    pub part: P,
    pub now: Timestamp,
}

impl<P: Fn(&BucketKey) -> usize> GatewaySlots<'_, P> {
    /// Holds the slots that a plan asks for, without the store's grant. The store gave no answer, and the request was
    /// admitted.
    pub(crate) fn hold_all(&self, plan: &Plan) -> Reservation {
        let mut reservation = Reservation::default();
        for (_, charge, terms) in held_asks(plan) {
            reservation.join(self.hold(charge.key, terms));
        }
        reservation
    }
}

impl<P: Fn(&BucketKey) -> usize> SlotBook for GatewaySlots<'_, P> {
    fn held(&self, key: &BucketKey) -> Cost {
        let part = (self.part)(key);
        self.workers.iter().fold(Cost::default(), |sum, worker| sum.plus(worker.held(part, key, self.now)))
    }

    fn count_settled(&self, key: &BucketKey) -> Cost {
        let part = (self.part)(key);
        let holds = self.workers.iter().filter_map(|worker| worker.part(part));
        holds.fold(Cost::default(), |sum, holds| sum.plus(holds.count_settled(key)))
    }

    fn hold(&self, key: BucketKey, terms: SlotTerms) -> Reservation {
        let holds = self.workers.get(self.worker).and_then(|worker| worker.part((self.part)(&key)));
        holds.map_or_else(Reservation::default, |holds| holds.hold(key, terms, self.now))
    }
}

/// What the parts of one worker signal to the connections that send their reports.
#[derive(Debug)]
pub(crate) struct PartSignals {
    /// Notified when there may be reports to send, or when the time to send them may have changed.
    changed: Notify,
    /// Whether a request of this worker has ever asked for slots or held slots.
    is_used: AtomicBool,
    /// The number of the last connection.
    connections: AtomicU64,
    events: EventSink,
    /// Decides while the store gives no answer.
    fallback: Arc<FallbackShare>,
}

impl WorkerHolds {
    /// Makes the holds of a worker in a store with this number of parts. `gateway` is the name of the gateway in
    /// heartbeats. Each part keeps its share of [`MOST_SUMS`] settled sums.
    pub(crate) fn new(
        gateway: [u8; 8],
        worker: Worker,
        parts: usize,
        events: EventSink,
        fallback: &Arc<FallbackShare>,
    ) -> Arc<WorkerHolds> {
        let owner = Owner::of_gateway(gateway, worker.0);
        let signals = Arc::new(PartSignals {
            changed: Notify::new(),
            is_used: AtomicBool::new(false),
            connections: AtomicU64::new(0),
            events,
            fallback: Arc::clone(fallback),
        });
        let most_sums = MOST_SUMS.div_ceil(parts.max(1));
        let parts = (0..parts).map(|_| Arc::new(PartHolds::new(owner, most_sums, &signals))).collect();
        Arc::new(WorkerHolds { worker, parts, signals })
    }

    /// Returns a number for a new connection.
    pub(crate) fn connect(&self) -> ConnectionNumber {
        ConnectionNumber(self.signals.connections.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Whether a request of this worker has ever asked for slots or held slots.
    pub(crate) fn is_used(&self) -> bool {
        self.signals.is_used.load(Ordering::Relaxed)
    }

    pub(crate) fn part(&self, index: usize) -> Option<&Arc<PartHolds>> {
        self.parts.get(index)
    }

    /// Ends all slots of these workers, because the process ends. Waits until the store knows it.
    pub(crate) async fn end_all(workers: &[Arc<WorkerHolds>]) {
        workers.iter().flat_map(|worker| &worker.parts).for_each(|part| part.end_all());
        WorkerHolds::all_reported(workers).await;
    }

    /// Waits until the store knows what the requests of these workers hold.
    pub(crate) async fn all_reported(workers: &[Arc<WorkerHolds>]) {
        let is_reported = |worker: &Arc<WorkerHolds>| worker.parts.iter().all(|part| part.is_reported());
        while !workers.iter().all(is_reported) {
            time::sleep(POLL).await;
        }
    }

    /// Returns how much the requests of this worker hold of a bucket in this part.
    fn held(&self, part: usize, key: &BucketKey, now: Timestamp) -> Cost {
        self.part(part).map_or(Cost::default(), |holds| holds.held(key, now))
    }

    /// Waits until the connection must send reports in a call that has no requests. `own` returns the indices of the
    /// parts that are on the connection's server. `own` is called again after each change of what is held.
    pub(crate) async fn reports(&self, own: impl Fn() -> PartIndices, connection: ConnectionNumber, clock: &Clock) {
        loop {
            let mut changed = std::pin::pin!(self.signals.changed.notified());
            // A change after this line ends the wait, even if the change comes before the wait begins.
            changed.as_mut().enable();
            match self.next_reports(&own, connection, clock.now()) {
                Some(Micros(0)) => return,
                Some(left) => {
                    tokio::select! {
                        biased;
                        () = changed => {}
                        () = time::sleep(left.into()) => {}
                    }
                }
                None => changed.await,
            }
        }
    }

    /// Returns how long it takes until a call must be made to send reports. 0 if it must be made now. `None` if no
    /// reports will be needed.
    fn next_reports(
        &self,
        own: impl Fn() -> PartIndices,
        connection: ConnectionNumber,
        now: Timestamp,
    ) -> Option<Micros> {
        if !self.is_used() {
            return None;
        }
        let own = own();
        let next = |(index, part): (usize, &Arc<PartHolds>)| match own.contains(&index) {
            true => part.next_reports(Some(connection), now),
            false => part.next_reports(None, now).map(|left| left.max(ELSEWHERE)),
        };
        self.parts.iter().enumerate().filter_map(next).min()
    }
}
