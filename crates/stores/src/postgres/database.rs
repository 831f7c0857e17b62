//! Connects to PostgreSQL and decides plans there. Implements [`Transport`] for PostgreSQL.

use std::fmt;
use std::sync::Arc;

use smallvec::smallvec;
use tokio::sync::{Mutex as FairMutex, MutexGuard, Notify};
use tokio_postgres::types::Type;

use super::bucket_reads;
use super::cancellation::Cancellation;
use super::cleaner;
use super::connect::{Checks, ReadyConnection, STEP, connect, step};
use super::gateway_heartbeat;
use super::primary_watch::PrimaryWatch;
use super::session::Session;
use super::settings::Settings;
use super::transaction::{NewRows, Statements};
use crate::error::{Fault, StoreError};
use crate::events::{EventSink, RunningGateway};
use crate::lease_acts::{ActResults, BucketAct};
use crate::remote::Route;
use crate::remote::login::CurrentLogin;
use crate::remote::transport::{
    CallLimits, CallPart, CallReply, ConnectionProof, DrivenLink, LiveGateways, PartReply, ReadStates, Transport,
};
use base::time::{Clock, Timestamp};
use ledger::bucket_key::BucketKey;

/// A PostgreSQL database with the buckets. All connections to it share this value.
#[derive(Debug)]
pub struct Database {
    pub login: CurrentLogin,
    pub settings: Settings,
    primary: PrimaryWatch,
    statements: Statements,
    /// The statement that reads buckets.
    read: String,
    heartbeat: String,
    /// The statement that begins the transaction of a heartbeat.
    begin_heartbeat: String,
    clock: Clock,
    events: EventSink,
}

/// A connection to the database that several tasks may use. Only one transaction runs on it at a time.
#[derive(Clone)]
pub struct Link {
    session: Arc<Session>,
    turn: Arc<FairMutex<Turn>>,
    cancellation: Arc<Cancellation>,
    /// Notified when acts are given up, so that the connection ends.
    given_up: Arc<Notify>,
}

/// The state of the transactions on one connection.
#[derive(Debug, Default)]
struct Turn {
    new_rows: NewRows,
    /// Whether the transaction of acts has begun and not ended.
    is_within_acts: bool,
}

/// Acts under way. Dropping this gives them up: the server cancels its work, and the connection ends.
struct ActsUnderWay<'l>(Option<&'l Link>);

impl Drop for ActsUnderWay<'_> {
    fn drop(&mut self) {
        if let Some(link) = self.0 {
            link.cancellation.send();
            link.given_up.notify_one();
        }
    }
}

impl Link {
    /// Waits until no transaction runs on the connection.
    ///
    /// # Errors
    ///
    /// When acts were given up within their transaction.
    async fn turn(&self) -> Result<MutexGuard<'_, Turn>, Fault> {
        let turn = self.turn.lock().await;
        if turn.is_within_acts { Err(given_up()) } else { Ok(turn) }
    }
}

fn given_up() -> Fault {
    Fault::new(StoreError::Timeout, "acts of leases were given up, and the connection with them")
}

impl Database {
    pub fn new(settings: Settings, clock: Clock, events: EventSink) -> Database {
        Database {
            login: CurrentLogin::new(settings.login.clone()),
            statements: Statements::new(&settings),
            read: bucket_reads::statement(&settings.table),
            heartbeat: gateway_heartbeat::statement(&settings.table),
            begin_heartbeat: gateway_heartbeat::begin(&settings),
            primary: PrimaryWatch::new(),
            settings,
            clock,
            events,
        }
    }
}

impl Transport for Database {
    type Link = Link;

    // A larger transaction would hold its locks for longer. A connection has only one transaction at a time, and so
    // only one call.
    const CALLS: CallLimits = CallLimits { charges: 256, requests: 1024, at_once: 1, parted: false };

    // A login does not show that calls succeed. Only the answer of a call does.
    const CONNECTED: ConnectionProof = ConnectionProof::Answers;

    async fn connect(&self) -> Result<DrivenLink<Link>, Fault> {
        let primary = self.primary.primary().await?;
        let credentials = self.login.read(STEP).await?;
        let ReadyConnection { client, mut driver, endpoint, ends, cancellation } =
            connect(&self.settings, &primary, &credentials, Checks::Schema, &self.events).await?;
        let session = tokio::select! {
            biased;
            session = step("preparing statements", Session::begin(client, ends, Arc::clone(&self.statements.texts))) => session??,
            fault = &mut driver => return Err(fault),
        };
        let given_up = Arc::new(Notify::new());
        let (turn, cancellation) = (Arc::default(), Arc::new(cancellation));
        let link = Link { session: Arc::new(session), turn, cancellation, given_up: Arc::clone(&given_up) };
        let driver = Box::pin(async move {
            tokio::select! {
                biased;
                fault = driver => fault,
                () = given_up.notified() => self::given_up(),
            }
        });
        Ok(DrivenLink { link, driver, server: Some(endpoint.host) })
    }

    async fn take(&self, link: &mut Link, parts: &[CallPart<'_>], _near: Timestamp) -> Result<CallReply, Fault> {
        // All buckets are on one server, so the call has only one part.
        let Some(CallPart { plans, reports, .. }) = parts.first() else { return Ok(smallvec![]) };
        let mut turn = link.turn().await?;
        let reply =
            self.statements.take(&link.session, &mut turn.new_rows, plans, reports.as_ref(), &self.clock).await?;
        Ok(smallvec![PartReply { plans: plans.len(), reply: Ok(reply) }])
    }

    async fn act(&self, link: &mut Link, acts: &[BucketAct], _near: Timestamp, _: Route) -> Result<ActResults, Fault> {
        let mut turn = link.turn().await?;
        turn.is_within_acts = true;
        let mut under_way = ActsUnderWay(Some(link));
        let done = self.statements.act(&link.session, &mut turn.new_rows, acts, &self.clock).await;
        under_way.0 = None;
        turn.is_within_acts = false;
        done
    }

    async fn read(&self, link: &mut Link, keys: &[BucketKey], _: Route) -> Result<ReadStates, Fault> {
        let _turn = link.turn().await?;
        let packed: Vec<&[u8]> = keys.iter().map(|key| &key.0[..]).collect();
        let rows = link.session.client.query_typed(&self.read, &[(&packed, Type::BYTEA_ARRAY)]).await?;
        bucket_reads::parse(&rows, keys)
    }

    /// Cancels the transaction of the call, so that its rows are unlocked.
    fn give_up(&self, link: &Link) {
        link.cancellation.send();
    }

    async fn beat(
        &self,
        link: &mut Link,
        name: [u8; 8],
        this_gateway: &RunningGateway,
    ) -> Result<Option<LiveGateways>, Fault> {
        let _turn = link.turn().await?;
        let (begin, statement) = (&self.begin_heartbeat, &self.heartbeat);
        gateway_heartbeat::beat(&link.session.client, begin, statement, name, this_gateway).await.map(Some)
    }

    async fn found_again(&self) {
        self.primary.found_again().await;
    }

    async fn run(&self, events: &EventSink) {
        let watching = self.primary.run(&self.settings, &self.login, events);
        tokio::join!(watching, cleaner::run(&self.settings, &self.login, &self.primary, events));
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Link")
    }
}
