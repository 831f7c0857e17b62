//! Splits the requests of a route over several upstreams by weight. The split is random, or a client always gets the
//! same upstream.
//!
//! Clients are assigned by weighted rendezvous hashing. Every upstream gets a score from its name and the client's
//! value, and the upstream with the best score is chosen. After a change of weights, clients move only from or to
//! upstreams whose weights have changed.

use std::borrow::Cow;

use sha2::{Digest, Sha256};

use super::UpstreamId;
use crate::partial_evaluation::Observation;
use crate::rule::LimitKey;
use request::attribute::Attribute;

/// The upstreams over which a route splits its requests, with their weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// The upstreams with their weights, at least one, in the order of the file.
    shares: Vec<Share>,
    /// The attributes that choose the upstream. The first with a value is used. `None`: requests are split at random.
    by: Option<LimitKey>,
}

/// One upstream of a split, with its weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    pub upstream: UpstreamId,
    pub name: String,
    /// The weight, above 0.
    pub weight: u32,
}

/// The upstream of a request whose attributes are only partly known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartialShare {
    Chosen(UpstreamId),
    /// The request is split at random, or by a value that is not known.
    Unknown,
}

impl Split {
    /// Makes a split of `shares`, of which there must be at least one. `by` names the attributes that choose the
    /// upstream. The first with a value is used. `None`: requests are split at random.
    pub fn new(shares: Vec<Share>, by: Option<LimitKey>) -> Split {
        Split { shares, by }
    }

    pub fn shares(&self) -> &[Share] {
        &self.shares
    }

    pub fn by(&self) -> Option<&LimitKey> {
        self.by.as_ref()
    }

    /// Returns the sum of the weights.
    pub fn total(&self) -> u64 {
        self.shares.iter().map(|share| u64::from(share.weight)).sum()
    }

    /// Chooses the upstream for a request. `value` resolves an attribute of the request. `draw` returns a random number
    /// below its argument.
    pub fn choose<'v>(
        &self,
        value: impl Fn(&Attribute) -> Option<Cow<'v, [u8]>>,
        draw: impl FnOnce(u64) -> u64,
    ) -> UpstreamId {
        let Some(by) = &self.by else { return self.at(draw(self.total())) };
        match by.alternatives.iter().find_map(value) {
            Some(value) => self.of(&value),
            None => self.largest(),
        }
    }

    /// Chooses the upstream for a request whose attributes are only partly known. `observe` returns what is known about
    /// an attribute.
    pub(crate) fn choose_partially<'s, 'v>(
        &'s self,
        observe: &mut impl FnMut(&'s Attribute) -> Observation<'v>,
    ) -> PartialShare {
        let Some(by) = &self.by else { return PartialShare::Unknown };
        for part in &by.alternatives {
            match observe(part) {
                Observation::Value(value) => return PartialShare::Chosen(self.of(&value)),
                // A list counts as missing, as in a limit key.
                Observation::Missing | Observation::List(_) => {}
                Observation::Named(_) | Observation::Unknown => return PartialShare::Unknown,
            }
        }
        PartialShare::Chosen(self.largest())
    }

    /// Returns the upstream whose part of the total weight contains `number`.
    fn at(&self, number: u64) -> UpstreamId {
        let mut left = number;
        for share in &self.shares {
            match left.checked_sub(u64::from(share.weight)) {
                Some(rest) => left = rest,
                None => return share.upstream,
            }
        }
        self.largest()
    }

    /// Returns the upstream for a client's value.
    fn of(&self, value: &[u8]) -> UpstreamId {
        let best = self.shares.iter().min_by(|one, other| one.distance(value).total_cmp(&other.distance(value)));
        best.map_or(UpstreamId(0), |share| share.upstream)
    }

    /// Returns the upstream with the largest weight, or the first of several. This upstream gets the clients that
    /// cannot be distinguished.
    fn largest(&self) -> UpstreamId {
        let largest = self.shares.iter().rev().max_by_key(|share| share.weight);
        largest.map_or(UpstreamId(0), |share| share.upstream)
    }
}

impl Share {
    /// Returns the number of this share for a value: the share with the smallest number is chosen. The numbers have an
    /// exponential distribution with the weight as its rate. So a share with twice the weight is chosen for twice as
    /// many values.
    fn distance(&self, value: &[u8]) -> f64 {
        let mut hash = Sha256::new();
        hash.update(self.name.len().to_be_bytes());
        hash.update(&self.name);
        hash.update(value);
        let [a, b, c, d, e, f, g, ..]: [u8; 32] = hash.finalize().into();
        // These are 53 bits, which a double represents exactly. The result is never 0 or 1.
        let bits = u64::from_be_bytes([0, a, b, c, d, e, f, g]) >> 3;
        #[expect(clippy::cast_precision_loss, reason = "it has 53 bits")]
        let uniform = (bits as f64 + 0.5) / (1_u64 << 53) as f64;
        -uniform.ln() / f64::from(self.weight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENTS: u32 = 20_000;

    fn split(weights: &[(&str, u32)], by: Option<&str>) -> Split {
        let shares = (0..).zip(weights);
        let shares = shares.map(|(id, (name, weight))| Share {
            upstream: UpstreamId(id),
            name: (*name).to_owned(),
            weight: *weight,
        });
        let key = by.map(|text| LimitKey {
            text: text.to_owned(),
            alternatives: text.split('|').map(|text| Attribute::parse(&format!("lower({text})")).unwrap()).collect(),
        });
        Split::new(shares.collect(), key)
    }

    /// Returns the name of the upstream of each client.
    fn assigned(weights: &[(&'static str, u32)]) -> Vec<&'static str> {
        let split = split(weights, Some("jwt:sub"));
        let name = |UpstreamId(id): UpstreamId| weights[id as usize].0;
        (0..CLIENTS).map(|client| name(split.of(format!("client-{client}").as_bytes()))).collect()
    }

    /// Returns this number of clients as a fraction of all clients.
    fn part(clients: usize) -> f64 {
        f64::from(u32::try_from(clients).unwrap()) / f64::from(CLIENTS)
    }

    fn share(assigned: &[&str], name: &str) -> f64 {
        part(assigned.iter().filter(|one| **one == name).count())
    }

    fn moved(before: &[&str], after: &[&str]) -> f64 {
        part(before.iter().zip(after).filter(|(before, after)| before != after).count())
    }

    #[test]
    fn clients_are_shared_by_weight_and_a_change_moves_only_the_difference() {
        let before = assigned(&[("api", 95), ("canary", 5)]);
        assert!((share(&before, "canary") - 0.05).abs() < 0.006);
        let after = assigned(&[("api", 90), ("canary", 10)]);
        assert!((share(&after, "canary") - 0.10).abs() < 0.008);
        // All clients that move go to the canary, and no client leaves it.
        assert!(before.iter().zip(&after).all(|(before, after)| before == after || *after == "canary"));
        assert!((moved(&before, &after) - 0.05).abs() < 0.006);
        // The order in the file has no effect.
        assert_eq!(assigned(&[("canary", 5), ("api", 95)]), before);
    }

    #[test]
    fn a_third_upstream_takes_its_share_from_the_others_and_moves_nobody_else() {
        let before = assigned(&[("api", 95), ("canary", 5)]);
        let after = assigned(&[("api", 95), ("canary", 5), ("next", 5)]);
        assert!(before.iter().zip(&after).all(|(before, after)| before == after || *after == "next"));
        assert!((share(&after, "next") - 5.0 / 105.0).abs() < 0.006);
    }

    #[test]
    fn at_random_every_upstream_has_its_part_of_the_numbers() {
        let split = split(&[("a", 2), ("b", 1), ("c", 3)], None);
        let chosen: Vec<u32> = (0..6)
            .map(|number| {
                split
                    .choose(
                        |_| None,
                        |total| {
                            assert_eq!(total, 6);
                            number
                        },
                    )
                    .0
            })
            .collect();
        assert_eq!(chosen, [0, 0, 1, 2, 2, 2]);
    }

    #[test]
    fn a_request_without_the_attribute_goes_to_the_largest() {
        let split = split(&[("canary", 5), ("api", 95)], Some("jwt:sub|query:user"));
        let choose = |user: Option<&'static str>| {
            let value = |attribute: &Attribute| match attribute.source() {
                Attribute::Query(_) => attribute.folding().of_value(Cow::Borrowed(user?.as_bytes())),
                _ => None,
            };
            split.choose(value, |_| panic!("it is not drawn")).0
        };
        assert_eq!(choose(None), 1);
        let canary = (0..200).map(|user| format!("user-{user}")).find(|user| split.of(user.as_bytes()).0 == 0).unwrap();
        let upper: &'static str = canary.to_uppercase().leak();
        assert_eq!(choose(Some(upper)), 0);
        let observed = |user: Observation<'static>| {
            let mut observe = |attribute: &Attribute| match attribute.source() {
                Attribute::Query(_) => user.clone().folded(attribute.folding()),
                _ => Observation::Missing,
            };
            split.choose_partially(&mut observe)
        };
        assert_eq!(observed(Observation::Missing), PartialShare::Chosen(UpstreamId(1)));
        assert_eq!(observed(Observation::Unknown), PartialShare::Unknown);
        assert_eq!(observed(Observation::Value(canary.into_bytes().into())), PartialShare::Chosen(UpstreamId(0)));
    }
}
