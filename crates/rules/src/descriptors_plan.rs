//! Plans a call that asks about several descriptors. Their costs are charged together or not at all.

use std::ops::Range;

use smallvec::SmallVec;

use super::claimed_numbers::ClaimResults;
use super::denier::{DenierId, DenierIds};
use super::rule_set::{Answer, RuleSet, Ruling};
use base::time::Timestamp;
use ledger::charge::{Charge, Plan};
use ledger::cost::Cost;
use request::request::Request;

/// How many times a descriptor of a call pays the cost of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hits {
    /// The descriptor pays the cost of one request, this many times.
    Charge(u64),
    /// The descriptor pays nothing, but its buckets must be able to pay the cost of one request.
    Check,
    /// The descriptor pays nothing, and its buckets are not checked.
    Ignore,
}

/// The decision of the rules about a call with several descriptors: about the whole call, and about each descriptor.
#[derive(Clone, Debug)]
pub struct CallRuling {
    /// The decision about all descriptors together.
    pub ruling: Ruling,
    /// The decision about each descriptor, in the order of the call.
    pub parts: Vec<DescriptorPart>,
}

/// What the rules decide about one descriptor of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescriptorPart {
    /// The indexes of the descriptor's charges among the enforced charges of the call.
    pub charges: Range<usize>,
    /// What the descriptor itself spends by each of these charges. A charge has the sum of all that the call spends of its bucket.
    /// `None` for a charge that only checks.
    pub costs: SmallVec<[Option<Cost>; 1]>,
    /// The rule or policy that denies the descriptor, and so the whole call. `None` if the descriptor is not denied.
    pub denied_by: Option<DenierId>,
    /// Whether the rules say that nothing limits the descriptor.
    pub is_unlimited: bool,
}

impl RuleSet {
    /// Plans the charges of a call that asks about these descriptors. Each descriptor counts as a separate request.
    /// `at` is the time for calendars and for rules that expire.
    pub fn plan_call<'r>(
        &self,
        descriptors: impl IntoIterator<Item = (Request<'r>, Hits)>,
        at: Timestamp,
    ) -> CallRuling {
        let mut plan = Plan::default();
        let (mut parts, mut exempt) = (Vec::new(), 0);
        let (mut unmatched, mut shadow_denials, mut claims) = (SmallVec::new(), DenierIds::new(), ClaimResults::new());
        let mut not_at_door = SmallVec::new();
        for (request, hits) in descriptors {
            let begin = plan.enforced.len();
            let (mut denied_by, mut is_unlimited, mut costs) = (None, false, SmallVec::new());
            if hits != Hits::Ignore {
                let ruling: Ruling = self.plan(&request, at);
                is_unlimited = ruling.is_unlimited;
                unmatched.extend(ruling.unmatched);
                shadow_denials.extend(ruling.shadow_denials);
                claims.extend(ruling.claims);
                not_at_door.extend(ruling.not_at_door);
                match (ruling.answer, hits) {
                    (Answer::Denied(by), _) => denied_by = Some(by),
                    (Answer::Exempt, _) => exempt += 1,
                    (Answer::Charge(own) | Answer::TooLarge(own), Hits::Charge(hits)) => {
                        let cost = |(index, charge): (usize, &Charge)| {
                            (!own.is_only_checked(index)).then(|| charge.cost.times(hits))
                        };
                        costs = own.enforced.iter().enumerate().map(cost).collect();
                        plan.join(own, hits);
                    }
                    (Answer::Charge(own) | Answer::TooLarge(own), Hits::Check) => {
                        costs = own.enforced.iter().map(|_| None).collect();
                        plan.join_check(own);
                    }
                    (Answer::Charge(_) | Answer::TooLarge(_), Hits::Ignore) => {}
                }
            }
            let charges = begin..plan.enforced.len();
            is_unlimited &= charges.is_empty() && denied_by.is_none();
            parts.push(DescriptorPart { charges, costs, denied_by, is_unlimited });
        }
        let is_unlimited = !parts.is_empty() && parts.iter().all(|part| part.is_unlimited);
        let answer = match parts.iter().find_map(|part| part.denied_by) {
            Some(by) => {
                shadow_denials.clear();
                Answer::Denied(by)
            }
            None if exempt > 0 && exempt == parts.len() => Answer::Exempt,
            None => Answer::for_plan(plan),
        };
        CallRuling { ruling: Ruling { answer, is_unlimited, unmatched, shadow_denials, claims, not_at_door }, parts }
    }
}

#[cfg(test)]
mod tests {
    use super::super::rule::{
        Action, BanStatus, Condition, Expose, Limit, Mode, OnStoreFailure, Otherwise, Policy, Price, RefusalStatus,
        Rule, RuleSource,
    };
    use super::*;
    use base::position::Position;
    use request::attribute::Attribute;
    use request::client_address::ClientAddress;
    use request::door::Door;
    use request::matcher::{Expectation, Text};
    use request::sent_descriptor::SentDescriptor;

    /// A rule for descriptors whose entry `a` has this value.
    fn rule(value: &str, action: Action) -> Rule {
        let attribute = Attribute::Descriptor("a".to_owned());
        let expectation = Expectation::AnyOf(vec![Text::exact(value)]);
        Rule {
            name: value.to_owned(),
            conditions: vec![Condition { attribute, expectation }],
            keys: Vec::new(),
            mode: Mode::Enforce,
            action,
            until: None,
            position: Position::default(),
        }
    }

    fn limit() -> Action {
        Action::Charge(vec![Limit {
            name: String::new(),
            meter: None,
            algorithm: Charge::of_token_bucket(0, 10, 1).algorithm,
            claimed: None,
            price: Price::Fixed(Cost::from_tokens(2)),
            overrides: Vec::new(),
            candidate: None,
            candidate_claimed: None,
            expose: Expose::Yes,
            refusal: RefusalStatus::QuotaExceeded,
            ban_status: BanStatus::default(),
            on_store_failure: OnStoreFailure::Local,
        }])
    }

    fn plan(descriptors: &[(&str, Hits)]) -> CallRuling {
        let rules =
            vec![rule("one", limit()), rule("two", limit()), rule("no", Action::Deny), rule("all", Action::Allow)];
        let policy = Policy {
            name: "p".to_owned(),
            conditions: Vec::new(),
            mode: Mode::Enforce,
            otherwise: Otherwise::Allow,
            rules,
            position: Position::default(),
        };
        let free = vec![Condition {
            attribute: Attribute::Descriptor("a".to_owned()),
            expectation: Expectation::AnyOf(vec![Text::exact("free")]),
        }];
        let rules = RuleSet::compile(RuleSource { policies: vec![policy], exempt: vec![free] });
        let (head, ()) = http::Request::new(()).into_parts();
        let nobody = ClientAddress::new([0, 0, 0, 0].into(), 64);
        let sent: Vec<_> = descriptors.iter().map(|(value, _)| SentDescriptor::new("", vec![("a", *value)])).collect();
        let request = |sent| Request::new(&head, nobody).with_door(Door::Rls).with_descriptor(Some(sent));
        rules.plan_call(sent.iter().map(request).zip(descriptors.iter().map(|(_, hits)| *hits)), Timestamp(1))
    }

    fn costs(call: &CallRuling) -> Vec<u64> {
        let Answer::Charge(plan) = &call.ruling.answer else { panic!("{call:?}") };
        plan.enforced.iter().map(|charge| charge.cost.whole()).collect()
    }

    #[test]
    fn every_descriptor_has_its_part_of_one_plan() {
        let call = plan(&[("one", Hits::Charge(1)), ("unknown", Hits::Charge(1)), ("two", Hits::Charge(3))]);
        assert_eq!(costs(&call), [2, 6]);
        let parts: Vec<_> = call.parts.iter().map(|part| part.charges.clone()).collect();
        assert_eq!(parts, [0..1, 1..1, 1..2]);
        assert_eq!(call.ruling.unmatched.len(), 1);
        // Two charges to one bucket become one charge of their sum. The cost of a check is not added to the sum.
        let call = plan(&[("one", Hits::Charge(1)), ("one", Hits::Check), ("one", Hits::Charge(2))]);
        assert_eq!(costs(&call), [6, 2, 6]);
        let Answer::Charge(sum) = &call.ruling.answer else { panic!() };
        assert_eq!([0, 1, 2].map(|index| sum.is_only_checked(index)), [true, true, false]);
        assert!(matches!(
            plan(&[("one", Hits::Charge(3)), ("one", Hits::Charge(3))]).ruling.answer,
            Answer::TooLarge(_)
        ));
        assert!(matches!(plan(&[("one", Hits::Charge(u64::MAX))]).ruling.answer, Answer::TooLarge(_)));
        assert_eq!(costs(&plan(&[("one", Hits::Ignore), ("two", Hits::Charge(1))])), [2]);
    }

    #[test]
    fn a_denied_descriptor_denies_the_call_and_an_exempt_one_pays_nothing() {
        let call = plan(&[("one", Hits::Charge(1)), ("no", Hits::Charge(1))]);
        assert!(matches!(call.ruling.answer, Answer::Denied(_)));
        assert_eq!((call.parts[0].denied_by, call.parts[1].denied_by.is_some()), (None, true));
        assert_eq!(costs(&plan(&[("free", Hits::Charge(1)), ("one", Hits::Charge(1))])), [2]);
        assert!(matches!(plan(&[("free", Hits::Charge(1))]).ruling.answer, Answer::Exempt));
        assert!(matches!(plan(&[]).ruling.answer, Answer::Charge(plan) if plan.is_empty()));
    }

    #[test]
    fn what_a_rule_allows_is_unlimited_and_what_none_knows_is_not() {
        let all =
            [("all", Hits::Charge(1)), ("free", Hits::Charge(1)), ("unknown", Hits::Charge(1)), ("one", Hits::Check)];
        let unlimited = |call: CallRuling| call.parts.iter().map(|part| part.is_unlimited).collect::<Vec<_>>();
        assert_eq!(unlimited(plan(&all)), [true, true, false, false]);
        assert_eq!(unlimited(plan(&[("all", Hits::Ignore), ("no", Hits::Charge(1))])), [false, false]);
    }
}
