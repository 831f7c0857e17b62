//! Measures how late a thread runs on this machine, so that a test can distinguish a slow gateway from a busy machine.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::now;

const PAUSE: Duration = Duration::from_millis(5);

/// The number of turns of a request: client, gateway, timer and client run one after the other.
const TURNS: u32 = 4;

/// Measures until it is dropped.
pub(crate) struct Lateness(Arc<Mutex<Wakeups>>);

struct Wakeups {
    last: Instant,
    worst: Duration,
}

impl Lateness {
    pub(crate) fn measure() -> Lateness {
        let wakeups = Arc::new(Mutex::new(Wakeups { last: now(), worst: Duration::ZERO }));
        let watched = Arc::downgrade(&wakeups);
        std::thread::spawn(move || {
            while let Some(wakeups) = watched.upgrade() {
                wakeups.lock().unwrap().record();
                drop(wakeups);
                std::thread::sleep(PAUSE);
            }
        });
        Lateness(wakeups)
    }

    /// Returns the longest time by which the machine may have delayed any request since the beginning.
    pub(crate) fn of_a_request(&self) -> Duration {
        let wakeups = self.0.lock().unwrap();
        // It may be late at present.
        TURNS * wakeups.worst.max(wakeups.last.elapsed().saturating_sub(PAUSE))
    }
}

impl Wakeups {
    fn record(&mut self) {
        self.worst = self.worst.max(self.last.elapsed().saturating_sub(PAUSE));
        self.last = now();
    }
}
