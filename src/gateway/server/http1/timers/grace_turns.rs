//! Gives a task a few more turns after a wait for a peer has timed out, before the peer is given up.
//!
//! If this process was stopped for a while, bytes may have arrived in time. The task reads them in these turns.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// The number of turns: one in which the runtime looks at its sockets, and three in which tasks read the bytes and pass
/// them on.
const TURNS: u8 = 4;

#[derive(Default)]
pub(crate) struct GraceTurns {
    taken: u8,
    turn: Option<Pin<Box<dyn Future<Output = ()> + Send + Sync>>>,
}

impl GraceTurns {
    /// Becomes ready when the task has been woken once for each turn.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.taken < TURNS {
            // The runtime looks at its sockets before it wakes the task.
            let turn = self.turn.get_or_insert_with(|| Box::pin(tokio::task::yield_now()));
            ready!(turn.as_mut().poll(cx));
            self.turn = None;
            self.taken += 1;
        }
        Poll::Ready(())
    }

    /// Begins the turns again, for the next wait.
    pub(crate) fn restart(&mut self) {
        *self = GraceTurns::default();
    }
}

impl fmt::Debug for GraceTurns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GraceTurns").field("taken", &self.taken).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[tokio::test]
    async fn a_task_is_woken_for_every_turn() {
        let mut grace = GraceTurns::default();
        for _ in 0..2 {
            let mut polls = 0;
            poll_fn(|cx| {
                polls += 1;
                grace.poll(cx)
            })
            .await;
            assert_eq!(polls, TURNS + 1);
            grace.restart();
        }
    }
}
