//! Holds an encrypted connection as a stream of its plaintext.
//!
//! The HTTP/1.1 server relies on this: the stream reads only when it is polled for reading, and `Pending` means that
//! the waker will be called. After `Ready`, the stream must be polled again, because more bytes may have been
//! decrypted.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use async_trait::async_trait;
use pingora::protocols::raw_connect::ProxyDigest;
use pingora::protocols::tls::SslDigest;
use pingora::protocols::{
    ALPN, GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl, Stream, TimingDigest,
    UniqueID, UniqueIDType,
};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio_rustls::server::TlsStream;

use crate::gateway::server::forward_writes::forward_writes;
use base::http_protocol::HttpProtocol;

#[derive(Debug)]
pub struct EncryptedStream {
    pub(super) inner: TlsStream<Stream>,
    digest: Arc<SslDigest>,
    /// Whether the connection ends before its last response is complete. If so, no `close_notify` is sent.
    is_truncated: AtomicBool,
}

impl EncryptedStream {
    pub fn new(inner: TlsStream<Stream>) -> EncryptedStream {
        let (_, connection) = inner.get_ref();
        let version = connection.protocol_version().and_then(|version| version.as_str()).unwrap_or_default();
        let suite = connection.negotiated_cipher_suite().and_then(|suite| suite.suite().as_str()).unwrap_or_default();
        // Pingora regards a stream without this digest as unencrypted.
        let digest = Arc::new(SslDigest::new(suite, version, None, None, Vec::new()));
        EncryptedStream { inner, digest, is_truncated: AtomicBool::new(false) }
    }

    /// Makes the connection end without `close_notify`, so that the client knows that the response was cut off.
    pub fn end_without_notice(&self) {
        self.is_truncated.store(true, Ordering::Relaxed);
    }
}

impl AsyncRead for EncryptedStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.inner).poll_read(cx, buf) {
            // The client has closed without `close_notify`, as many do. This is safe, because HTTP itself says where a
            // message ends.
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => Poll::Ready(Ok(())),
            polled => polled,
        }
    }
}

forward_writes!(EncryptedStream, inner);

impl Drop for EncryptedStream {
    /// Sends `close_notify` if this is possible without waiting.
    fn drop(&mut self) {
        if *self.is_truncated.get_mut() {
            return;
        }
        let _ = Pin::new(&mut self.inner).poll_shutdown(&mut Context::from_waker(Waker::noop()));
    }
}

#[async_trait]
impl Shutdown for EncryptedStream {
    async fn shutdown(&mut self) {
        // An error is ignored, because the connection is closed anyway.
        let _ = AsyncWriteExt::shutdown(self).await;
    }
}

impl UniqueID for EncryptedStream {
    fn id(&self) -> UniqueIDType {
        self.inner.get_ref().0.id()
    }
}

impl Ssl for EncryptedStream {
    fn get_ssl_digest(&self) -> Option<Arc<SslDigest>> {
        Some(Arc::clone(&self.digest))
    }

    fn selected_alpn_proto(&self) -> Option<ALPN> {
        let protocol = self.inner.get_ref().1.alpn_protocol()?;
        Some(if protocol == HttpProtocol::H2.name().as_bytes() { ALPN::H2 } else { ALPN::H1 })
    }
}

impl GetTimingDigest for EncryptedStream {
    /// Empty, because nobody uses the time that the connection took to establish.
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        Vec::new()
    }
}

impl GetProxyDigest for EncryptedStream {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        self.inner.get_ref().0.get_proxy_digest()
    }
}

impl GetSocketDigest for EncryptedStream {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        self.inner.get_ref().0.get_socket_digest()
    }

    fn set_socket_digest(&mut self, digest: SocketDigest) {
        self.inner.get_mut().0.set_socket_digest(digest);
    }
}

impl Peek for EncryptedStream {}
