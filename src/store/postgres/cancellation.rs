//! Cancels what a server does for a connection that is left: a COMMIT that waits for a replica would go on for as long as that
//! is away, with its rows locked and its server process taken.
//!
//! Whatever the cancelled call was, it has no answer, so it counts as charged and is never repeated. Of such a COMMIT the charge
//! stays.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio_postgres::{CancelToken, NoTls};

use super::tls::Handshake;

/// How long it may take.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(2);

/// What is needed to cancel the work of one connection.
#[derive(Clone)]
pub struct Cancellation {
    pub token: CancelToken,
    /// The server itself: its name may belong to another one by then.
    pub server: SocketAddr,
    pub tls: Option<Handshake>,
}

impl Cancellation {
    /// Asks the server for it, by a connection of its own. Nobody waits for that, and the server does not say what became of it.
    pub fn send(&self) {
        let Cancellation { token, server, tls } = self.clone();
        let cancelling = async move {
            // Without one, or if it fails, the server goes on.
            let Ok(stream) = TcpStream::connect(server).await else { return };
            let _ = match tls {
                None => token.cancel_query_raw(stream, NoTls).await,
                Some(handshake) => token.cancel_query_raw(stream, handshake).await,
            };
        };
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(tokio::time::timeout(CANCEL_TIMEOUT, cancelling));
        }
    }
}
