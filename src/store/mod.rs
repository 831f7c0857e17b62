//! WHERE BUCKETS LIVE: takes plans, all or nothing, in one act.
//!
//! Every store answers with the time that it decided by and the level of every bucket that was asked. A store never logs
//! or counts: it returns what happened.

pub mod memory;

use smallvec::SmallVec;

use crate::limit::charge::{Plan, Settlement};
use crate::time::{Clock, Timestamp};
use memory::Memory;

/// Which store to open, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settings {
    Memory(memory::Settings),
}

impl Default for Settings {
    fn default() -> Settings {
        Settings::Memory(memory::Settings::default())
    }
}

/// The stores. To add one: its file, and an arm in each `match` here.
#[derive(Debug)]
pub enum Store {
    Memory(Memory),
}

/// What a store did with the plans that it was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The store's own clock, when it decided.
    pub now: Timestamp,
    /// One for each plan, in their order.
    pub settlements: SmallVec<[Settlement; 1]>,
    /// Buckets that had to be forgotten to make room, although something was still spent.
    pub evicted: u64,
}

/// Why a store gave no answer. The embedded store always answers; those that can be away will add their causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreError {}

impl Store {
    pub fn open(settings: &Settings, clock: Clock) -> Store {
        match settings {
            Settings::Memory(settings) => Store::Memory(Memory::new(settings, clock)),
        }
    }

    /// Decides these plans in their order, each all or nothing.
    // Async because a store may be elsewhere; the embedded one answers at once.
    pub async fn take(&self, plans: &[Plan]) -> Result<Taken, StoreError> {
        match self {
            Store::Memory(memory) => Ok(memory.take(plans)),
        }
    }

    /// Frees what need not be kept any more. To be called every second or so.
    pub fn sweep(&self) {
        match self {
            Store::Memory(memory) => memory.sweep(),
        }
    }

    /// How many buckets are kept here.
    pub fn buckets(&self) -> usize {
        match self {
            Store::Memory(memory) => memory.buckets(),
        }
    }

    /// Its name in gateway.yaml and in metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Store::Memory(_) => "memory",
        }
    }
}
