//! Charges a request whose buckets are under several hash tags, one tag after the other.
//!
//! At the first refusal, the charges so far are given back, less the amount that has been refilled since. Slots and
//! reservations of budgets are given back completely. In the meantime, another request may be refused because of these
//! charges.
//!
//! The node of the next tag is asked while a slow node may still answer. Charges without an answer are decided by the
//! fallback. A refusal does not wait for a slow node. If the slow node charges later, that charge is given back too.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use smallvec::SmallVec;

use super::hash_tags::{HashTags, TagIndex};
use super::nodes::Nodes;
use super::timed_holds::nothing_of;
use super::undo::GroupCharge;
use super::{Cluster, Take};
use crate::caller::Caller;
use crate::caller::SpanLink;
use crate::error::StoreError;
use crate::reply::TakeReply;
use crate::reply_in_parts::{PartPositions, ReplyInParts};
use crate::take_failure::{PartialTake, ProvisionalCharges, TakeFailure};
use base::time::{Micros, timeout, timeout_precisely};
use ledger::charge::{Charge, Plan};

/// A timeout up to this length gets a precise timer. An ordinary timer can be up to 20 ms late.
const SHORT: Micros = Micros(100_000);

/// The charges of a plan under one hash tag.
#[derive(Debug)]
struct Group {
    tag: TagIndex,
    plan: Plan,
    positions: PartPositions,
}

/// Splits a plan into groups, in the order in which they are charged: groups with slots or budgets, groups with other
/// enforced charges, groups with purses, then groups with only shadow charges.
///
/// Slots and budgets come first, because what is held can be given back completely. Purses come last, because what a
/// region has leased cannot always be given back to them. The last group of each kind also has the next charges under
/// its tag. The last group with enforced charges also has the shadow charges under its tag.
fn groups(tags: &HashTags, plan: &Plan) -> Vec<Group> {
    let mut kinds: [Vec<Group>; 3] = Default::default();
    let [held, rates, purses] = &mut kinds;
    let group = |tag| Group { tag, plan: Plan::default(), positions: PartPositions::default() };
    for (index, charge) in plan.enforced.iter().enumerate() {
        let tag = tags.of(&charge.key);
        let groups = match charge.algorithm.kind() {
            kind if kind.is_held() => &mut *held,
            kind if kind.is_purse() => &mut *purses,
            _ => &mut *rates,
        };
        let at = groups.binary_search_by_key(&tag, |group| group.tag).unwrap_or_else(|at| {
            groups.insert(at, group(tag));
            at
        });
        if let Some(group) = groups.get_mut(at) {
            group.plan.enforced.push(charge.clone());
            group.positions.enforced.push(index);
        }
    }
    let mut groups: Vec<Group> = Vec::new();
    for mut next in kinds {
        if let Some(last) = groups.last_mut()
            && let Ok(at) = next.binary_search_by_key(&last.tag, |group| group.tag)
        {
            let Group { plan, positions, .. } = next.remove(at);
            last.plan.enforced.extend(plan.enforced);
            last.positions.enforced.extend(positions.enforced);
        }
        groups.append(&mut next);
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

/// The groups of a request (one for each hash tag) that have been charged. Dropping this undoes the charges of a
/// request that was not settled.
#[derive(Debug)]
struct ChargedGroups {
    nodes: Arc<Nodes>,
    charged: Vec<GroupCharge>,
}

impl ChargedGroups {
    fn of(nodes: &Arc<Nodes>) -> ChargedGroups {
        ChargedGroups { nodes: Arc::clone(nodes), charged: Vec::new() }
    }

    fn add(&mut self, tag: TagIndex, plan: &Plan, reply: &TakeReply) {
        if !plan.enforced.is_empty() {
            self.charged.push(GroupCharge { tag, charges: charges(plan), at: reply.now });
        }
    }
}

impl ProvisionalCharges for ChargedGroups {
    fn keep(mut self: Box<Self>) {
        self.charged.clear();
    }
}

impl Drop for ChargedGroups {
    fn drop(&mut self) {
        let mut charged = std::mem::take(&mut self.charged);
        // Charges that spend nothing need no undo.
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
        // The undo runs in a task, so that the client does not wait. Without a runtime the process is ending.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(undo);
        }
    }
}

/// Represents the request in the calls for its groups. After a group has refused, no more calls are sent.
#[derive(Debug)]
struct GroupCaller {
    request: Option<Arc<dyn Caller>>,
    is_refused: AtomicBool,
}

impl Caller for GroupCaller {
    fn has_left(&self) -> bool {
        self.is_refused.load(Ordering::Relaxed) || self.request.as_ref().is_some_and(|request| request.has_left())
    }

    fn span_link(&self) -> Option<SpanLink> {
        self.request.as_ref()?.span_link()
    }
}

/// A group without an answer yet, with the future of its reply.
type LateGroup = Pin<Box<dyn Future<Output = (Group, GroupReply)> + Send>>;

/// The reply for a group. `Ok(None)` if the client has left.
type GroupReply = Result<Option<TakeReply>, StoreError>;

/// What to do after the answer for a group.
enum Next {
    Group,
    /// The group has refused, so the request is refused.
    Refused,
    ClientLeft,
}

/// A request whose groups are being charged.
struct SplitTake<'p> {
    plan: &'p Plan,
    whole: ReplyInParts,
    charged: ChargedGroups,
    unanswered: Option<StoreError>,
    /// The enforced charges without an answer.
    rest: Plan,
    positions: PartPositions,
}

impl SplitTake<'_> {
    fn add(&mut self, group: Group, reply: GroupReply) -> Next {
        let Group { tag, plan, positions } = group;
        match reply {
            Ok(None) => Next::ClientLeft,
            Ok(Some(reply)) if reply.settlement.is_granted() => {
                self.charged.add(tag, &plan, &reply);
                self.whole.add(&positions, reply);
                Next::Group
            }
            Ok(Some(reply)) => {
                self.whole.refuse(self.plan);
                self.whole.add(&positions, reply);
                Next::Refused
            }
            // Shadow charges do not affect the decision.
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
        let SplitTake { whole, charged, unanswered, rest, positions, .. } = self;
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
    /// Decides a plan whose buckets are under several hash tags, with one call for each hash tag.
    ///
    /// # Errors
    ///
    /// When some calls have no answer. Their charges count as spent. The caller may keep what the other calls charged.
    pub(super) async fn take_apart(&self, take: &Take<'_>) -> Result<Option<TakeReply>, TakeFailure> {
        if self.nodes.state.hooks.drops_undone() {
            self.nodes.state.deny_cache.expect_undone_charges_of(take.plan);
        }
        let mut charging = SplitTake {
            plan: take.plan,
            whole: ReplyInParts::of(take.plan),
            charged: ChargedGroups::of(&self.nodes),
            unanswered: None,
            rest: Plan::default(),
            positions: PartPositions::default(),
        };
        let request = Arc::new(GroupCaller { request: take.caller.clone(), is_refused: AtomicBool::new(false) });
        let mut late: Vec<LateGroup> = Vec::new();
        for mut group in groups(&self.nodes.directory.tags, take.plan) {
            if charging.unanswered.is_some() || !late.is_empty() {
                // Shadow charges are made only for a granted request.
                group.plan.shadow.clear();
                group.positions.shadow.clear();
            }
            if group.plan.is_empty() {
                continue;
            }
            // This call may continue after another group has refused, so it owns its data.
            let (cluster, worker, waiting, hold) = (self.clone(), take.worker, take.waiting, take.hold);
            let caller: Option<Arc<dyn Caller>> = Some(Arc::clone(&request) as _);
            let mut asking: LateGroup = Box::pin(async move {
                let take = Take { worker, plan: &group.plan, caller, waiting, hold };
                let reply = cluster.take_together(&take, group.tag).await;
                (group, reply)
            });
            // Half of the remaining time is kept for the next nodes.
            let patience = Micros(self.left(take.waiting).0 / 2);
            match answered_within(patience, &mut asking).await {
                Some((group, reply)) => match charging.add(group, reply) {
                    Next::Group => {}
                    Next::Refused => {
                        self.give_back_late(late, &request, take);
                        return Ok(Some(charging.whole.into_reply()));
                    }
                    Next::ClientLeft => {
                        self.give_back_late(late, &request, take);
                        return Ok(None);
                    }
                },
                None => late.push(asking),
            }
        }
        // Each wait ends at the request's deadline at the latest.
        let mut late = late.into_iter();
        while let Some(asking) = late.next() {
            let (group, reply) = asking.await;
            match charging.add(group, reply) {
                Next::Group => {}
                Next::Refused => {
                    self.give_back_late(late, &request, take);
                    return Ok(Some(charging.whole.into_reply()));
                }
                Next::ClientLeft => {
                    self.give_back_late(late, &request, take);
                    return Ok(None);
                }
            }
        }
        charging.finish()
    }

    /// Gives back the charges of late groups, for a request that was refused or whose client has left. The client does
    /// not wait for this.
    fn give_back_late(&self, late: impl IntoIterator<Item = LateGroup>, request: &GroupCaller, take: &Take<'_>) {
        request.is_refused.store(true, Ordering::Relaxed);
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        for asking in late {
            let mut charged = ChargedGroups::of(&self.nodes);
            let (cluster, worker, hold) = (self.clone(), take.worker, take.hold);
            runtime.spawn(async move {
                if let (Group { tag, plan, .. }, Ok(Some(reply))) = asking.await
                    && reply.settlement.is_granted()
                {
                    charged.add(tag, &plan, &reply);
                    if let Some(hold) = hold {
                        cluster.settle_timed(worker, hold.owner, &nothing_of(&plan)).await;
                    }
                }
            });
        }
    }
}

async fn answered_within<T>(patience: Micros, asking: impl Future<Output = T>) -> Option<T> {
    match patience < SHORT {
        true => Box::pin(timeout_precisely(patience.into(), asking)).await,
        false => timeout(patience.into(), asking).await.ok(),
    }
}

/// Returns the charges that spend something. Of several charges to one bucket, only the last is returned. Slots and
/// budgets are left out.
fn charges(plan: &Plan) -> SmallVec<[Charge; 2]> {
    let all = plan.enforced.iter().enumerate();
    let spends = |(index, charge): &(usize, &Charge)| !plan.is_only_checked(*index) && !charge.algorithm.is_held();
    all.filter(spends).map(|(_, charge)| charge.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::settings::Place;
    use super::*;
    use base::time::Clock;
    use ledger::algorithm::Algorithm;
    use ledger::algorithm::budget::SpentLimit;
    use ledger::algorithm::concurrency::Concurrency;
    use ledger::algorithm::fixed_window::{FixedWindow, Window};
    use ledger::algorithm::lease::Purse;
    use ledger::bucket_key::BucketKey;
    use ledger::cost::Cost;

    #[test]
    fn purses_are_charged_after_all_other_enforced_charges() {
        let tags = HashTags::new("tollgate", Place::Spread { hash_tags: 16 });
        let window = FixedWindow::new(10, Window::Epoch(Micros(60_000_000))).unwrap();
        let purse = Purse::new(SpentLimit::FixedWindow(window), Cost::ONE, Micros(1), Micros(1)).unwrap();
        let (purse, window) = (Algorithm::Purse(purse), Algorithm::FixedWindow(window));
        let slots = Algorithm::Concurrency(Concurrency::new(3).unwrap());
        let key = |tag: u16| (0..=255).map(|byte| BucketKey([byte; 16])).find(|key| tags.of(key) == TagIndex(tag));
        let order = |charges: &[(u16, Algorithm)]| -> Vec<(u16, Vec<usize>)> {
            let mut plan = Plan::default();
            for (tag, algorithm) in charges {
                plan.enforce(Charge::new(key(*tag).unwrap(), *algorithm, Cost::ONE));
            }
            groups(&tags, &plan).into_iter().map(|group| (group.tag.0, group.positions.enforced.to_vec())).collect()
        };
        assert_eq!(order(&[(1, purse), (2, window)]), [(2, vec![1]), (1, vec![0])]);
        assert_eq!(
            order(&[(1, purse), (2, window), (1, window), (1, slots)]),
            [(1, vec![3, 2]), (2, vec![1]), (1, vec![0])]
        );
        assert_eq!(order(&[(1, purse), (1, slots), (3, purse)]), [(1, vec![1, 0]), (3, vec![2])]);
    }

    #[tokio::test]
    async fn a_group_that_hangs_takes_little_of_the_time_of_the_next_one() {
        let clock = Clock::system();
        for patience in [25_000, 45_000, 95_000].map(Micros) {
            let mut shortest = Micros(u64::MAX);
            // There are several attempts, because the machine may be busy.
            for _ in 0..5 {
                let asked = clock.now();
                assert_eq!(answered_within(patience, std::future::pending::<()>()).await, None);
                shortest = shortest.min(clock.now().since(asked));
            }
            assert!(shortest < Micros(patience.0 + 4_000), "{patience:?}: {shortest:?}");
        }
    }
}
