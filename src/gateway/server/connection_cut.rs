//! Ends the requests of a connection when the process exits, so that each request has its line in the access log.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::sync::watch::Receiver;

use super::http1::timers::poll_on_wake::PollOnWake;

/// Waits for the exit of the process, to end the requests of one connection.
#[derive(Debug, Default)]
pub(crate) struct ConnectionCut(Option<CutWait>);

struct CutWait {
    woken: PollOnWake,
    /// The wait for the exit of the process; `None` once the exit has been reported.
    cut: Option<Pin<Box<dyn Future<Output = ()> + Send + Sync>>>,
    /// The exit of the process waits until this receiver is dropped.
    _receiver: Receiver<bool>,
}

impl ConnectionCut {
    /// Begins to wait for the exit of the process, at the first call. `receiver` subscribes to a channel that becomes
    /// true at the exit.
    pub(crate) fn begin(&mut self, receiver: impl FnOnce() -> Receiver<bool>) {
        self.0.get_or_insert_with(|| {
            let receiver = receiver();
            let mut watch = receiver.clone();
            let cut = Box::pin(async move { drop(watch.wait_for(|cut| *cut).await) });
            CutWait { woken: PollOnWake::default(), cut: Some(cut), _receiver: receiver }
        });
    }

    /// Becomes ready when the process exits. The exit is reported only once.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(CutWait { woken, cut, .. }) = &mut self.0 else { return Poll::Pending };
        let Some(waiting) = cut else { return Poll::Pending };
        ready!(woken.poll(cx, |cx| waiting.as_mut().poll(cx)));
        *cut = None;
        Poll::Ready(())
    }
}

impl fmt::Debug for CutWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CutWait")
    }
}
