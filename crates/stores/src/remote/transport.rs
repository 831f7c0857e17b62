//! Defines what a kind of server does so that buckets can live on it: connect, decide many plans in one call, exchange
//! heartbeats. What all kinds have in common is not here: queue, batches, deadlines, breaker, deny cache, reconnecting.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use smallvec::SmallVec;

use crate::error::Fault;
use crate::events::{EventSink, RunningGateway};
use base::host_port::HostPort;
use base::time::{Micros, Timestamp};
use ledger::algorithm::State;
use ledger::bucket_key::BucketKey;
use ledger::charge::{Plan, Settlement};

/// A kind of server, with the settings to reach one. It is shared by the connections of all workers.
pub trait Transport: fmt::Debug + Send + Sync + 'static {
    /// A connection that has been tested, and what calls on it need. A clone sends over the same connection.
    type Link: Clone + Send;

    const CALLS: CallLimits;

    /// What a connection that has been made shows of the server.
    const CONNECTED: Connected = Connected::Decides;

    /// Finds the server, connects and tests the connection. Where the address can change, it is looked up each time.
    ///
    /// # Errors
    ///
    /// Why there is no connection on which calls can be made.
    fn connect(&self) -> impl Future<Output = Result<DrivenLink<Self::Link>, Fault>> + Send;

    /// Decides plans, of which there is at least one, in one call. `near` is about what the server's clock shows.
    ///
    /// A call whose bytes may have been sent must not be repeated, unless its reply proves that it did not run.
    ///
    /// # Errors
    ///
    /// When there is no answer for any of the plans. [`Fault::ends_connection`] says whether the connection can still be
    /// used.
    fn take(
        &self,
        link: &mut Self::Link,
        plans: &[&Plan],
        near: Timestamp,
    ) -> impl Future<Output = Result<CallReply, Fault>> + Send;

    /// A call has not been answered, and the connection is left for it: lets the server know, if it would go on for long. Nothing
    /// is waited for.
    fn give_up(&self, _link: &Self::Link) {}

    /// Records that this gateway is alive, under its random name. `None` when the next heartbeat has to find out who is.
    ///
    /// # Errors
    ///
    /// When the server gives no answer, or refuses.
    fn beat(
        &self,
        link: &mut Self::Link,
        name: [u8; 8],
        this_gateway: &RunningGateway,
    ) -> impl Future<Output = Result<Option<LiveGateways>, Fault>> + Send;

    /// Reports what else is worth knowing of the server, on the first connection of a gateway and for as long as it lasts.
    fn watch(&self, _link: Self::Link, _events: &EventSink) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// Does what is needed besides the connections, such as watching where the server is, for as long as there is something
    /// to do. Driven by one worker.
    fn run(&self, _events: &EventSink) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// Returns when there is a reason to connect at once instead of after a pause.
    fn found_again(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    /// The part of a call that a plan belongs to: the plans of a batch are put into this order. Only where the server
    /// cannot decide all plans at once, see [`CallLimits::parted`].
    fn part(&self, _plan: &Plan) -> usize {
        0
    }
}

/// What one call may carry, and how many calls are made.
#[derive(Clone, Copy, Debug)]
pub struct CallLimits {
    /// The maximum number of charges in one call, with equal requests counted once.
    pub charges: usize,
    /// The maximum number of requests in one call: they are answered together.
    pub requests: usize,
    /// How many calls may be under way at once on one connection, each sent after the other and answered in this order.
    pub at_once: usize,
    /// Whether plans differ in [`Transport::part`].
    pub parted: bool,
}

/// What a new connection shows of its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connected {
    /// That it decides: all that a call needs was tried.
    Decides,
    /// That it can be used; whether calls succeed only a call shows.
    Answers,
}

/// A connection on which calls can be made, and the driver that moves its bytes.
pub struct DrivenLink<L> {
    pub link: L,
    /// Moves the bytes; completes when the connection ends or must be left, with the reason.
    pub driver: Driver,
    /// Where the server is, if it is one.
    pub server: Option<HostPort>,
}

pub type Driver = Pin<Box<dyn Future<Output = Fault> + Send>>;

/// The reply to a call: one for each of its parts, in the order of the plans.
pub type CallReply = SmallVec<[PartReply; 1]>;

/// The reply to a part of a call.
#[derive(Debug)]
pub struct PartReply {
    /// How many plans belong to the part.
    pub plans: usize,
    /// What was decided, by the server's clock; or why nothing was decided although the connection works.
    pub reply: Result<Reply, Fault>,
}

/// What a server decided at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    pub now: Timestamp,
    /// Buckets whose value was not a valid state; they were set to empty.
    pub healed: u64,
    /// One for each plan, in the order of the plans. `None` for a plan that was left out, because the numbers of a limit
    /// in it do not hold at `now`: nothing was charged.
    pub settlements: Vec<Option<Settlement>>,
    pub left: Vec<BucketAfterCall>,
    /// Whether plans are without a settlement because nothing can be written: those that are refused need no memory.
    pub out_of_memory: bool,
}

/// The state of a bucket after a call, or an excerpt of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketAfterCall {
    pub key: BucketKey,
    pub state: State,
    /// Whether it could not pay its last charge, or could not pay it again.
    pub short: bool,
    pub reset_after: Micros,
}

/// The gateways that share a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveGateways {
    pub alive: u64,
    /// Those besides this one that announced their configuration.
    pub others: Vec<RunningGateway>,
}

impl<L> fmt::Debug for DrivenLink<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DrivenLink")
    }
}
