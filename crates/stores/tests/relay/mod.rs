//! A relay between a gateway and a server, which delays bytes and can be cut.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;

/// Passes bytes to a server after a delay in each direction. While it is cut, bytes to the server, or from it, are lost.
pub(crate) struct Relay {
    pub port: u16,
    cut: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Relay {
    pub(crate) async fn to(port: u16, delay: Duration) -> Relay {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (own, cut) = (listener.local_addr().unwrap().port(), Arc::new(AtomicBool::new(false)));
        let is_cut = Arc::clone(&cut);
        let task = tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let Ok(server) = tokio::net::TcpStream::connect(("127.0.0.1", port)).await else { continue };
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                tokio::spawn(pass(from_client, to_server, delay, Arc::clone(&is_cut)));
                tokio::spawn(pass(from_server, to_client, delay, Arc::clone(&is_cut)));
            }
        });
        Relay { port: own, cut, task }
    }

    #[allow(dead_code, reason = "not every program of tests cuts")]
    pub(crate) fn cut(&self, is_cut: bool) {
        self.cut.store(is_cut, Ordering::SeqCst);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Passes bytes on in their order. Bytes are lost while the relay is cut: the connection is then closed.
async fn pass(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    delay: Duration,
    is_cut: Arc<AtomicBool>,
) {
    let (sender, mut parts) = tokio::sync::mpsc::unbounded_channel::<(tokio::time::Instant, Vec<u8>)>();
    let write = async move {
        while let Some((at, bytes)) = parts.recv().await {
            tokio::time::sleep_until(at).await;
            if is_cut.load(Ordering::SeqCst) || to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    };
    let read = async move {
        let mut buffer = vec![0; 65_536];
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            if sender.send((tokio::time::Instant::now() + delay, buffer[..length].to_vec())).is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = write => {}
        () = async { read.await; std::future::pending::<()>().await } => {}
    }
}
