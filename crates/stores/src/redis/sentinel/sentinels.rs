//! Holds the sentinels in the order in which they are asked, and the connection to each.

use std::net::SocketAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::Notify;

use super::link::{Answer, SentinelLink};
use super::settings::Settings;
use crate::error::{Fault, StoreError};
use crate::remote::login::CurrentLogin;
use base::host_port::HostPort;

/// The largest number of sentinels that are learnt.
const MAX_SENTINELS: usize = 16;

/// The sentinels in the configuration, and their login. A reload replaces both.
#[derive(Debug)]
pub(crate) struct CurrentSentinels {
    nodes: ArcSwap<Vec<HostPort>>,
    login: CurrentLogin,
}

/// The sentinels of one master, with their connections.
#[derive(Debug)]
pub(super) struct Sentinels {
    master: String,
    current: Arc<CurrentSentinels>,
    /// The configured list from which `nodes` was made.
    configured: Arc<Vec<HostPort>>,
    /// The sentinels, in the order in which they are asked next.
    nodes: Vec<Node>,
    switched: Arc<Notify>,
}

#[derive(Debug)]
struct Node {
    address: HostPort,
    origin: Origin,
    /// The connection, kept open to receive announcements.
    link: Option<SentinelLink>,
    /// The address at which the sentinel was last reached.
    peer: Option<SocketAddr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Configured,
    /// Another sentinel named this one.
    Learnt,
}

impl CurrentSentinels {
    pub(super) fn new(settings: &Settings) -> CurrentSentinels {
        CurrentSentinels {
            nodes: ArcSwap::from_pointee(settings.nodes.clone()),
            login: CurrentLogin::new(settings.login.clone()),
        }
    }

    /// Replaces the sentinels and their login, from the next question on. Open connections are kept, if the list of
    /// sentinels is the same.
    pub(super) fn replace(&self, settings: &Settings) {
        self.login.replace(&settings.login);
        if **self.nodes.load() != settings.nodes {
            self.nodes.store(Arc::new(settings.nodes.clone()));
        }
    }
}

impl Sentinels {
    /// Makes the sentinels of the master with this name. `switched` is notified when one of them announces another
    /// master.
    pub(super) fn new(master: &str, current: Arc<CurrentSentinels>, switched: Arc<Notify>) -> Sentinels {
        Sentinels { master: master.to_owned(), current, configured: Arc::default(), nodes: Vec::new(), switched }
    }

    /// Begins a round of questions, with the current list of sentinels. Returns the indexes of the sentinels, in the
    /// order in which to ask them.
    pub(crate) fn begin_round(&mut self) -> std::ops::Range<usize> {
        let configured = self.current.nodes.load_full();
        if !Arc::ptr_eq(&configured, &self.configured) {
            self.nodes = configured.iter().map(|address| Node::new(address, Origin::Configured)).collect();
            self.configured = configured;
        }
        // Sentinels without a connection come last, because they may not answer. The sort is stable.
        self.nodes.sort_by_key(|node| node.link.is_none());
        0..self.nodes.len()
    }

    /// Asks one sentinel for the master, over its open connection if that still works. If the future is dropped before
    /// the answer arrives, the connection is kept.
    ///
    /// # Errors
    ///
    /// When the sentinel cannot be reached, does not answer in time, or knows no master of this name.
    pub(super) async fn ask(&mut self, index: usize) -> Result<Answer, Fault> {
        let Some(node) = self.nodes.get_mut(index) else {
            return Err(Fault::new(StoreError::Unreachable, "there is no such sentinel"));
        };
        let name = &*self.master;
        let address = node.address.to_string();
        let located = |fault: Fault| Fault::new(fault.error, format!("sentinel {address}: {}", fault.detail));
        if let Some(link) = &mut node.link {
            match link.master(name).await {
                Ok(answer) => return Ok(answer),
                Err(fault) => {
                    node.link = None;
                    // The sentinel hangs, and would hang over a new connection too.
                    if fault.error == StoreError::Timeout {
                        return Err(located(fault));
                    }
                }
            }
        }
        let opened = SentinelLink::open(&node.address, &self.current.login, name, &self.switched).await;
        let link = opened.map_err(located)?;
        node.peer = Some(link.peer);
        let answer = node.link.insert(link).master(name).await;
        answer.map_err(|fault| {
            node.link = None;
            located(fault)
        })
    }

    /// Makes this sentinel the first to be asked.
    pub(super) fn prefer(&mut self, index: usize) {
        if let Some(first) = self.nodes.get_mut(..=index) {
            first.rotate_right(1);
        }
    }

    /// Returns the address of a sentinel, for messages.
    pub(super) fn named(&self, index: usize) -> String {
        self.nodes.get(index).map(|node| node.address.to_string()).unwrap_or_default()
    }

    /// Adds the sentinels that the known sentinels name and can reach. Removes added sentinels that cannot be reached
    /// any more.
    pub(super) async fn learn(&mut self) {
        let Some(link) = self.nodes.iter_mut().find_map(|node| node.link.as_mut()) else { return };
        let Ok(others) = link.others(&self.master).await else { return };
        let is_known = |nodes: &[Node], address: &HostPort| {
            let same = |node: &Node| {
                let peer = node.peer.map(|peer| HostPort::new(peer.ip().to_string(), peer.port()));
                node.address == *address || peer.as_ref() == Some(address)
            };
            nodes.iter().any(same)
        };
        self.nodes
            .retain(|node| node.origin == Origin::Configured || node.link.is_some() || others.contains(&node.address));
        for address in others {
            if self.nodes.len() < MAX_SENTINELS && !is_known(&self.nodes, &address) {
                self.nodes.push(Node::new(&address, Origin::Learnt));
            }
        }
        // A learnt sentinel may be a configured one. Such a duplicate is removed.
        let configured: Vec<Option<SocketAddr>> =
            self.nodes.iter().filter(|node| node.origin == Origin::Configured).map(|node| node.peer).collect();
        self.nodes.retain(|node| {
            let address = node.address.ip().map(|ip| SocketAddr::new(ip, node.address.port));
            node.origin == Origin::Configured || address.is_none() || !configured.contains(&address)
        });
    }
}

impl Node {
    fn new(address: &HostPort, origin: Origin) -> Node {
        Node { address: address.clone(), origin, link: None, peer: None }
    }
}
