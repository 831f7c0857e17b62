//! Cuts a connection when the process can wait for it no longer, so that its request ends with a line in the access log.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tokio::sync::watch::Receiver;

use super::http1::poll_on_wake::PollOnWake;

/// Waits for the cut of one connection. Polled by the task of that connection only.
#[derive(Debug, Default)]
pub struct TunnelCut(Mutex<Option<CutWait>>);

struct CutWait {
    woken: PollOnWake,
    cut: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// Held until the connection is closed.
    _receiver: Receiver<bool>,
}

impl TunnelCut {
    /// The connection may be cut from now on. What `receiver` makes becomes true when it is to be cut, and is held as long as it is
    /// open. Does nothing the second time.
    pub fn begin(&self, receiver: impl FnOnce() -> Receiver<bool>) {
        self.0.lock().get_or_insert_with(|| {
            let receiver = receiver();
            let mut watch = receiver.clone();
            let cut = Box::pin(async move { drop(watch.wait_for(|cut| *cut).await) });
            CutWait { woken: PollOnWake::default(), cut, _receiver: receiver }
        });
    }

    /// Ready when the connection is cut. Must not be polled again after that.
    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<io::Error> {
        match &mut *self.0.lock() {
            Some(CutWait { woken, cut, .. }) => {
                woken.poll(cx, |cx| cut.as_mut().poll(cx)).map(|()| ProcessExits.into())
            }
            None => Poll::Pending,
        }
    }
}

impl fmt::Debug for CutWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CutWait")
    }
}

/// The connection was cut because the process exits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessExits;

impl From<ProcessExits> for io::Error {
    fn from(exits: ProcessExits) -> io::Error {
        io::Error::new(io::ErrorKind::ConnectionAborted, exits)
    }
}

impl fmt::Display for ProcessExits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the process exits")
    }
}

impl std::error::Error for ProcessExits {}
