//! Where connections to the admin listener come in: only so many, and none that keeps still for ever.
//!
//! They take the same files that clients' connections do, and the listener asks nobody who they are. Where there are too
//! many, the one that has waited for a request longest makes room: whoever asks whether we live sends the question at once,
//! and so gets an answer however many keep still.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use metrics::Counter;
use pingora::apps::{HttpPersistentSettings, ReusedHttpStream, ServerApp};
use pingora::http::ResponseHeader;
use pingora::protocols::Stream;
use pingora::protocols::http::ServerSession;
use pingora::server::ShutdownWatch;
use tokio::sync::Notify;

use super::admin::Admin;
use super::events::Happened;
use super::sampled::Sampled;
use crate::time::Micros;

/// How long the first head may take, from when the connection is opened.
const HEAD: Duration = Duration::from_secs(10);
/// How long a next one may: longer than most monitoring waits in between.
const KEPT: Duration = Duration::from_secs(70);
/// How long an answer may take to be made and sent.
const ANSWER: Duration = Duration::from_secs(60);
const PACE: Micros = Micros(60_000_000);

pub struct AdminDoor {
    admin: Admin,
    most: usize,
    open: AtomicUsize,
    /// Those that wait for a head, the one that has waited longest first.
    waiting: Notify,
    idle: AtomicUsize,
    closed: Counter,
    told: Sampled,
}

/// One connection more, until this goes.
struct Counted<'c>(&'c AtomicUsize);

impl<'c> Counted<'c> {
    /// And how many there were before.
    fn new(count: &'c AtomicUsize) -> (Counted<'c>, usize) {
        let before = count.fetch_add(1, Ordering::AcqRel);
        (Counted(count), before)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[async_trait]
impl ServerApp for AdminDoor {
    async fn process_new(self: &Arc<Self>, stream: Stream, shutdown: &ShutdownWatch) -> Option<Stream> {
        let (_open, before) = Counted::new(&self.open);
        if before >= self.most && !self.makes_room() {
            return None;
        }
        let (mut stream, mut settings, mut patience) = (stream, None::<HttpPersistentSettings>, HEAD);
        loop {
            let mut session = ServerSession::new_http1(stream);
            if let Some(settings) = settings.take() {
                settings.apply_to_session(&mut session);
            }
            if !self.head(&mut session, patience).await {
                return None;
            }
            session.set_keepalive(if *shutdown.borrow() { None } else { Some(KEPT.as_secs()) });
            let answered = tokio::time::timeout(ANSWER, self.answer(session)).await;
            let (next, kept) = answered.ok().flatten()?.consume();
            (stream, settings, patience) = (next, kept, KEPT);
        }
    }
}

impl AdminDoor {
    pub fn new(admin: Admin, most: usize) -> AdminDoor {
        AdminDoor {
            closed: admin.0.metrics.admin_connections_closed(),
            admin,
            most,
            open: AtomicUsize::new(0),
            waiting: Notify::new(),
            idle: AtomicUsize::new(0),
            told: Sampled::default(),
        }
    }

    /// Closes a connection, which is another one if one waits for a request.
    fn makes_room(&self) -> bool {
        self.closed.increment(1);
        let gateway = &self.admin.0;
        if let Some(connections) = self.told.say_each(PACE, gateway.clock.now()) {
            gateway.events.note(Happened::AdminCrowded, "");
            log::warn!(connections, most = self.most; "admin listener has too many connections, those that wait are closed");
        }
        // Who is told to go is no longer idle, so that no two are let in for its place.
        let leave = |idle: usize| idle.checked_sub(1);
        let one_leaves = self.idle.fetch_update(Ordering::AcqRel, Ordering::Acquire, leave).is_ok();
        if one_leaves {
            self.waiting.notify_one();
        }
        one_leaves
    }

    /// Whether a head has come.
    async fn head(&self, session: &mut ServerSession, patience: Duration) -> bool {
        self.idle.fetch_add(1, Ordering::AcqRel);
        let read = tokio::time::timeout(patience, session.read_request());
        let came = tokio::select! {
            // One that was told to go has been counted off by who told it.
            () = self.waiting.notified() => return false,
            read = read => matches!(read, Ok(Ok(true))),
        };
        let _ = self.idle.fetch_update(Ordering::AcqRel, Ordering::Acquire, |idle| idle.checked_sub(1));
        came
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
