//! Charges a request whose buckets lie under several hash tags, one tag after the other.
//!
//! A script cannot charge them at once. So they are charged in the order of the tags, and the first refusal ends that: what
//! was taken is given back, less what has come back by itself since. Nothing is granted that a bucket cannot pay, and a
//! refused request has spent at most what comes back during the calls. Meanwhile another request may be refused although its
//! bucket could pay in the end.
//!
//! A node that gives no answer stops nobody else: the next tag is asked while a slow one may still answer. What stays without
//! an answer is decided elsewhere, and if it is refused there, the rest is given back.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use smallvec::SmallVec;

use super::hash_tags::{HashTags, TagIndex};
use super::nodes::Nodes;
use super::undo::GroupCharge;
use super::{Cluster, Take};
use crate::base::time::{Micros, timeout, timeout_precisely};
use crate::limit::charge::{Charge, Plan};
use crate::store::error::StoreError;
use crate::store::reply::TakeReply;
use crate::store::reply_in_parts::{PartPositions, ReplyInParts};
use crate::store::take_failure::{PartialTake, ProvisionalCharges, TakeFailure};

/// A timer that may be 20 ms late would leave the next group no time if a group may take no longer than this.
const SHORT: Micros = Micros(20_000);

/// The charges of a plan that lie under one hash tag.
#[derive(Debug)]
struct Group {
    tag: TagIndex,
    plan: Plan,
    positions: PartPositions,
}

/// Groups in the order in which they are charged: those with enforced charges by their tags, then shadows alone. A shadow is
/// charged when no enforced charge can refuse any more, so only the last of the former has shadows.
fn groups(tags: &HashTags, plan: &Plan) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let group = |tag| Group { tag, plan: Plan::default(), positions: PartPositions::default() };
    for (index, charge) in plan.enforced.iter().enumerate() {
        let tag = tags.of(&charge.key);
        let at = groups.binary_search_by_key(&tag, |group| group.tag).unwrap_or_else(|at| {
            groups.insert(at, group(tag));
            at
        });
        if let Some(group) = groups.get_mut(at) {
            group.plan.enforced.push(charge.clone());
            group.positions.enforced.push(index);
        }
    }
    let last = groups.len().saturating_sub(1);
    for (index, charge) in plan.shadow.iter().enumerate() {
        let tag = tags.of(&charge.key);
        let at = groups.iter().skip(last).position(|group| group.tag == tag).map_or(groups.len(), |at| at + last);
        if at == groups.len() {
            groups.push(group(tag));
        }
        if let Some(group) = groups.get_mut(at) {
            group.plan.shadow.push(charge.clone());
            group.positions.shadow.push(index);
        }
    }
    groups
}

/// The groups of a request that have been charged. Dropped before the request is settled, it undoes them: another bucket
/// refused, or the client has left.
#[derive(Debug)]
struct ChargedGroups {
    nodes: Arc<Nodes>,
    charged: Vec<GroupCharge>,
}

impl ProvisionalCharges for ChargedGroups {
    fn keep(mut self: Box<Self>) {
        self.charged.clear();
    }
}

impl Drop for ChargedGroups {
    fn drop(&mut self) {
        let mut charged = std::mem::take(&mut self.charged);
        // Of what was only checked there is nothing to undo.
        charged.retain(|group| !group.charges.is_empty());
        if charged.is_empty() {
            return;
        }
        let nodes = Arc::clone(&self.nodes);
        let undo = async move {
            let (times, pause) = nodes.state.hooks.undo();
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
            for charged in &charged {
                for _ in 0..times {
                    nodes.undo(charged).await;
                }
                if nodes.state.hooks.drops_undone() {
                    let now = nodes.clock.now();
                    charged.charges.iter().for_each(|charge| nodes.state.deny_cache.forget(charge.key, now));
                }
            }
        };
        // The answer to the client does not wait for it. Without a runtime the process is ending.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(undo);
        }
    }
}

/// A group that was not answered by the time at which the next one was asked; what it then says.
type LateGroup<'f> = Pin<Box<dyn Future<Output = (Group, GroupReply)> + Send + 'f>>;

/// `Ok(None)`: the client has left.
type GroupReply = Result<Option<TakeReply>, StoreError>;

/// What goes on after the answer for a group.
enum Next {
    Group,
    /// Another group refused.
    Refused,
    ClientLeft,
}

/// A request whose groups are being charged.
struct Charging<'p> {
    plan: &'p Plan,
    whole: ReplyInParts,
    charged: ChargedGroups,
    unanswered: Option<StoreError>,
    /// The enforced charges without an answer.
    rest: Plan,
    positions: PartPositions,
}

impl Charging<'_> {
    fn add(&mut self, group: Group, reply: GroupReply) -> Next {
        let Group { tag, plan, positions } = group;
        match reply {
            Ok(None) => Next::ClientLeft,
            Ok(Some(reply)) if reply.settlement.is_granted() => {
                self.whole.add(&positions, &reply);
                if !plan.enforced.is_empty() {
                    self.charged.charged.push(GroupCharge { tag, charges: charges(&plan), at: reply.now });
                }
                Next::Group
            }
            Ok(Some(reply)) => {
                self.whole.refuse(self.plan);
                self.whole.add(&positions, &reply);
                Next::Refused
            }
            // Shadows have no say.
            Err(_) if plan.enforced.is_empty() => Next::Group,
            Err(error) => {
                self.unanswered.get_or_insert(error);
                self.rest.enforced.extend(plan.enforced);
                self.positions.enforced.extend(positions.enforced);
                Next::Group
            }
        }
    }

    fn finish(self) -> Result<Option<TakeReply>, TakeFailure> {
        let Charging { whole, charged, unanswered, rest, positions, .. } = self;
        let Some(error) = unanswered else {
            Box::new(charged).keep();
            return Ok(Some(whole.into_reply()));
        };
        let is_partial = !charged.charged.is_empty();
        let partial = is_partial.then(|| Box::new(PartialTake::new(rest, positions, whole, Box::new(charged))));
        Err(TakeFailure { error, partial })
    }
}

impl Cluster {
    /// # Errors
    ///
    /// When there is no answer for some groups, which count as spent. What the others have granted is given back unless
    /// the caller keeps it.
    pub(super) async fn take_apart(&self, take: &Take<'_>) -> Result<Option<TakeReply>, TakeFailure> {
        self.expect_undone_charges();
        let mut charging = Charging {
            plan: take.plan,
            whole: ReplyInParts::of(take.plan),
            charged: ChargedGroups { nodes: Arc::clone(&self.nodes), charged: Vec::new() },
            unanswered: None,
            rest: Plan::default(),
            positions: PartPositions::default(),
        };
        let mut late: Vec<LateGroup<'_>> = Vec::new();
        for mut group in groups(&self.nodes.directory.tags, take.plan) {
            if charging.unanswered.is_some() || !late.is_empty() {
                // Whether the request is let through, no store knows yet.
                group.plan.shadow.clear();
                group.positions.shadow.clear();
            }
            if group.plan.is_empty() {
                continue;
            }
            let mut asking: LateGroup<'_> = Box::pin(async move {
                let reply = self.take_together(&Take { plan: &group.plan, ..take.clone() }, group.tag).await;
                (group, reply)
            });
            // A node that hangs leaves the next one half of the time.
            let patience = Micros(self.left(take).0 / 2);
            let answered = match patience < SHORT {
                true => Box::pin(timeout_precisely(patience.into(), &mut asking)).await,
                false => timeout(patience.into(), &mut asking).await.ok(),
            };
            match answered {
                Some((group, reply)) => match charging.add(group, reply) {
                    Next::Group => {}
                    Next::Refused => return Ok(Some(charging.whole.into_reply())),
                    Next::ClientLeft => return Ok(None),
                },
                None => late.push(asking),
            }
        }
        // Each ends by the request's deadline.
        for asking in late {
            let (group, reply) = asking.await;
            match charging.add(group, reply) {
                Next::Group => {}
                Next::Refused => return Ok(Some(charging.whole.into_reply())),
                Next::ClientLeft => return Ok(None),
            }
        }
        charging.finish()
    }
}

/// What a plan has charged; of several charges to one bucket only the last.
fn charges(plan: &Plan) -> SmallVec<[Charge; 2]> {
    let all = plan.enforced.iter().enumerate();
    all.filter(|(index, _)| !plan.is_only_checked(*index)).map(|(_, charge)| charge.clone()).collect()
}
