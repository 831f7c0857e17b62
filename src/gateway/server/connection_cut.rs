//! Cuts a connection whose request has not ended when the process exits, such as a tunnel, so that the request gets its line in
//! the access log.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tokio::sync::watch::Receiver;

use super::http1::timers::poll_on_wake::PollOnWake;

/// Tells the task of one connection when to close the connection, because the process exits.
#[derive(Debug, Default)]
pub struct ConnectionCut(Mutex<Option<CutWait>>);

struct CutWait {
    woken: PollOnWake,
    cut: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// Held until the connection is closed.
    _receiver: Receiver<bool>,
}

impl ConnectionCut {
    /// Allows the connection to be cut from now on: when the value of the channel that `receiver` returns becomes true. The receiver
    /// is held until the connection is closed. Only the first call has an effect.
    pub fn begin(&self, receiver: impl FnOnce() -> Receiver<bool>) {
        self.0.lock().get_or_insert_with(|| {
            let receiver = receiver();
            let mut watch = receiver.clone();
            let cut = Box::pin(async move { drop(watch.wait_for(|cut| *cut).await) });
            CutWait { woken: PollOnWake::default(), cut, _receiver: receiver }
        });
    }

    /// Ready when the connection must be closed. Must not be polled again after that.
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

/// The error of a connection that was cut: the process exits.
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
