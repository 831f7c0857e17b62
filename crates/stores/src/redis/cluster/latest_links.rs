//! Keeps the last connection to each node, for calls that do not wait in the queue of a worker.

use std::collections::HashMap;

use parking_lot::Mutex;

use super::directory::NodeId;
use crate::redis::server::Link;

/// The last connection to each node, of any worker.
#[derive(Debug, Default)]
pub(crate) struct LatestLinks(Mutex<HashMap<NodeId, Link>>);

impl LatestLinks {
    pub(crate) fn get(&self, node: NodeId) -> Option<Link> {
        self.0.lock().get(&node).cloned()
    }

    pub(crate) fn replace(&self, node: NodeId, link: Link) {
        self.0.lock().insert(node, link);
    }

    pub(crate) fn remove(&self, node: NodeId) {
        self.0.lock().remove(&node);
    }
}
