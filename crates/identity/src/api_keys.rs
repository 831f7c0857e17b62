//! Looks up an API key to find its holder: the id and the plan.
//!
//! Only the SHA-256 hash of a key is stored. A hash without salt is enough, because 128 random bits cannot be guessed.
//! A set of keys is replaced as a whole, while requests may still read the old set.

use std::collections::HashMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

pub use super::on_invalid::OnInvalid;
use request::identity::KnownKey;
use request::key_places::{KeyPlace, KeyPlaces};
use request::request::Request;

/// The length of the longest key, in bytes. A longer key counts as unknown, and is not hashed.
pub const LONGEST_KEY: usize = 1024;

/// The API keys of a configuration: their places in requests, the known keys, and the treatment of unknown keys.
#[derive(Debug)]
pub struct ApiKeys {
    pub from: KeyPlaces,
    pub on_invalid: OnInvalid,
    pub forwarding: KeyForwarding,
    /// The path at which the file with the API keys can be opened.
    pub file: PathBuf,
    /// The largest part of the keys, in per cent, that a change of the file may remove.
    pub max_shrink: u8,
    known: ArcSwap<ApiKeySet>,
}

/// Whether the upstream gets the API key of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyForwarding {
    #[default]
    Forwarded,
    Withheld,
}

/// The result of looking up the API key of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApiKeyLookup {
    Absent,
    Known(Arc<KnownKey>),
    /// The key is not in the file. The request carries it in this place.
    Unknown(KeyPlace),
}

impl ApiKeys {
    /// Makes API keys from `keys`, which were read from `file`. A change of the file may remove at most half of the keys.
    /// The upstream gets the key of a request.
    pub fn new(from: KeyPlaces, on_invalid: OnInvalid, file: PathBuf, keys: ApiKeySet) -> ApiKeys {
        let forwarding = KeyForwarding::Forwarded;
        ApiKeys { from, on_invalid, forwarding, file, max_shrink: 50, known: ArcSwap::from_pointee(keys) }
    }

    /// Sets whether the upstream gets the key of a request.
    #[must_use]
    pub fn forwarding(self, forwarding: KeyForwarding) -> ApiKeys {
        ApiKeys { forwarding, ..self }
    }

    /// Sets the largest part of the keys, in per cent, that a change of the file may remove.
    #[must_use]
    pub fn losing_at_most(self, max_shrink: u8) -> ApiKeys {
        ApiKeys { max_shrink, ..self }
    }

    /// Looks up the API key that a request carries. Requests with different keys are rejected earlier.
    pub fn find(&self, request: &Request<'_>) -> ApiKeyLookup {
        let Some((place, key)) = self.from.keys(request).next() else { return ApiKeyLookup::Absent };
        let known = if key.len() > LONGEST_KEY { None } else { self.known.load().find(&key) };
        known.map_or_else(|| ApiKeyLookup::Unknown(place.clone()), ApiKeyLookup::Known)
    }

    /// Returns the places whose keys the upstream must not get. `None` if the upstream gets the keys.
    pub fn withheld(&self) -> Option<&KeyPlaces> {
        (self.forwarding == KeyForwarding::Withheld).then_some(&self.from)
    }

    /// Replaces all known keys by `keys`.
    pub fn replace(&self, keys: ApiKeySet) {
        self.known.store(Arc::new(keys));
    }

    /// Returns the keys that are known at present.
    pub fn keys(&self) -> Arc<ApiKeySet> {
        self.known.load_full()
    }
}

/// The keys in a file of API keys. Each key is found by its fingerprint.
#[derive(Default)]
pub struct ApiKeySet {
    known: HashMap<Fingerprint, Entry>,
    /// The names of the columns after id and plan.
    columns: Arc<[String]>,
    source: [u8; 32],
}

struct Entry {
    key: Arc<KnownKey>,
    /// The number of the line in the file that lists the key.
    line: usize,
}

impl ApiKeySet {
    /// Makes an empty set, to which the keys of a file are added. `source` is the text of the file.
    pub fn of(source: &[u8]) -> ApiKeySet {
        ApiKeySet { source: Sha256::digest(source).into(), ..ApiKeySet::default() }
    }

    /// Returns a hash of the text of the file. Used to find out whether the file has changed.
    pub fn source(&self) -> [u8; 32] {
        self.source
    }

    /// Returns the names of the columns after id and plan.
    pub fn columns(&self) -> Arc<[String]> {
        Arc::clone(&self.columns)
    }

    /// Sets the names of the columns after id and plan, for keys that are added later.
    pub(crate) fn name_columns(&mut self, columns: Arc<[String]>) {
        self.columns = columns;
    }

    pub fn len(&self) -> usize {
        self.known.len()
    }

    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Adds a key. `line` is the number of the key's line in the file.
    ///
    /// # Errors
    ///
    /// If the set already has the key. Returns the number of the line that lists the key.
    pub fn add(&mut self, fingerprint: Fingerprint, key: KnownKey, line: usize) -> Result<(), usize> {
        if let Some(entry) = self.known.get(&fingerprint) {
            return Err(entry.line);
        }
        self.known.insert(fingerprint, Entry { key: Arc::new(key), line });
        Ok(())
    }

    /// Returns the holders of the keys, in no particular order. A holder of several keys occurs several times.
    pub fn holders(&self) -> impl Iterator<Item = &KnownKey> {
        self.known.values().map(|entry| &*entry.key)
    }

    pub fn find(&self, key: &[u8]) -> Option<Arc<KnownKey>> {
        self.known.get(&Fingerprint::of(key)).map(|entry| Arc::clone(&entry.key))
    }
}

/// Shows the number of keys, but no key.
impl fmt::Debug for ApiKeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiKeySet({})", self.known.len())
    }
}

/// The SHA-256 hash of an API key. `Debug` does not show the hash. `Display` writes the hash as in the file of API keys.
#[derive(Clone, Copy, Eq)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    pub fn of(key: &[u8]) -> Fingerprint {
        Fingerprint(Sha256::digest(key).into())
    }

    /// Parses a fingerprint of 64 hexadecimal digits. `None` for any other text.
    pub fn parse(text: &str) -> Option<Fingerprint> {
        let digits = <&[u8; 64]>::try_from(text.as_bytes()).ok()?;
        let mut bytes = [0; 32];
        for (byte, [high, low]) in bytes.iter_mut().zip(digits.as_chunks().0) {
            let digit = |digit: &u8| char::from(*digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
            *byte = digit(high)? << 4 | digit(low)?;
        }
        Some(Fingerprint(bytes))
    }
}

/// Compares in constant time, so that the duration of a lookup reveals nothing about the known keys.
impl PartialEq for Fingerprint {
    fn eq(&self, other: &Fingerprint) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Hash for Fingerprint {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fingerprint(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use request::attribute::Attribute;
    use request::client_address::ClientAddress;

    #[test]
    fn a_fingerprint_prints_as_it_is_parsed() {
        let text = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(Fingerprint::of(b"abc").to_string(), text);
        assert!(Fingerprint::parse(text) == Some(Fingerprint::of(b"abc")));
        assert!(Fingerprint::parse(&text.to_uppercase()) == Some(Fingerprint::of(b"abc")));
        assert!(Fingerprint::parse(text) != Some(Fingerprint::of(b"abd")));
        for wrong in
            [text.get(1..).unwrap(), &format!("{text}0"), &text.replace('b', "g"), &text.replace("ba", "+a"), "", "é"]
        {
            assert!(Fingerprint::parse(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn a_key_is_compared_byte_by_byte() {
        let keys = |key: &[u8], id: &str| {
            let mut keys = ApiKeySet::default();
            keys.add(Fingerprint::of(key), KnownKey::new(id, "gold"), 1).unwrap();
            keys
        };
        let from = KeyPlaces::new(vec![KeyPlace::Attribute(Attribute::parse("header:x-api-key").unwrap())], &[]);
        let api_keys = ApiKeys::new(from, OnInvalid::Reject, PathBuf::new(), keys(b"k\xe9y-0123456789abcdef", "a"));
        let find = |api_keys: &ApiKeys, value: Option<&[u8]>| {
            let mut head = http::Request::builder().uri("/");
            if let Some(value) = value {
                head = head.header("x-api-key", value);
            }
            let (head, ()) = head.body(()).unwrap().into_parts();
            let client = ClientAddress::new("192.0.2.1".parse().unwrap(), 64);
            let request = Request::new(&head, client);
            match api_keys.find(&request) {
                ApiKeyLookup::Absent => "nothing".to_owned(),
                ApiKeyLookup::Known(key) => format!("{} {}", key.id, key.plan),
                ApiKeyLookup::Unknown(place) => {
                    assert_eq!(place.to_string(), "header:x-api-key");
                    "unknown".to_owned()
                }
            }
        };
        assert_eq!(find(&api_keys, Some(b" k\xe9y-0123456789abcdef ")), "a gold");
        assert_eq!(find(&api_keys, None), "nothing");
        assert_eq!(find(&api_keys, Some(b"  ")), "nothing");
        for other in [&b"K\xe9y-0123456789abcdef"[..], b"k\xefy-0123456789abcdef", b"k", &[b'k'; 8000], b"k, k"] {
            assert_eq!(find(&api_keys, Some(other)), "unknown", "{other:?}");
        }
        let longest = [b'k'; LONGEST_KEY];
        api_keys.replace(keys(&longest, "b"));
        assert_eq!(find(&api_keys, Some(&longest)), "b gold");
        assert_eq!(find(&api_keys, Some(b"k\xe9y-0123456789abcdef")), "unknown");
        // A longer key is not hashed, so the key is unknown even if the set contains it.
        let longer = [b'k'; LONGEST_KEY + 1];
        api_keys.replace(keys(&longer, "c"));
        assert_eq!(find(&api_keys, Some(&longer)), "unknown");
    }

    #[test]
    fn debug_output_shows_nothing_of_a_key() {
        let fingerprint = Fingerprint::of(b"abc");
        let mut keys = ApiKeySet::default();
        keys.add(fingerprint, KnownKey::new("acme", "gold"), 1).unwrap();
        assert_eq!(format!("{fingerprint:?} {keys:?}"), "Fingerprint(…) ApiKeySet(1)");
    }
}
