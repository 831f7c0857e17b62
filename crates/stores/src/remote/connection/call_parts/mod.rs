//! Splits a call into its parts, and adds the reports about what is held.

use smallvec::SmallVec;

use super::Connection;
use crate::remote::holds::ConnectionNumber;
use crate::remote::queue::Route;
use crate::remote::transport::{CallPart, Transport};
use base::time::Timestamp;
use ledger::charge::Plan;
use ledger::holds::MOST_REPORTS;

/// The maximum number of reports that a call sends separately, because their buckets may be on two servers.
const MOST_SEPARATE: usize = 32;

pub(super) type CallParts<'p> = SmallVec<[CallPart<'p>; 1]>;

impl<T: Transport> Connection<T> {
    /// Makes the parts of a call with these plans, which are sorted by their parts. `routes` are the routes of the
    /// plans, and `has_asks` says whether one of the plans asks for slots.
    pub(super) fn parts<'p>(
        &self,
        plans: &'p [&'p Plan],
        routes: &[Route],
        has_asks: bool,
        now: Timestamp,
    ) -> CallParts<'p> {
        if !T::CALLS.parted {
            let reports = self
                .holds
                .part(0)
                .and_then(|holds| holds.begin(plans, has_asks, MOST_REPORTS, Some(self.number()), now));
            let is_empty = plans.is_empty() && reports.is_none();
            return (!is_empty)
                .then_some(CallPart { index: 0, plans, route: Route::Owner, reports })
                .into_iter()
                .collect();
        }
        let is_used = has_asks || self.holds.is_used();
        let own = if is_used { self.transport.own_parts() } else { SmallVec::new() };
        let mut parts = CallParts::new();
        // The number of further reports for all parts together. A plan that asks for slots has its report in any case.
        let mut room = MOST_REPORTS;
        let (mut rest, mut routes) = (plans, routes.iter().copied());
        while let (Some(first), Some(route)) = (rest.first(), routes.next()) {
            let index = self.transport.part(first);
            let is_split = self.transport.is_split(index);
            let others = rest.iter().skip(1).zip(routes.clone());
            let together =
                |(plan, other): &(&&Plan, Route)| !is_split && *other == route && self.transport.part(plan) == index;
            let count = 1 + others.take_while(together).count();
            let (plans, others) = rest.split_at(count);
            rest = others;
            routes.by_ref().take(count - 1).for_each(drop);
            let is_own = route == Route::Owner && own.contains(&index);
            let most = if is_own && !is_split { room } else { 0 };
            let holds = self.holds.part(index).filter(|_| is_used);
            let connection = is_own.then(|| self.number());
            let reports = holds.and_then(|holds| holds.begin(plans, has_asks, most, connection, now));
            room = room.saturating_sub(reports.as_ref().map_or(0, |call| call.reports.len()));
            parts.push(CallPart { index, plans, route, reports });
        }
        if is_used {
            self.add_reports(&mut parts, &own, room, now);
        }
        parts
    }

    /// Adds at most `room` reports about the parts without a plan in the call.
    fn add_reports(&self, parts: &mut CallParts<'_>, own: &[usize], mut room: usize, now: Timestamp) {
        let mut separate = 0;
        for (index, holds) in own.iter().filter_map(|index| Some((*index, self.holds.part(*index)?))) {
            let is_split = self.transport.is_split(index);
            if !is_split && parts.iter().any(|part| part.index == index) {
                continue;
            }
            let most = if is_split { 1 } else { MOST_REPORTS };
            while let Some(reports) = holds.begin(&[], false, most.min(room), Some(self.number()), now) {
                room = room.saturating_sub(reports.reports.len());
                parts.push(CallPart { index, plans: &[], route: Route::Owner, reports: Some(reports) });
                separate += usize::from(is_split);
                if !is_split || separate >= MOST_SEPARATE {
                    break;
                }
            }
        }
    }

    /// Waits until reports must be sent although no request waits for a call.
    pub(super) async fn reports(&self) {
        self.holds.reports(|| self.transport.own_parts(), self.number(), &self.clock).await;
    }

    /// Returns whether a call without an answer asks for slots of the same bucket as this plan.
    pub(super) fn is_asked_already(&self, plan: &Plan) -> bool {
        self.holds.part(self.transport.part(plan)).is_some_and(|holds| holds.is_asked_already(plan))
    }

    /// Returns the number of the connection that was made last.
    fn number(&self) -> ConnectionNumber {
        *self.number.lock()
    }
}

#[cfg(test)]
mod tests;
