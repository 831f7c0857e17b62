//! Sends requests without a pause, and takes no answer but 200.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use super::{Client, eventually};

/// Clients that keep their connections for as long as they may, until they are told to stop.
pub struct Load {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    clients: Vec<JoinHandle<()>>,
}

impl Load {
    /// Each new connection goes where `to` says.
    pub fn on(to: impl Fn() -> SocketAddr + Send + Sync + 'static) -> Load {
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
    pub fn goes_on(&self) {
        let before = self.answered.load(Ordering::Relaxed);
        eventually("a hundred more answers", || self.answered.load(Ordering::Relaxed) > before + 100);
    }

    /// How many requests were answered; every one that was sent, or this panics.
    #[track_caller]
    pub fn end(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        self.clients.into_iter().for_each(|client| client.join().expect("a request failed"));
        self.answered.load(Ordering::Relaxed)
    }
}
