//! Tells the next process which slots this process still holds in memory, until this process ends. The limits of the
//! next process then also count the requests that this process still answers.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use crate::gateway::state::GatewayState;
use stores::memory::slot_stream::{self, HeldAmount};

/// The interval at which this process looks for a change of what it holds.
const POLL: Duration = Duration::from_millis(20);

/// The longest wait of the next process for the first message.
const FIRST_MESSAGE: Duration = Duration::from_secs(10);

/// The stream to the next process, and what was last sent on it.
pub(super) struct SlotHandover {
    stream: UnixStream,
    last: Vec<HeldAmount>,
}

/// Sends what this process holds to the next process.
///
/// # Errors
/// If the next process has ended.
pub(super) fn begin(gateway: &GatewayState, stream: UnixStream) -> io::Result<SlotHandover> {
    let last = held(gateway);
    slot_stream::write(&last, &stream)?;
    Ok(SlotHandover { stream, last })
}

impl SlotHandover {
    /// Sends every change, until this process ends or the next one.
    pub(super) fn follow(mut self, gateway: &Arc<GatewayState>) {
        let gateway = Arc::clone(gateway);
        in_background(move || {
            loop {
                std::thread::sleep(POLL);
                let held = held(&gateway);
                if held != self.last {
                    if slot_stream::write(&held, &self.stream).is_err() {
                        return;
                    }
                    self.last = held;
                }
            }
        });
    }
}

fn in_background(work: impl FnOnce() + Send + 'static) {
    if let Err(error) = std::thread::Builder::new().name("slots".to_owned()).spawn(work) {
        log::warn!(error:%; "slots are not counted over the upgrade");
    }
}

fn held(gateway: &GatewayState) -> Vec<HeldAmount> {
    let mut held = gateway.store.local_buckets().map_or(Vec::new(), |memory| memory.held_amounts());
    held.sort_unstable_by_key(|held| held.key);
    held
}

/// Counts what the previous process holds. Returns after its first message, and counts later messages until that process
/// has ended.
pub(super) fn receive(gateway: &Arc<GatewayState>, stream: UnixStream) {
    let first = stream.set_read_timeout(Some(FIRST_MESSAGE)).and_then(|()| slot_stream::read(&stream));
    let Ok(first) = first else { return };
    let count = |gateway: &GatewayState, held: &[HeldAmount]| {
        if let Some(memory) = gateway.store.local_buckets() {
            memory.count_held_elsewhere(held);
        }
    };
    count(gateway, &first);
    let gateway = Arc::clone(gateway);
    in_background(move || {
        if stream.set_read_timeout(None).is_ok() {
            while let Ok(held) = slot_stream::read(&stream) {
                count(&gateway, &held);
            }
        }
        // The requests of a process that has ended hold nothing any more.
        count(&gateway, &[]);
    });
}
