//! Delivers a call to the store, and its answer to the owner.

use super::{SentAnswer, SentCall, Variant, World, key, micros};
use crate::algorithm::ChargeResult;
use crate::bucket_key::BucketKey;
use crate::cost::Cost;
use crate::holds::{ReportAnswer, SettledSums, SlotTerms};

impl World {
    pub(super) fn send(&mut self, owner: usize, asks: &[(BucketKey, SlotTerms)]) {
        let now = micros(self.shared.time);
        let client = &mut self.shared.clients[owner];
        let unanswered = [0, 1].map(|bucket| match self.variant {
            Variant::AsksNotSaid => client.holdings.unanswered(&key(bucket)),
            _ => Cost::default(),
        });
        let ended = std::mem::take(&mut client.ended);
        let call = client.holdings.call(asks, now);
        let said_before = client.settled.map(|settled| settled.said);
        client.settled.iter_mut().for_each(|settled| settled.said = settled.sum);
        let base = client.settled.map(|settled| settled.base);
        self.shared.calls.push(SentCall { owner, call, unanswered, ended, said_before, base });
        self.shared.calls.sort_by_key(|sent| (sent.owner, sent.call.sequence));
    }

    /// Delivers a call to the store, which accepts its reports and then charges its plan.
    ///
    /// # Errors
    ///
    /// Says what the call has done that the protocol forbids.
    pub(super) fn arrive(&mut self, sent: &SentCall) -> Result<(), String> {
        let SentCall { owner, call, .. } = sent;
        let limit = self.limits[*owner];
        let skew = if self.variant == Variant::ClientClock { 8 * *owner as u64 } else { 0 };
        let now = micros(self.shared.clock + skew);
        if matches!(self.variant, Variant::SequenceIgnored | Variant::PlusMinus) {
            self.shared.arrivals += 1;
        }
        let before = self.shared.stored.clone();
        let mut accepted = Vec::new();
        for about in &call.reports {
            let bucket = usize::from(about.bucket.0[0]);
            let mut report = call.report(about);
            match self.variant {
                Variant::SequenceIgnored => report.sequence = self.shared.arrivals,
                Variant::PlusMinus => {
                    report.sequence = self.shared.arrivals;
                    report.held = self.counted(*owner, bucket).less(Cost::from_tokens(sent.ended[bucket]));
                }
                Variant::AsksNotSaid => report.held = report.held.less(sent.unanswered[bucket]),
                Variant::SumsAddedAgain => {
                    let added = self.shared.clients[*owner].settled[bucket].added;
                    let unknown = report.settled.to.less(report.settled.from).whole();
                    report.settled = SettledSums {
                        from: Cost::default(),
                        to: Cost::from_tokens(added + unknown),
                        ..SettledSums::default()
                    };
                }
                Variant::FromIgnored => report.settled.from = Cost::default(),
                Variant::SettledLater => report.settled.to = Cost::from_tokens(sent.said_before[bucket]),
                Variant::SumForgotten => {
                    report.settled.to = report.settled.to.less(report.settled.from);
                    report.settled.from = Cost::default();
                }
                _ => {}
            }
            let holders = self.holders(bucket);
            let entry = limit.accept(self.shared.stored[bucket].as_deref(), report, now);
            accepted.push(entry.is_some());
            let heard = self.shared.clients[*owner].heard[bucket];
            if let Some(entry) = entry {
                self.shared.stored[bucket] = Some(entry.state);
                let client = &mut self.shared.clients[*owner].heard[bucket];
                client.unsaid = heard.unsaid.filter(|unsaid| call.sequence <= *unsaid);
                client.newest = heard.newest.max(call.sequence);
                client.at = self.shared.time;
                let settled = &mut self.shared.clients[*owner].settled[bucket];
                settled.accepted = settled.accepted.max(sent.base[bucket] + about.settled.to.whole());
                settled.added = report.settled.to.whole();
            }
            if call.sequence < heard.answered && self.holders(bucket) != holders {
                return Err(format!("a late call changes what is held of {bucket}"));
            }
        }
        let (reports, asked) =
            (self.shared.stored.clone(), || call.reports.iter().filter(|about| about.asked > Cost::default()));
        let mut is_granted =
            call.reports.iter().zip(&accepted).all(|(about, accepted)| *accepted || about.asked == Cost::default());
        is_granted &= asked().next().is_some();
        for about in asked() {
            let bucket = usize::from(about.bucket.0[0]);
            let state = &mut self.shared.stored[bucket];
            match limit.charge(state.as_deref(), about.asked, now) {
                ChargeResult::Fits { entry, .. } if is_granted => *state = Some(entry.state),
                _ => is_granted = false,
            }
        }
        let is_refused = asked().next().is_some() && !is_granted;
        if is_refused {
            self.shared.stored = if self.variant == Variant::RefusedPlanWritesNothing { before } else { reports };
        }
        self.shared.answers.push(SentAnswer {
            owner: *owner,
            call: call.clone(),
            accepted,
            base: sent.base,
            is_granted,
            is_lost: false,
        });
        self.shared.answers.sort_by_key(|sent| (sent.owner, sent.call.sequence));
        if is_granted {
            let asked: Vec<usize> = asked().map(|about| usize::from(about.bucket.0[0])).collect();
            return asked.into_iter().try_for_each(|bucket| self.check_admission(*owner, bucket));
        }
        Ok(())
    }

    pub(super) fn answer(&mut self, sent: &SentAnswer) {
        let SentAnswer { owner, call, accepted, base, is_granted, is_lost } = sent;
        let (now, terms) = (micros(self.shared.time), self.limits[*owner].terms());
        let client = &mut self.shared.clients[*owner];
        if !client.is_alive {
            return;
        }
        let (mut slots, mut mask, mut fails) = (Vec::new(), 0, !is_granted);
        for (about, accepted) in call.reports.iter().zip(accepted) {
            let bucket = usize::from(about.bucket.0[0]);
            let is_asked = about.asked > Cost::default();
            let granted: &[SlotTerms] = if *is_granted && is_asked { &[terms] } else { &[] };
            let answer = if *accepted { ReportAnswer::Accepted { granted } } else { ReportAnswer::Old };
            match client.holdings.answered(call, about, answer, now) {
                Some(taken) => slots.extend(taken),
                None if self.variant == Variant::LateAnswerCounts && !granted.is_empty() => {
                    slots.push(client.holdings.hold(about.bucket, terms, now));
                }
                None => fails |= is_asked,
            }
            if is_asked {
                mask |= 1 << bucket;
            }
            if *accepted {
                let settled = &mut client.settled[bucket];
                settled.known = settled.known.max(base[bucket] + about.settled.to.whole());
            }
            if *accepted && !is_lost {
                let heard = &mut client.heard[bucket];
                heard.answered = heard.answered.max(call.sequence);
            }
        }
        if fails {
            slots.into_iter().for_each(|slot| client.holdings.end(slot));
        } else {
            client.requests.push((mask, slots));
            client.requests.sort();
        }
        if self.forgets {
            client.holdings.forget_all_sums();
        }
        for (bucket, settled) in client.settled.iter_mut().enumerate() {
            if client.holdings.said(&key(bucket)).is_none() {
                settled.base = settled.sum;
            }
        }
    }
}
