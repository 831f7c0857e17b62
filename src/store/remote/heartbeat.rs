//! Announces this gateway to the others through the store, and learns how many gateways are alive.
//!
//! No decision of the store depends on it: it is needed when the store gives no answer and each gateway grants its share.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::transport::{LiveGateways, Transport};
use crate::base::interval::fixed_interval;
use crate::base::time;
use crate::store::error::{Fault, StoreError};
use crate::store::events::{Event, EventSink, RunningGateway};
use crate::store::fallback::FallbackShare;

/// Heartbeat interval. Other gateways take a new one into account at their own next heartbeat.
const BEAT: Duration = Duration::from_secs(2);
/// How long to wait for a reply.
const PATIENCE: Duration = Duration::from_secs(2);

/// One gateway among those that share a store.
#[derive(Debug)]
pub struct Heartbeat {
    name: [u8; 8],
    this_gateway: Arc<Mutex<RunningGateway>>,
    fallback: Arc<FallbackShare>,
    events: EventSink,
}

impl Heartbeat {
    pub fn new(
        name: [u8; 8],
        this_gateway: Arc<Mutex<RunningGateway>>,
        fallback: Arc<FallbackShare>,
        events: EventSink,
    ) -> Heartbeat {
        Heartbeat { name, this_gateway, fallback, events }
    }

    /// Sends heartbeats for as long as the connection lasts, and returns when the server accepts no writes any more: calls
    /// that refuse would not notice. A timeout is not reported: takes on the same connection report it.
    pub async fn keep<T: Transport>(&self, transport: &T, mut link: T::Link) -> Fault {
        loop {
            let this_gateway = self.this_gateway.lock().clone();
            match time::timeout(PATIENCE, transport.beat(&mut link, self.name, &this_gateway)).await {
                Ok(Ok(Some(LiveGateways { alive, others }))) => {
                    self.events.send(Event::Gateways { alive: self.fallback.set_gateways(alive), others });
                }
                Ok(Err(fault)) if fault.error == StoreError::Replica => return fault,
                Ok(Err(fault)) => self.events.send(Event::HeartbeatError(fault)),
                Ok(Ok(None)) | Err(_) => {}
            }
            // Jittered, so that gateways that lost their server together do not send at the same time.
            time::sleep(fixed_interval("heartbeat", BEAT).mul_f64(0.75 + fastrand::f64() / 2.0)).await;
        }
    }
}
