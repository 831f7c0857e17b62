//! Lets a request wait in the queue of a leaky bucket, while its client is connected.

use std::time::Duration;

use metrics::Gauge;

use super::exchange::{DecidedStage, ReceivedExchange};
use super::fault::Fault;
use crate::gateway::enforcement::DelayedPass;
use crate::gateway::server::http1::exchange_io::ClientFault;
use crate::gateway::server::request_client::RequestClient;
use base::time::{sleep, sleep_precisely};
use stores::Caller;

/// How often the gateway checks the socket of a waiting request's client, to find out whether the client is still connected.
const CHECK: Duration = Duration::from_millis(500);

/// Lets a request wait for its turn in the queue of a leaky bucket.
///
/// # Errors
/// If the client leaves during the wait, or the process exits. The place in the queue is not given back.
pub(super) async fn delay<C: RequestClient>(
    client: &mut C,
    DecidedStage { received, decided, .. }: &mut DecidedStage<'_, '_>,
    DelayedPass { delay, fields }: DelayedPass,
) -> Result<(), Fault> {
    decided.rate_limits = Some(fields);
    let gateway = &received.forwarder.gateway;
    let metrics = &gateway.metrics.delays;
    let _waiting = WaitingCount::new(&metrics.waiting);
    let began = gateway.clock.now();
    let elapsed = tokio::select! {
        biased;
        () = sleep_precisely(delay.into()) => Ok(()),
        fault = client_leaves(client, received) => Err(fault),
    };
    let waited = gateway.clock.now().since(began);
    if let Some(record) = &mut received.record {
        record.waited = Some(waited);
    }
    if let Err(fault) = elapsed {
        if fault == ClientFault::Gone {
            metrics.left.increment(1);
        }
        return Err(fault.into());
    }
    metrics.waited.record(waited.seconds());
    Ok(())
}

/// Returns when the client has closed its connection, or its side of the connection, or when the process exits.
///
/// If the request is complete, a read from the connection shows that the client has closed it. If the body is
/// incomplete, or the client has sent further requests, the gateway reads no more from the connection. So the socket
/// is also checked from time to time.
async fn client_leaves<C: RequestClient>(client: &mut C, received: &ReceivedExchange<'_>) -> ClientFault {
    let asked = async {
        loop {
            sleep(CHECK).await;
            if received.connection.socket().is_some_and(|socket| socket.has_left()) {
                return ClientFault::Gone;
            }
        }
    };
    tokio::select! {
        fault = asked => fault,
        fault = std::future::poll_fn(|cx| client.poll_given_up(cx)) => fault,
    }
}

/// Counts a request as waiting until this value is dropped.
struct WaitingCount<'m>(&'m Gauge);

impl WaitingCount<'_> {
    fn new(gauge: &Gauge) -> WaitingCount<'_> {
        gauge.increment(1.0);
        WaitingCount(gauge)
    }
}

impl Drop for WaitingCount<'_> {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}
