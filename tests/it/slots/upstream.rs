//! An upstream whose responses wait until a test lets them go, and that counts what runs at the same time.

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use crate::support::{Upstream, eventually};

/// Answers at once, but requests whose path begins with `/hold` when [`SlowUpstream::finish`] allows it.
pub(super) struct SlowUpstream {
    pub upstream: Upstream,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    work: Duration,
    /// How many requests may finish.
    allowed: Mutex<usize>,
    changed: Condvar,
    running: AtomicUsize,
    most: AtomicUsize,
}

impl SlowUpstream {
    pub(super) fn start() -> SlowUpstream {
        SlowUpstream::working(Duration::ZERO)
    }

    /// Starts an upstream whose requests to `/hold` take this time in addition.
    pub(super) fn working(work: Duration) -> SlowUpstream {
        let state = Arc::new(State { work, ..State::default() });
        let shared = Arc::clone(&state);
        let upstream = Upstream::answering(move |request, stream| {
            if request.line.contains(" /hold") {
                shared.run();
            }
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        });
        SlowUpstream { upstream, state }
    }

    /// Waits until so many requests run.
    pub(super) fn expect_running(&self, requests: usize) {
        eventually("the requests run", || self.has_running(requests));
    }

    /// Whether so many requests run.
    pub(super) fn has_running(&self, requests: usize) -> bool {
        self.state.running.load(Ordering::SeqCst) == requests
    }

    /// The most requests that have ever run at the same time.
    pub(super) fn most(&self) -> usize {
        self.state.most.load(Ordering::SeqCst)
    }

    /// Lets so many of the waiting requests finish.
    pub(super) fn finish(&self, requests: usize) {
        *self.state.allowed.lock().unwrap() += requests;
        self.state.changed.notify_all();
    }
}

impl State {
    fn run(&self) {
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(running, Ordering::SeqCst);
        let allowed = self.allowed.lock().unwrap();
        let wait = self.changed.wait_timeout_while(allowed, Duration::from_secs(60), |allowed| *allowed == 0);
        let (mut allowed, _) = wait.unwrap();
        *allowed = allowed.saturating_sub(1);
        drop(allowed);
        std::thread::sleep(self.work);
        self.running.fetch_sub(1, Ordering::SeqCst);
    }
}
