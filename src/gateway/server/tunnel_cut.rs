//! Cuts a tunnel when the process can wait for it no longer, so that its request ends with a line in the access log.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tokio::sync::watch::Receiver;

/// The cut of one connection, once that is a tunnel. Polled by the task of that connection only.
#[derive(Debug, Default)]
pub struct TunnelCut(Mutex<Option<CutWait>>);

struct CutWait {
    cut: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// The receiver, held until the request has ended.
    _receiver: Receiver<bool>,
}

impl TunnelCut {
    /// Notes that the connection is a tunnel from now on. `receiver` becomes true when it must be cut, and is held as long as it
    /// is open.
    pub fn begin(&self, receiver: Receiver<bool>) {
        let mut watch = receiver.clone();
        let cut = Box::pin(async move { drop(watch.wait_for(|cut| *cut).await) });
        *self.0.lock() = Some(CutWait { cut, _receiver: receiver });
    }

    /// Ready when a tunnel is cut. Must not be polled again after that.
    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<io::Error> {
        match &mut *self.0.lock() {
            Some(waiting) => waiting.cut.as_mut().poll(cx).map(|()| ProcessExits.into()),
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
