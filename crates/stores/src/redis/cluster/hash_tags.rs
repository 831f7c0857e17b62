//! Chooses the hash tags under which buckets are kept, and determines the tag of a bucket.
//!
//! Redis Cluster hashes the text between the first braces of a key to one of 16384 slots. All keys of a script call
//! must be in one slot. So a store uses only few tags, each for many buckets. Tags are numbers whose slots are spread
//! evenly over all slots.

use super::settings::Place;
use ledger::bucket_key::BucketKey;

pub(super) const SLOTS: u16 = 16_384;
/// The numbers from which tags are chosen: enough for a tag near each wanted slot.
const NUMBERS: u16 = 10_000;

/// The index of a hash tag in [`HashTags`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TagIndex(pub u16);

/// The hash tags under which a store keeps its buckets.
#[derive(Debug)]
pub(crate) struct HashTags {
    tags: Box<[HashTag]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HashTag {
    /// The part of a bucket's name in Redis before the colon and the key of the bucket, for example `tollgate:{7}`.
    pub prefix: String,
    pub slot: u16,
}

impl HashTags {
    pub(super) fn new(prefix: &str, place: Place) -> HashTags {
        let count = place.hash_tags();
        let slots: Vec<(u16, u16)> = (0..NUMBERS).map(|number| (number, slot(&number.to_string()))).collect();
        let tag = |index: u16| {
            // The wanted slot is the middle of the tag's part of all slots.
            let middle = (2 * u32::from(index) + 1) * u32::from(SLOTS) / (2 * u32::from(count));
            let nearest = slots.iter().min_by_key(|(_, slot)| u32::from(*slot).abs_diff(middle));
            let (number, slot) = nearest.copied().unwrap_or_default();
            HashTag { slot, prefix: format!("{prefix}:{{{number}}}") }
        };
        HashTags { tags: (0..count).map(tag).collect() }
    }

    pub(super) fn of(&self, key: &BucketKey) -> TagIndex {
        // The remainder is less than the number of tags, so it fits into a u16.
        TagIndex(u16::try_from(key.spread() as usize % self.tags.len().max(1)).unwrap_or_default())
    }

    pub(super) fn get(&self, index: TagIndex) -> Option<&HashTag> {
        self.tags.get(usize::from(index.0))
    }

    /// Returns the bucket that has this name in Redis.
    pub(super) fn bucket(&self, name: &[u8]) -> Option<BucketKey> {
        let rest = |tag: &HashTag| name.strip_prefix(tag.prefix.as_bytes())?.strip_prefix(b":");
        let key = self.tags.iter().find_map(rest)?.try_into().map(BucketKey).ok()?;
        // A bucket under another hash tag was stored with other settings, so it is left out.
        let own = self.get(self.of(&key)).and_then(rest);
        own.map(|_| key)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (TagIndex, &HashTag)> {
        (0..).map(TagIndex).zip(&self.tags)
    }
}

/// Returns the slot of a hash tag: CRC16 in the XMODEM variant, as Redis Cluster defines it.
fn slot(tag: &str) -> u16 {
    let crc = tag.bytes().fold(0_u16, |crc, byte| {
        let shift = |crc: u16, _| if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
        (0..8).fold(crc ^ (u16::from(byte) << 8), shift)
    });
    crc % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis() {
        // 0x31c3 is the published check value of this kind of CRC-16. The others are results of CLUSTER KEYSLOT.
        assert_eq!(slot("123456789"), 0x31c3 % SLOTS);
        assert_eq!((slot("0"), slot("7"), slot("foo")), (13_907, 1_716, 12_182));
    }

    #[test]
    fn tags_are_distributed_evenly_over_masters() {
        for (count, masters) in [(16, 3), (16, 5), (64, 3), (1024, 7)] {
            let tags = HashTags::new("t", Place::Spread { hash_tags: count });
            let mut shares = vec![0_u32; masters];
            for (_, tag) in tags.iter() {
                shares[usize::from(tag.slot) * masters / usize::from(SLOTS)] += 1;
            }
            let (least, most) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
            assert!(most - least <= 1, "{count} over {masters}: {shares:?}");
        }
    }

    #[test]
    fn a_bucket_stays_under_its_tag() {
        let tags = HashTags::new("tollgate", Place::DEFAULT);
        assert_eq!(tags.tags.len(), 16);
        assert_eq!(tags.of(&BucketKey([0; 16])), TagIndex(0));
        assert_eq!(tags.of(&BucketKey([0xff; 16])), TagIndex(15));
        assert!(tags.iter().all(|(_, tag)| tag.prefix.starts_with("tollgate:{") && tag.prefix.ends_with('}')));
        let key = BucketKey([0xff; 16]);
        let name = |tag: &str| [tag.as_bytes(), b":", &key.0].concat();
        let [own, other] = [15, 0].map(|tag| tags.get(TagIndex(tag)).unwrap().prefix.clone());
        assert_eq!(tags.bucket(&name(&own)), Some(key));
        for wrong in [name(&other), name("tollgate"), name(&own)[..20].to_vec(), [&name(&own)[..], b"x"].concat()] {
            assert_eq!(tags.bucket(&wrong), None);
        }
        let together = HashTags::new("tollgate", Place::Together);
        assert_eq!((together.tags.len(), together.of(&BucketKey([0xff; 16]))), (1, TagIndex(0)));
    }
}
