//! Knows whose an API key is.
//!
//! A key itself is never held, only SHA-256 of it. A plain hash is enough, without salt or slowness, because a key is
//! random and not chosen: of 128 random bits nothing can be guessed. A set of keys is replaced as a whole, while
//! requests ask it.

use std::collections::HashMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

pub use super::on_invalid::OnInvalid;
use crate::limit::attribute::Attribute;
use crate::limit::identity::KnownKey;
use crate::limit::request::Request;

/// In bytes. A longer key is not known, and not worth hashing.
pub const LONGEST_KEY: usize = 1024;

/// Where requests carry a key, which keys there are, and what becomes of others.
#[derive(Debug)]
pub struct ApiKeys {
    /// A header, query parameter or cookie.
    pub from: Attribute,
    pub on_invalid: OnInvalid,
    /// Where the keys were read, as it can be opened.
    pub file: PathBuf,
    known: ArcSwap<ApiKeySet>,
}

/// What a request shows for itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApiKeyLookup {
    Absent,
    Known(Arc<KnownKey>),
    Unknown,
}

impl ApiKeys {
    pub fn new(from: Attribute, on_invalid: OnInvalid, file: PathBuf, keys: ApiKeySet) -> ApiKeys {
        ApiKeys { from, on_invalid, file, known: ArcSwap::from_pointee(keys) }
    }

    /// Whose key this request has. That it has only one has been seen to before.
    pub fn find(&self, request: &Request<'_>) -> ApiKeyLookup {
        match self.from.resolve(request) {
            None => ApiKeyLookup::Absent,
            Some(key) if key.len() > LONGEST_KEY => ApiKeyLookup::Unknown,
            Some(key) => self.known.load().find(&key).map_or(ApiKeyLookup::Unknown, ApiKeyLookup::Known),
        }
    }

    /// From here on these keys are known, and no others.
    pub fn replace(&self, keys: ApiKeySet) {
        self.known.store(Arc::new(keys));
    }

    /// The keys that are known now.
    pub fn keys(&self) -> Arc<ApiKeySet> {
        self.known.load_full()
    }
}

/// A set of keys.
#[derive(Default)]
pub struct ApiKeySet {
    known: HashMap<Fingerprint, Entry>,
    source: [u8; 32],
}

struct Entry {
    key: Arc<KnownKey>,
    /// Where it stands in its file.
    line: usize,
}

impl ApiKeySet {
    /// A set that is yet to be filled, from this text.
    pub fn of(source: &[u8]) -> ApiKeySet {
        ApiKeySet { known: HashMap::new(), source: Sha256::digest(source).into() }
    }

    /// Tells texts apart: a hash of the one that these keys were read from.
    pub fn source(&self) -> [u8; 32] {
        self.source
    }

    pub fn len(&self) -> usize {
        self.known.len()
    }

    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Adds a key that stands in this line; when it is there already, that line instead.
    pub fn add(&mut self, fingerprint: Fingerprint, key: KnownKey, line: usize) -> Result<(), usize> {
        if let Some(entry) = self.known.get(&fingerprint) {
            return Err(entry.line);
        }
        self.known.insert(fingerprint, Entry { key: Arc::new(key), line });
        Ok(())
    }

    fn find(&self, key: &[u8]) -> Option<Arc<KnownKey>> {
        self.known.get(&Fingerprint::of(key)).map(|entry| Arc::clone(&entry.key))
    }
}

/// Shows how many there are, and none of them.
impl fmt::Debug for ApiKeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiKeySet({})", self.known.len())
    }
}

/// SHA-256 of a key. Debugging shows nothing of it; `Display` writes it as it stands in a file.
#[derive(Clone, Copy, Eq)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    pub fn of(key: &[u8]) -> Fingerprint {
        Fingerprint(Sha256::digest(key).into())
    }

    /// From 64 hexadecimal digits.
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

/// In constant time. What the map does around it depends on the fingerprint alone, under a secret of this process, and
/// who sends a key cannot steer its fingerprint: the time that a lookup takes says nothing of the keys that there are.
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
    use crate::limit::request::ClientAddress;

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
    fn a_key_is_known_byte_by_byte() {
        let keys = |key: &[u8], id: &str| {
            let mut keys = ApiKeySet::default();
            keys.add(Fingerprint::of(key), KnownKey { id: id.to_owned(), plan: "gold".to_owned() }, 1).unwrap();
            keys
        };
        let from = Attribute::parse("header:x-api-key").unwrap();
        let api_keys = ApiKeys::new(from, OnInvalid::Reject, PathBuf::new(), keys(b"k\xe9y-0123456789abcdef", "a"));
        let find = |api_keys: &ApiKeys, value: Option<&[u8]>| {
            let mut head = http::Request::builder().uri("/");
            if let Some(value) = value {
                head = head.header("x-api-key", value);
            }
            let (head, ()) = head.body(()).unwrap().into_parts();
            let client = ClientAddress::new("192.0.2.1".parse().unwrap(), 64);
            let request = Request { head: &head, client, claims: None, key: None, route: "", upstream: "" };
            match api_keys.find(&request) {
                ApiKeyLookup::Absent => "nothing".to_owned(),
                ApiKeyLookup::Known(key) => format!("{} {}", key.id, key.plan),
                ApiKeyLookup::Unknown => "unknown".to_owned(),
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
        // A longer one is not even hashed.
        let longer = [b'k'; LONGEST_KEY + 1];
        api_keys.replace(keys(&longer, "c"));
        assert_eq!(find(&api_keys, Some(&longer)), "unknown");
    }

    #[test]
    fn debugging_shows_nothing_of_a_key() {
        let fingerprint = Fingerprint::of(b"abc");
        let mut keys = ApiKeySet::default();
        keys.add(fingerprint, KnownKey { id: "acme".to_owned(), plan: "gold".to_owned() }, 1).unwrap();
        assert_eq!(format!("{fingerprint:?} {keys:?}"), "Fingerprint(…) ApiKeySet(1)");
    }
}
