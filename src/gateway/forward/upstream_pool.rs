//! Keeps idle connections of HTTP/1.1 to upstreams for the next request of their thread, and makes new ones.
//!
//! A connection is closed when it has been idle for as long as its upstream says, when the upstream has closed it or sent what
//! nobody asked for, or when there are too many. No connection ever changes its thread.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use pingora::connectors::{ConnectorOptions, TransportConnector};
use pingora::protocols::Stream;
use pingora::server::configuration::ServerConf;
use pingora::upstreams::peer::HttpPeer;

use crate::gateway::server::http1::exchange_io::poll_read_some;
use base::time::{Clock, Micros, Timestamp, sleep};

/// Idle connections of one thread.
const MOST: usize = 256;

/// How often those that are no longer used are looked for.
const SWEEP: Duration = Duration::from_millis(500);

/// The connections to upstreams of one thread.
pub struct UpstreamPool {
    connector: TransportConnector,
    clock: Clock,
    idle: Mutex<Idle>,
}

#[derive(Default)]
struct Idle {
    /// By what they have in common; the one that was used last is the last.
    connections: HashMap<u64, Vec<IdleConnection>, RandomState>,
    count: usize,
    /// Whether a task looks for those that are no longer used.
    is_swept: bool,
}

struct IdleConnection {
    stream: Stream,
    until: Timestamp,
}

impl UpstreamPool {
    pub fn new(conf: &ServerConf, clock: Clock) -> UpstreamPool {
        let connector = TransportConnector::new(Some(ConnectorOptions::from_server_conf(conf)));
        UpstreamPool { connector, clock, idle: Mutex::default() }
    }

    /// A connection that is open as far as is known, if there is one.
    pub fn take(&self, key: u64, now: Timestamp) -> Option<Stream> {
        let mut idle = self.idle.lock();
        loop {
            let IdleConnection { mut stream, until } = idle.connections.get_mut(&key)?.pop()?;
            idle.count -= 1;
            if until > now && is_unused(&mut stream) {
                return Some(stream);
            }
        }
    }

    /// Connects to a server.
    ///
    /// # Errors
    /// It cannot be reached in time, or TLS cannot be negotiated.
    pub async fn connect(&self, peer: &HttpPeer) -> pingora::Result<Stream> {
        self.connector.new_stream(peer).await
    }

    /// Keeps a connection on which all responses have ended, for this long.
    pub fn put(self: &Arc<Self>, key: u64, stream: Stream, idle_timeout: Micros, now: Timestamp) {
        let mut idle = self.idle.lock();
        let Idle { connections, count, is_swept } = &mut *idle;
        let others = connections.entry(key).or_default();
        if *count >= MOST {
            if others.is_empty() {
                return;
            }
            others.remove(0);
            *count -= 1;
        }
        others.push(IdleConnection { stream, until: now.plus(idle_timeout) });
        *count += 1;
        if !std::mem::replace(is_swept, true) {
            tokio::spawn(Arc::clone(self).sweep());
        }
    }

    /// Closes connections that are no longer used, until none is left.
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

impl std::fmt::Debug for UpstreamPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UpstreamPool").field("idle", &self.idle.lock().count).finish_non_exhaustive()
    }
}

/// Whether the upstream has neither closed a connection nor sent anything that nobody has asked for.
fn is_unused(stream: &mut Stream) -> bool {
    let mut byte = [0; 1];
    let read = poll_read_some(stream, &mut &mut byte[..], &mut Context::from_waker(Waker::noop()));
    matches!(read, Poll::Pending)
}
