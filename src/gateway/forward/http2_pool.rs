//! Keeps the connections of HTTP/2 to upstreams, which the requests of a thread share.
//!
//! A connection takes as many requests as its server admits. It is closed when it has been idle for the time of its upstream, when
//! its server no longer answers pings, or when its server has said that it takes no more. It never changes its thread.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use foldhash::fast::RandomState;
use h2::client::{Builder, Connection, SendRequest};
use h2::{Ping, PingPong};
use parking_lot::Mutex;
use pingora::protocols::Stream;
use pingora::upstreams::peer::PeerOptions;

use super::upstream_pool::UpstreamStream;
use crate::gateway::server::connection_limits::{ConnectionLimits, CountGuard};
use base::time::{Clock, Micros, Timestamp, sleep, timeout};

/// How often connections that are no longer used are looked for.
const SWEEP: Duration = Duration::from_millis(500);

/// How long a server may take to answer a ping.
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// The largest frame that a server may send.
const FRAME: u32 = 64 << 10;

/// How many streams that were reset are remembered on a connection.
const RESET_STREAMS: usize = 1024;

/// The most bytes of a request that wait in a stream for its server.
const SEND_BUFFER: usize = 64 << 10;

/// The connections of HTTP/2 to upstreams of one thread.
#[derive(Debug)]
pub struct Http2Pool {
    clock: Clock,
    shared: Mutex<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// By what they have in common.
    connections: HashMap<u64, Vec<Arc<SharedConnection>>, RandomState>,
    /// Whether a task looks for those that are no longer used.
    is_swept: bool,
}

#[derive(Debug)]
struct SharedConnection {
    requests: SendRequest<Bytes>,
    /// The most requests at the same time, and how many there are.
    most: usize,
    streams: AtomicUsize,
    /// Whether it takes no more requests.
    is_closed: Arc<AtomicBool>,
    /// When the last stream ended, in microseconds.
    used: AtomicU64,
    idle_timeout: Micros,
    clock: Clock,
}

/// The place of one request on a connection, until it is dropped.
#[derive(Debug)]
pub struct Http2Stream(Arc<SharedConnection>);

impl Http2Pool {
    /// Makes a pool, which closes its idle connections when files are short.
    pub fn new(clock: Clock, limits: &ConnectionLimits) -> Arc<Http2Pool> {
        let pool = Arc::new(Http2Pool { clock, shared: Mutex::default() });
        let weak = Arc::downgrade(&pool);
        limits.upstream_files.add_pool(move || weak.upgrade().is_some_and(|pool| pool.shared.lock().close_idle()));
        pool
    }

    /// A place on a connection that takes one more request, if there is one.
    pub fn take(&self, key: u64) -> Option<Http2Stream> {
        let mut shared = self.shared.lock();
        let connections = shared.connections.get_mut(&key)?;
        connections.retain(|connection| connection.is_open());
        let free = connections.iter().find(|connection| connection.has_place())?;
        Some(Http2Stream::new(Arc::clone(free)))
    }

    /// Begins HTTP/2 on a new connection, which other requests may share from then on.
    ///
    /// # Errors
    /// If the connection fails.
    pub async fn begin(
        self: &Arc<Self>,
        key: u64,
        stream: UpstreamStream,
        options: &PeerOptions,
        header_bytes: usize,
    ) -> Result<Http2Stream, h2::Error> {
        let mut builder = Builder::new();
        builder
            .enable_push(false)
            .initial_max_send_streams(options.max_h2_streams)
            .max_frame_size(FRAME)
            .max_header_list_size(header_list(header_bytes))
            .max_send_buffer_size(SEND_BUFFER)
            // It forgets streams that were reset, counts what still comes for them, and closes the connection of all at 1024.
            .max_concurrent_reset_streams(RESET_STREAMS)
            .max_local_error_reset_streams(None)
            // It counts small parts that are not read yet, of all streams, and closes the connection. Those that wait for a client
            // are taken out of the h2 crate, and each stream has its own window.
            .data_frame_budget(usize::MAX);
        if let Some(window) = options.h2_stream_window_size {
            builder.initial_window_size(window);
        }
        if let Some(window) = options.h2_connection_window_size {
            builder.initial_connection_window_size(window);
        }
        let (stream, file) = stream.into_parts();
        let (requests, mut connection) = builder.handshake(stream).await?;
        let is_closed = Arc::new(AtomicBool::new(false));
        let idle = options.idle_timeout.map_or(Micros(u64::MAX / 2), Micros::from);
        let shared = Arc::new(SharedConnection {
            requests,
            most: options.max_h2_streams,
            streams: AtomicUsize::new(0),
            is_closed: Arc::clone(&is_closed),
            used: AtomicU64::new(self.clock.now().0),
            idle_timeout: idle,
            clock: self.clock.clone(),
        });
        let pings = options.h2_ping_interval.zip(connection.ping_pong());
        tokio::spawn(drive(connection, pings, is_closed, file));
        let taken = Http2Stream::new(Arc::clone(&shared));
        self.keep(key, shared);
        Ok(taken)
    }

    fn keep(self: &Arc<Self>, key: u64, connection: Arc<SharedConnection>) {
        let mut shared = self.shared.lock();
        shared.connections.entry(key).or_default().push(connection);
        if !std::mem::replace(&mut shared.is_swept, true) {
            tokio::spawn(Arc::clone(self).sweep());
        }
    }

    /// Forgets connections that are no longer used, until none is left. The h2 crate closes one that nobody has.
    async fn sweep(self: Arc<Self>) {
        loop {
            sleep(SWEEP).await;
            let now = self.clock.now();
            let mut shared = self.shared.lock();
            shared.connections.retain(|_, connections| {
                connections.retain(|connection| connection.is_open() && !connection.is_idle(now));
                !connections.is_empty()
            });
            if shared.connections.is_empty() {
                shared.is_swept = false;
                return;
            }
        }
    }
}

impl Shared {
    /// Forgets a connection without a request. Its own task closes it. Returns `false` if all have requests.
    fn close_idle(&mut self) -> bool {
        self.connections.values_mut().any(|connections| {
            let idle = connections.iter().position(|connection| connection.streams.load(Ordering::Relaxed) == 0);
            idle.map(|index| connections.swap_remove(index)).is_some()
        })
    }
}

/// A bound for heads as HTTP/2 counts them, with 32 bytes for each field; each is measured again as it arrives.
fn header_list(header_bytes: usize) -> u32 {
    const FIELDS: u32 = 256;
    u32::try_from(header_bytes).unwrap_or(u32::MAX).saturating_add(FIELDS * 32)
}

impl SharedConnection {
    fn is_open(&self) -> bool {
        // An error, also that its server has said it takes no more: known without waiting.
        let mut requests = self.requests.clone();
        let failed = matches!(requests.poll_ready(&mut Context::from_waker(Waker::noop())), Poll::Ready(Err(_)));
        !failed && !self.is_closed.load(Ordering::Relaxed)
    }

    fn has_place(&self) -> bool {
        self.streams.load(Ordering::Relaxed) < self.most.min(self.requests.current_max_send_streams())
    }

    fn is_idle(&self, now: Timestamp) -> bool {
        let used = Timestamp(self.used.load(Ordering::Relaxed));
        self.streams.load(Ordering::Relaxed) == 0 && used.plus(self.idle_timeout) <= now
    }
}

impl Http2Stream {
    fn new(connection: Arc<SharedConnection>) -> Http2Stream {
        connection.streams.fetch_add(1, Ordering::Relaxed);
        Http2Stream(connection)
    }

    pub fn requests(&self) -> SendRequest<Bytes> {
        self.0.requests.clone()
    }

    /// The connection takes no more requests.
    pub fn close(&self) {
        self.0.is_closed.store(true, Ordering::Relaxed);
    }
}

impl Drop for Http2Stream {
    fn drop(&mut self) {
        let SharedConnection { streams, used, clock, .. } = &*self.0;
        if streams.fetch_sub(1, Ordering::Relaxed) == 1 {
            used.store(clock.now().0, Ordering::Relaxed);
        }
    }
}

/// Reads and writes for the streams of a connection until it ends.
async fn drive(
    connection: Connection<Stream, Bytes>,
    pings: Option<(Duration, PingPong)>,
    is_closed: Arc<AtomicBool>,
    file: CountGuard,
) {
    let unanswered = async {
        match pings {
            Some((interval, pings)) => ping(interval, pings).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        ended = connection => {
            if let Err(error) = ended {
                log::debug!(error:% = error; "connection to an upstream failed");
            }
        }
        // The streams fail with the connection.
        () = unanswered => log::debug!("upstream does not answer a ping"),
    }
    drop(file);
    is_closed.store(true, Ordering::Relaxed);
}

/// Pings a server until it does not answer.
async fn ping(interval: Duration, mut pings: PingPong) {
    loop {
        sleep(interval).await;
        if !matches!(timeout(PING_TIMEOUT, pings.ping(Ping::opaque())).await, Ok(Ok(_))) {
            return;
        }
    }
}
