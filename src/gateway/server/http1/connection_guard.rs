//! Counts a connection for as long as it is open, wherever it is held: as one of those there may be, or of those too many.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use metrics::Gauge;

use super::connections_per_client::{Belonging, Clients};
use crate::limit::request::ClientAddress;

/// One connection more, until this goes.
pub struct Counted {
    open: Arc<AtomicUsize>,
    gauge: Gauge,
    /// Once it is known whose it is.
    belonging: Option<Belonging>,
}

impl Counted {
    /// And how many there were before.
    pub fn new(open: &Arc<AtomicUsize>, gauge: &Gauge) -> (Counted, usize) {
        let before = open.fetch_add(1, Ordering::AcqRel);
        gauge.increment(1.0);
        (Counted { open: Arc::clone(open), gauge: gauge.clone(), belonging: None }, before)
    }

    /// Says whose it is; how many they had before.
    pub fn belongs_to(&mut self, client: ClientAddress, clients: &Arc<Clients>) -> usize {
        let (belonging, before) = clients.add(client);
        self.belonging = Some(belonging);
        before
    }
}

impl std::fmt::Debug for Counted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Counted")
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::AcqRel);
        self.gauge.decrement(1.0);
    }
}

/// A connection that is too many, while it is told so. It takes no place of those that there may be: whoever comes too often
/// keeps nobody else out by it.
#[derive(Debug)]
pub struct Told(Arc<AtomicUsize>);

impl Told {
    /// None where as many as `most` are being told already.
    pub fn new(told: &Arc<AtomicUsize>, most: usize) -> Option<Told> {
        let before = told.fetch_add(1, Ordering::AcqRel);
        let new = Told(Arc::clone(told));
        (before < most).then_some(new)
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// As what a connection is counted.
#[derive(Debug)]
#[expect(dead_code, reason = "held, until the connection is closed")]
pub enum Held {
    Counted(Counted),
    Told(Told),
}
