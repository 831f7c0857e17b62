//! Delays a request until its moment has come, as long as its client is there.
//!
//! Nothing is read of the request's body meanwhile, and no `100 Continue` is sent. Of a complete request, the connection
//! reports a client that leaves. With a body that is still unread, or with further requests that have been sent ahead, what
//! was read would hide it: then the socket is asked from time to time.

use std::time::Duration;

use metrics::Gauge;
use pingora::proxy::Session;
use pingora::{Error, ErrorType, Result};

use super::exchange::Exchange;
use crate::gateway::enforcement::DelayedPass;
use crate::gateway::server::connection_handle::ConnectionHandle;
use crate::gateway::server::session;
use crate::gateway::state::GatewayState;
use base::time::{sleep, sleep_precisely};
use stores::Caller;

/// How often the socket is asked.
const CHECK: Duration = Duration::from_millis(500);

/// Delays a request. What it takes to wait is on the heap: few requests do.
///
/// # Errors
///
/// If its client has left meanwhile. Its place is spent.
pub async fn delay(
    gateway: &GatewayState,
    session: &mut Session,
    exchange: &mut Exchange,
    DelayedPass { delay, fields }: DelayedPass,
) -> Result<()> {
    exchange.fields = Some(fields);
    let metrics = &gateway.metrics.delays;
    let _waiting = Waiting::new(&metrics.waiting);
    let began = gateway.clock.now();
    let elapsed = Box::pin(async {
        tokio::select! {
            biased;
            () = sleep_precisely(delay.into()) => true,
            () = client_leaves(session, exchange.connection.as_ref()) => false,
        }
    });
    let elapsed = elapsed.await;
    let waited = gateway.clock.now().since(began);
    if let Some(record) = &mut exchange.record {
        record.waited = Some(waited);
    }
    if !elapsed {
        metrics.left.increment(1);
        return Err(Error::new_down(ErrorType::ConnectionClosed));
    }
    metrics.waited.record(waited.seconds());
    Ok(())
}

/// Ends when the client has closed its connection, or its side of it.
async fn client_leaves(session: &mut Session, connection: Option<&ConnectionHandle>) {
    let socket = session::client_socket(session, connection);
    let asked = async {
        loop {
            sleep(CHECK).await;
            if socket.as_ref().is_some_and(|socket| socket.has_left()) {
                return;
            }
        }
    };
    // A stream of HTTP/2 says so, whatever is unread of its body.
    let is_h2 = session.as_downstream().is_custom();
    // What follows the head of a WebSocket belongs to the upstream.
    let is_complete = !session::asks_for_websocket(session) && (is_h2 || session.is_body_done());
    let closed = async {
        if !is_complete {
            return std::future::pending().await;
        }
        // It returns nothing else of a complete request: what is sent ahead stays in the connection.
        drop(session.as_downstream_mut().read_body_or_idle(true).await);
    };
    tokio::select! {
        () = asked => {}
        () = closed => {}
    }
}

/// Counts a request as waiting, until it is dropped.
struct Waiting<'m>(&'m Gauge);

impl Waiting<'_> {
    fn new(gauge: &Gauge) -> Waiting<'_> {
        gauge.increment(1.0);
        Waiting(gauge)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}
