//! Implements the traits that Pingora requires of a stream: reading and writing by the rules of [`DownstreamStream`], all
//! others by those of the stream inside.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_trait::async_trait;
use pingora::protocols::raw_connect::ProxyDigest;
use pingora::protocols::tls::{SslDigest, TlsRef};
use pingora::protocols::{
    ALPN, GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl, TimingDigest, UniqueID,
    UniqueIDType,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::downstream_stream::{DownstreamStream, End};
use super::request_body::BodyFraming;
use crate::gateway::upstream::request_deadline::UpstreamTimedOut;

impl AsyncRead for DownstreamStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        match this.end {
            Some(End::Invalid(error)) => Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, error))),
            Some(End::Closed | End::Stalled | End::Cut | End::Reset) => Poll::Ready(Ok(())),
            Some(End::UpstreamTimedOut) => Poll::Ready(Err(UpstreamTimedOut.into())),
            None if this.framing == BodyFraming::Nothing => this.poll_closed(cx),
            None => this.poll_body(cx, buf),
        }
    }
}

impl AsyncWrite for DownstreamStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().poll_write_part(bytes, cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if let Some(first) = parts.iter().find(|part| !part.is_empty())
            && this.awaits_head()
        {
            return this.poll_write_part(first, cx);
        }
        this.largest_part = parts.iter().map(|part| part.len()).fold(this.largest_part, usize::max);
        let written = Pin::new(&mut this.inner).poll_write_vectored(cx, parts);
        this.poll_backpressure(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_waiting_head(cx))?;
        let written = Pin::new(&mut this.inner).poll_flush(cx);
        this.poll_backpressure(written, cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_waiting_head(cx))?;
        let written = Pin::new(&mut this.inner).poll_shutdown(cx);
        this.poll_backpressure(written, cx)
    }
}

#[async_trait]
impl Shutdown for DownstreamStream {
    async fn shutdown(&mut self) {
        // The connection is closed either way.
        let _ = tokio::io::AsyncWriteExt::shutdown(self).await;
    }
}

impl UniqueID for DownstreamStream {
    fn id(&self) -> UniqueIDType {
        self.inner.id()
    }
}

impl Ssl for DownstreamStream {
    fn get_ssl(&self) -> Option<&TlsRef> {
        self.inner.get_ssl()
    }

    fn get_ssl_digest(&self) -> Option<Arc<SslDigest>> {
        self.inner.get_ssl_digest()
    }

    fn selected_alpn_proto(&self) -> Option<ALPN> {
        self.inner.selected_alpn_proto()
    }
}

impl GetTimingDigest for DownstreamStream {
    /// Empty: the time that it took to establish the connection is not used.
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        Vec::new()
    }

    fn get_read_pending_time(&self) -> Duration {
        self.inner.get_read_pending_time()
    }

    fn get_write_pending_time(&self) -> Duration {
        self.inner.get_write_pending_time()
    }
}

impl GetProxyDigest for DownstreamStream {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        self.inner.get_proxy_digest()
    }
}

impl GetSocketDigest for DownstreamStream {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        self.inner.get_socket_digest()
    }

    fn set_socket_digest(&mut self, digest: SocketDigest) {
        self.inner.set_socket_digest(digest);
    }
}

impl Peek for DownstreamStream {}
