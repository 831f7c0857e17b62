//! Keeps idle HTTP/1.1 connections to upstreams for later requests of the same thread, and opens new connections.
//!
//! A connection is closed after the upstream's idle timeout, or when there are too many idle connections. It is also
//! closed when the upstream has closed it, or has sent bytes that no request asked for. A connection never changes its
//! thread.

use std::collections::HashMap;
use std::future::poll_fn;
use std::ops::{Deref, DerefMut};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use pingora::connectors::{ConnectorOptions, TransportConnector};
use pingora::protocols::Stream;
use pingora::server::configuration::ServerConf;
use pingora::upstreams::peer::HttpPeer;
use tokio::task::coop::unconstrained;

use crate::gateway::server::connection_limits::{ConnectionLimits, CountGuard};
use crate::gateway::server::http1::exchange_io::poll_read_some;
use base::time::{Clock, Micros, Timestamp, sleep};

/// The maximum number of idle connections of one thread.
const MOST: usize = 256;

/// The interval at which unusable connections are removed.
const SWEEP: Duration = Duration::from_millis(500);

/// A connection to an upstream. Its file is counted until the connection is closed.
#[derive(Debug)]
pub(crate) struct UpstreamStream {
    stream: Stream,
    file: CountGuard,
}

/// Keeps idle HTTP/1.1 connections to upstreams for later requests of one thread, and makes new connections.
pub(crate) struct UpstreamPool {
    connector: TransportConnector,
    limits: Arc<ConnectionLimits>,
    clock: Clock,
    idle: Mutex<Idle>,
}

#[derive(Default)]
struct Idle {
    /// The idle connections, by `Endpoint::pool_key`. The last connection in each list was used most recently.
    connections: HashMap<u64, Vec<IdleConnection>, RandomState>,
    count: usize,
    /// Whether a task is running that removes unusable connections.
    is_swept: bool,
}

struct IdleConnection {
    stream: UpstreamStream,
    until: Timestamp,
}

impl UpstreamStream {
    pub(crate) fn into_parts(self) -> (Stream, CountGuard) {
        (self.stream, self.file)
    }
}

impl Deref for UpstreamStream {
    type Target = Stream;

    fn deref(&self) -> &Stream {
        &self.stream
    }
}

impl DerefMut for UpstreamStream {
    fn deref_mut(&mut self) -> &mut Stream {
        &mut self.stream
    }
}

impl UpstreamPool {
    /// Makes a pool. The pool closes idle connections when the process comes near its open-file limit.
    pub(crate) fn new(conf: &ServerConf, clock: Clock, limits: &Arc<ConnectionLimits>) -> Arc<UpstreamPool> {
        let connector = TransportConnector::new(Some(ConnectorOptions::from_server_conf(conf)));
        let pool = Arc::new(UpstreamPool { connector, limits: Arc::clone(limits), clock, idle: Mutex::default() });
        let weak = Arc::downgrade(&pool);
        limits.upstream_files.add_pool(move || weak.upgrade().is_some_and(|pool| pool.idle.lock().close_oldest()));
        pool
    }

    /// Returns an idle connection with this key that seems to be open. `None` if there is no such connection.
    pub(crate) fn take(&self, key: u64, now: Timestamp) -> Option<UpstreamStream> {
        let mut idle = self.idle.lock();
        loop {
            let IdleConnection { mut stream, until } = idle.connections.get_mut(&key)?.pop()?;
            idle.count -= 1;
            if until > now && is_unused(&mut stream) {
                return Some(stream);
            }
        }
    }

    /// Closes all idle connections with this key. Called when the upstream has closed a connection of this pool instead
    /// of answering. The upstream has probably closed the idle connections too.
    pub(crate) fn discard(&self, key: u64) {
        let mut idle = self.idle.lock();
        if let Some(stale) = idle.connections.remove(&key) {
            idle.count -= stale.len();
        }
    }

    /// Connects to a server.
    ///
    /// # Errors
    /// If the server cannot be reached in time, or TLS cannot be negotiated.
    pub(crate) async fn connect(&self, peer: &HttpPeer) -> pingora::Result<UpstreamStream> {
        let file = self.limits.begin_upstream();
        Ok(UpstreamStream { stream: self.connector.new_stream(peer).await?, file })
    }

    /// Keeps a connection for a later request, for at most `idle_timeout`. All responses on the connection must have ended.
    pub(crate) fn put(self: &Arc<Self>, key: u64, mut stream: UpstreamStream, idle_timeout: Micros, now: Timestamp) {
        // Bytes may have arrived after the end of the response. Such a connection is not kept.
        if !is_unused(&mut stream) {
            return;
        }
        let mut idle = self.idle.lock();
        if idle.count >= MOST {
            idle.close_oldest();
        }
        let Idle { connections, count, is_swept } = &mut *idle;
        connections.entry(key).or_default().push(IdleConnection { stream, until: now.plus(idle_timeout) });
        *count += 1;
        if !std::mem::replace(is_swept, true) {
            tokio::spawn(Arc::clone(self).sweep());
        }
    }

    /// Removes unusable connections at intervals. Ends when the pool is empty.
    async fn sweep(self: Arc<Self>) {
        loop {
            sleep(SWEEP).await;
            let now = self.clock.now();
            let mut idle = self.idle.lock();
            idle.connections.retain(|_, connections| {
                connections.retain_mut(|one| one.until > now && is_unused(&mut one.stream));
                !connections.is_empty()
            });
            idle.count = idle.connections.values().map(Vec::len).sum();
            if idle.count == 0 {
                idle.is_swept = false;
                return;
            }
        }
    }
}

impl Idle {
    /// Closes the connection whose idle timeout ends first, whatever its upstream is. Returns `false` if the pool is
    /// empty.
    fn close_oldest(&mut self) -> bool {
        let first = |(key, connections): (&u64, &Vec<IdleConnection>)| Some((connections.first()?.until, *key));
        let Some((_, key)) = self.connections.iter().filter_map(first).min() else { return false };
        if let Some(connections) = self.connections.get_mut(&key) {
            connections.remove(0);
            self.count -= 1;
            if connections.is_empty() {
                self.connections.remove(&key);
            }
        }
        true
    }
}

impl std::fmt::Debug for UpstreamPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UpstreamPool").field("idle", &self.idle.lock().count).finish_non_exhaustive()
    }
}

/// Whether the upstream has neither closed a connection nor sent anything that no request asked for.
///
/// The read ignores Tokio's task budget. When the budget is used up, even a closed connection would return `Pending`.
fn is_unused(stream: &mut Stream) -> bool {
    let mut byte = [0; 1];
    let read = poll_fn(|cx| poll_read_some(stream, &mut &mut byte[..], cx));
    pin!(unconstrained(read)).poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use pingora::protocols::l4::stream::Stream as L4Stream;
    use tokio::net::TcpStream;
    use tokio::task::coop;

    use super::*;
    use crate::gateway::runtime::fd_limit::FdBudget;

    const IDLE: Micros = Micros(1_000_000);
    const NOW: Timestamp = Timestamp(1_000_000);

    fn pool() -> Arc<UpstreamPool> {
        let limits = Arc::new(ConnectionLimits::new(FdBudget::here()));
        UpstreamPool::new(&ServerConf::default(), Clock::manual(NOW), &limits)
    }

    /// Returns a connection of the pool, and the server's end of this connection.
    async fn connection(pool: &UpstreamPool) -> (UpstreamStream, std::net::TcpStream) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let stream = UpstreamStream { stream: Box::new(L4Stream::from(stream)), file: pool.limits.begin_upstream() };
        (stream, listener.accept().unwrap().0)
    }

    /// Lets the runtime look at its sockets.
    async fn settle() {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_connection_with_unread_bytes_is_used_by_nobody_at_the_end_of_a_turn_either() {
        let pool = pool();
        let (stream, mut server) = connection(&pool).await;
        pool.put(1, stream, IDLE, NOW);
        server.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
        settle().await;
        while coop::has_budget_remaining() {
            coop::consume_budget().await;
        }
        assert!(pool.take(1, NOW).is_none());
    }

    #[tokio::test]
    async fn a_connection_with_unread_bytes_is_not_kept() {
        let pool = pool();
        let (stream, mut server) = connection(&pool).await;
        server.write_all(b"surplus").unwrap();
        settle().await;
        pool.put(1, stream, IDLE, NOW);
        assert_eq!(pool.idle.lock().count, 0);
    }

    #[tokio::test]
    async fn the_oldest_connection_of_all_makes_room() {
        let pool = pool();
        let mut servers = Vec::new();
        for number in 0..u64::try_from(MOST).unwrap() {
            let (stream, server) = connection(&pool).await;
            pool.put(1, stream, IDLE, NOW.plus(Micros(number)));
            servers.push(server);
        }
        let (stream, server) = connection(&pool).await;
        servers.push(server);
        pool.put(2, stream, IDLE, NOW.plus(IDLE));
        assert_eq!(pool.idle.lock().count, MOST);
        assert_eq!(pool.limits.upstream_files.open(), MOST);
        assert!(pool.take(2, NOW).is_some());
        pool.limits.upstream_files.close_idle(2);
        assert_eq!((pool.idle.lock().count, pool.limits.upstream_files.open()), (MOST - 3, MOST - 3));
        pool.discard(1);
        assert!(pool.take(1, NOW).is_none());
        assert_eq!(pool.limits.upstream_files.open(), 0);
        assert_eq!(pool.idle.lock().count, 0);
    }
}
