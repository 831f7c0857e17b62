//! Asks sentinels for the master, one after the other, and checks what they name.
//!
//! A sentinel may be out of date or cut off, so an address counts only if the server there says that it is a master. Two
//! servers may say so for a while: the right one is then named with the higher configuration epoch.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::Settings;
use super::link::{Answer, SentinelLink};
use crate::base::host_port::HostPort;
use crate::store::error::{Fault, StoreError};
use crate::store::redis::handshake::check_role;
use crate::store::remote::login::CurrentLogin;

/// How long a server may take to say what it is. Announcements of the sentinels end it sooner.
const SERVER_TIMEOUT: Duration = Duration::from_secs(1);
/// How long it may take before the other sentinels are asked: a master that hangs is named until its successor is ready.
const FIRST_PATIENCE: Duration = Duration::from_millis(100);
/// How often a replica is asked that is about to become the master.
pub const PROMOTION: Duration = Duration::from_millis(25);
/// The maximum number of sentinels: a list that is longer than any real one is not believed whole.
const MAX_SENTINELS: usize = 16;

/// What becomes of a master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Succession {
    Stays,
    /// A sentinel is about to put a replica in its place.
    Promotion,
    /// This server has taken its place.
    By(HostPort),
}

/// The sentinels in force, which a reload replaces.
#[derive(Debug)]
pub struct CurrentSentinels {
    nodes: ArcSwap<Vec<HostPort>>,
    login: CurrentLogin,
}

/// The sentinels, and what they have said so far.
#[derive(Debug)]
pub struct Survey {
    master: String,
    current: Arc<CurrentSentinels>,
    /// The login of the master.
    login: Arc<CurrentLogin>,
    /// The configuration that `nodes` was made from.
    configured: Arc<Vec<HostPort>>,
    /// The one that answered is asked first the next time.
    nodes: Vec<Node>,
    /// The highest epoch of a master that was found.
    epoch: u64,
    switched: Arc<Notify>,
}

#[derive(Debug)]
struct Node {
    address: HostPort,
    origin: Origin,
    /// Kept open, so that announcements are heard.
    link: Option<SentinelLink>,
    /// Where it was last reached: others may call it by this address.
    peer: Option<SocketAddr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Configured,
    /// Named by another sentinel.
    Learnt,
}

impl CurrentSentinels {
    pub fn new(settings: &Settings) -> CurrentSentinels {
        CurrentSentinels {
            nodes: ArcSwap::from_pointee(settings.nodes.clone()),
            login: CurrentLogin::new(settings.login.clone()),
        }
    }

    /// From the next question on; connections to sentinels that are up stay as they are, unless the list has changed.
    pub fn replace(&self, settings: &Settings) {
        self.login.replace(&settings.login);
        if **self.nodes.load() != settings.nodes {
            self.nodes.store(Arc::new(settings.nodes.clone()));
        }
    }
}

impl Survey {
    /// Of the master with this name, whose login is `login`. `switched` is notified when a sentinel announces another one.
    pub fn new(
        master: &str,
        current: Arc<CurrentSentinels>,
        login: Arc<CurrentLogin>,
        switched: Arc<Notify>,
    ) -> Survey {
        let configured = Arc::default();
        Survey { master: master.to_owned(), current, login, configured, nodes: Vec::new(), epoch: 0, switched }
    }

    /// Asks in turn, until a sentinel names a server that says that it is a master.
    ///
    /// # Errors
    ///
    /// When no sentinel does: what each of them said, under the kind that tells an operator most.
    pub async fn find(&mut self) -> Result<HostPort, Fault> {
        self.load_nodes();
        let (mut faults, mut rejected) = (Vec::new(), Vec::new());
        // Servers that have not said what they are yet, and those named by a sentinel when others have known better before.
        let (mut silent, mut outdated, mut promoted) = (Vec::new(), Vec::new(), Vec::new());
        for index in 0..self.nodes.len() {
            match self.ask(index).await {
                Ok(answer) if answer.epoch < self.epoch => outdated.push((index, answer)),
                Ok(answer) => {
                    // It may be a master already; a replica until then is no fault.
                    if let Some(replica) = answer.promotion() {
                        if self.try_out(index, &replica, FIRST_PATIENCE, &mut Vec::new()).await.is_ok() {
                            return Ok(replica.master);
                        }
                        promoted.push((index, replica));
                    }
                    let named =
                        |answers: &[(usize, Answer)]| answers.iter().any(|(_, other)| other.master == answer.master);
                    if named(&silent) {
                        continue;
                    }
                    match self.try_out(index, &answer, FIRST_PATIENCE, &mut rejected).await {
                        Ok(()) => return Ok(answer.master),
                        Err(NotMaster::Silent) => silent.push((index, answer)),
                        Err(NotMaster::Known) => {}
                        Err(NotMaster::Fault(fault)) => faults.push(fault),
                    }
                }
                Err(fault) => faults.push(fault),
            }
        }
        // Epochs begin again when an operator makes sentinels forget the master.
        silent.append(&mut outdated);
        let promotion = await_promotion(promoted, Arc::clone(&self.login));
        tokio::select! {
            biased;
            (index, replica) = promotion => {
                self.accept(index, replica.epoch);
                Ok(replica.master)
            }
            found = self.try_out_all(silent, faults, rejected) => found,
        }
    }

    /// Tries out what sentinels named, with all patience.
    async fn try_out_all(
        &mut self,
        named: Vec<(usize, Answer)>,
        mut faults: Vec<Fault>,
        mut rejected: Vec<HostPort>,
    ) -> Result<HostPort, Fault> {
        for (index, answer) in named {
            match self.try_out(index, &answer, SERVER_TIMEOUT, &mut rejected).await {
                Ok(()) => return Ok(answer.master),
                Err(NotMaster::Silent) => {
                    let detail = format!("no answer within {SERVER_TIMEOUT:?}");
                    faults.push(self.fault_of(index, &answer, Fault::new(StoreError::Unreachable, detail)));
                    rejected.push(answer.master);
                }
                Err(NotMaster::Known) => {}
                Err(NotMaster::Fault(fault)) => faults.push(fault),
            }
        }
        Err(summary(faults))
    }

    /// Asks all sentinels whether another server has taken the place of `master`, and for sentinels not known so far.
    pub async fn succession(&mut self, master: &HostPort) -> Succession {
        self.load_nodes();
        let (mut named, mut others_named, mut promoting) = (false, false, false);
        for index in 0..self.nodes.len() {
            let Ok(answer) = self.ask(index).await else { continue };
            let promoted = answer.promotion();
            let is_ours = promoted.as_ref().is_some_and(|promoted| promoted.master == *master);
            if let Some(promoted) = promoted.filter(|_| !is_ours) {
                promoting = true;
                if self.try_out(index, &promoted, SERVER_TIMEOUT, &mut Vec::new()).await.is_ok() {
                    return Succession::By(promoted.master);
                }
            }
            if is_ours || answer.master == *master {
                named = true;
                self.epoch = self.epoch.max(answer.epoch);
            } else {
                others_named = true;
                if answer.epoch > self.epoch
                    && self.try_out(index, &answer, SERVER_TIMEOUT, &mut Vec::new()).await.is_ok()
                {
                    return Succession::By(answer.master);
                }
            }
        }
        if promoting {
            return Succession::Promotion;
        }
        if !named && others_named {
            self.epoch = 0;
            return match self.find().await {
                Ok(found) if found != *master => Succession::By(found),
                _ => Succession::Stays,
            };
        }
        self.learn().await;
        Succession::Stays
    }

    /// Before a round: uses a changed list, and forgets what belonged to the previous one.
    fn load_nodes(&mut self) {
        let configured = self.current.nodes.load_full();
        if !Arc::ptr_eq(&configured, &self.configured) {
            self.nodes = configured.iter().map(|address| Node::new(address, Origin::Configured)).collect();
            self.configured = configured;
        }
        // One that does not answer delays the others: it comes last. The order is otherwise the same.
        self.nodes.sort_by_key(|node| node.link.is_none());
    }

    /// Asks one sentinel, over its open connection if that still works.
    async fn ask(&mut self, index: usize) -> Result<Answer, Fault> {
        let Some(node) = self.nodes.get_mut(index) else {
            return Err(Fault::new(StoreError::Unreachable, "there is no such sentinel"));
        };
        let name = &*self.master;
        let address = node.address.to_string();
        let located = |fault: Fault| Fault::new(fault.error, format!("sentinel {address}: {}", fault.detail));
        if let Some(mut link) = node.link.take() {
            match link.master(name).await {
                Ok(answer) => {
                    node.link = Some(link);
                    return Ok(answer);
                }
                // It hangs; over a new connection it would as well.
                Err(fault) if fault.error == StoreError::Timeout => return Err(located(fault)),
                Err(_) => {}
            }
        }
        let opened = SentinelLink::open(&node.address, &self.current.login, name, &self.switched).await;
        let mut link = opened.map_err(located)?;
        node.peer = Some(link.peer);
        let answer = link.master(name).await.map_err(located)?;
        node.link = Some(link);
        Ok(answer)
    }

    /// Checks the server that a sentinel names, unless that has been rejected in this round.
    async fn try_out(
        &mut self,
        index: usize,
        answer: &Answer,
        patience: Duration,
        rejected: &mut Vec<HostPort>,
    ) -> Result<(), NotMaster> {
        if rejected.contains(&answer.master) {
            return Err(NotMaster::Known);
        }
        let checked = timeout(patience, check_role(&answer.master, &self.login)).await;
        if let Err(fault) = checked.map_err(|_| NotMaster::Silent)? {
            rejected.push(answer.master.clone());
            return Err(NotMaster::Fault(self.fault_of(index, answer, fault)));
        }
        self.accept(index, answer.epoch);
        Ok(())
    }

    /// What is wrong with a server, and which sentinel named it.
    fn fault_of(&self, index: usize, answer: &Answer, Fault { error, detail, .. }: Fault) -> Fault {
        let sentinel = self.nodes.get(index).map(|node| node.address.to_string()).unwrap_or_default();
        Fault::new(error, format!("{}, named by sentinel {sentinel}: {detail}", answer.master))
    }

    /// Believes this sentinel, and asks it first the next time.
    fn accept(&mut self, index: usize, epoch: u64) {
        self.epoch = epoch;
        if let Some(first) = self.nodes.get_mut(..=index) {
            first.rotate_right(1);
        }
    }

    /// Adds the sentinels that others can reach, so that the configured ones may all go away later, and forgets those that they
    /// cannot reach any more: a sentinel may come back with another address.
    async fn learn(&mut self) {
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
        // A configured one that could not be reached before may be among the learnt ones.
        let configured: Vec<Option<SocketAddr>> =
            self.nodes.iter().filter(|node| node.origin == Origin::Configured).map(|node| node.peer).collect();
        self.nodes.retain(|node| {
            let address = node.address.ip().map(|ip| SocketAddr::new(ip, node.address.port));
            node.origin == Origin::Configured || address.is_none() || !configured.contains(&address)
        });
    }
}

/// Why a server that a sentinel names is not the master.
enum NotMaster {
    /// It has not said in time what it is.
    Silent,
    /// The same as before, in this round.
    Known,
    Fault(Fault),
}

/// Returns the first of these replicas that has become a master.
async fn await_promotion(replicas: Vec<(usize, Answer)>, login: Arc<CurrentLogin>) -> (usize, Answer) {
    if replicas.is_empty() {
        return std::future::pending().await;
    }
    loop {
        for (index, replica) in &replicas {
            if let Ok(Ok(_)) = timeout(SERVER_TIMEOUT, check_role(&replica.master, &login)).await {
                return (*index, replica.clone());
            }
        }
        tokio::time::sleep(PROMOTION).await;
    }
}

impl Answer {
    /// The replica that is promoted, in the place of the master.
    fn promotion(&self) -> Option<Answer> {
        let master = self.promoted.clone()?;
        Some(Answer { master, promoted: None, epoch: self.epoch })
    }
}

impl Node {
    fn new(address: &HostPort, origin: Origin) -> Node {
        Node { address: address.clone(), origin, link: None, peer: None }
    }
}

/// One fault of many: the kind that tells most, and all details.
fn summary(faults: Vec<Fault>) -> Fault {
    // That a server does not answer is what remains when nothing else is known.
    let telling = |error: StoreError| match error {
        StoreError::Unreachable | StoreError::Closed | StoreError::Timeout => 0,
        StoreError::Replica => 1,
        _ => 2,
    };
    let error = faults.iter().map(|fault| fault.error).max_by_key(|error| telling(*error));
    let details: Vec<String> = faults.into_iter().map(|fault| fault.detail).collect();
    Fault::new(error.unwrap_or(StoreError::Unreachable), details.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_has_every_detail_and_the_kind_that_tells_most() {
        let fault = |error, detail: &str| Fault::new(error, detail);
        let away = || fault(StoreError::Unreachable, "a: away");
        for (other, kind) in [
            (fault(StoreError::Unauthorized, "b: no"), StoreError::Unauthorized),
            (fault(StoreError::Replica, "b: no"), StoreError::Replica),
            (fault(StoreError::Closed, "b: no"), StoreError::Closed),
        ] {
            let both = summary(vec![away(), other.clone()]);
            assert_eq!((both.error, &*both.detail), (kind, "a: away; b: no"));
        }
        assert_eq!(summary(vec![fault(StoreError::Forbidden, "b"), away()]).error, StoreError::Forbidden);
        assert_eq!(summary(Vec::new()).error, StoreError::Unreachable);
    }
}
