//! Handles the redirections of a cluster: MOVED, ASK and TRYAGAIN. Notes the new node in the directory, and sends the
//! call again.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use redis::RedisError;

use super::directory::{Directory, NodeId};
use super::hash_tags::TagIndex;
use super::nodes::Node;
use super::{Cluster, Take};
use crate::error::{Fault, StoreError};
use crate::remote::{Route, WaitPeriod};
use crate::reply::TakeReply;
use crate::worker::Worker;
use base::host_port::HostPort;
use base::time::{Micros, Timestamp};

/// The pause before a call is repeated because its node cannot answer yet.
const PAUSE: Duration = Duration::from_millis(3);
/// The maximum number of redirections of one request.
const REDIRECTIONS: usize = 16;

/// Parses the address in a redirection: `host:port`, with an IPv6 address without brackets. An empty host means the
/// host of `asked`, the node that answered. `None` if the address is invalid.
pub(super) fn address(text: &str, asked: &HostPort) -> Option<HostPort> {
    let (host, port) = text.rsplit_once(':')?;
    let host = match host {
        "?" => return None,
        "" => asked.host.clone(),
        host => host.to_owned(),
    };
    Some(HostPort { host, port: port.parse().ok()? })
}

impl Directory {
    /// Translates an error for this hash tag into a fault, and notes the new node of a redirection. `asked` is the
    /// node that returned the error.
    pub(super) fn redirected(&self, tag: TagIndex, error: &RedisError, asked: &HostPort, now: Timestamp) -> Fault {
        let address = || error.redirect_node().and_then(|(text, _)| address(text, asked));
        let fault = Fault::from(error.clone());
        match (fault.error, address()) {
            (StoreError::SlotMoved, Some(address)) => self.moved(tag, address),
            (StoreError::SlotMoving, Some(address)) => self.moving(tag, Some(address), now),
            (StoreError::TryAgain, _) => self.moving(tag, None, now),
            (StoreError::SlotMoved | StoreError::ClusterDown | StoreError::Replica, _) => self.outdated.notify_one(),
            _ => {}
        }
        Fault { detail: format!("{asked}: {}", fault.detail), ..fault }
    }
}

impl Cluster {
    /// Charges buckets under one hash tag, in one call. Follows redirections.
    ///
    /// # Errors
    /// Returns the reason why the node has not decided.
    pub(super) async fn take_together(&self, take: &Take<'_>, tag: TagIndex) -> Result<Option<TakeReply>, StoreError> {
        let Take { worker, plan, caller, waiting, hold } = take;
        let ask = |node: Arc<Node>, route| {
            let caller = caller.clone();
            async move { node.remote.query(*worker, plan, caller, *waiting, route, *hold).await }
        };
        self.ask_owner(tag, *worker, *waiting, ask).await
    }

    /// Asks the node of a hash tag. Follows redirections. `ask` asks a node, and gets the reason why this node is asked.
    ///
    /// # Errors
    /// Returns the reason why no node has answered.
    pub(super) async fn ask_owner<A, F, T>(
        &self,
        tag: TagIndex,
        worker: Worker,
        waiting: WaitPeriod,
        ask: A,
    ) -> Result<T, StoreError>
    where
        A: Fn(Arc<Node>, Route) -> F,
        F: Future<Output = Result<T, StoreError>>,
    {
        let directory = &self.nodes.directory;
        let mut to = directory.owner(tag);
        let (mut redirected, mut route) = (false, Route::Owner);
        for _ in 0..REDIRECTIONS {
            let node = to.and_then(|id| self.nodes.get(id));
            let answer = match &node {
                Some(node) => ask(Arc::clone(node), route).await,
                None => Err(StoreError::Unreachable),
            };
            let now = self.nodes.clock.now();
            let error = match answer {
                Err(error) if error.is_redirection() => error,
                // A node that was just found may have no connection yet.
                Err(StoreError::Unreachable) if redirected || node.as_ref().is_some_and(|node| node.is_new(now)) => {
                    self.wait_for_node(worker, waiting, to).await?;
                    StoreError::Unreachable
                }
                other => return other,
            };
            if self.left(waiting) == Micros(0) {
                return Err(StoreError::Timeout);
            }
            redirected = true;
            (to, route) = match (error, directory.next_owner(tag)) {
                (StoreError::SlotMoving, Some(next)) => (Some(next), Route::Next),
                (StoreError::TryAgain, _) => {
                    self.pause(waiting).await;
                    (to, route)
                }
                (StoreError::SlotMoved, _) if directory.owner(tag) == to => {
                    self.pause(waiting).await;
                    (directory.owner(tag), Route::Owner)
                }
                _ => (directory.owner(tag), Route::Owner),
            };
        }
        Err(StoreError::Unreachable)
    }

    /// Waits until a node can be used.
    ///
    /// # Errors
    ///
    /// When the node cannot be used before the request's deadline.
    async fn wait_for_node(&self, worker: Worker, waiting: WaitPeriod, to: Option<NodeId>) -> Result<(), StoreError> {
        loop {
            let node = to.and_then(|id| self.nodes.get(id));
            if node.is_some_and(|node| node.remote.usable(worker).is_ok()) {
                return Ok(());
            }
            if self.left(waiting) == Micros(0) {
                return Err(StoreError::Unreachable);
            }
            self.pause(waiting).await;
        }
    }

    async fn pause(&self, waiting: WaitPeriod) {
        tokio::time::sleep(PAUSE.min(self.left(waiting).into())).await;
    }

    /// Returns the time for which the request may still wait.
    pub(super) fn left(&self, WaitPeriod { since, until }: WaitPeriod) -> Micros {
        let now = self.nodes.clock.now();
        let left = Micros(self.nodes.settings.timeout.0.saturating_sub(now.since(since).0));
        until.map_or(left, |until| left.min(until.since(now)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirections_name_a_node() {
        let asked = HostPort { host: "seed".to_owned(), port: 1 };
        let at = |host: &str, port| Some(HostPort { host: host.to_owned(), port });
        assert_eq!(address("10.0.0.1:7000", &asked), at("10.0.0.1", 7000));
        assert_eq!(address(":7000", &asked), at("seed", 7000));
        assert_eq!(address("::1:7000", &asked), at("::1", 7000));
        assert_eq!(address("10.0.0.1", &asked), None);
        assert_eq!(address("a:b", &asked), None);
        assert_eq!(address("?:7000", &asked), None);
    }
}
