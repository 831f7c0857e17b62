//! Reads, finds and removes buckets on all nodes of a cluster for an operator, without a gateway.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::hash_tags::{HashTags, TagIndex};
use super::settings;
use super::topology::read_topology;
use crate::ban_list::BanList;
use crate::bucket_change::BucketChange;
use crate::error::{Fault, StoreError};
use crate::redis::inspect::Inspector as NodeInspector;
use crate::redis::settings::Settings;
use crate::remote::login::CurrentLogin;
use crate::reply::GivenBack;
use base::host_port::HostPort;
use base::time::Timestamp;
use ledger::algorithm::{Algorithm, AlgorithmKind, State};
use ledger::bucket_key::BucketKey;
use ledger::cost::Cost;

/// How long to wait for hash slots that are moving, or for the answer of one node.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(50);

/// Connections to the nodes of a cluster, for an operator who reads, finds and removes buckets. Each node is connected
/// when it is first asked.
#[derive(Debug)]
pub struct Inspector {
    cluster: settings::Settings,
    settings: Settings,
    login: Arc<CurrentLogin>,
    tags: HashTags,
    /// The master of each hash tag. `None` if no node has the slot of the tag.
    masters: Vec<Option<HostPort>>,
    /// An inspector for each node that was asked.
    nodes: Vec<(HostPort, NodeInspector)>,
}

impl Inspector {
    /// Reads which node has which buckets. Must be called on a tokio runtime.
    ///
    /// # Errors
    ///
    /// When no node returns the topology.
    pub async fn open(cluster: &settings::Settings, settings: &Settings) -> Result<Inspector, Fault> {
        let login = Arc::new(CurrentLogin::new(settings.login.clone()));
        let tags = HashTags::new(&settings.prefix, cluster.place);
        let ranges = read_topology(cluster.nodes.clone(), PATIENCE, &tags, settings, &login).await?.ranges;
        let master = |slot: u16| {
            let range = ranges.iter().find(|range| (range.first..=range.last).contains(&slot));
            range.map(|range| range.master.clone())
        };
        let masters = tags.iter().map(|(_, tag)| master(tag.slot)).collect();
        let (cluster, settings) = (cluster.clone(), settings.clone());
        Ok(Inspector { cluster, settings, login, tags, masters, nodes: Vec::new() })
    }

    /// Returns the inspector of the node of this hash tag, for the buckets under the tag.
    async fn node(&mut self, index: TagIndex) -> Result<NodeInspector, Fault> {
        let unknown = || Fault::new(StoreError::Unreachable, "no node has these buckets");
        let (prefix, slot) = self.tags.get(index).map(|tag| (tag.prefix.clone(), tag.slot)).ok_or_else(unknown)?;
        let unserved = || Fault::new(StoreError::ClusterDown, format!("no node has slot {slot}"));
        let master = self.masters.get(usize::from(index.0)).cloned().flatten().ok_or_else(unserved)?;
        if let Some((_, node)) = self.nodes.iter().find(|(address, _)| *address == master) {
            return Ok(node.with_prefix(&prefix));
        }
        let named = |fault: Fault| Fault { detail: format!("{master}: {}", fault.detail), ..fault };
        let node = NodeInspector::open_at(&master, &self.settings, &self.login).await.map_err(named)?;
        let own = node.with_prefix(&prefix);
        self.nodes.push((master, node));
        Ok(own)
    }

    /// Reads the states of these buckets, in the order of the keys. `None` means that the bucket is full. Also returns
    /// the latest time on the clocks of the nodes.
    ///
    /// # Errors
    ///
    /// When a node gives no answer, or refuses a command.
    pub async fn states(&mut self, keys: &[BucketKey]) -> Result<(Timestamp, Vec<Option<State>>), Fault> {
        self.each_tag(keys, |key| *key, async |node, keys| node.states(keys).await).await
    }

    /// Removes these buckets, which makes them full. Returns the time and the states before the removal, as
    /// [`Inspector::states`] does.
    ///
    /// # Errors
    ///
    /// When a node gives no answer, or refuses a command. Buckets on other nodes may have been removed.
    pub async fn remove(&mut self, keys: &[BucketKey]) -> Result<(Timestamp, Vec<Option<State>>), Fault> {
        self.each_tag(keys, |key| *key, async |node, keys| node.remove(keys).await).await
    }

    /// Gives back up to `amount` of what is spent in each of these buckets. Returns the time, and the states before and
    /// after that.
    ///
    /// # Errors
    ///
    /// When a node gives no answer, or refuses the script. Buckets on other nodes may have been changed.
    pub async fn give_back(
        &mut self,
        buckets: &[(BucketKey, AlgorithmKind)],
        amount: Cost,
    ) -> Result<(Timestamp, Vec<GivenBack>), Fault> {
        self.each_tag(buckets, |(key, _)| *key, async |node, buckets| node.give_back(buckets, amount).await).await
    }

    /// Changes each of these buckets. Returns the time, and the states before and after.
    ///
    /// # Errors
    ///
    /// When a node gives no answer or refuses a command, or if a bucket changes too often.
    pub async fn change(
        &mut self,
        keys: &[BucketKey],
        change: &BucketChange<'_>,
    ) -> Result<(Timestamp, Vec<GivenBack>), Fault> {
        self.each_tag(keys, |key| *key, async |node, keys| node.change(keys, change).await).await
    }

    /// Returns how many live gateways announce no format of states, or one older than `format`.
    ///
    /// # Errors
    ///
    /// When the node that lists the gateways gives no answer, or refuses a command.
    pub async fn count_older_gateways(&mut self, format: u8) -> Result<usize, Fault> {
        // Gateways are listed under the first hash tag.
        self.node(TagIndex(0)).await?.count_older_gateways(format).await
    }

    /// Returns the keys of all buckets for which `is` returns true. Calls `progress` with the number of buckets visited
    /// so far.
    ///
    /// # Errors
    ///
    /// When a node gives no answer, or refuses a command.
    pub async fn find(
        &mut self,
        is: &dyn Fn(&BucketKey) -> bool,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Vec<BucketKey>, Fault> {
        let mut found: Vec<BucketKey> = Vec::new();
        let (pattern, mut seen) = (format!("{}:{{*}}:*", self.settings.prefix), 0);
        self.connect_all().await?;
        let tags = &self.tags;
        for (_, node) in &mut self.nodes {
            let (before, mut last) = (seen, 0);
            let mut count = |visited| {
                last = visited;
                progress(before + visited);
            };
            let own = node.scan(&pattern, &|name| tags.bucket(name).filter(is), &mut count).await?;
            seen = before + last;
            // While a hash slot moves, a bucket may be found on two nodes.
            found.extend(own.into_iter().filter(|key| !found.contains(key)).collect::<Vec<_>>());
        }
        Ok(found)
    }

    /// Lists the running bans of the limit whose buckets have the keys for which `is` returns true. Calls `progress` with the
    /// number of buckets visited so far.
    ///
    /// # Errors
    ///
    /// When a node gives no answer, or refuses a command. While hash slots move, a node may refuse to read a bucket.
    pub async fn list_bans(
        &mut self,
        limit: &Algorithm,
        is: &dyn Fn(&BucketKey) -> bool,
        progress: &mut dyn FnMut(u64),
    ) -> Result<BanList, Fault> {
        let (pattern, mut list) = (format!("{}:{{*}}:*", self.settings.prefix), BanList::default());
        self.connect_all().await?;
        let tags = &self.tags;
        for (_, node) in &mut self.nodes {
            node.add_bans(&mut list, limit, &pattern, &|name| tags.bucket(name).filter(is), progress).await?;
        }
        Ok(list)
    }

    /// Connects to all nodes that have buckets.
    async fn connect_all(&mut self) -> Result<(), Fault> {
        let indexes: Vec<TagIndex> = self.tags.iter().map(|(index, _)| index).collect();
        for index in indexes {
            self.node(index).await?;
        }
        Ok(())
    }

    /// Asks the node of each hash tag about its items. Returns the replies in the order of the items.
    async fn each_tag<I: Clone, R>(
        &mut self,
        items: &[I],
        key: impl Fn(&I) -> BucketKey,
        mut ask: impl AsyncFnMut(&mut NodeInspector, &[I]) -> Result<(Timestamp, Vec<R>), Fault>,
    ) -> Result<(Timestamp, Vec<R>), Fault> {
        let mut tagged: Vec<_> = items.iter().map(|item| self.tags.of(&key(item))).zip(0..).collect();
        tagged.sort_unstable();
        let (mut latest, mut replies) = (Timestamp(0), Vec::with_capacity(items.len()));
        for part in tagged.chunk_by(|(one, _), (other, _)| one == other) {
            let Some((tag, _)) = part.first().copied() else { continue };
            let own: Vec<I> = part.iter().filter_map(|(_, index)| items.get(*index)).cloned().collect();
            let until = Instant::now() + PATIENCE;
            let (now, own) = loop {
                let mut node = self.node(tag).await?;
                match ask(&mut node, &own).await {
                    // A redirection proves that the commands did not run.
                    Err(fault) if fault.error.is_redirection() && Instant::now() < until => {
                        tokio::time::sleep(PAUSE).await;
                        *self = Inspector::open(&self.cluster, &self.settings).await?;
                    }
                    reply => break reply?,
                }
            };
            latest = latest.max(now);
            replies.extend(part.iter().map(|(_, index)| *index).zip(own));
        }
        replies.sort_by_key(|(index, _): &(usize, R)| *index);
        Ok((latest, replies.into_iter().map(|(_, reply)| reply).collect()))
    }
}
