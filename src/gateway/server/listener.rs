//! Binds the listening sockets, one on each address for every thread, and serves each on its thread.
//!
//! Every thread has a socket of its own on each address (SO_REUSEPORT): the kernel distributes connections, and none ever
//! changes its thread. Sockets are bound before anything else is started, so a busy port is an error at once.

use std::fmt;
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

/// The sockets of one address, one for each thread.
#[derive(Debug)]
pub struct ListeningSockets {
    /// With the port that the kernel chose, if port 0 was wanted.
    pub address: SocketAddr,
    sockets: Vec<TcpListener>,
}

impl ListeningSockets {
    /// Binds an address `count` times, less the sockets that were inherited.
    ///
    /// # Errors
    /// If the address cannot be bound, for example because another process uses it.
    pub fn bind(address: SocketAddr, count: usize, inherited: Vec<TcpListener>) -> Result<ListeningSockets, BindError> {
        ListeningSockets::open(address, count, inherited).map_err(|error| BindError { address, error })
    }

    fn open(address: SocketAddr, count: usize, inherited: Vec<TcpListener>) -> io::Result<ListeningSockets> {
        if let Some(first) = inherited.first() {
            // All of them, even if they are more than wanted: connections are waiting in each.
            let address = first.local_addr()?;
            let more = (inherited.len()..count).map(|_| socket(address, PortSharing::Shared));
            let sockets = inherited.into_iter().map(Ok).chain(more).collect::<io::Result<_>>()?;
            return Ok(ListeningSockets { address, sockets });
        }
        // Without SO_REUSEPORT first: with it, another process that shares its port in the same way would go unnoticed.
        let probe = socket(address, PortSharing::Exclusive)?;
        let address = probe.local_addr()?;
        drop(probe);
        let sockets = (0..count).map(|_| socket(address, PortSharing::Shared)).collect::<io::Result<_>>()?;
        Ok(ListeningSockets { address, sockets })
    }

    /// Duplicates of the sockets, to be handed to the next process.
    ///
    /// # Errors
    /// If the open-file limit is reached.
    pub fn share(&self) -> io::Result<Vec<TcpListener>> {
        self.sockets.iter().map(TcpListener::try_clone).collect()
    }

    /// One service for each socket; `app` gets the index of the socket.
    pub fn services<A: ServerApp + Send + Sync + 'static>(
        self,
        name: &str,
        mut app: impl FnMut(usize) -> A,
    ) -> Vec<SocketService<ListeningService<A>>> {
        let address = self.address.to_string();
        let service = |(number, socket)| {
            // The name under which a socket can be handed to the next process: the table is keyed by text.
            let key = format!("{address}#{number}");
            let mut service = ListeningService::new(format!("{name} {key}"), app(number));
            // The HTTP/1.1 server reads into buffers of its own, and an idle connection holds none.
            let buffers = L4BufferSettings { read: Some(0), ..L4BufferSettings::default() };
            service.add_listener(ListenerConfig::tcp(address.clone()).l4_buffer(buffers));
            SocketService { inner: service, key, address: address.clone(), socket: Some(socket) }
        };
        (0..).zip(self.sockets).map(service).collect::<Vec<_>>()
    }
}

/// Why an address cannot be listened on.
#[derive(Debug)]
pub struct BindError {
    address: SocketAddr,
    error: io::Error,
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: cannot listen: {}", self.address, self.error)
    }
}

impl std::error::Error for BindError {}

/// How much of a response may wait in the kernel beyond what the client's receive window admits. What is in flight is not
/// bounded by it, so it slows no client; without it a socket takes megabytes of a response that is not read.
const UNSENT: u32 = 32 << 10;

#[derive(Clone, Copy)]
enum PortSharing {
    Exclusive,
    Shared,
}

fn socket(address: SocketAddr, sharing: PortSharing) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    match sharing {
        PortSharing::Exclusive => socket.bind(&address.into())?,
        PortSharing::Shared => {
            socket.set_reuse_port(true)?;
            socket.bind(&address.into())?;
            // Every accepted connection inherits it.
            socket.set_tcp_notsent_lowat(UNSENT)?;
            // The kernel reduces it to net.core.somaxconn.
            socket.listen(65_535)?;
        }
    }
    Ok(socket.into())
}

/// Wraps a service, and gives it its own socket.
#[expect(missing_debug_implementations, reason = "Pingora's services have none")]
pub struct SocketService<S> {
    inner: S,
    key: String,
    address: String,
    socket: Option<TcpListener>,
}

#[async_trait]
impl<S: Service> Service for SocketService<S> {
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

/// One of the threads that serve requests: its socket of every listener, and its background task.
#[expect(missing_debug_implementations, reason = "Pingora's services have none")]
pub struct Thread<A> {
    name: String,
    sockets: Vec<SocketService<ListeningService<A>>>,
    /// In a lock because a service has to be `Sync`, and a task is not.
    background: Mutex<Option<BoxFuture>>,
}

type BoxFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

impl<A> Thread<A> {
    /// `background` runs on the thread for as long as that lives.
    pub fn new(name: String, background: impl Future<Output = ()> + Send + 'static) -> Thread<A> {
        Thread { name, sockets: Vec::new(), background: Mutex::new(Some(Box::pin(background))) }
    }

    pub fn listen(&mut self, socket: SocketService<ListeningService<A>>) {
        self.sockets.push(socket);
    }
}

#[async_trait]
impl<A: ServerApp + Send + Sync + 'static> Service for Thread<A> {
    async fn start_service(&mut self, table: Option<ListenFds>, shutdown: ShutdownWatch, per_fd: usize) {
        if let Some(task) = self.background.get_mut().take() {
            supervise::spawn_critical("store", task);
        }
        let start = |mut socket: SocketService<_>| {
            let (table, shutdown) = (table.clone(), shutdown.clone());
            supervise::spawn_critical("listener", async move {
                supervise::fault_point("listener");
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
