//! Defines the interface of a kind of server: connect, decide many plans in one call, exchange heartbeats. The parts that all
//! kinds share are elsewhere: queue, batches, deadlines, breaker, deny cache, reconnecting.

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
    /// A tested connection, with everything that calls on it need. A clone sends over the same connection.
    type Link: Clone + Send;

    const CALLS: CallLimits;

    /// The proof that a new connection gives about the server.
    const CONNECTED: ConnectionProof = ConnectionProof::Decides;

    /// Finds the server, connects and tests the connection. Where the address can change, it is looked up each time.
    ///
    /// # Errors
    ///
    /// Returns the reason why there is no connection for calls.
    fn connect(&self) -> impl Future<Output = Result<DrivenLink<Self::Link>, Fault>> + Send;

    /// Decides at least one plan in one call. `near` is about the time on the server's clock.
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

    /// Cancels the work of the server for a call that was not answered, whose connection is closed now, if that work would go on
    /// for long. Waits for nothing.
    fn give_up(&self, _link: &Self::Link) {}

    /// Records that this gateway is alive, under its random name. `None` when only the next heartbeat can return the live
    /// gateways.
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

    /// Reports further facts about the server, on the first connection of a gateway and for as long as it lasts.
    fn watch(&self, _link: Self::Link, _events: &EventSink) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// Runs tasks besides the connections, such as watching the server's address, until they end. Driven by one worker.
    fn run(&self, _events: &EventSink) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// Returns when there is a reason to connect at once instead of after a pause.
    fn found_again(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    /// The part of a call to which a plan belongs: the plans of a batch are sorted by it. Only for servers that cannot decide
    /// all plans at once, see [`CallLimits::parted`].
    fn part(&self, _plan: &Plan) -> usize {
        0
    }
}

/// The limits of a call, and of the number of calls.
#[derive(Clone, Copy, Debug)]
pub struct CallLimits {
    /// The maximum number of charges in one call. Equal requests count once.
    pub charges: usize,
    /// The maximum number of requests in one call, which are answered together.
    pub requests: usize,
    /// The number of calls that may be under way at once on one connection. They are answered in the order in which they were
    /// sent.
    pub at_once: usize,
    /// Whether plans can differ in [`Transport::part`].
    pub parted: bool,
}

/// What a new connection proves about its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionProof {
    /// The server decides: all commands of a call were tried.
    Decides,
    /// The server can be used; only a call can show whether calls succeed.
    Answers,
}

/// A connection on which calls can be made, and the driver that moves its bytes.
pub struct DrivenLink<L> {
    pub link: L,
    /// Moves the bytes of the connection; completes with the reason when the connection ends or must be closed.
    pub driver: Driver,
    /// The address of the server, if the store has one server.
    pub server: Option<HostPort>,
}

pub(crate) type Driver = Pin<Box<dyn Future<Output = Fault> + Send>>;

/// The reply to a call: one for each of its parts, in the order of the plans.
pub(crate) type CallReply = SmallVec<[PartReply; 1]>;

/// The reply to a part of a call.
#[derive(Debug)]
pub struct PartReply {
    /// The number of plans in the part.
    pub plans: usize,
    /// The decisions, with the time on the server's clock; or the reason why nothing was decided although the connection works.
    pub reply: Result<Reply, Fault>,
}

/// The decisions of a server at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    pub now: Timestamp,
    /// The number of *healed* buckets: their stored value was not a valid state, and was replaced by that of an empty bucket.
    pub healed: u64,
    /// The settlement of each plan, in the order of the plans. `None` for a plan that was left out, because the numbers of one
    /// of its limits are not valid at `now`: nothing was charged.
    pub settlements: Vec<Option<Settlement>>,
    pub left: Vec<BucketAfterCall>,
    /// Whether plans have no settlement because the server has no memory left to write; plans that are refused need none.
    pub out_of_memory: bool,
}

/// The state of a bucket after a call, or an excerpt of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketAfterCall {
    pub key: BucketKey,
    pub state: State,
    /// Whether the bucket is *short*: it could not pay its last charge, or could not pay the same charge again.
    pub short: bool,
    pub reset_after: Micros,
}

/// The gateways that share a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveGateways {
    pub alive: u64,
    /// The other gateways, as far as they have announced their configuration.
    pub others: Vec<RunningGateway>,
}

impl<L> fmt::Debug for DrivenLink<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DrivenLink")
    }
}
