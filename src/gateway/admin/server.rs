//! Where connections to the admin listener come in: only so many, and none that keeps still for ever.
//!
//! They take the same files that clients' connections do, and the listener asks nobody who they are. Where there are too
//! many, the one that has kept still longest makes room, whether its request does not come or its answer is not taken:
//! whoever asks whether we live sends the question at once and reads, and so gets an answer however many keep still.

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
use super::idle_eviction::{Activity, AdminSlot, ConnectionSlots, Found};
use crate::base::interval::fixed_interval;
use crate::base::time::{Micros, Timestamp};
use crate::gateway::runtime::log_throttle::LogThrottle;
use crate::gateway::telemetry::events::Happened;

/// How long the first head may take, from when the connection is opened.
const HEAD: Duration = Duration::from_secs(10);
/// How long a next one may: longer than most monitoring waits in between.
const KEPT: Duration = Duration::from_secs(70);
/// How long an answer may take to be made and sent.
const ANSWER: Duration = Duration::from_secs(60);
const PACE: Micros = Micros(60_000_000);

pub struct AdminServer {
    admin: Admin,
    most: usize,
    seats: ConnectionSlots,
    closed: Counter,
    told: LogThrottle,
}

#[async_trait]
impl ServerApp for AdminServer {
    async fn process_new(self: &Arc<Self>, stream: Stream, shutdown: &ShutdownWatch) -> Option<Stream> {
        let (seat, found) = self.seats.take(self.now());
        if found == Found::Taken {
            self.count_closed();
        }
        tokio::select! {
            () = seat.needed() => None,
            stream = self.serve(stream, &seat, shutdown) => stream,
        }
    }
}

impl AdminServer {
    pub fn new(admin: Admin, most: usize) -> AdminServer {
        AdminServer {
            closed: admin.gateway.metrics.admin_connections_closed.clone(),
            admin,
            most,
            seats: ConnectionSlots::new(most),
            told: LogThrottle::default(),
        }
    }

    fn now(&self) -> Timestamp {
        self.admin.gateway.clock.now()
    }

    fn count_closed(&self) {
        self.closed.increment(1);
        if let Some(connections) = self.told.admit_every(PACE, self.now()) {
            self.admin.gateway.events.note(Happened::AdminCrowded, "");
            log::warn!(connections, most = self.most; "admin listener has too many connections, those that wait are closed");
        }
    }

    /// Request after request, for as long as they come and their answers are taken.
    async fn serve(&self, stream: Stream, seat: &AdminSlot<'_>, shutdown: &ShutdownWatch) -> Option<Stream> {
        let (mut stream, mut settings, mut patience) =
            (stream, None::<HttpPersistentSettings>, fixed_interval("admin_head", HEAD));
        loop {
            let mut session = ServerSession::new_http1(stream);
            if let Some(settings) = settings.take() {
                settings.apply_to_session(&mut session);
            }
            let read = tokio::time::timeout(patience, session.read_request()).await;
            if !matches!(read, Ok(Ok(true))) {
                return None;
            }
            seat.begin(Activity::Answering, self.now());
            session.set_keepalive(if *shutdown.borrow() { None } else { Some(KEPT.as_secs()) });
            let answered = tokio::time::timeout(ANSWER, self.answer(session)).await;
            seat.begin(Activity::Waiting, self.now());
            let (next, kept) = answered.ok().flatten()?.consume();
            (stream, settings, patience) = (next, kept, KEPT);
        }
    }

    /// None where the connection is of no use any more.
    async fn answer(&self, mut session: ServerSession) -> Option<ReusedHttpStream> {
        let (parts, body) = self.admin.response(&session).await.into_parts();
        session.write_response_header(Box::new(ResponseHeader::from(parts))).await.ok()?;
        if !body.is_empty() {
            session.write_response_body(body.into(), true).await.ok()?;
        }
        let settings = HttpPersistentSettings::for_session(&session);
        let stream = session.finish().await.ok()??;
        Some(ReusedHttpStream::from_reusable_stream(stream, settings))
    }
}
