//! Owns the listening sockets, one of each address for every thread.
//!
//! Every thread has a socket of its own on each address (SO_REUSEPORT): the kernel spreads connections, and none ever
//! changes its thread. Sockets are bound before anything else is started, so a busy port is an error at once.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::IntoRawFd;
use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use pingora::apps::ServerApp;
use pingora::listeners::{L4BufferSettings, ListenerConfig};
use pingora::server::{Fds, ListenFds, ShutdownWatch};
use pingora::services::Service;
use pingora::services::listening::Service as ListeningService;
use socket2::{Domain, Socket, Type};

use crate::gateway::runtime::supervise;

/// One address, bound once for each thread.
#[derive(Debug)]
pub struct Bound {
    /// With the port that was found, where port 0 was asked for.
    pub address: SocketAddr,
    sockets: Vec<TcpListener>,
}

impl Bound {
    /// Binds an address `count` times, beside what was inherited of it.
    pub fn bind(address: SocketAddr, count: usize, inherited: Vec<TcpListener>) -> io::Result<Bound> {
        if let Some(first) = inherited.first() {
            // Also those that are more than asked for: connections are waiting in each.
            let address = first.local_addr()?;
            let more = (inherited.len()..count).map(|_| socket(address, Sharing::Shared));
            let sockets = inherited.into_iter().map(Ok).chain(more).collect::<io::Result<_>>()?;
            return Ok(Bound { address, sockets });
        }
        // Without SO_REUSEPORT first: with it, another process that shares its port as we do would not be noticed.
        let probe = socket(address, Sharing::Alone)?;
        let address = probe.local_addr()?;
        drop(probe);
        let sockets = (0..count).map(|_| socket(address, Sharing::Shared)).collect::<io::Result<_>>()?;
        Ok(Bound { address, sockets })
    }

    /// The same sockets once more, to be handed over.
    pub fn share(&self) -> io::Result<Vec<TcpListener>> {
        self.sockets.iter().map(TcpListener::try_clone).collect()
    }

    /// One service for each socket; `app` is told which.
    pub fn services<A: ServerApp + Send + Sync + 'static>(
        self,
        name: &str,
        mut app: impl FnMut(usize) -> A,
    ) -> Vec<OwnSocket<ListeningService<A>>> {
        let address = self.address.to_string();
        let service = |(number, socket)| {
            // The name under which a socket can be handed to a next process: the table is keyed by text.
            let key = format!("{address}#{number}");
            let mut service = ListeningService::new(format!("{name} {key}"), app(number));
            // The front door reads into buffers of its own, and an idle connection holds none.
            let buffers = L4BufferSettings { read: Some(0), ..L4BufferSettings::default() };
            service.add_listener(ListenerConfig::tcp(address.clone()).l4_buffer(buffers));
            OwnSocket { inner: service, key, address: address.clone(), socket: Some(socket) }
        };
        (0..).zip(self.sockets).map(service).collect::<Vec<_>>()
    }
}

/// How much of an answer may wait in the kernel beyond what the client's window lets go. What the network holds has no such
/// bound, so this slows nobody; without it a socket takes megabytes that nobody reads.
const UNSENT: u32 = 32 << 10;

#[derive(Clone, Copy)]
enum Sharing {
    Alone,
    Shared,
}

fn socket(address: SocketAddr, sharing: Sharing) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    match sharing {
        Sharing::Alone => socket.bind(&address.into())?,
        Sharing::Shared => {
            socket.set_reuse_port(true)?;
            socket.bind(&address.into())?;
            // Every connection inherits it.
            socket.set_tcp_notsent_lowat(UNSENT)?;
            // The kernel cuts it to net.core.somaxconn.
            socket.listen(65_535)?;
        }
    }
    Ok(socket.into())
}

/// A service around a service, which gives it the socket that is its own.
#[expect(missing_debug_implementations, reason = "Pingora's services have none")]
pub struct OwnSocket<S> {
    inner: S,
    key: String,
    address: String,
    socket: Option<TcpListener>,
}

#[async_trait]
impl<S: Service> Service for OwnSocket<S> {
    async fn start_service(&mut self, table: Option<ListenFds>, shutdown: ShutdownWatch, per_fd: usize) {
        let Some(socket) = self.socket.take() else { return };
        let fd = socket.into_raw_fd();
        if let Some(table) = table {
            table.lock().add(self.key.clone(), fd);
        }
        let mut own = Fds::new();
        own.add(self.address.clone(), fd);
        self.inner.start_service(Some(Arc::new(Mutex::new(own))), shutdown, per_fd).await;
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn threads(&self) -> Option<usize> {
        Some(1)
    }

    fn listen_addresses(&self) -> Option<Vec<String>> {
        Some(vec![self.key.clone()])
    }
}

/// One of the threads that proxy: its socket of every listener, and what else runs there.
#[expect(missing_debug_implementations, reason = "Pingora's services have none")]
pub struct Thread<A> {
    name: String,
    sockets: Vec<OwnSocket<ListeningService<A>>>,
    /// Behind a lock because a service may be looked at by several threads, and a task may not.
    beside: Mutex<Option<BoxFuture>>,
}

type BoxFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

impl<A> Thread<A> {
    /// `beside` runs on the thread for as long as that lives.
    pub fn new(name: String, beside: impl Future<Output = ()> + Send + 'static) -> Thread<A> {
        Thread { name, sockets: Vec::new(), beside: Mutex::new(Some(Box::pin(beside))) }
    }

    pub fn listen(&mut self, socket: OwnSocket<ListeningService<A>>) {
        self.sockets.push(socket);
    }
}

#[async_trait]
impl<A: ServerApp + Send + Sync + 'static> Service for Thread<A> {
    async fn start_service(&mut self, table: Option<ListenFds>, shutdown: ShutdownWatch, per_fd: usize) {
        if let Some(task) = self.beside.get_mut().take() {
            supervise::spawn("store", task);
        }
        let start = |mut socket: OwnSocket<_>| {
            let (table, shutdown) = (table.clone(), shutdown.clone());
            supervise::spawn("listener", async move {
                supervise::stumble("listener");
                socket.start_service(table, shutdown, per_fd).await;
            })
        };
        let running: Vec<_> = self.sockets.drain(..).map(start).collect();
        for socket in running {
            if let Err(error) = socket.await {
                log::error!(error:% = error; "listener ended");
            }
        }
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn threads(&self) -> Option<usize> {
        Some(1)
    }

    fn listen_addresses(&self) -> Option<Vec<String>> {
        Some(self.sockets.iter().map(|socket| socket.key.clone()).collect())
    }
}
