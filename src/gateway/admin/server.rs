//! Serves the connections to the admin listener. Their number and their idle time are limited.
//!
//! The listener has no authentication, so its connections could use up the file descriptors. At the limit, the
//! longest-idle connection is evicted: one that sends no request, or does not read its response. A liveness probe sends
//! its request at once and reads, so it is always answered.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use metrics::Counter;
use pingora::apps::{HttpPersistentSettings, ReusedHttpStream, ServerApp};
use pingora::http::ResponseHeader;
use pingora::protocols::Stream;
use pingora::protocols::http::ServerSession;
use pingora::server::ShutdownWatch;

use super::Admin;
use super::idle_eviction::{Activity, AdminSlot, Admission, ConnectionSlots};
use crate::gateway::runtime::log_throttle::LogThrottle;
use crate::gateway::telemetry::events::EventKind;
use base::interval::fixed_interval;
use base::time::{Micros, Timestamp};

/// The longest time from the opening of a connection to the end of its first head.
const FIRST_HEAD: Duration = Duration::from_secs(10);
/// The longest time from a response to the end of the next head. It is longer than the usual interval of monitoring.
const NEXT_HEAD: Duration = Duration::from_secs(70);
/// The longest time for making and sending a response.
const RESPONSE: Duration = Duration::from_secs(60);
const LOG_INTERVAL: Micros = Micros(60_000_000);

pub(crate) struct AdminServer {
    admin: Admin,
    max: usize,
    slots: ConnectionSlots,
    closed: Counter,
    log_throttle: LogThrottle,
}

#[async_trait]
impl ServerApp for AdminServer {
    async fn process_new(self: &Arc<Self>, stream: Stream, shutdown: &ShutdownWatch) -> Option<Stream> {
        let (slot, admission) = self.slots.take(self.now());
        if admission == Admission::Evicted {
            self.count_closed();
        }
        tokio::select! {
            () = slot.evicted() => None,
            stream = self.serve(stream, &slot, shutdown) => stream,
        }
    }
}

impl AdminServer {
    pub(crate) fn new(admin: Admin, max: usize) -> AdminServer {
        AdminServer {
            closed: admin.gateway.metrics.admin_connections_closed.clone(),
            admin,
            max,
            slots: ConnectionSlots::new(max),
            log_throttle: LogThrottle::default(),
        }
    }

    fn now(&self) -> Timestamp {
        self.admin.gateway.clock.now()
    }

    fn count_closed(&self) {
        self.closed.increment(1);
        if let Some(connections) = self.log_throttle.admit_every(LOG_INTERVAL, self.now()) {
            self.admin.gateway.events.note(EventKind::AdminConnectionsClosed, "");
            log::warn!(connections, most = self.max; "admin listener has too many connections, closing idle ones");
        }
    }

    /// Serves the requests of a connection until one arrives too late, or a response is not read in time.
    async fn serve(&self, stream: Stream, slot: &AdminSlot<'_>, shutdown: &ShutdownWatch) -> Option<Stream> {
        let (mut stream, mut settings, mut timeout) =
            (stream, None::<HttpPersistentSettings>, fixed_interval("admin_head", FIRST_HEAD));
        loop {
            let mut session = ServerSession::new_http1(stream);
            if let Some(settings) = settings.take() {
                settings.apply_to_session(&mut session);
            }
            let read = tokio::time::timeout(timeout, session.read_request()).await;
            if !matches!(read, Ok(Ok(true))) {
                return None;
            }
            slot.begin(Activity::Answering, self.now());
            session.set_keepalive(if *shutdown.borrow() { None } else { Some(NEXT_HEAD.as_secs()) });
            let responded = tokio::time::timeout(RESPONSE, self.respond(session)).await;
            slot.begin(Activity::Waiting, self.now());
            let (next, next_settings) = responded.ok().flatten()?.consume();
            (stream, settings, timeout) = (next, next_settings, NEXT_HEAD);
        }
    }

    /// Answers a request. `None` if the connection cannot be used again.
    async fn respond(&self, mut session: ServerSession) -> Option<ReusedHttpStream> {
        let (parts, body) = self.admin.response(&mut session).await.into_parts();
        session.write_response_header(Box::new(ResponseHeader::from(parts))).await.ok()?;
        if !body.is_empty() {
            session.write_response_body(body.into(), true).await.ok()?;
        }
        let settings = HttpPersistentSettings::for_session(&session);
        let stream = session.finish().await.ok()??;
        Some(ReusedHttpStream::from_reusable_stream(stream, settings))
    }
}
