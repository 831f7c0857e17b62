//! Cancels the work of a server for a connection that is given up. Without that, a COMMIT that waits for an absent
//! replica would keep its rows locked.
//!
//! A cancelled call has no answer, so it counts as charged and is never repeated. The charge of a cancelled COMMIT
//! stays.
//!
//! A pooler cancels the work only while the connections of the call and of the cancel request are open. So both stay
//! open for a while, at most for `CANCEL_TIMEOUT`.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio_postgres::{CancelToken, NoTls};

use super::tls::Handshake;
use crate::error::Fault;
use crate::remote::transport::Driver;

/// The longest time that a cancellation may take.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(2);

/// Cancels the server's work for one connection.
#[derive(Clone)]
pub(crate) struct Cancellation {
    pub token: CancelToken,
    /// The address of the server. The server's name may lead to another server later.
    pub server: SocketAddr,
    pub tls: Option<Handshake>,
    /// Whether the request to cancel was sent.
    sent: Arc<AtomicBool>,
}

/// Moves the bytes of a connection. After a cancellation, the connection stays open for at most [`CANCEL_TIMEOUT`].
struct OpenUntilCancelled {
    /// What moves the bytes. `None` when the connection has ended.
    driver: Option<Driver>,
    cancelled: Arc<AtomicBool>,
}

impl Cancellation {
    pub(super) fn new(token: CancelToken, server: SocketAddr, tls: Option<Handshake>) -> Cancellation {
        Cancellation { token, server, tls, sent: Arc::default() }
    }

    /// Asks the server over a separate connection to cancel its work. Does not wait until the work is cancelled.
    pub(super) fn send(&self) {
        self.sent.store(true, Ordering::Relaxed);
        let Cancellation { token, server, tls, .. } = self.clone();
        let cancelling = async move {
            // If the connection or the request fails, the server continues its work.
            let Ok(stream) = TcpStream::connect(server).await else { return };
            let Ok((stream, mut open)) = two_of(stream) else { return };
            let _ = match tls {
                None => token.cancel_query_raw(StaysOpen(stream), NoTls).await,
                Some(handshake) => token.cancel_query_raw(StaysOpen(stream), handshake).await,
            };
            let _ = tokio::io::copy(&mut open, &mut tokio::io::sink()).await;
        };
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(tokio::time::timeout(CANCEL_TIMEOUT, cancelling));
        }
    }

    /// Wraps the driver of a connection, so that the connection stays open while the server cancels its work.
    pub(crate) fn keep_open(&self, driver: Driver) -> Driver {
        Box::pin(OpenUntilCancelled { driver: Some(driver), cancelled: Arc::clone(&self.sent) })
    }
}

/// Duplicates the handle of a connection. The connection stays open until both handles are dropped.
fn two_of(stream: TcpStream) -> io::Result<(TcpStream, TcpStream)> {
    let one = stream.into_std()?;
    let other = one.try_clone()?;
    Ok((TcpStream::from_std(one)?, TcpStream::from_std(other)?))
}

/// A connection whose write side stays open, because a shutdown only flushes.
struct StaysOpen(TcpStream);

impl AsyncRead for StaysOpen {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for StaysOpen {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(cx)
    }
}

impl Future for OpenUntilCancelled {
    type Output = Fault;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Fault> {
        let Some(driver) = &mut self.driver else { return Poll::Pending };
        let ended = driver.as_mut().poll(context);
        if ended.is_ready() {
            self.driver = None;
        }
        ended
    }
}

impl Drop for OpenUntilCancelled {
    fn drop(&mut self) {
        let Some(driver) = self.driver.take().filter(|_| self.cancelled.load(Ordering::Relaxed)) else { return };
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(tokio::time::timeout(CANCEL_TIMEOUT, driver));
        }
    }
}
