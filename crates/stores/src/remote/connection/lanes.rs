//! Holds the lanes of one connection. A lane is a future that makes one call after the other, from batches that are
//! handed to it.
//!
//! One task polls the lanes that have a call, and the future that hands over batches.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll};

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::round_trip::RoundTrip;
use crate::error::Fault;
use crate::remote::queue::PendingTake;
use base::time::Timestamp;

/// The state that all calls on one connection share.
#[derive(Debug)]
pub(super) struct Session {
    /// A batch for the next free lane. Empty if no batch waits.
    handed: Mutex<Vec<PendingTake>>,
    /// Whether an empty batch waits. Its call only reports which slots are held.
    is_empty_handed: AtomicBool,
    /// The lanes with a call under way, as one bit for each lane.
    busy: AtomicU32,
    /// The busy lanes, in the order in which their calls began.
    in_order: Mutex<SmallVec<[usize; 8]>>,
    /// The number of calls that have ended.
    ended: AtomicU64,
    /// When the last call was sent, as a [`Timestamp`].
    last_sent: AtomicU64,
    pub round_trip: RoundTrip,
    /// Whether at least one call on the connection was answered.
    pub answered: AtomicBool,
    /// The requests of calls that did not run. They are sent on the next connection.
    pub returned: Mutex<Vec<PendingTake>>,
}

impl Session {
    pub(super) fn new(round_trip: RoundTrip) -> Session {
        Session {
            handed: Mutex::default(),
            is_empty_handed: AtomicBool::new(false),
            busy: AtomicU32::new(0),
            in_order: Mutex::default(),
            ended: AtomicU64::new(0),
            last_sent: AtomicU64::new(0),
            round_trip,
            answered: AtomicBool::new(false),
            returned: Mutex::default(),
        }
    }

    /// Returns the number of calls under way.
    pub(super) fn under_way(&self) -> usize {
        self.busy.load(Ordering::Relaxed).count_ones() as usize
    }

    /// Returns the number of calls that have ended.
    pub(super) fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }

    /// Waits until the number of calls under way is no longer `under_way`.
    pub(super) async fn changes(&self, under_way: usize) {
        poll_fn(|_| if self.under_way() == under_way { Poll::Pending } else { Poll::Ready(()) }).await;
    }

    /// Returns the time at which the last call was sent.
    pub(crate) fn last_sent(&self) -> Timestamp {
        Timestamp(self.last_sent.load(Ordering::Relaxed))
    }

    pub(crate) fn note_sent(&self, at: Timestamp) {
        self.last_sent.store(at.0, Ordering::Relaxed);
    }

    /// Hands a batch to the first free lane, and leaves `batch` empty. Returns when the lane has taken the batch.
    pub(super) async fn hand(&self, batch: &mut Vec<PendingTake>) {
        self.is_empty_handed.store(batch.is_empty(), Ordering::Relaxed);
        std::mem::swap(&mut *self.handed.lock(), batch);
        poll_fn(|_| if self.has_batch() { Poll::Pending } else { Poll::Ready(()) }).await;
    }

    fn has_batch(&self) -> bool {
        !self.handed.lock().is_empty() || self.is_empty_handed.load(Ordering::Relaxed)
    }

    /// Waits for a batch for this lane, moves it to `batch`, and marks the lane as busy.
    pub(super) async fn take(&self, lane: usize, batch: &mut Vec<PendingTake>) {
        poll_fn(|_| {
            let mut handed = self.handed.lock();
            if handed.is_empty() && !self.is_empty_handed.swap(false, Ordering::Relaxed) {
                return Poll::Pending;
            }
            std::mem::swap(&mut *handed, batch);
            self.busy.fetch_or(1 << lane, Ordering::Relaxed);
            self.in_order.lock().push(lane);
            Poll::Ready(())
        })
        .await;
    }

    /// Marks the lane as free, because its call has ended.
    pub(super) fn end(&self, lane: usize) {
        self.busy.fetch_and(!(1 << lane), Ordering::Relaxed);
        self.in_order.lock().retain(|busy| *busy != lane);
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    fn is_busy(&self, lane: usize) -> bool {
        self.busy.load(Ordering::Relaxed) & (1 << lane) != 0
    }
}

/// The lanes of one connection. A lane is removed after a fault that ends the connection.
pub(crate) struct Lanes<'s, F> {
    session: &'s Session,
    lanes: Vec<Option<Pin<Box<F>>>>,
}

impl<'s, F: Future<Output = Fault>> Lanes<'s, F> {
    pub(super) fn new(session: &'s Session, lanes: impl Iterator<Item = F>) -> Lanes<'s, F> {
        Lanes { session, lanes: lanes.map(|lane| Some(Box::pin(lane))).collect() }
    }

    /// Makes the calls for which `feed` hands over batches, until a fault ends the connection. Returns this fault.
    pub(super) async fn run(&mut self, mut feed: Pin<&mut impl Future<Output = Infallible>>) -> Fault {
        poll_fn(|context| {
            // Lanes are polled first, because replies free lanes for the next call.
            if let Poll::Ready(fault) = self.poll_busy(context) {
                return Poll::Ready(fault);
            }
            loop {
                match feed.as_mut().poll(context) {
                    Poll::Ready(never) => match never {},
                    Poll::Pending if !self.session.has_batch() => return Poll::Pending,
                    Poll::Pending => {}
                }
                let Some(free) = (0..self.lanes.len()).find(|lane| !self.session.is_busy(*lane)) else {
                    return Poll::Pending;
                };
                if let Poll::Ready(fault) = self.poll_lane(free, context) {
                    return Poll::Ready(fault);
                }
            }
        })
        .await
    }

    /// Waits until all calls under way have ended.
    pub(super) async fn finish(&mut self) {
        poll_fn(|context| {
            while self.poll_busy(context).is_ready() {}
            if self.session.under_way() == 0 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Polls the busy lanes in the order in which their calls began, so that replies are handled in that order.
    fn poll_busy(&mut self, context: &mut Context<'_>) -> Poll<Fault> {
        let in_order = self.session.in_order.lock().clone();
        for lane in in_order {
            if self.session.is_busy(lane)
                && let Poll::Ready(fault) = self.poll_lane(lane, context)
            {
                return Poll::Ready(fault);
            }
        }
        Poll::Pending
    }

    fn poll_lane(&mut self, lane: usize, context: &mut Context<'_>) -> Poll<Fault> {
        let Some(place) = self.lanes.get_mut(lane) else { return Poll::Pending };
        let Some(calls) = place else { return Poll::Pending };
        let polled = calls.as_mut().poll(context);
        if polled.is_ready() {
            *place = None;
            self.session.end(lane);
        }
        polled
    }
}
