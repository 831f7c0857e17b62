//! Finds clients that cause much work without requests. Their connections are closed.

use super::frame_counts::FrameCounts;
use base::time::{Micros, Timestamp};

const PERIOD: Micros = Micros(10_000_000);

/// The maximum number of streams that a client may reset in a period. More are allowed if they are at most half of its
/// streams.
const MOST_RESETS: u32 = 200;

/// The maximum number of frames without content in a period.
const MOST_IDLE_FRAMES: u32 = 10_000;

/// Counts the frames of the current period, to detect a client that floods the gateway with frames.
#[derive(Debug)]
pub(super) struct FloodLimit {
    began: Timestamp,
    /// The counts at the beginning of the period.
    resets: u32,
    opened: u32,
    idle_frames: u32,
}

impl FloodLimit {
    pub(super) fn new(now: Timestamp) -> FloodLimit {
        FloodLimit { began: now, resets: 0, opened: 0, idle_frames: 0 }
    }

    /// Whether the client has exceeded a limit in the current period. Begins a new period if the current one is over.
    pub(super) fn is_exceeded(&mut self, counts: &FrameCounts, now: Timestamp) -> bool {
        let (resets, opened, idle_frames) = (counts.resets(), counts.opened(), counts.idle_frames());
        let reset = resets.wrapping_sub(self.resets);
        let streams = opened.wrapping_sub(self.opened);
        let is_exceeded = (reset > MOST_RESETS && u64::from(reset) * 2 > u64::from(streams))
            || idle_frames.wrapping_sub(self.idle_frames) > MOST_IDLE_FRAMES;
        if now.since(self.began) >= PERIOD {
            *self = FloodLimit { began: now, resets, opened, idle_frames };
        }
        is_exceeded
    }
}
