//! Ends the connection of a client that the current certificates no longer admit, for example after a change of the
//! revocation lists.
//!
//! Each change wakes every encrypted connection once. Between changes, a request only checks a flag.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::sync::watch;

use crate::gateway::server::connection_handle::ConnectionHandle;
use crate::gateway::server::http1::poll_on_wake::PollOnWake;
use crate::gateway::server::server_state::ServerState;
use base::tls::server::Session;

/// Whether the client of one connection is excluded, because the certificates in force no longer admit it.
pub(crate) enum ClientExclusion {
    /// The client is never excluded, because the connection is not encrypted.
    Unencrypted,
    Awaited {
        excluded: Pin<Box<dyn Future<Output = ()> + Send>>,
        woken: PollOnWake,
    },
    Excluded,
}

impl ClientExclusion {
    pub(crate) fn of(handle: &ConnectionHandle, state: &ServerState) -> ClientExclusion {
        let Some(session) = handle.tls() else { return ClientExclusion::Unencrypted };
        let changes = state.certificates_changed.subscribe();
        let excluded = exclusion(Arc::clone(session), handle.listener(), state.clone(), changes);
        ClientExclusion::Awaited { excluded: Box::pin(excluded), woken: PollOnWake::default() }
    }

    /// Becomes ready when the client is excluded, and then stays ready.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            ClientExclusion::Unencrypted => return Poll::Pending,
            ClientExclusion::Awaited { excluded, woken } => ready!(woken.poll(cx, |cx| excluded.as_mut().poll(cx))),
            ClientExclusion::Excluded => {}
        }
        *self = ClientExclusion::Excluded;
        Poll::Ready(())
    }
}

/// Returns when the current certificates of a listener no longer admit the client of a session.
async fn exclusion(session: Arc<Session>, listener: usize, state: ServerState, mut changes: watch::Receiver<()>) {
    // The first check does not wait for a change, because the certificates may have changed during the handshake.
    while state.snapshot.load().admits_client(&session, listener, state.clock.wall()) {
        if changes.changed().await.is_err() {
            // Without a sender, the certificates no longer change, so this client is never excluded.
            std::future::pending::<()>().await;
        }
    }
}
