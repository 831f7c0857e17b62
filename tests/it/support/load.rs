//! Sends requests without pause, and panics if a response is not 200.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use super::{Client, eventually};

/// Clients that use their connections as long as the gateway keeps them open, until the load ends.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    clients: Vec<JoinHandle<()>>,
}

impl Load {
    /// Starts the load. Each new connection is opened to the address that `to` returns.
    pub(crate) fn on(to: impl Fn() -> SocketAddr + Send + Sync + 'static) -> Load {
        let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let to = Arc::new(to);
        let client = |_| {
            let (stop, answered, to) = (Arc::clone(&stop), Arc::clone(&answered), Arc::clone(&to));
            std::thread::spawn(move || {
                let mut client = Client::connect(to());
                while !stop.load(Ordering::Relaxed) {
                    let response = client.get("/", &[]);
                    assert_eq!(response.status, 200);
                    answered.fetch_add(1, Ordering::Relaxed);
                    if response.field("connection").as_deref() == Some("close") {
                        client = Client::connect(to());
                    }
                }
            })
        };
        let clients = (0..8).map(client).collect();
        Load { stop, answered, clients }
    }

    /// Waits for a hundred more answers.
    #[track_caller]
    pub(crate) fn await_answers(&self) {
        let before = self.answered.load(Ordering::Relaxed);
        eventually("a hundred more answers", || self.answered.load(Ordering::Relaxed) > before + 100);
    }

    /// Ends the load, and returns how many requests were answered. Panics if a request was not answered.
    #[track_caller]
    pub(crate) fn end(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        self.clients.into_iter().for_each(|client| client.join().expect("a request failed"));
        self.answered.load(Ordering::Relaxed)
    }
}
