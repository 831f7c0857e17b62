//! Asks nodes of a cluster which hash slots each master has.

use std::time::Duration;

use redis::Cmd;
use tokio::time::timeout;

use super::hash_tags::HashTags;
use super::slots::{SlotRange, slot_ranges};
use crate::error::{Fault, StoreError};
use crate::redis::handshake::{reach, send};
use crate::redis::settings::Settings;
use crate::remote::login::CurrentLogin;
use base::host_port::HostPort;

/// The masters of a cluster, as one node lists them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Topology {
    /// The node that returned the list.
    pub source: HostPort,
    pub ranges: Vec<SlotRange>,
    /// The hash slots of hash tags without a master.
    pub uncovered: Vec<u16>,
}

/// The reason for reading the topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Occasion {
    /// The last read was long ago.
    Schedule,
    /// The topology may have changed, or the node that returned it may be wrong.
    Doubt,
}

/// Returns the order in which nodes are asked for the topology. The source of the last topology is first, or after all
/// others if it is in doubt. The `lost` nodes are last.
pub(super) fn order(
    candidates: impl IntoIterator<Item = HostPort>,
    lost: &[HostPort],
    last_source: Option<&HostPort>,
    occasion: Occasion,
) -> Vec<HostPort> {
    let mut addresses: Vec<HostPort> = Vec::new();
    for address in candidates {
        if !lost.contains(&address) && !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    if let Some(index) = addresses.iter().position(|address| Some(address) == last_source) {
        addresses.rotate_left(index);
        if occasion == Occasion::Doubt {
            addresses.rotate_left(1);
        }
    }
    addresses.extend_from_slice(lost);
    addresses
}

/// Reads the topology from one node after the other, each for at most `patience`. Stops when a node names a master for
/// every hash tag. If no node does, returns the answer that names a master for the most tags.
///
/// # Errors
///
/// When no node answers. The fault is that of the first node.
pub(crate) async fn read_topology(
    addresses: Vec<HostPort>,
    patience: Duration,
    tags: &HashTags,
    settings: &Settings,
    login: &CurrentLogin,
) -> Result<Topology, Fault> {
    let (mut best, mut first): (Option<Topology>, Option<Fault>) = (None, None);
    for address in addresses {
        let late = |_| Fault::new(StoreError::Unreachable, format!("no answer within {patience:?}"));
        let reading = timeout(patience, read_slots(&address, settings, login)).await;
        match reading.map_err(late).and_then(|read| read) {
            Ok(ranges) => {
                let topology = Topology { uncovered: uncovered(&ranges, tags), source: address, ranges };
                if topology.uncovered.is_empty() {
                    return Ok(topology);
                }
                if best.as_ref().is_none_or(|best| topology.uncovered.len() < best.uncovered.len()) {
                    best = Some(topology);
                }
            }
            Err(fault) => {
                let detail = format!("{address}: {}", fault.detail);
                first.get_or_insert(Fault { detail, ..fault });
            }
        }
    }
    best.ok_or_else(|| first.unwrap_or_else(|| Fault::new(StoreError::Unreachable, "no node is known")))
}

/// Returns the hash slots of hash tags that are in none of these ranges.
fn uncovered(ranges: &[SlotRange], tags: &HashTags) -> Vec<u16> {
    let slots = tags.iter().map(|(_, tag)| tag.slot);
    slots.filter(|slot| !ranges.iter().any(|range| (range.first..=range.last).contains(slot))).collect()
}

/// Returns the fault to report for `uncovered`, the hash slots without a master. `None` if every hash slot has a
/// master.
pub(crate) fn fault_of(uncovered: &[u16]) -> Option<Fault> {
    let (first, others) = uncovered.split_first()?;
    let detail = match others.len() {
        0 => format!("no node has slot {first}"),
        others => format!("no node has slot {first}, nor those of other hash tags: {others} more"),
    };
    Some(Fault::new(StoreError::ClusterDown, detail))
}

/// Connects to a node, and reads which hash slots each master has.
///
/// # Errors
///
/// When the node cannot be reached, refuses, or gives an unexpected answer.
async fn read_slots(address: &HostPort, settings: &Settings, login: &CurrentLogin) -> Result<Vec<SlotRange>, Fault> {
    let ready = reach(settings, address, login).await?;
    let mut connection = ready.connection;
    let mut command = Cmd::new();
    command.arg("CLUSTER").arg("SLOTS");
    let reply = tokio::select! {
        biased;
        reply = send(&mut connection, &command) => reply?,
        () = ready.driver => return Err(Fault::new(StoreError::Closed, "the connection was closed")),
    };
    let unexpected = || Fault::new(StoreError::UnexpectedReply, "CLUSTER SLOTS was answered with something else");
    slot_ranges(&reply, address).ok_or_else(unexpected)
}

#[cfg(test)]
mod tests {
    use super::super::settings::Place;
    use super::*;

    fn at(port: u16) -> HostPort {
        HostPort::new("h", port)
    }

    #[test]
    fn the_source_of_what_may_be_wrong_is_not_asked_first_and_lost_nodes_are_asked_last() {
        let ports = |lost: &[u16], last_source: Option<u16>, occasion| -> Vec<u16> {
            let lost: Vec<_> = lost.iter().copied().map(at).collect();
            let candidates = [1, 2, 3, 2, 4].map(at);
            order(candidates, &lost, last_source.map(at).as_ref(), occasion)
                .into_iter()
                .map(|address| address.port)
                .collect()
        };
        assert_eq!(ports(&[], None, Occasion::Doubt), [1, 2, 3, 4]);
        assert_eq!(ports(&[], Some(2), Occasion::Schedule), [2, 3, 4, 1]);
        assert_eq!(ports(&[], Some(2), Occasion::Doubt), [3, 4, 1, 2]);
        assert_eq!(ports(&[], Some(9), Occasion::Doubt), [1, 2, 3, 4]);
        assert_eq!(ports(&[2, 1], Some(2), Occasion::Doubt), [3, 4, 2, 1]);
    }

    #[test]
    fn a_hash_tag_without_a_master_is_named() {
        let tags = HashTags::new("t", Place::Spread { hash_tags: 4 });
        let half = SlotRange { first: 0, last: 8191, master: at(1) };
        assert_eq!(
            fault_of(&uncovered(&[half.clone(), SlotRange { first: 8192, last: 16_383, ..half.clone() }], &tags)),
            None
        );
        let fault = fault_of(&uncovered(&[half], &tags)).unwrap();
        assert_eq!(fault.error, StoreError::ClusterDown);
        assert!(fault.detail.ends_with(", nor those of other hash tags: 1 more"), "{fault:?}");
    }
}
