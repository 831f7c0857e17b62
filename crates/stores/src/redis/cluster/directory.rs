//! Maps each hash tag to its node.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::hash_tags::{HashTags, TagIndex};
use super::latest_links::LatestLinks;
use super::slots::SlotRange;
use base::host_port::HostPort;
use base::time::{Micros, Timestamp};

/// How long a hash slot counts as moving after a reply that said so. Meanwhile, a call for the slot has only one plan.
const MOVING: Micros = Micros(1_000_000);
/// How long the next owner is remembered after [`MOVING`].
const BROKEN_OFF: Micros = Micros(3_000_000);

const NOBODY: u32 = u32::MAX;

/// The number of a node. Nodes are numbered in the order in which their addresses became known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NodeId(pub u32);

#[derive(Debug)]
pub(crate) struct Directory {
    pub tags: HashTags,
    /// The last connection to each node.
    pub links: LatestLinks,
    addresses: Mutex<Vec<HostPort>>,
    entries: Box<[Entry]>,
    /// Notified when the topology should be read again.
    pub outdated: Notify,
}

/// The state of a hash tag.
#[derive(Debug)]
struct Entry {
    /// The id of the node that has the hash tag.
    owner: AtomicU32,
    /// The id of the node to which the hash tag is moving.
    next_owner: AtomicU32,
    /// The moment until which the tag's hash slot counts as moving.
    moving_until: AtomicU64,
}

impl Directory {
    pub(super) fn new(tags: HashTags) -> Directory {
        let entry = |_| Entry {
            owner: AtomicU32::new(NOBODY),
            next_owner: AtomicU32::new(NOBODY),
            moving_until: AtomicU64::new(0),
        };
        let entries = tags.iter().map(entry).collect();
        Directory { tags, links: LatestLinks::default(), addresses: Mutex::default(), entries, outdated: Notify::new() }
    }

    fn entry(&self, tag: TagIndex) -> Option<&Entry> {
        self.entries.get(usize::from(tag.0))
    }

    pub(super) fn owner(&self, tag: TagIndex) -> Option<NodeId> {
        id(&self.entry(tag)?.owner)
    }

    pub(crate) fn next_owner(&self, tag: TagIndex) -> Option<NodeId> {
        id(&self.entry(tag)?.next_owner)
    }

    /// Returns the id of the node at this address. Adds the node if it is unknown.
    pub(super) fn node(&self, address: HostPort) -> NodeId {
        let mut addresses = self.addresses.lock();
        let index = addresses.iter().position(|other| *other == address).unwrap_or_else(|| {
            addresses.push(address);
            addresses.len() - 1
        });
        NodeId(u32::try_from(index).unwrap_or(NOBODY))
    }

    pub(super) fn address(&self, node: NodeId) -> Option<HostPort> {
        self.addresses.lock().get(node.0 as usize).cloned()
    }

    /// Returns the nodes that have a hash tag, and the nodes to which a hash tag is moving.
    pub(crate) fn nodes_in_use(&self) -> Vec<NodeId> {
        let mut nodes: Vec<NodeId> =
            self.entries.iter().flat_map(|entry| [id(&entry.owner), id(&entry.next_owner)]).flatten().collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    /// Applies a topology: notes the node of each hash tag. A hash tag without a master keeps its node.
    pub(super) fn follow(&self, ranges: &[SlotRange], now: Timestamp) {
        for (tag, entry) in self.tags.iter().map(|(_, tag)| tag).zip(&self.entries) {
            let range = ranges.iter().find(|range| (range.first..=range.last).contains(&tag.slot));
            if let Some(range) = range {
                let node = self.node(range.master.clone());
                if entry.owner.swap(node.0, Ordering::AcqRel) != node.0 {
                    entry.next_owner.store(NOBODY, Ordering::Release);
                }
            }
            if Timestamp(entry.moving_until.load(Ordering::Relaxed)).plus(BROKEN_OFF) < now {
                entry.next_owner.store(NOBODY, Ordering::Release);
            }
        }
    }

    /// Notes that the node at this address now has this hash tag.
    pub(super) fn moved(&self, tag: TagIndex, address: HostPort) {
        let node = self.node(address);
        if let Some(entry) = self.entry(tag) {
            entry.owner.store(node.0, Ordering::Release);
            entry.next_owner.store(NOBODY, Ordering::Release);
        }
        self.outdated.notify_one();
    }

    /// Notes that this hash tag is moving to the node `next`. `None` if the node is unknown.
    pub(crate) fn moving(&self, tag: TagIndex, next: Option<HostPort>, now: Timestamp) {
        let Some(entry) = self.entry(tag) else { return };
        entry.moving_until.store(now.plus(MOVING).0, Ordering::Relaxed);
        if let Some(address) = next {
            let next = self.node(address).0;
            if entry.next_owner.swap(next, Ordering::AcqRel) != next {
                self.outdated.notify_one();
            }
        }
    }

    /// Whether the buckets of this hash tag may be on two nodes.
    pub(crate) fn is_moving(&self, tag: TagIndex, now: Timestamp) -> bool {
        self.entry(tag).is_some_and(|entry| entry.moving_until.load(Ordering::Relaxed) > now.0)
    }
}

fn id(stored: &AtomicU32) -> Option<NodeId> {
    let id = stored.load(Ordering::Acquire);
    (id != NOBODY).then_some(NodeId(id))
}

#[cfg(test)]
mod tests {
    use super::super::settings::Place;
    use super::*;

    fn at(port: u16) -> HostPort {
        HostPort { host: "h".to_owned(), port }
    }

    #[test]
    fn a_topology_replaces_what_redirections_said() {
        let directory = Directory::new(HashTags::new("t", Place::Spread { hash_tags: 4 }));
        assert_eq!(directory.owner(TagIndex(0)), None);
        let halves =
            [SlotRange { first: 0, last: 8191, master: at(1) }, SlotRange { first: 8192, last: 16_383, master: at(2) }];
        directory.follow(&halves, Timestamp(5));
        let owners =
            || [0, 1, 2, 3].map(|tag| directory.address(directory.owner(TagIndex(tag)).unwrap()).unwrap().port);
        assert_eq!(owners(), [1, 1, 2, 2]);
        directory.moving(TagIndex(1), Some(at(3)), Timestamp(5));
        assert!(directory.is_moving(TagIndex(1), Timestamp(6)) && !directory.is_moving(TagIndex(0), Timestamp(6)));
        assert_eq!((owners(), directory.nodes_in_use().len()), ([1, 1, 2, 2], 3));
        directory.moved(TagIndex(1), at(3));
        assert_eq!((owners(), directory.next_owner(TagIndex(1))), ([1, 3, 2, 2], None));
        directory.follow(&halves, Timestamp(5));
        assert_eq!((owners(), directory.nodes_in_use().len()), ([1, 1, 2, 2], 2));
        // Only half of the slots have a known master.
        directory.follow(&[SlotRange { first: 0, last: 8191, master: at(2) }], Timestamp(5));
        assert_eq!(owners(), [2, 2, 2, 2]);
    }

    #[test]
    fn a_node_to_which_no_slot_moves_any_more_is_not_needed() {
        let directory = Directory::new(HashTags::new("t", Place::Together));
        let all = [SlotRange { first: 0, last: 16_383, master: at(1) }];
        let mut now = Timestamp(1_000_000);
        directory.follow(&all, now);
        directory.moving(TagIndex(0), Some(at(2)), now);
        // A long migration goes on while replies show it.
        for _ in 0..5 {
            now = now.plus(Micros(3_000_000));
            directory.moving(TagIndex(0), Some(at(2)), now);
            directory.follow(&all, now);
            assert_eq!(directory.nodes_in_use().len(), 2);
        }
        directory.follow(&all, now.plus(Micros(5_000_000)));
        assert_eq!((directory.nodes_in_use().len(), directory.next_owner(TagIndex(0))), (1, None));
    }
}
