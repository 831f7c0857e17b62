//! Keeps the HTTP/2 connections to upstreams. The requests of a thread share them.
//!
//! A connection takes as many requests as its server admits. This number is known when the server's settings have
//! arrived. Until then, further requests wait for the connection, or open another one if it would have no room for
//! them. A connection is closed after the upstream's idle timeout. It is also closed when its server no longer answers
//! pings, or accepts no more requests. A connection never changes its thread.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use foldhash::fast::RandomState;
use h2::client::{Builder, Connection, SendRequest};
use h2::{Ping, PingPong};
use parking_lot::Mutex;
use pingora::upstreams::peer::PeerOptions;
use tokio::sync::watch;

use super::fault::{Stage, UpstreamFault};
use super::http2_counted_frames::CountedFrames;
use super::upstream_pool::UpstreamStream;
use crate::gateway::server::connection_limits::{ConnectionLimits, CountGuard};
use crate::gateway::server::http2::frame_counts::FrameCounts;
use crate::gateway::telemetry::labels::UpstreamError;
use base::time::{Clock, Micros, Timestamp, sleep, timeout};

/// The interval at which unused connections are removed.
const SWEEP: Duration = Duration::from_millis(500);

/// How long a server may take to answer a ping.
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// The largest frame that a server may send, in bytes.
const FRAME: u32 = 64 << 10;

/// The maximum number of reset streams that the h2 crate remembers for a connection.
const RESET_STREAMS: usize = 1024;

/// The maximum number of bytes of a request that wait in a stream until the server accepts them.
const SEND_BUFFER: usize = 64 << 10;

/// Keeps the HTTP/2 connections to upstreams, which the requests of one thread share.
#[derive(Debug)]
pub(crate) struct Http2Pool {
    clock: Clock,
    shared: Mutex<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// The connections to each endpoint, by `Endpoint::pool_key`.
    endpoints: HashMap<u64, EndpointConnections, RandomState>,
    /// Whether a task is running that removes unused connections.
    is_swept: bool,
}

/// The connections to one endpoint.
#[derive(Debug, Default)]
struct EndpointConnections {
    open: Vec<Arc<SharedConnection>>,
    opening: Vec<Weak<watch::Sender<Opening>>>,
    /// The maximum number of concurrent requests that the last connection admitted; `None` before the first connection.
    admitted: Option<usize>,
}

/// A connection that is being opened.
#[derive(Clone, Debug)]
enum Opening {
    UnderWay,
    Opened,
    /// The server speaks HTTP/1.1, so the connection cannot be shared.
    Http1,
    Failed(UpstreamFault),
}

/// A connection that one request opens and other requests wait for. If the opening ends without a result, one of the waiting
/// requests opens the next connection.
#[derive(Debug)]
pub(crate) struct OpeningConnection {
    key: u64,
    opening: Arc<watch::Sender<Opening>>,
}

/// What the pool offers to a request: a stream, the permission to open a connection, or the advice to use HTTP/1.1.
#[derive(Debug)]
pub(crate) enum Place {
    Stream(Http2Stream),
    /// No connection has a place for the request, so the request has to open one.
    ToOpen(OpeningConnection),
    Http1,
}

#[derive(Debug)]
struct SharedConnection {
    requests: SendRequest<Bytes>,
    frames: Arc<FrameCounts>,
    opened: Timestamp,
    /// The maximum number of concurrent requests.
    most: usize,
    /// The number of current requests.
    streams: AtomicUsize,
    /// Whether the connection accepts no more requests.
    is_closed: Arc<AtomicBool>,
    /// The time at which the last stream ended, in microseconds.
    used: AtomicU64,
    idle_timeout: Micros,
    clock: Clock,
}

/// A stream on a shared connection, for one request. Dropping the stream frees its place on the connection.
#[derive(Debug)]
pub(crate) struct Http2Stream(Arc<SharedConnection>);

impl Http2Pool {
    /// Makes a pool. The pool closes idle connections when the process comes near its open-file limit.
    pub(crate) fn new(clock: Clock, limits: &ConnectionLimits) -> Arc<Http2Pool> {
        let pool = Arc::new(Http2Pool { clock, shared: Mutex::default() });
        let weak = Arc::downgrade(&pool);
        limits.upstream_files.add_pool(move || weak.upgrade().is_some_and(|pool| pool.shared.lock().close_idle()));
        pool
    }

    /// Returns a stream on an open connection that admits one more request. `None` if there is no such connection. Only
    /// connections that were opened at `since` or later are used.
    pub(crate) fn take(&self, key: u64, since: Timestamp) -> Option<Http2Stream> {
        self.shared.lock().endpoints.get_mut(&key)?.take(since)
    }

    /// Returns a stream like [`Http2Pool::take`]. If needed, waits for a connection that another request is opening.
    /// `most` is the number of requests that may share a connection whose server has not stated a number yet.
    ///
    /// # Errors
    /// If the connection could not be opened, or not in time.
    pub(crate) async fn place(
        &self,
        key: u64,
        since: Timestamp,
        most: usize,
        connect_timeout: Duration,
    ) -> Result<Place, UpstreamFault> {
        let waiting = async {
            loop {
                let mut opening = {
                    let mut shared = self.shared.lock();
                    let endpoint = shared.endpoints.entry(key).or_default();
                    if let Some(stream) = endpoint.take(since) {
                        return Ok(Place::Stream(stream));
                    }
                    match endpoint.join(most) {
                        Some(opening) => opening,
                        None => return Ok(Place::ToOpen(endpoint.begin(key))),
                    }
                };
                let end = opening.wait_for(|opening| !matches!(opening, Opening::UnderWay)).await;
                match end.as_deref() {
                    Ok(Opening::Http1) => return Ok(Place::Http1),
                    Ok(Opening::Failed(fault)) => return Err(fault.clone()),
                    // `Err` means that the request that was opening the connection has ended.
                    Ok(Opening::Opened | Opening::UnderWay) | Err(_) => {}
                }
            }
        };
        let timed_out = |_| UpstreamFault::new(UpstreamError::ConnectTimeout, "ConnectTimedout", Stage::Connecting);
        timeout(connect_timeout, waiting).await.map_err(timed_out)?
    }

    /// Begins HTTP/2 on a new connection, and waits for the settings of its server. From then on other requests may share the
    /// connection.
    ///
    /// # Errors
    /// If the connection fails, or its server admits no requests.
    pub(crate) async fn open(
        self: &Arc<Self>,
        key: u64,
        stream: UpstreamStream,
        options: &PeerOptions,
        header_bytes: usize,
    ) -> Result<Http2Stream, UpstreamFault> {
        let mut builder = Builder::new();
        builder
            .enable_push(false)
            .initial_max_send_streams(options.max_h2_streams)
            .max_frame_size(FRAME)
            .max_header_list_size(header_list(header_bytes))
            .max_send_buffer_size(SEND_BUFFER)
            // Frames may arrive after their stream was reset. The h2 crate ignores them while it remembers the stream.
            // Otherwise it counts the frames, and by default closes the connection after 1024 of them. So the crate is
            // set to remember many streams, and not to count such frames.
            .max_concurrent_reset_streams(RESET_STREAMS)
            .max_local_error_reset_streams(None)
            // By default, the h2 crate closes a connection with many unread small parts in all streams. Here the parts
            // that wait for a client are taken out of the h2 crate, and each stream has its own window.
            .data_frame_budget(usize::MAX);
        if let Some(window) = options.h2_stream_window_size {
            builder.initial_window_size(window);
        }
        if let Some(window) = options.h2_connection_window_size {
            builder.initial_connection_window_size(window);
        }
        let (stream, file) = stream.into_parts();
        let (stream, frames) = CountedFrames::new(stream);
        let (requests, mut connection) = builder.handshake(stream).await.map_err(|error| failed(Some(&error)))?;
        let mut pings = connection.ping_pong().ok_or_else(|| failed(None))?;
        // The server's settings arrive before the answer to this ping.
        let greeted = tokio::select! {
            biased;
            greeted = pings.ping(Ping::opaque()) => greeted.map(drop),
            ended = &mut connection => return Err(failed(ended.err().as_ref())),
            () = expired(options.connection_timeout) => {
                return Err(UpstreamFault::new(UpstreamError::ConnectTimeout, "SettingsTimedout", Stage::Connecting));
            }
        };
        greeted.map_err(|error| failed(Some(&error)))?;
        let admitted = requests.current_max_send_streams();
        if admitted == 0 {
            let detail = "NoStreams: the server admits none";
            return Err(UpstreamFault::new(UpstreamError::ConnectFailed, detail, Stage::Connecting));
        }
        let is_closed = Arc::new(AtomicBool::new(false));
        let idle = options.idle_timeout.map_or(Micros(u64::MAX / 2), Micros::from);
        let now = self.clock.now();
        let shared = Arc::new(SharedConnection {
            requests,
            frames,
            opened: now,
            most: options.max_h2_streams,
            streams: AtomicUsize::new(0),
            is_closed: Arc::clone(&is_closed),
            used: AtomicU64::new(now.0),
            idle_timeout: idle,
            clock: self.clock.clone(),
        });
        tokio::spawn(drive(connection, options.h2_ping_interval.map(|interval| (interval, pings)), is_closed, file));
        let taken = Http2Stream::new(Arc::clone(&shared));
        self.keep(key, shared, admitted);
        Ok(taken)
    }

    fn keep(self: &Arc<Self>, key: u64, connection: Arc<SharedConnection>, admitted: usize) {
        let mut shared = self.shared.lock();
        let endpoint = shared.endpoints.entry(key).or_default();
        endpoint.open.push(connection);
        endpoint.admitted = Some(admitted);
        if !std::mem::replace(&mut shared.is_swept, true) {
            tokio::spawn(Arc::clone(self).sweep());
        }
    }

    /// Removes unused connections at intervals. Ends when the pool has no connections.
    async fn sweep(self: Arc<Self>) {
        loop {
            sleep(SWEEP).await;
            let now = self.clock.now();
            let mut shared = self.shared.lock();
            shared.endpoints.retain(|_, endpoint| {
                endpoint.open.retain(|connection| connection.is_open() && !connection.is_idle(now));
                endpoint.opening.retain(|opening| opening.strong_count() > 0);
                !endpoint.open.is_empty() || !endpoint.opening.is_empty()
            });
            if shared.endpoints.is_empty() {
                shared.is_swept = false;
                return;
            }
        }
    }
}

impl Shared {
    /// Removes one connection without requests from the pool. The task of the connection then closes it. Returns
    /// `false` if all connections have requests.
    fn close_idle(&mut self) -> bool {
        self.endpoints.values_mut().any(|EndpointConnections { open: connections, .. }| {
            let idle = connections.iter().position(|connection| connection.streams.load(Ordering::Relaxed) == 0);
            idle.map(|index| connections.swap_remove(index)).is_some()
        })
    }
}

impl EndpointConnections {
    fn take(&mut self, since: Timestamp) -> Option<Http2Stream> {
        self.open.retain(|connection| connection.is_open());
        let mut open = self.open.iter().filter(|connection| connection.opened >= since);
        open.find(|connection| connection.has_place()).map(|free| Http2Stream::new(Arc::clone(free)))
    }

    /// Waits for a connection that is being opened, if it will have room for this request.
    fn join(&mut self, most: usize) -> Option<watch::Receiver<Opening>> {
        self.opening.retain(|opening| opening.strong_count() > 0);
        let most = self.admitted.unwrap_or(most).min(most);
        // One more place is taken by the request that opens the connection.
        let mut opening = self.opening.iter().filter_map(Weak::upgrade);
        opening.find(|opening| opening.receiver_count() + 1 < most).map(|opening| opening.subscribe())
    }

    fn begin(&mut self, key: u64) -> OpeningConnection {
        let opening = Arc::new(watch::Sender::new(Opening::UnderWay));
        self.opening.push(Arc::downgrade(&opening));
        OpeningConnection { key, opening }
    }
}

impl OpeningConnection {
    /// Opens the connection by `connect`, and passes the result to all requests that wait for it. `is_shared` returns whether
    /// requests can share the connection.
    ///
    /// # Errors
    /// If the connection fails.
    pub(crate) async fn finish<T>(
        self,
        pool: &Http2Pool,
        connect: impl Future<Output = Result<T, UpstreamFault>>,
        is_shared: impl FnOnce(&T) -> bool,
    ) -> Result<T, UpstreamFault> {
        let connected = connect.await;
        let OpeningConnection { key, opening } = self;
        if let Entry::Occupied(mut endpoint) = pool.shared.lock().endpoints.entry(key) {
            let EndpointConnections { open, opening: others, .. } = endpoint.get_mut();
            others.retain(|other| !other.ptr_eq(&Arc::downgrade(&opening)));
            if open.is_empty() && others.is_empty() {
                endpoint.remove();
            }
        }
        opening.send_replace(match &connected {
            Ok(connection) if is_shared(connection) => Opening::Opened,
            Ok(_) => Opening::Http1,
            Err(fault) => Opening::Failed(fault.clone()),
        });
        connected
    }
}

/// Returns after `time`. Never returns if `time` is `None`.
async fn expired(time: Option<Duration>) {
    match time {
        Some(time) => sleep(time).await,
        None => std::future::pending().await,
    }
}

/// Makes the fault for a connection that failed before the server's SETTINGS frame arrived.
fn failed(error: Option<&h2::Error>) -> UpstreamFault {
    let is_invalid = error.is_some_and(h2::Error::is_library);
    let kind = if is_invalid { UpstreamError::InvalidAnswer } else { UpstreamError::Closed };
    let detail = error.map_or_else(|| "ConnectionClosed".to_owned(), |error| format!("HandshakeError: {error}"));
    UpstreamFault::new(kind, detail, Stage::Connecting)
}

/// Returns the limit for a head in the measure of HTTP/2, which counts 32 more bytes for each field. Each head is measured
/// again when it has arrived.
fn header_list(header_bytes: usize) -> u32 {
    const FIELDS: u32 = 256;
    u32::try_from(header_bytes).unwrap_or(u32::MAX).saturating_add(FIELDS * 32)
}

impl SharedConnection {
    fn is_open(&self) -> bool {
        // The h2 crate returns an error at once if the connection has failed or the server accepts no more requests.
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

    pub(crate) fn requests(&self) -> SendRequest<Bytes> {
        self.0.requests.clone()
    }

    /// Returns the counts of the frames that the server sends on the connection.
    pub(crate) fn frames(&self) -> Arc<FrameCounts> {
        Arc::clone(&self.0.frames)
    }

    /// Notes that the connection accepts no more requests.
    pub(crate) fn close(&self) {
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

/// Reads and writes for all streams of a connection, until the connection ends.
async fn drive(
    connection: Connection<CountedFrames, Bytes>,
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
        // The connection is dropped now, so its streams fail.
        () = unanswered => log::debug!("upstream does not answer a ping"),
    }
    drop(file);
    is_closed.store(true, Ordering::Relaxed);
}

/// Pings a server at this interval. Returns when the server does not answer a ping in time.
async fn ping(interval: Duration, mut pings: PingPong) {
    loop {
        sleep(interval).await;
        if !matches!(timeout(PING_TIMEOUT, pings.ping(Ping::opaque())).await, Ok(Ok(_))) {
            return;
        }
    }
}
