//! Serves the connections that still wait in a listening socket when the process drains.
//!
//! Pingora stops accepting as soon as the shutdown begins. Closing a socket would reset the connections in its queue,
//! so each socket is kept open until its queue is empty.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pingora::apps::ServerApp;
use pingora::server::ShutdownWatch;
use pingora::services::listening::Service as ListeningService;

use super::listening_socket::{AcceptedConnection, ListeningSocket};

/// The number of listening sockets that may still have queued connections. A drain does not end before this number is
/// zero.
#[derive(Clone, Debug, Default)]
pub struct AcceptingSockets(Arc<AtomicUsize>);

impl AcceptingSockets {
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }

    pub(super) fn add(&self) -> AcceptingGuard {
        self.0.fetch_add(1, Ordering::AcqRel);
        AcceptingGuard(Arc::clone(&self.0))
    }
}

/// Counts one listening socket in [`AcceptingSockets`] until the guard is dropped.
#[derive(Debug)]
pub(super) struct AcceptingGuard(Arc<AtomicUsize>);

impl Drop for AcceptingGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Accepts the connections in the queue of a socket, closes the socket, and serves the connections with `app`. `guard` is held
/// until the last of these connections has closed.
pub(super) fn serve<A: ServerApp + Send + Sync + 'static>(
    queue: ListeningSocket,
    app: &Arc<A>,
    guard: AcceptingGuard,
    shutdown: &ShutdownWatch,
) {
    // There is no pause here, because clients that connect after the last accept are reset.
    let accepted: Vec<_> = std::iter::from_fn(|| accept(&queue)).collect();
    drop(queue);
    let guard = Arc::new(guard);
    for connection in accepted {
        match connection.into_stream() {
            Ok(stream) => {
                let (app, shutdown, guard) = (Arc::clone(app), shutdown.clone(), Arc::clone(&guard));
                tokio::spawn(async move {
                    ListeningService::handle_event(stream, app, shutdown).await;
                    drop(guard);
                });
            }
            Err(error) => log::debug!(error:% = error; "queued connection lost"),
        }
    }
}

/// The next connection of the queue, `None` when it is empty.
fn accept(queue: &ListeningSocket) -> Option<AcceptedConnection> {
    loop {
        match queue.accept() {
            Ok(accepted) => return Some(accepted),
            Err(error) => match error.kind() {
                // The connection failed while it waited, so the next connection is tried.
                io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted => {}
                io::ErrorKind::WouldBlock => return None,
                _ => {
                    log::warn!(error:% = error; "queued connections not accepted");
                    return None;
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use async_trait::async_trait;
    use pingora::protocols::Stream;
    use tokio::sync::watch;
    use tokio::task::yield_now;

    use super::*;

    /// Holds each connection until the test lets it go.
    struct ConnectionHolder {
        serving: AtomicUsize,
        released: watch::Receiver<bool>,
    }

    #[async_trait]
    impl ServerApp for ConnectionHolder {
        async fn process_new(self: &Arc<Self>, stream: Stream, _: &ShutdownWatch) -> Option<Stream> {
            let digest = stream.get_socket_digest().unwrap();
            assert!(digest.peer_addr().unwrap().as_inet().unwrap().ip().is_loopback());
            self.serving.fetch_add(1, Ordering::SeqCst);
            self.released.clone().wait_for(|released| *released).await.unwrap();
            None
        }
    }

    #[tokio::test]
    async fn a_queued_connection_counts_until_it_has_been_served() {
        let queue = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        queue.set_nonblocking(true).unwrap();
        let address = queue.local_addr().unwrap();
        let waiting: Vec<_> = (0..3).map(|_| TcpStream::connect(address).unwrap()).collect();
        let ((release, released), (_leave, shutdown)) = (watch::channel(false), watch::channel(true));
        let app = Arc::new(ConnectionHolder { serving: AtomicUsize::new(0), released });
        let accepting = AcceptingSockets::default();
        serve(ListeningSocket::Tcp(queue), &app, accepting.add(), &shutdown);
        // At this point, no code of the application has run.
        assert_eq!((app.serving.load(Ordering::SeqCst), accepting.count()), (0, 1));
        assert!(TcpStream::connect(address).is_err());
        while app.serving.load(Ordering::SeqCst) < waiting.len() {
            assert_eq!(accepting.count(), 1);
            yield_now().await;
        }
        release.send(true).unwrap();
        while accepting.count() > 0 {
            yield_now().await;
        }
    }

    #[tokio::test]
    async fn an_empty_queue_does_not_delay_a_drain() {
        let queue = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        queue.set_nonblocking(true).unwrap();
        let (_leave, shutdown) = watch::channel(true);
        let app = Arc::new(ConnectionHolder { serving: AtomicUsize::new(0), released: watch::channel(false).1 });
        let accepting = AcceptingSockets::default();
        serve(ListeningSocket::Tcp(queue), &app, accepting.add(), &shutdown);
        assert_eq!(accepting.count(), 0);
    }
}
