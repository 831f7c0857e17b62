//! Undoes the charges of a request that was refused by another of its buckets. An undo is sent again only if a reply
//! proves that it did not run.

use std::slice::from_ref;
use std::time::Duration;

use redis::{Cmd, Pipeline, Value};
use smallvec::SmallVec;

use super::directory::NodeId;
use super::hash_tags::TagIndex;
use super::nodes::Nodes;
use crate::redis::codec::{add_undone, key_name};
use crate::redis::noscript::load_if_unknown;
use crate::redis::script;
use base::time::Timestamp;
use ledger::charge::Charge;

/// The largest number of times that an undo is sent.
const ATTEMPTS: usize = 8;
/// The pause between two attempts while a hash slot is moving.
const PAUSE: Duration = Duration::from_millis(5);
/// How long to wait for a reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(1);

/// The charges of a request under one hash tag.
#[derive(Clone, Debug)]
pub(crate) struct GroupCharge {
    pub tag: TagIndex,
    pub charges: SmallVec<[Charge; 2]>,
    /// The time of the charge, on the node's clock.
    pub at: Timestamp,
}

/// The result of an attempt.
enum UndoResult {
    Done,
    /// The undo did not run, so it is sent again.
    Again,
}

impl Nodes {
    /// Undoes these charges on their node. A charge that cannot be undone stays spent.
    pub(super) async fn undo(&self, charged: &GroupCharge) {
        for number in 0..ATTEMPTS {
            let owner = self.directory.owner(charged.tag);
            let next = self.directory.next_owner(charged.tag);
            // While the slot is moving, a bucket may be on either node, so the attempts alternate.
            let to = if number % 2 == 1 { next.or(owner) } else { owner };
            let Some(to) = to else { return };
            let attempt = tokio::time::timeout(REPLY_TIMEOUT, self.undo_on(to, charged)).await;
            match attempt {
                Ok(UndoResult::Again) => tokio::time::sleep(PAUSE).await,
                Ok(UndoResult::Done) | Err(_) => return,
            }
        }
    }

    async fn undo_on(&self, to: NodeId, charged: &GroupCharge) -> UndoResult {
        let Some(node) = self.get(to) else { return UndoResult::Again };
        let Some(mut link) = node.remote.transport.latest_link() else { return UndoResult::Again };
        let mut pipeline = Pipeline::with_capacity(2);
        if self.directory.owner(charged.tag) != Some(to) {
            pipeline.add_command(Cmd::new().arg("ASKING").clone());
        }
        let mut sha = node.remote.transport.give_back_script.lock().clone();
        let near = node.remote.clock_at(self.clock.now());
        pipeline.add_command(self.command(&sha, near, charged));
        let count = pipeline.len();
        let Ok(mut replies) = link.connection.send_packed_commands(&pipeline, 0, count).await else {
            // The command may have run, so it is not sent again.
            return UndoResult::Done;
        };
        let reply = replies.pop().unwrap_or(Value::Nil).extract_error();
        let text = || self.state.hooks.timed(script::give_back(), &self.clock);
        match load_if_unknown(&mut link.connection, &mut sha, from_ref(&reply), text).await {
            Ok(false) => {}
            Ok(true) => {
                *node.remote.transport.give_back_script.lock() = sha;
                return UndoResult::Again;
            }
            Err(_) => return UndoResult::Again,
        }
        let Err(error) = reply else { return UndoResult::Done };
        let fault = self.directory.redirected(charged.tag, &error, &node.remote.transport.address, self.clock.now());
        if fault.error.is_redirection() { UndoResult::Again } else { UndoResult::Done }
    }

    /// Returns the command that undoes these charges. `near` is roughly the time of the node.
    fn command(&self, sha: &str, near: Timestamp, GroupCharge { tag, charges, at }: &GroupCharge) -> Cmd {
        let prefix = self.directory.tags.get(*tag).map_or("", |tag| &tag.prefix);
        let mut command = Cmd::new();
        command.arg("EVALSHA").arg(sha).arg(charges.len());
        for charge in charges {
            command.arg(key_name(prefix, &charge.key));
        }
        let mut text = Vec::new();
        for charge in charges {
            add_undone(&mut text, charge, self.state.hooks.charged(*at), near);
        }
        command.arg(text);
        if let Some(moment) = self.state.hooks.moment(&self.clock) {
            command.arg(moment.0);
        }
        command
    }
}
