//! Derives bucket keys: encodes a bucket's identity without collisions, and hashes the encoding to sixteen bytes.
//!
//! Every part is preceded by its length, so different descriptors never have equal encodings. The encoding begins with
//! a format version.

use std::fmt;

use sha2::{Digest, Sha256};
use smallvec::SmallVec;

use crate::algorithm::AlgorithmKind;
use crate::algorithm::lease::Purse;
use crate::truncated_hash::first_bytes;
use request::attribute::Attribute;

/// The version of the format of stored buckets, part of every bucket key. It changes when the encoding of a key or the
/// meaning of a state changes.
pub const FORMAT: &[u8] = b"tollgate/1";

/// The version of the format of buckets of which requests hold something. Old gateways do not know this version, and
/// never read such buckets.
pub const FORMAT_OF_HOLDS: &[u8] = b"tollgate/2";

/// The version of the format of buckets with bans.
pub const FORMAT_OF_BANS: &[u8] = b"tollgate/3";

/// The version of the format of buckets that have bans and of which requests hold something.
pub const FORMAT_OF_HOLDS_AND_BANS: &[u8] = b"tollgate/4";

/// The version of the format of buckets that count resets. Requests hold something of each of them.
pub const FORMAT_OF_RESETS: &[u8] = b"tollgate/5";

/// The version of the format of buckets with bans that count resets.
pub const FORMAT_OF_RESETS_AND_BANS: &[u8] = b"tollgate/6";

/// The version of the format of the purses of regions.
pub const FORMAT_OF_PURSES: &[u8] = b"tollgate/7";

/// The version of the format of the homes of limits that hold over several regions.
pub const FORMAT_OF_HOMES: &[u8] = b"tollgate/8";

/// The version of the format of the names of subjects, which are stored as buckets are.
pub const FORMAT_OF_SUBJECTS: &[u8] = b"tollgate/9";

/// The version of the format of what regions tell home of their stores.
pub const FORMAT_OF_REGIONS: &[u8] = b"tollgate/11";

/// The version of the format of the index of a region's purses.
pub const FORMAT_OF_PURSE_INDEX: &[u8] = b"tollgate/10";

/// A bucket's key in a store: the first 16 bytes of a SHA-256 hash. The key of a bucket with bans ends with four bytes that
/// all buckets of the limit share, so that the bans of a limit can be listed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BucketKey(pub [u8; 16]);

impl BucketKey {
    /// Parses a key from thirty-two hexadecimal digits, the form in which keys are displayed. `None` for any other text.
    pub fn parse(text: &str) -> Option<BucketKey> {
        let mut key = [0; 16];
        if text.len() != 32 || !text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            return None;
        }
        for (byte, digits) in key.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            *byte = request::percent_encoding::hex_pair(digits)?;
        }
        Some(BucketKey(key))
    }

    /// Returns the key under which a store keeps a part of the names of a meter's subjects. No bucket has this key.
    pub fn of_subjects(meter: &str, part: u8) -> BucketKey {
        let mut hash = Sha256::new_with_prefix(FORMAT_OF_SUBJECTS);
        hash.update(length(meter.len()));
        hash.update(meter);
        hash.update([part]);
        BucketKey(first_bytes(hash))
    }

    /// Returns the key under which a store keeps what identifies it among the stores of regions. No bucket has this key.
    pub fn of_store_identity() -> BucketKey {
        BucketKey::of_region_text(b"store")
    }

    /// Returns the key under which home keeps the stores of a region. No bucket has this key.
    pub fn of_region(name: &str) -> BucketKey {
        BucketKey::of_region_text(&[b"region ", name.as_bytes()].concat())
    }

    fn of_region_text(text: &[u8]) -> BucketKey {
        BucketKey(first_bytes(Sha256::new_with_prefix(FORMAT_OF_REGIONS).chain_update(text)))
    }

    /// Returns the key under which the store of a region keeps a part of the index of its purses. No bucket has this key.
    pub fn of_purse_index(part: u8) -> BucketKey {
        BucketKey(first_bytes(Sha256::new_with_prefix(FORMAT_OF_PURSE_INDEX).chain_update([part])))
    }

    /// Returns the key of the purse of a limit whose home has this key, and the key of the home of a limit whose purse has this key.
    /// Purses with other numbers have other keys, so that no request is paid from what was leased for a larger limit.
    #[must_use]
    pub fn across(&self, purse: &Purse) -> BucketKey {
        let mut key = *self;
        key.0.iter_mut().zip(purse.numbers_hash()).for_each(|(byte, hashed)| *byte ^= hashed);
        key
    }

    /// Returns a number that depends only on this key. The numbers of all buckets are evenly distributed.
    pub fn spread(&self) -> u32 {
        let [a, b, c, d, ..] = self.0;
        u32::from_be_bytes([a, b, c, d])
    }
}

impl fmt::Debug for BucketKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Identifies the limit of a stored bucket. Unlike the limit's index, the tag stays the same after a reload or a
/// restart. Two limits have the same tag with a probability of 2^-30, and are then evicted as one limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LimitTag(pub u32);

impl LimitTag {
    /// Returns the tag for buckets with the settings of one variant: 0 for the limit's own settings, above 0 for an
    /// override. All overrides of a limit share one tag.
    #[must_use]
    pub fn of_variant(self, variant: u32) -> LimitTag {
        if variant == 0 { self } else { LimitTag(self.0.wrapping_add(0x9e37_79b9)) }
    }
}

/// Identifies a limit of gateway.yaml. Together with a descriptor, it identifies a bucket.
#[derive(Clone, Copy, Debug)]
pub struct LimitIdentity<'a> {
    pub policy: &'a str,
    pub rule: &'a str,
    /// The name of the limit. Empty if it is the rule's only one.
    pub limit: &'a str,
    /// The mode, `enforce` or `shadow`. Each mode has its own buckets.
    pub mode: &'a str,
    pub algorithm: AlgorithmKind,
    /// The limit keys in their printed form, in any order.
    pub keys: &'a [String],
}

/// The hash of the common part of a limit's bucket keys, which the descriptor of each request completes.
#[derive(Clone, Debug)]
pub struct KeySeed {
    hash: Sha256,
    tag: LimitTag,
    /// The last bytes of all keys of the limit. `None` for a limit without bans.
    suffix: Option<[u8; 4]>,
}

impl KeySeed {
    pub fn new(identity: &LimitIdentity<'_>) -> KeySeed {
        let mut keys: Vec<&str> = identity.keys.iter().map(String::as_str).collect();
        keys.sort_unstable();
        let kind = identity.algorithm;
        let format = match (kind.has_resets(), kind.is_held(), kind.has_ban()) {
            _ if kind.is_purse() => FORMAT_OF_PURSES,
            _ if kind.is_home() => FORMAT_OF_HOMES,
            (true, _, false) => FORMAT_OF_RESETS,
            (true, _, true) => FORMAT_OF_RESETS_AND_BANS,
            (false, false, false) => FORMAT,
            (false, true, false) => FORMAT_OF_HOLDS,
            (false, false, true) => FORMAT_OF_BANS,
            (false, true, true) => FORMAT_OF_HOLDS_AND_BANS,
        };
        let mut hash = Sha256::new_with_prefix(format);
        for part in [identity.policy, identity.rule, identity.limit, identity.mode, identity.algorithm.name()] {
            hash.update(length(part.len()));
            hash.update(part);
        }
        hash.update(length(keys.len()));
        for key in keys {
            hash.update(length(key.len()));
            hash.update(key);
        }
        let first = first_bytes(hash.clone());
        let suffix = identity.algorithm.has_ban().then_some(first);
        KeySeed { hash, tag: LimitTag(u32::from_be_bytes(first)), suffix }
    }

    /// Makes the seed for a limit that shares the buckets of a meter with other limits. The limit keeps its own tag
    /// for eviction.
    pub fn of_meter(meter: &str, identity: &LimitIdentity<'_>) -> KeySeed {
        // The name of the policy is empty. So the key differs from the keys of all limits without a meter: their
        // policies have names.
        let shared = LimitIdentity { policy: "", rule: meter, limit: "", mode: "meter", ..*identity };
        KeySeed { tag: KeySeed::new(identity).tag, ..KeySeed::new(&shared) }
    }

    pub fn tag(&self) -> LimitTag {
        self.tag
    }

    pub fn key(&self, descriptor: &Descriptor) -> BucketKey {
        let mut hash = self.hash.clone();
        hash.update(&descriptor.0);
        let mut key: [u8; 16] = first_bytes(hash);
        if let (Some(suffix), Some(end)) = (self.suffix, key.last_chunk_mut()) {
            *end = suffix;
        }
        BucketKey(key)
    }

    /// Returns whether the bucket is one of this limit, which must have bans. Another limit has the same keys with a
    /// probability of 2^-32. False for a limit without bans, because its keys do not tell.
    pub fn has(&self, key: &BucketKey) -> bool {
        self.suffix.is_some_and(|suffix| key.0.ends_with(&suffix))
    }
}

/// The values of a rule's limit keys in one request, encoded as bytes. Each value follows the index of its attribute
/// among the alternatives of the limit key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Descriptor(SmallVec<[u8; 96]>);

impl Descriptor {
    /// Adds the value of an attribute. `alternative` is the index of the attribute in its limit key. A claim is added
    /// together with the `issuer` of its token, if gateway.yaml trusts several issuers.
    pub fn push_value(&mut self, alternative: u8, attribute: &Attribute, issuer: Option<&str>, value: &[u8]) {
        if let Some(issuer) = issuer.filter(|_| matches!(attribute.source(), Attribute::Claim(_))) {
            self.push(alternative, issuer.as_bytes());
        }
        self.push(alternative, value);
    }

    /// Adds the value of a limit key. `alternative` is the index of the attribute with the value. The limit keys must
    /// be added in the order of their printed forms.
    pub fn push(&mut self, alternative: u8, value: &[u8]) {
        self.0.push(alternative);
        self.0.extend_from_slice(&length(value.len()));
        self.0.extend_from_slice(value);
    }
}

/// Encodes the length of a part. Parts of 4 GiB or more would all get the largest length, but do not occur.
fn length(len: usize) -> [u8; 4] {
    u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn identity<'a>(policy: &'a str, rule: &'a str, limit: &'a str, keys: &'a [String]) -> LimitIdentity<'a> {
        LimitIdentity { policy, rule, limit, mode: "enforce", algorithm: AlgorithmKind::TokenBucket, keys }
    }

    /// Policy, rule, limit, limit keys and descriptor of a bucket.
    type Bucket = (String, String, String, Vec<String>, Vec<(u8, Vec<u8>)>);

    fn key(parts: &Bucket) -> BucketKey {
        let (policy, rule, limit, keys, values) = parts;
        let mut descriptor = Descriptor::default();
        for (alternative, value) in values {
            descriptor.push(*alternative, value);
        }
        KeySeed::new(&identity(policy, rule, limit, keys)).key(&descriptor)
    }

    #[test]
    fn the_set_of_keys_has_no_order() {
        let (one, two) = (["ip:address".to_owned(), "path".to_owned()], ["path".to_owned(), "ip:address".to_owned()]);
        let nothing = Descriptor::default();
        let key = |keys| KeySeed::new(&identity("p", "r", "", keys)).key(&nothing);
        assert_eq!(key(&one), key(&two));
    }

    /// Gateways of two versions may share buckets, so a change of these keys requires a change of [`FORMAT`].
    #[test]
    fn the_bucket_keys_of_this_format_version_are_fixed() {
        assert_eq!(FORMAT, b"tollgate/1");
        let (none, some) = (vec![], vec!["header:x-key".to_owned(), "ip:address".to_owned()]);
        let bucket = |limit: &str, keys: &[String], values: &[(u8, &[u8])]| {
            let values = values.iter().map(|(alternative, value)| (*alternative, value.to_vec())).collect();
            format!("{:?}", key(&("default".to_owned(), "free".to_owned(), limit.to_owned(), keys.to_vec(), values)))
        };
        assert_eq!(bucket("", &none, &[]), "33e3ee2460c9c37907b2e7f6e150f420");
        assert_eq!(bucket("day", &some, &[(0, b"a"), (0, b"203.0.113.7")]), "6d8fa30b5416af2904085b29d1031495");
        assert_eq!(bucket("", &some, &[(1, b""), (0, b"\xff\0")]), "63ee4e9bc6a216a842f66bb37ed6b9cd");
    }

    #[test]
    fn buckets_that_are_held_have_keys_of_another_format() {
        assert_eq!(FORMAT_OF_HOLDS, b"tollgate/2");
        let slots = LimitIdentity { algorithm: AlgorithmKind::Concurrency, ..identity("default", "free", "", &[]) };
        let key = |seed: KeySeed| format!("{:?}", seed.key(&Descriptor::default()));
        assert_eq!(key(KeySeed::new(&slots)), "dcc89d9276dd9409a69573321d1f555a");
        assert_eq!(key(KeySeed::of_meter("pool", &slots)), "379e69a83d8c960f4c40858098b5c4d1");
    }

    #[test]
    fn the_keys_of_a_limit_with_bans_tell_the_limit() {
        let with = |algorithm, rule: &'static str| {
            KeySeed::new(&LimitIdentity { algorithm, ..identity("default", rule, "", &[]) })
        };
        let mut ann = Descriptor::default();
        ann.push(0, b"ann");
        for algorithm in [AlgorithmKind::FixedWindowWithBan, AlgorithmKind::WindowBudgetWithBan] {
            let (one, other) = (with(algorithm, "one"), with(algorithm, "other"));
            let [ann, nobody] = [&ann, &Descriptor::default()].map(|descriptor| one.key(descriptor));
            assert!(one.has(&ann) && one.has(&nobody) && ann != nobody);
            assert!(!other.has(&ann) && !with(AlgorithmKind::FixedWindow, "one").has(&ann));
        }
        let guesses = LimitIdentity { algorithm: AlgorithmKind::TokenBucketWithBan, ..identity("p", "a", "", &[]) };
        let login = LimitIdentity { policy: "q", rule: "b", ..guesses };
        assert!(KeySeed::of_meter("m", &login).has(&KeySeed::of_meter("m", &guesses).key(&ann)));
    }

    #[test]
    fn buckets_with_resets_purses_and_homes_have_keys_of_formats_of_their_own() {
        let kinds = [
            AlgorithmKind::FixedWindow,
            AlgorithmKind::WindowBudget,
            AlgorithmKind::FixedWindowWithBan,
            AlgorithmKind::WindowBudgetWithBan,
            AlgorithmKind::WindowBudgetWithResets,
            AlgorithmKind::WindowBudgetWithResetsAndBan,
            AlgorithmKind::WindowPurse,
            AlgorithmKind::WindowHome,
        ];
        let key = |algorithm| {
            let identity = LimitIdentity { algorithm, ..identity("default", "free", "", &[]) };
            format!("{:?}", KeySeed::new(&identity).key(&Descriptor::default()))
        };
        assert_eq!(kinds.map(key).into_iter().collect::<std::collections::HashSet<_>>().len(), kinds.len());
    }

    #[test]
    fn the_names_of_subjects_have_keys_of_their_own_by_meter_and_part() {
        assert_eq!(FORMAT_OF_SUBJECTS, b"tollgate/9");
        let meter = KeySeed::of_meter("api", &identity("p", "free", "", &[])).key(&Descriptor::default());
        let keys = [("api", 0), ("api", 1), ("apj", 0)].map(|(meter, part)| BucketKey::of_subjects(meter, part));
        assert_eq!(keys.iter().chain([&meter]).collect::<std::collections::HashSet<_>>().len(), 4);
    }

    #[test]
    fn a_meter_is_the_same_for_every_rule_and_like_no_rule() {
        let keys = ["ip:address".to_owned()];
        let (free, pro) = (identity("p", "free", "", &keys), identity("p", "pro", "month", &keys));
        let bucket = |seed: KeySeed| format!("{:?}", seed.key(&Descriptor::default()));
        let metered = |identity| bucket(KeySeed::of_meter("api", identity));
        assert_eq!(metered(&free), metered(&pro));
        assert_eq!(metered(&free), "25dbda7212a4799dab13a3bdddf973fe");
        assert_ne!(KeySeed::of_meter("api", &free).tag(), KeySeed::of_meter("api", &pro).tag());
        let others = [
            bucket(KeySeed::of_meter("apj", &free)),
            bucket(KeySeed::of_meter("api", &LimitIdentity { algorithm: AlgorithmKind::FixedWindow, ..free })),
            bucket(KeySeed::of_meter("api", &identity("p", "free", "", &[]))),
            bucket(KeySeed::new(&identity("p", "api", "", &keys))),
            bucket(KeySeed::new(&identity("", "api", "", &keys))),
        ];
        assert!(!others.contains(&metered(&free)), "{others:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// With this tiny alphabet, encodings without lengths (`a` + `bc`, `ab` + `c`) would soon collide.
        #[test]
        fn different_buckets_never_share_a_key(
            buckets in prop::collection::hash_set(
                ("[a:/]{0,2}", "[a:/]{0,2}", "[a:/]{0,2}",
                 prop::collection::btree_set("[a:/]{1,2}", 0..3).prop_map(|set| set.into_iter().collect::<Vec<_>>()),
                 prop::collection::vec((0u8..2, prop::collection::vec(0u8..2, 0..4)), 0..3)),
                1..400,
            )
        ) {
            let mut seen = HashMap::new();
            for bucket in &buckets {
                if let Some(other) = seen.insert(key(bucket), bucket) {
                    prop_assert!(false, "{other:?} and {bucket:?} share a bucket");
                }
            }
        }
    }
}
