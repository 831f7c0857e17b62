//! Keeps the names of the subjects of buckets in a shared store, so that each gateway can list buckets that others have charged.
//!
//! The names of a meter are in [parts](super::value_parts). A store keeps a part until the last bucket in it is forgotten. An older
//! gateway never reads them.
//!
//! A part is packed into words: the first has the form in its lowest byte, and above it the number of bytes that follow, eight in
//! each word. Numbers are little-endian. A name is:
//!
//! | bytes | content |
//! |---|---|
//! | 16 | the key of the bucket |
//! | 8 | when it was last charged, as far as a gateway has told, in microseconds by the store's clock |
//! | 8 | until when it is listed |
//! | 8 | the burst or limit that applied, in thousandths |
//! | 1 | 1 if several subjects were charged to the bucket |
//! | 2 + n | the policy, the limit, the attribute and the value: each after its length |

use super::error::Fault;
use super::inspector::Inspector;
use base::time::Timestamp;
use ledger::algorithm::{Entry, State};
use ledger::bucket_key::BucketKey;
use ledger::cost::Cost;

/// The most names of a part, and its most bytes. Further names are left out.
const MOST_NAMES: usize = 160;
const MOST_BYTES: usize = 32 << 10;
/// The room in bytes without which a part counts as full.
const ORDINARY: usize = 512;
/// The form of a part.
const FORM: u64 = 1;

/// The name of a bucket's subject, with what is needed to list the bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubjectName {
    pub bucket: BucketKey,
    /// The policy and the name of the limit that the bucket was charged for.
    pub policy: String,
    pub limit: String,
    /// The attribute that names the subject, and its value.
    pub attribute: String,
    pub value: Vec<u8>,
    /// The burst or limit that applied.
    pub ceiling: Cost,
    /// Whether several subjects were charged to the bucket.
    pub is_shared: bool,
    /// When the bucket was charged, by the clock of the store.
    pub charged: Timestamp,
    /// Until when the bucket is listed, by the clock of the store.
    pub until: Timestamp,
}

/// The names of the subjects of a meter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubjectNames {
    pub names: Vec<SubjectName>,
    /// Whether a part has no more room, so that some names may be missing.
    pub is_full: bool,
}

impl Inspector {
    /// Adds the names of subjects of a meter. Names without room are left out.
    ///
    /// # Errors
    /// When the store gives no answer, or refuses the request. Some names may be added then.
    pub async fn add_subjects(&mut self, meter: &str, names: &[SubjectName]) -> Result<(), Fault> {
        self.add_to_parts(names, |name| name.bucket, |part| BucketKey::of_subjects(meter, part), joined).await
    }

    /// Reads the names of the subjects of a meter.
    ///
    /// # Errors
    /// When the store gives no answer, or refuses the request.
    pub async fn subjects(&mut self, meter: &str) -> Result<SubjectNames, Fault> {
        let mut found = SubjectNames::default();
        for (state, now) in self.parts(|part| BucketKey::of_subjects(meter, part)).await? {
            let names = parse(&state, now);
            found.is_full |= is_full(&names);
            found.names.extend(names);
        }
        Ok(found)
    }
}

/// Returns the part with these names added. `None` if nothing changes.
fn joined(state: Option<&[u64]>, new: &[&SubjectName], now: Timestamp) -> Option<Entry> {
    let before = state.map(|state| parse(state, now)).unwrap_or_default();
    let mut names = before.clone();
    for name in new.iter().filter(|name| name.until > now) {
        let bytes = names.iter().map(packed_length).sum::<usize>() + packed_length(name);
        let known = names.iter().position(|known| known.bucket == name.bucket);
        match known.and_then(|index| names.get_mut(index)) {
            Some(known) => {
                if bytes - packed_length(known) <= MOST_BYTES {
                    known.join(name);
                }
            }
            None => {
                if names.len() < MOST_NAMES && bytes <= MOST_BYTES {
                    names.push((*name).clone());
                }
            }
        }
    }
    let kept_until = names.iter().map(|name| name.until).max()?;
    (names != before).then(|| Entry { state: pack(&names), kept_until })
}

impl SubjectName {
    /// Adds what another gateway knows of the same bucket.
    fn join(&mut self, other: &SubjectName) {
        let is_shared = self.is_shared || other.is_shared || self.value != other.value;
        let until = self.until.max(other.until);
        if other.charged >= self.charged {
            *self = other.clone();
        }
        (self.is_shared, self.until) = (is_shared, until);
    }

    /// Returns the texts in the order in which they are packed.
    fn texts(&self) -> [&[u8]; 4] {
        [self.policy.as_bytes(), self.limit.as_bytes(), self.attribute.as_bytes(), &self.value]
    }
}

fn packed_length(name: &SubjectName) -> usize {
    16 + 3 * 8 + 1 + name.texts().iter().map(|text| 2 + text.len()).sum::<usize>()
}

/// Returns whether these names leave no room for one of an ordinary length.
fn is_full(names: &[SubjectName]) -> bool {
    names.len() >= MOST_NAMES || names.iter().map(packed_length).sum::<usize>() > MOST_BYTES - ORDINARY
}

fn pack(names: &[SubjectName]) -> State {
    let mut bytes = Vec::new();
    for name in names {
        bytes.extend(name.bucket.0);
        for number in [name.charged.0, name.until.0, name.ceiling.thousandths()] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.push(u8::from(name.is_shared));
        for text in name.texts() {
            // A part has no room for longer texts.
            bytes.extend(u16::try_from(text.len()).unwrap_or(u16::MAX).to_le_bytes());
            bytes.extend(text);
        }
    }
    let length = u64::try_from(bytes.len()).unwrap_or_default();
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    let words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
    [FORM | length << 8].into_iter().chain(words).collect()
}

/// Returns the names in a part that are still listed. A part that is not readable has none.
fn parse(state: &[u64], now: Timestamp) -> Vec<SubjectName> {
    let Some((head, words)) = state.split_first().filter(|(head, _)| *head & 0xff == FORM) else { return Vec::new() };
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let length = usize::try_from(head >> 8).unwrap_or(usize::MAX);
    let mut rest = bytes.get(..length).unwrap_or_default();
    let mut names = Vec::new();
    while let Some((name, after)) = parse_name(rest) {
        rest = after;
        names.push(name);
    }
    names.retain(|name| name.until > now);
    names
}

fn parse_name(bytes: &[u8]) -> Option<(SubjectName, &[u8])> {
    let (bucket, rest) = bytes.split_first_chunk()?;
    let (charged, rest) = rest.split_first_chunk()?;
    let (until, rest) = rest.split_first_chunk()?;
    let (ceiling, rest) = rest.split_first_chunk()?;
    let (&[shared], rest) = rest.split_first_chunk::<1>()?;
    let (policy, rest) = parse_text(rest)?;
    let (limit, rest) = parse_text(rest)?;
    let (attribute, rest) = parse_text(rest)?;
    let (value, rest) = parse_text(rest)?;
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
    let name = SubjectName {
        bucket: BucketKey(*bucket),
        policy: text(policy)?,
        limit: text(limit)?,
        attribute: text(attribute)?,
        value: value.to_vec(),
        ceiling: Cost::from_thousandths(u64::from_le_bytes(*ceiling)),
        is_shared: shared != 0,
        charged: Timestamp(u64::from_le_bytes(*charged)),
        until: Timestamp(u64::from_le_bytes(*until)),
    };
    Some((name, rest))
}

fn parse_text(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_000);

    fn name(bucket: u16, value: &str) -> SubjectName {
        let mut key = [7; 16];
        key.iter_mut().zip(bucket.to_le_bytes()).for_each(|(to, byte)| *to = byte);
        SubjectName {
            bucket: BucketKey(key),
            policy: "plan".to_owned(),
            limit: "free".to_owned(),
            attribute: "key:id".to_owned(),
            value: value.as_bytes().to_vec(),
            ceiling: Cost::from_tokens(10),
            is_shared: false,
            charged: NOW,
            until: Timestamp(2_000),
        }
    }

    fn add(state: Option<&[u64]>, names: &[&SubjectName], now: Timestamp) -> Option<Vec<u64>> {
        joined(state, names, now).map(|entry| entry.state.to_vec())
    }

    #[test]
    fn names_are_read_back_until_their_buckets_are_forgotten() {
        let (ann, bob) = (name(1, "ann"), SubjectName { until: Timestamp(3_000), ..name(2, "b\u{e9}b") });
        let part = joined(None, &[&ann, &bob], NOW).unwrap();
        assert_eq!(part.kept_until, Timestamp(3_000));
        assert_eq!(parse(&part.state, NOW), [ann.clone(), bob.clone()]);
        assert_eq!(parse(&part.state, Timestamp(2_000)), std::slice::from_ref(&bob));
        // What is known already changes nothing; what is over is dropped at the next change.
        assert_eq!(add(Some(&part.state), &[&ann], NOW), None);
        let eve = SubjectName { until: Timestamp(4_000), ..name(3, "eve") };
        let later = add(Some(&part.state), &[&eve, &ann], Timestamp(2_500));
        assert_eq!(later, add(None, &[&bob, &eve], NOW));
        assert_eq!(add(None, &[&ann], Timestamp(2_000)), None);
    }

    #[test]
    fn the_last_charge_counts_and_a_bucket_of_several_subjects_stays_shared() {
        let ann = name(1, "ann");
        let earlier = SubjectName { charged: Timestamp(500), limit: "pro".to_owned(), ..ann.clone() };
        let later = SubjectName { charged: Timestamp(1_500), limit: "pro".to_owned(), ..ann.clone() };
        let part = add(None, &[&ann], NOW).unwrap();
        assert_eq!(add(Some(&part), &[&earlier], NOW), None);
        let part = add(Some(&part), &[&later], NOW).unwrap();
        assert_eq!(parse(&part, NOW), std::slice::from_ref(&later));
        let part = add(Some(&part), &[&SubjectName { charged: Timestamp(1_600), ..name(1, "bob") }], NOW).unwrap();
        assert!(parse(&part, NOW)[0].is_shared);
        let part = add(Some(&part), &[&SubjectName { charged: Timestamp(1_700), ..later }], NOW).unwrap();
        assert!(parse(&part, NOW)[0].is_shared);
    }

    #[test]
    fn a_part_is_bounded_in_names_and_in_bytes() {
        let short: Vec<SubjectName> = (0..500).map(|number| name(number, "x")).collect();
        let long: Vec<SubjectName> = (0..500).map(|number| name(number, &"x".repeat(256))).collect();
        for names in [short, long] {
            let part = add(None, &names.iter().collect::<Vec<_>>(), NOW).unwrap();
            let found = parse(&part, NOW);
            let bytes = found.iter().map(packed_length).sum::<usize>();
            assert!(found.len() <= MOST_NAMES && bytes <= MOST_BYTES && 8 * part.len() <= MOST_BYTES + 16);
            assert!(is_full(&found), "{} names of {bytes} bytes", found.len());
            // A name that has no room changes nothing.
            assert_eq!(add(Some(&part), &[&names[499]], NOW), None);
        }
    }

    #[test]
    fn whatever_else_is_stored_there_has_no_names() {
        let part = add(None, &[&name(1, "ann")], NOW).unwrap();
        for length in 0..part.len() {
            assert!(parse(&part[..length], NOW).is_empty(), "{length}");
        }
        for state in [&[][..], &[2, 0, 0], &[u64::MAX; 9], &[FORM | u64::MAX << 8, 0]] {
            assert!(parse(state, NOW).is_empty());
            assert_eq!(add(Some(state), &[&name(1, "ann")], NOW), Some(part.clone()));
        }
    }
}
