//! Defines the interface to a kind of server: connect, decide many plans in one call, exchange heartbeats.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use smallvec::{SmallVec, smallvec};

use crate::error::Fault;
use crate::events::{EventSink, RunningGateway};
use crate::lease_acts::{ActResults, BucketAct};
use crate::remote::holds::PartIndices;
use crate::remote::queue::Route;
use base::host_port::HostPort;
use base::time::{Micros, Timestamp};
use ledger::algorithm::ban::BanPeriod;
use ledger::algorithm::{Algorithm, State};
use ledger::bucket_key::BucketKey;
use ledger::charge::{Charge, Plan, Settlement};
use ledger::holds;
use ledger::outcome::{Outcome, Verdict};

/// Connects to a server of one kind and makes calls there. The connections of all workers share it.
pub trait Transport: fmt::Debug + Send + Sync + 'static {
    /// A tested connection. A clone of it sends over the same connection.
    type Link: Clone + fmt::Debug + Send + Sync;

    const CALLS: CallLimits;

    /// What a new connection proves about the server.
    const CONNECTED: ConnectionProof = ConnectionProof::Decides;

    /// Finds the server, connects and tests the connection.
    ///
    /// # Errors
    ///
    /// Returns the reason why there is no connection for calls.
    fn connect(&self) -> impl Future<Output = Result<DrivenLink<Self::Link>, Fault>> + Send;

    /// Decides the plans of one call, and returns a reply for each of its parts, in their order. A call has several
    /// parts only with [`CallLimits::parted`]. `near` is an estimate of the time on the server's clock.
    ///
    /// A call may be repeated only if its reply proves that it did not run.
    ///
    /// # Errors
    ///
    /// When there is no answer for any of the plans. [`Fault::ends_connection`] says whether the connection can still
    /// be used.
    fn take(
        &self,
        link: &mut Self::Link,
        parts: &[CallPart<'_>],
        near: Timestamp,
    ) -> impl Future<Output = Result<CallReply, Fault>> + Send;

    /// Reads the states of buckets, and changes nothing. `route` says why this server is asked.
    ///
    /// # Errors
    ///
    /// When the server gives no answer, or not for all buckets.
    fn read(
        &self,
        link: &mut Self::Link,
        keys: &[BucketKey],
        route: Route,
    ) -> impl Future<Output = Result<ReadStates, Fault>> + Send;

    /// Does acts of leases in one call. Acts on one bucket are done in their order, and all buckets are under one part of the
    /// store. `near` is an estimate of the time on the server's clock. `route` says why this server is asked. A future that
    /// is dropped leaves no transaction open.
    ///
    /// # Errors
    ///
    /// When the server gives no answer. Unless the error proves otherwise, some or all acts may be done.
    fn act(
        &self,
        link: &mut Self::Link,
        acts: &[BucketAct],
        near: Timestamp,
        route: Route,
    ) -> impl Future<Output = Result<ActResults, Fault>> + Send;

    /// Cancels the server's work on a call without an answer, if it could take long. Does not wait for the server.
    fn give_up(&self, _link: &Self::Link) {}

    /// Records that this gateway is alive, under its random name, and returns the live gateways. `None` if only the
    /// next heartbeat can return them.
    ///
    /// # Errors
    ///
    /// When the server gives no answer, or refuses the heartbeat.
    fn beat(
        &self,
        link: &mut Self::Link,
        name: [u8; 8],
        this_gateway: &RunningGateway,
    ) -> impl Future<Output = Result<Option<LiveGateways>, Fault>> + Send;

    /// Reports further facts about the server, such as its eviction policy. Runs on the first connection of a gateway,
    /// until the connection ends.
    fn watch(&self, _link: Self::Link, _events: &EventSink) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// Runs tasks besides the connections, such as watching the server's address. One worker of the gateway runs them.
    fn run(&self, _events: &EventSink) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// Waits for a reason to connect at once instead of after a pause.
    fn found_again(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    /// Returns the index of the part of the store that has the buckets of a plan. Used only with
    /// [`CallLimits::parted`].
    fn part(&self, plan: &Plan) -> usize {
        plan.charges().next().map_or(0, |charge| self.part_of(&charge.key))
    }

    /// Returns the index of the part of the store that has a bucket. Used only with [`CallLimits::parted`].
    fn part_of(&self, _bucket: &BucketKey) -> usize {
        0
    }

    /// Returns the indices of the parts that the server has.
    fn own_parts(&self) -> PartIndices {
        smallvec![0]
    }

    /// Whether the buckets of a part may be on two servers at present. If so, each plan and each report is a call of
    /// its own.
    fn is_split(&self, _part: usize) -> bool {
        false
    }
}

/// The states of some buckets, as they are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadStates {
    /// The time at which the states were read, by the server's clock. No state is later.
    pub now: Timestamp,
    /// The states in the order of the keys. `None` for a full bucket, which is not stored. An invalid state is empty.
    pub states: Vec<Option<State>>,
}

/// The requests and reports of a call about one part of the store.
#[derive(Debug)]
pub struct CallPart<'p> {
    /// The index of the part, see [`Transport::part`].
    pub index: usize,
    pub plans: &'p [&'p Plan],
    pub route: Route,
    /// The reports: how many slots the worker holds of each bucket. The server stores the reports even if it refuses
    /// all plans.
    pub reports: Option<holds::Call>,
}

/// The limits of one call, and of the number of calls at a time.
#[derive(Clone, Copy, Debug)]
pub struct CallLimits {
    /// The maximum number of charges in one call. The charges of consecutive equal requests count once.
    pub charges: usize,
    /// The maximum number of requests in one call. They are answered together.
    pub requests: usize,
    /// The number of calls that may be under way at once on one connection.
    pub at_once: usize,
    /// Whether a call can have several parts, see [`Transport::part`].
    pub parted: bool,
}

/// What a new connection proves about its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionProof {
    /// The server can decide plans.
    Decides,
    /// The server can be used, but only a call can show whether calls succeed.
    Answers,
}

/// A connection on which calls can be made, and the driver that moves its bytes.
pub struct DrivenLink<L> {
    pub link: L,
    /// Moves the bytes of the connection. At the end of the connection, returns the reason.
    pub driver: Driver,
    /// The address of the server. `None` if the store has several servers.
    pub server: Option<HostPort>,
}

pub(crate) type Driver = Pin<Box<dyn Future<Output = Fault> + Send>>;

/// The reply to a call: one reply for each part of the call, in the order of the plans.
pub(crate) type CallReply = SmallVec<[PartReply; 1]>;

/// The reply to a part of a call.
#[derive(Debug)]
pub struct PartReply {
    /// The number of plans in the part.
    pub plans: usize,
    /// The decisions on the plans of the part, or the reason why nothing was decided.
    pub reply: Result<Reply, Fault>,
}

/// The decisions of a server on several plans at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    pub now: Timestamp,
    /// The number of *healed* buckets.
    pub healed: u64,
    /// The settlement of each plan, in the order of the plans. `None` for a plan that was not charged, because the call
    /// named another calendar period than that at `now`, a report was old, or the server had no memory.
    pub settlements: Vec<Option<Settlement>>,
    pub left: Vec<BucketAfterCall>,
    /// The result of each report of the call. If a report was not accepted, the plans that ask something of its bucket
    /// were not charged.
    pub reports: Vec<ReportResult>,
    /// Whether the server has no room left to write: plans that it would grant have no settlement, and no ban begins.
    pub out_of_memory: bool,
}

/// What the server has done with a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportResult {
    Accepted,
    /// The report was not newer than the last report of its owner about the bucket, or the bucket has too many owners.
    Old,
    /// The call named another calendar period for the bucket's limit than the present one, so the bucket was not read.
    OutsidePeriod,
    /// The report settles for a timed hold that has settled before, so it changes nothing.
    SettledBefore,
}

/// Returns whether a bucket is *short* after this charge: it can pay the same charge only after time has refilled it.
pub(crate) fn is_short(charge: &Charge, outcome: &Outcome) -> bool {
    match charge.algorithm {
        // Only a ban refuses until its end. Any other refused request can begin a ban, so the store must be asked.
        _ if charge.algorithm.ban().is_some() => outcome.verdict == Verdict::Banned,
        // What other requests hold of a budget can become free at any time, so the remaining amount proves nothing.
        Algorithm::Budget(_) => outcome.verdict == Verdict::Deny,
        // A leaky bucket that has room may refuse, because of too long a wait.
        _ => outcome.verdict == Verdict::Deny || outcome.remaining < charge.cost,
    }
}

/// A bucket after a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketAfterCall {
    pub key: BucketKey,
    /// The state, or the part of a long state that is worth caching. `None` for a full bucket, which is not stored.
    pub state: Option<State>,
    /// Whether the bucket is *short*: it could not pay its last charge, or could not pay it again.
    pub short: bool,
    pub reset_after: Micros,
    /// The ban that runs.
    pub ban: Option<BanPeriod>,
}

/// The gateways that share a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveGateways {
    pub alive: u64,
    /// How many of them do not read the newest format of states.
    pub older: u64,
    /// The other gateways that have announced their configuration.
    pub others: Vec<RunningGateway>,
}

impl<L> fmt::Debug for DrivenLink<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DrivenLink")
    }
}
