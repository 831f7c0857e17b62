//! Tells the next process what the requests of this process hold and cost, so that the next process counts these
//! requests too. This goes on until this process ends.

use std::io;
use std::os::unix::net::UnixStream;
use std::os::unix::process::parent_id;
use std::sync::Arc;
use std::time::Duration;

use super::upgrade::PreviousSlots;
use crate::gateway::state::GatewayState;
use stores::memory::slot_stream::{self, HeldAmount};

/// The interval at which this process looks for a change of the slots that it holds.
const POLL: Duration = Duration::from_millis(20);

/// The longest wait of the next process for the first message.
const FIRST_MESSAGE: Duration = Duration::from_secs(10);

/// The longest time between the close of a process's streams and the end of the process.
const CLOSING: Duration = Duration::from_secs(1);

/// The stream to the next process, and what was last sent on it.
pub(super) struct SlotHandover {
    stream: UnixStream,
    last: Vec<HeldAmount>,
}

/// Sends to the next process which slots this process holds.
///
/// # Errors
/// If the next process has ended.
pub(super) fn begin(gateway: &GatewayState, stream: UnixStream) -> io::Result<SlotHandover> {
    let last = held(gateway);
    slot_stream::write(&last, &stream)?;
    mark_sent(gateway, &last);
    Ok(SlotHandover { stream, last })
}

impl SlotHandover {
    /// Sends every change, until this process or the next process ends.
    pub(super) fn follow(mut self, gateway: &Arc<GatewayState>) {
        let gateway = Arc::clone(gateway);
        in_background(move || {
            loop {
                std::thread::sleep(POLL);
                let held = held(&gateway);
                if held == self.last {
                    continue;
                }
                if let Err(error) = slot_stream::write(&held, &self.stream) {
                    gateway.metrics.slot_handover_errors.increment(1);
                    log::warn!(error:%; "the next process does not learn which slots end");
                    return;
                }
                mark_sent(&gateway, &held);
                self.last = held;
            }
        });
    }
}

fn mark_sent(gateway: &GatewayState, held: &[HeldAmount]) {
    if let Some(memory) = gateway.store.local_buckets() {
        memory.mark_sent(held);
    }
}

fn in_background(work: impl FnOnce() + Send + 'static) {
    if let Err(error) = std::thread::Builder::new().name("slots".to_owned()).spawn(work) {
        log::warn!(error:%; "slots are not counted over the upgrade");
    }
}

/// Returns the slots that this process holds, and the slots that it counts for its own previous process.
fn held(gateway: &GatewayState) -> Vec<HeldAmount> {
    let mut held = gateway.store.local_buckets().map_or(Vec::new(), |memory| memory.held_amounts());
    held.sort_unstable_by_key(|held| held.key);
    held
}

/// Counts the slots that the previous process holds. Returns after the first message of that process, and counts later
/// messages until that process has ended.
///
/// # Errors
/// If the first message does not come.
pub(super) fn receive(gateway: &Arc<GatewayState>, slots: PreviousSlots) -> io::Result<()> {
    let PreviousSlots { stream, process } = slots;
    stream.set_read_timeout(Some(FIRST_MESSAGE))?;
    let first = slot_stream::read(&stream)?;
    stream.set_read_timeout(None)?;
    let gateway = Arc::clone(gateway);
    let count = {
        let gateway = Arc::clone(&gateway);
        move |held: &[HeldAmount]| {
            if let Some(memory) = gateway.store.local_buckets() {
                memory.count_held_elsewhere(held);
            }
        }
    };
    count(&first);
    // When the previous process has ended, this process has another parent.
    let is_running = move || parent_id() == process;
    let broken = move |error: &io::Error| {
        gateway.metrics.slot_handover_errors.increment(1);
        log::warn!(error:%; "all slots of the previous process count until it ends");
    };
    in_background(move || follow_previous(&stream, count, is_running, broken));
    Ok(())
}

/// Counts the slots in each message of the previous process, until that process has ended. Calls `broken` if the stream
/// ends before that process.
fn follow_previous(
    stream: &UnixStream,
    count: impl Fn(&[HeldAmount]),
    is_running: impl Fn() -> bool,
    broken: impl FnOnce(&io::Error),
) {
    let error = loop {
        match slot_stream::read(stream) {
            Ok(held) => count(&held),
            Err(error) => break error,
        }
    };
    // The streams of a process close a moment before its end.
    let mut polls = CLOSING.as_millis() / POLL.as_millis();
    while is_running() && polls > 0 {
        std::thread::sleep(POLL);
        polls -= 1;
    }
    if is_running() {
        broken(&error);
        while is_running() {
            std::thread::sleep(POLL);
        }
    }
    // After the end of the previous process, its requests hold nothing.
    count(&[]);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;
    use base::time::Timestamp;
    use ledger::bucket_key::BucketKey;
    use ledger::cost::Cost;

    /// Sends one amount, and closes the stream. Returns how many amounts count while the previous process runs, how many
    /// count after the end of that process, and whether the stream was broken.
    fn counted(ends_first: bool) -> (usize, usize, bool) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let held = HeldAmount {
            key: BucketKey([1; 16]),
            amount: Cost::ONE,
            since: Timestamp(1),
            settled: Cost::default(),
            resets: 0,
            is_budget: false,
        };
        slot_stream::write(&[held], &ours).unwrap();
        let (is_running, is_broken, counted) = (AtomicBool::new(true), AtomicBool::new(false), AtomicUsize::new(0));
        let mut before = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let count = |held: &[HeldAmount]| counted.store(held.len(), Ordering::SeqCst);
                let is_running = || is_running.load(Ordering::SeqCst);
                follow_previous(&theirs, count, is_running, |_| is_broken.store(true, Ordering::SeqCst));
            });
            while counted.load(Ordering::SeqCst) == 0 {
                std::thread::sleep(POLL);
            }
            if ends_first {
                is_running.store(false, Ordering::SeqCst);
            }
            drop(ours);
            while !ends_first && !is_broken.load(Ordering::SeqCst) {
                std::thread::sleep(POLL);
            }
            before = counted.load(Ordering::SeqCst);
            is_running.store(false, Ordering::SeqCst);
        });
        (before, counted.into_inner(), is_broken.into_inner())
    }

    #[test]
    fn what_was_last_said_counts_until_the_previous_process_has_ended() {
        let (before, after, is_broken) = counted(false);
        assert_eq!((before, after, is_broken), (1, 0, true));
        let (_, after, is_broken) = counted(true);
        assert_eq!((after, is_broken), (0, false));
    }
}
