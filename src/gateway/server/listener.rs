//! Binds the listening sockets, one for every address and thread, and serves each socket on its thread.
//!
//! Every thread has its own socket on each address (SO_REUSEPORT). The kernel distributes connections, and a connection
//! never changes its thread. Sockets are bound before anything else starts, so a port in use is an error at once.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::IntoRawFd;
use std::os::unix::net::UnixListener;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use pingora::apps::ServerApp;
use pingora::listeners::{ConnectionFilter, L4BufferSettings, ListenerConfig};
use pingora::protocols::Stream;
use pingora::server::{Fds, ListenFds, ShutdownWatch};
use pingora::services::Service;
use pingora::services::listening::Service as ListeningService;
use tokio::sync::watch;

use super::connection_limits::{ConnectionLimits, Purpose};
use super::listening_socket::{ListeningSocket, local_stream};
use super::queued_connections;
use super::queued_connections::{AcceptingGuard, AcceptingSockets};
use super::socket_file;
use crate::gateway::runtime::supervise;
use crate::gateway::state::lifecycle::{AcceptPhase, Lifecycle};
use base::endpoint_address::EndpointAddress;
use base::time::Clock;

/// The sockets of one address, one for each thread.
#[derive(Debug)]
pub struct ListeningSockets {
    /// The address, with the port that the kernel chose for port 0.
    pub address: EndpointAddress,
    sockets: Vec<ListeningSocket>,
}

impl ListeningSockets {
    /// Opens at least `count` sockets on an address: first the `inherited` sockets of an earlier process, then new
    /// ones. `mode` is the permissions of the file of a Unix domain socket. With `None`, the permissions are not set.
    ///
    /// # Errors
    /// If the address cannot be bound, for example because another process uses it.
    pub fn bind(
        address: EndpointAddress,
        mode: Option<u32>,
        count: usize,
        inherited: Vec<ListeningSocket>,
    ) -> Result<ListeningSockets, BindError> {
        ListeningSockets::open(&address, mode, count, inherited).map_err(|error| BindError { address, error })
    }

    fn open(
        address: &EndpointAddress,
        mode: Option<u32>,
        count: usize,
        inherited: Vec<ListeningSocket>,
    ) -> io::Result<ListeningSockets> {
        // All inherited sockets are kept, even if fewer are wanted, because connections may wait in each.
        let mut sockets = ListeningSocket::extend(inherited, count)?;
        if sockets.is_empty() {
            sockets = ListeningSocket::bind(address, mode, count)?;
        } else if let (EndpointAddress::Unix(path), Some(mode)) = (address, mode) {
            socket_file::set_mode(path, mode)?;
        }
        let address = sockets.first().map_or_else(|| Ok(address.clone()), ListeningSocket::address)?;
        Ok(ListeningSockets { address, sockets })
    }

    /// Returns duplicates of the sockets, to be handed to the next process.
    ///
    /// # Errors
    /// If the open-file limit is reached.
    pub fn share(&self) -> io::Result<Vec<ListeningSocket>> {
        self.sockets.iter().map(ListeningSocket::duplicate).collect()
    }

    /// Makes a service for each socket. `app` makes the application for the socket with the given index. `accepting` counts the
    /// sockets that may still have connections which no application has received.
    pub fn services<A: ServerApp + Send + Sync + 'static>(
        self,
        name: &str,
        accepting: &AcceptingSockets,
        app: impl FnMut(usize) -> A,
    ) -> Vec<SocketService<A>> {
        self.services_of(&Lifecycle::default(), name, accepting, None, app)
    }

    /// Makes a service for each socket, like [`ListeningSockets::services`]. The service accepts connections while
    /// `lifecycle` allows it, and closes connections that `filter` does not admit.
    pub fn services_of<A: ServerApp + Send + Sync + 'static>(
        self,
        lifecycle: &Lifecycle,
        name: &str,
        accepting: &AcceptingSockets,
        filter: Option<&Arc<FileFilter>>,
        mut app: impl FnMut(usize) -> A,
    ) -> Vec<SocketService<A>> {
        let address = self.address.to_string();
        let service = |(number, socket)| {
            // The name under which a socket is handed to the next process.
            let key = format!("{address}#{number}");
            let unstarted = UnstartedSocket {
                socket,
                app: Arc::new(app(number)),
                accepting: accepting.add(),
                filter: filter.cloned(),
                phase: lifecycle.accept_phase(),
                accepts: lifecycle.accepting(),
            };
            SocketService {
                name: format!("{name} {key}"),
                key,
                address: address.clone(),
                unstarted: Mutex::new(Some(unstarted)),
            }
        };
        (0..).zip(self.sockets).map(service).collect::<Vec<_>>()
    }
}

/// The error for an address on which the gateway cannot listen.
#[derive(Debug)]
pub struct BindError {
    address: EndpointAddress,
    error: io::Error,
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: cannot listen: {}", self.address, self.error)
    }
}

impl std::error::Error for BindError {}

/// How long a socket waits for a free file descriptor before it tries again.
const RETRY: Duration = Duration::from_secs(1);

/// Accepts connections from one socket, while the [`Lifecycle`] allows it.
#[expect(missing_debug_implementations, reason = "applications of Pingora have none")]
pub struct SocketService<A> {
    name: String,
    key: String,
    address: String,
    /// The socket; `None` once the service has started. It is in a lock, because a service must be `Sync`.
    unstarted: Mutex<Option<UnstartedSocket<A>>>,
}

struct UnstartedSocket<A> {
    socket: ListeningSocket,
    app: Arc<A>,
    accepting: AcceptingGuard,
    filter: Option<Arc<FileFilter>>,
    phase: watch::Receiver<AcceptPhase>,
    /// The channel to which this service subscribes while it accepts.
    accepts: watch::Sender<()>,
}

#[async_trait]
impl<A: ServerApp + Send + Sync + 'static> Service for SocketService<A> {
    async fn start_service(&mut self, table: Option<ListenFds>, shutdown: ShutdownWatch, per_fd: usize) {
        let Some(UnstartedSocket { socket, app, accepting, filter, mut phase, accepts }) =
            self.unstarted.get_mut().take()
        else {
            return;
        };
        let mut leaving = shutdown.clone();
        tokio::select! {
            () = until(&mut phase, |phase| phase != AcceptPhase::NotYet) => {}
            _ = leaving.wait_for(|leaving| *leaving) => return,
        }
        while !*leaving.borrow() && *phase.borrow() != AcceptPhase::Closed {
            // The service subscribes before it reads the phase, because a pause waits until no receiver is left.
            let receiver = accepts.subscribe();
            if *phase.borrow() == AcceptPhase::Open {
                match socket.duplicate() {
                    Ok(ListeningSocket::Tcp(socket)) => {
                        let shared =
                            SharedApp { app: Arc::clone(&app), filter: filter.clone(), shutdown: shutdown.clone() };
                        self.accept(socket, shared, table.as_ref(), &mut phase, &mut leaving, per_fd).await;
                    }
                    Ok(ListeningSocket::Unix(socket)) => {
                        let end = accepting_end(&mut phase, &mut leaving);
                        accept_local(socket, &app, &shutdown, end).await;
                    }
                    Err(error) => {
                        log::warn!(error:% = error; "connections not accepted");
                        tokio::time::sleep(RETRY).await;
                    }
                }
            }
            drop(receiver);
            tokio::select! {
                () = until(&mut phase, |phase| phase != AcceptPhase::Paused) => {}
                _ = leaving.wait_for(|leaving| *leaving) => {}
            }
        }
        if *phase.borrow() == AcceptPhase::Closed {
            // The next process accepts the connections in the queue. Open connections continue until the shutdown.
            drop((socket, accepting, phase));
            let _ = leaving.wait_for(|leaving| *leaving).await;
            return app.cleanup().await;
        }
        app.cleanup().await;
        queued_connections::serve(socket, &app, accepting, &shutdown);
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn threads(&self) -> Option<usize> {
        Some(1)
    }

    fn listen_addresses(&self) -> Option<Vec<String>> {
        Some(vec![self.key.clone()])
    }
}

impl<A> SocketService<A> {
    /// Accepts while the phase is [`AcceptPhase::Open`] and the process is not `leaving`, and then closes `socket`. The
    /// caller has a duplicate of `socket`, so connections in its queue are not lost.
    async fn accept<S: ServerApp + Send + Sync + 'static>(
        &self,
        socket: TcpListener,
        app: SharedApp<S>,
        table: Option<&ListenFds>,
        phase: &mut watch::Receiver<AcceptPhase>,
        leaving: &mut ShutdownWatch,
        per_fd: usize,
    ) {
        let fd = socket.into_raw_fd();
        if let Some(table) = table {
            table.lock().add(self.key.clone(), fd);
        }
        let mut own = Fds::new();
        own.add(self.address.clone(), fd);
        let filter = app.filter.clone();
        let mut service = ListeningService::new(self.name.clone(), app);
        if let Some(filter) = filter {
            service.set_connection_filter(filter);
        }
        // The HTTP/1.1 server reads into its own buffers, so the stream needs no buffer for reading.
        let buffers = L4BufferSettings { read: Some(0), ..L4BufferSettings::default() };
        service.add_listener(ListenerConfig::tcp(self.address.clone()).l4_buffer(buffers));
        let (end, accepting_ends) = watch::channel(false);
        let end_accepting = async {
            accepting_end(phase, leaving).await;
            end.send_replace(true);
        };
        tokio::join!(service.start_service(Some(Arc::new(Mutex::new(own))), accepting_ends, per_fd), end_accepting);
        // A connection is counted when our task for it is first polled. After the first yield, all tasks of Pingora
        // have been polled. After the second yield, all of our tasks have been polled.
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
    }
}

/// Returns when the phase is no longer [`AcceptPhase::Open`] or the process is `leaving`.
async fn accepting_end(phase: &mut watch::Receiver<AcceptPhase>, leaving: &mut ShutdownWatch) {
    tokio::select! {
        () = until(phase, |phase| phase != AcceptPhase::Open) => {}
        _ = leaving.wait_for(|leaving| *leaving) => {}
    }
}

/// Accepts the connections of a path until `end`. Pingora is not used, because it would let every user connect.
async fn accept_local<A: ServerApp + Send + Sync + 'static>(
    socket: UnixListener,
    app: &Arc<A>,
    shutdown: &ShutdownWatch,
    end: impl Future<Output = ()>,
) {
    let mut end = pin!(end);
    let socket = match tokio::net::UnixListener::from_std(socket) {
        Ok(socket) => socket,
        Err(error) => {
            log::warn!(error:% = error; "connections not accepted");
            return tokio::time::sleep(RETRY).await;
        }
    };
    loop {
        let accepted = tokio::select! {
            accepted = socket.accept() => accepted,
            () = &mut end => break,
        };
        match accepted {
            Ok((connection, _)) => {
                let (app, shutdown) = (Arc::clone(app), shutdown.clone());
                tokio::spawn(ListeningService::handle_event(local_stream(connection), app, shutdown));
                // The connection is counted in its task, before the next connection is accepted.
                tokio::task::yield_now().await;
            }
            Err(error) => {
                log::warn!(error:% = error; "connections not accepted");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
    // After this yield, all accepted connections are counted.
    tokio::task::yield_now().await;
}

/// Waits until the phase fulfils a condition. Does not return if no sender is left.
async fn until(phase: &mut watch::Receiver<AcceptPhase>, holds: impl Fn(AcceptPhase) -> bool) {
    if phase.wait_for(|phase| holds(*phase)).await.is_err() {
        std::future::pending().await
    }
}

/// An application that is still used after Pingora has dropped its service. Its connections watch the shutdown of the
/// process, not the earlier shutdown of Pingora.
struct SharedApp<A> {
    app: Arc<A>,
    filter: Option<Arc<FileFilter>>,
    shutdown: ShutdownWatch,
}

impl<A: ServerApp + Send + Sync + 'static> ServerApp for SharedApp<A> {
    /// Spawns a task for the connection. Pingora's own task would hold 8 KiB for a TLS handshake.
    fn process_new<'s, 'w, 'f>(
        self: &'s Arc<Self>,
        stream: Stream,
        _: &'w ShutdownWatch,
    ) -> Pin<Box<dyn Future<Output = Option<Stream>> + Send + 'f>>
    where
        's: 'f,
        'w: 'f,
        Self: 'f,
    {
        let (app, filter, shutdown) = (Arc::clone(&self.app), self.filter.clone(), self.shutdown.clone());
        tokio::spawn(async move {
            if let Some(filter) = filter {
                filter.limits.begin();
            }
            ListeningService::handle_event(stream, app, shutdown).await;
        });
        Box::pin(std::future::ready(None))
    }
}

/// Closes a new connection at once if no file descriptor is left for it. This filter never waits.
#[derive(Debug)]
pub struct FileFilter {
    /// What the connections of the listener are for.
    pub purpose: Purpose,
    pub limits: Arc<ConnectionLimits>,
    pub clock: Clock,
}

#[async_trait]
impl ConnectionFilter for FileFilter {
    async fn should_accept(&self, _: Option<&SocketAddr>) -> bool {
        self.limits.admit(self.purpose, &self.clock)
    }
}

/// A thread that serves requests. It has one socket of every listener, each with its application, and a background task.
pub(crate) struct Thread {
    name: String,
    sockets: Vec<Box<dyn Service>>,
    /// The background task. It is in a lock, because a service must be `Sync`.
    background: Mutex<Option<BoxFuture>>,
}

type BoxFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Thread {
    /// Makes a thread that has no sockets yet. `background` runs on the thread as long as the thread runs.
    pub(crate) fn new(name: String, background: impl Future<Output = ()> + Send + 'static) -> Thread {
        Thread { name, sockets: Vec::new(), background: Mutex::new(Some(Box::pin(background))) }
    }

    pub(crate) fn listen<A: ServerApp + Send + Sync + 'static>(&mut self, socket: SocketService<A>) {
        self.sockets.push(Box::new(socket));
    }
}

#[async_trait]
impl Service for Thread {
    async fn start_service(&mut self, table: Option<ListenFds>, shutdown: ShutdownWatch, per_fd: usize) {
        if let Some(task) = self.background.get_mut().take() {
            supervise::spawn_critical("store", task);
        }
        let start = |mut socket: Box<dyn Service>| {
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
        Some(self.sockets.iter().filter_map(|socket| socket.listen_addresses()).flatten().collect())
    }
}
