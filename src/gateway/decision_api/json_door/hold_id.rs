//! Makes the id of a hold, which names its buckets, and reads it. Nobody but the gateways with the same `hash_key` can do either.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::gateway::telemetry::records::{HeldAttribute, HeldSubject};
use base::seal::SealKey;
use ledger::bucket_key::{BucketKey, LimitTag};
use ledger::charge::{Charge, Plan, Settlement};
use ledger::cost::Cost;
use ledger::holds::{Owner, SlotTerms};
use stores::granted_asks;

/// The form of an id. It comes first. Ids of an earlier version have the index of the subject's attribute, which depends on the
/// configuration.
const FORM: u8 = 2;
const FORM_WITH_INDEX: u8 = 1;

/// What a service holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HeldTake {
    pub owner: Owner,
    /// Who is charged in records.
    pub subject: HeldSubject,
    pub buckets: Vec<HeldBucket>,
}

/// What a service holds of one bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeldBucket {
    pub key: BucketKey,
    /// The tag of the limit's own settings.
    pub tag: LimitTag,
    /// The settings that apply: 0 for the limit's own, or the position of an override, from 1.
    pub variant: u32,
    pub reserved: Cost,
}

impl HeldTake {
    /// Returns what a granted plan holds. `tag` returns the tag of a charge's limit.
    pub(super) fn of(
        owner: Owner,
        subject: HeldSubject,
        (plan, settlement): (&Plan, &Settlement),
        tag: impl Fn(&Charge) -> Option<LimitTag>,
    ) -> HeldTake {
        let bucket = |(charge, terms): (&Charge, SlotTerms)| {
            let (key, variant, reserved) = (charge.key, charge.variant, terms.amount);
            Some(HeldBucket { key, tag: tag(charge)?, variant, reserved })
        };
        HeldTake { owner, subject, buckets: granted_asks(plan, settlement).filter_map(bucket).collect() }
    }

    /// Returns the id. `None` if the system has no random numbers.
    pub(super) fn id(&self, key: &SealKey) -> Option<String> {
        let HeldTake { owner, subject: HeldSubject { attribute, value }, buckets } = self;
        let (form, attribute): (u8, &[u8]) = match attribute {
            HeldAttribute::Hash(hash) => (FORM, hash),
            HeldAttribute::Index(index) => (FORM_WITH_INDEX, std::slice::from_ref(index)),
        };
        let mut text = vec![form];
        text.extend(owner.0.to_le_bytes());
        text.extend(attribute);
        text.extend(u16::try_from(value.len()).ok()?.to_le_bytes());
        text.extend(value);
        for HeldBucket { key, tag, variant, reserved } in buckets {
            text.extend(key.0);
            text.extend(tag.0.to_le_bytes());
            text.extend(variant.to_le_bytes());
            text.extend(reserved.thousandths().to_le_bytes());
        }
        key.seal(&text).map(|sealed| URL_SAFE_NO_PAD.encode(sealed))
    }

    /// Reads an id. `None` for any other text.
    pub(super) fn of_id(id: &str, key: &SealKey) -> Option<HeldTake> {
        let text = key.open(&URL_SAFE_NO_PAD.decode(id).ok()?)?;
        let (form, rest) = text.split_first()?;
        let (owner, rest) = rest.split_first_chunk()?;
        let (attribute, rest) = match *form {
            FORM => rest.split_first_chunk().map(|(hash, rest)| (HeldAttribute::Hash(*hash), rest))?,
            FORM_WITH_INDEX => rest.split_first().map(|(index, rest)| (HeldAttribute::Index(*index), rest))?,
            _ => return None,
        };
        let (length, rest) = rest.split_first_chunk()?;
        let (value, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
        let (buckets, []) = rest.as_chunks::<32>() else { return None };
        let bucket = |packed: &[u8; 32]| {
            let (key, rest) = packed.split_first_chunk()?;
            let (tag, rest) = rest.split_first_chunk()?;
            let (variant, rest) = rest.split_first_chunk()?;
            Some(HeldBucket {
                key: BucketKey(*key),
                tag: LimitTag(u32::from_le_bytes(*tag)),
                variant: u32::from_le_bytes(*variant),
                reserved: Cost::from_thousandths(u64::from_le_bytes(rest.try_into().ok()?)),
            })
        };
        Some(HeldTake {
            owner: Owner(u64::from_le_bytes(*owner)),
            subject: HeldSubject { attribute, value: value.to_vec() },
            buckets: buckets.iter().map(bucket).collect::<Option<_>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::pseudonym::PseudonymKey;

    #[test]
    fn an_id_is_read_back_and_others_are_none() {
        let key = PseudonymKey::secret(b"0123456789abcdef").seal_key("ids of holds").unwrap();
        let bucket = |number: u8| HeldBucket {
            key: BucketKey([number; 16]),
            tag: LimitTag(u32::from(number) << 20),
            variant: 3,
            reserved: Cost::from_tokens(number.into()),
        };
        for buckets in [vec![], vec![bucket(1)], vec![bucket(1), bucket(200)]] {
            for (attribute, value) in [
                (HeldAttribute::Hash([9, 8, 7, 6]), b"acme".to_vec()),
                (HeldAttribute::default(), Vec::new()),
                (HeldAttribute::Index(2), b"acme".to_vec()),
            ] {
                let subject = HeldSubject { attribute, value };
                let held = HeldTake { owner: Owner::of_timed_hold(7 << 30), subject, buckets: buckets.clone() };
                let id = held.id(&key).unwrap();
                assert_eq!(HeldTake::of_id(&id, &key), Some(held.clone()));
                assert!(!id.contains("acme") && id != held.id(&key).unwrap());
            }
        }
        for id in ["", "x", "AAAA", &"A".repeat(200), "é"] {
            assert_eq!(HeldTake::of_id(id, &key), None, "{id}");
        }
    }
}
