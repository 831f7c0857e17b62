//! Pseudonyms for buckets and for values of clients. A pseudonym is a keyed hash. With the same key, a bucket or a
//! value of an attribute always has the same pseudonym.
//!
//! Logs and reports identify buckets and clients by pseudonyms. Anybody with the key can check whether a pseudonym
//! stands for a certain value. The default key is public.

use std::fmt;
use std::str::FromStr;

use ring::hmac;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::seal::SealKey;

/// The key that is used if the configuration sets no key. It is public, so anybody can check whether a pseudonym stands
/// for a guessed value.
const PUBLIC: &[u8] = b"tollgate/1 names";

/// The key from which pseudonyms are derived.
#[derive(Clone)]
pub struct PseudonymKey {
    key: hmac::Key,
    origin: KeyOrigin,
}

/// Whether the key is the public default or the operator's secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyOrigin {
    Public,
    Secret,
    /// The operator's secret, which this process does not know. Pseudonyms from this key differ from those in any log.
    Unknown,
}

impl PseudonymKey {
    /// The length of the shortest accepted secret, in bytes. A shorter secret could be guessed.
    pub const SHORTEST: usize = 16;

    /// Makes a key from the operator's own secret.
    pub fn secret(secret: &[u8]) -> PseudonymKey {
        PseudonymKey { key: hmac::Key::new(hmac::HMAC_SHA256, secret), origin: KeyOrigin::Secret }
    }

    /// Makes a key for a process that does not know the operator's secret. Its pseudonyms match no log.
    pub fn unknown() -> PseudonymKey {
        PseudonymKey { origin: KeyOrigin::Unknown, ..PseudonymKey::default() }
    }

    /// Whether a gateway with the same configuration uses this key, and so makes the same pseudonyms.
    pub fn is_known(&self) -> bool {
        self.origin != KeyOrigin::Unknown
    }

    /// Whether anybody can compute the pseudonym of a value, because the key is not secret.
    pub fn is_public(&self) -> bool {
        self.origin == KeyOrigin::Public
    }

    /// Returns the pseudonym of a bucket. `key` is the bucket's key in the store.
    pub fn bucket(&self, key: &[u8; 16]) -> Pseudonym {
        self.name("bucket", key)
    }

    /// Returns the pseudonym of an attribute's value. The same value has a different pseudonym for each attribute.
    pub fn value(&self, attribute: &str, value: &[u8]) -> Pseudonym {
        self.name(attribute, value)
    }

    /// Returns a key that seals texts for this purpose. `None` if the key is not secret, or not known.
    pub fn seal_key(&self, purpose: &str) -> Option<SealKey> {
        // A purpose has no zero byte, so no pseudonym comes from the same text.
        let secret = (self.origin == KeyOrigin::Secret).then(|| hmac::sign(&self.key, purpose.as_bytes()))?;
        SealKey::new(secret.as_ref())
    }

    fn name(&self, kind: &str, value: &[u8]) -> Pseudonym {
        let mut mac = hmac::Context::with_key(&self.key);
        // A zero byte separates the name from the value, because no attribute name contains a zero byte.
        mac.update(kind.as_bytes());
        mac.update(&[0]);
        mac.update(value);
        let tag = mac.sign();
        let mut name = [0; 8];
        name.iter_mut().zip(tag.as_ref()).for_each(|(byte, tagged)| *byte = *tagged);
        Pseudonym(name)
    }
}

impl Default for PseudonymKey {
    fn default() -> PseudonymKey {
        PseudonymKey { key: hmac::Key::new(hmac::HMAC_SHA256, PUBLIC), origin: KeyOrigin::Public }
    }
}

impl fmt::Debug for PseudonymKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PseudonymKey({:?})", self.origin)
    }
}

/// A name that hides a value: the first 8 bytes of an HMAC-SHA256 of the value, displayed as 16 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pseudonym([u8; 8]);

impl fmt::Display for Pseudonym {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", u64::from_be_bytes(self.0))
    }
}

impl fmt::Debug for Pseudonym {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// The error for a text that is not a pseudonym. A pseudonym has exactly 16 hexadecimal digits in lower case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidPseudonym;

impl fmt::Display for InvalidPseudonym {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not 16 hexadecimal digits")
    }
}

impl std::error::Error for InvalidPseudonym {}

impl FromStr for Pseudonym {
    type Err = InvalidPseudonym;

    fn from_str(text: &str) -> Result<Pseudonym, InvalidPseudonym> {
        let digits = text.len() == 16 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let number = digits.then(|| u64::from_str_radix(text, 16).ok()).flatten();
        number.map(|number| Pseudonym(number.to_be_bytes())).ok_or(InvalidPseudonym)
    }
}

impl Serialize for Pseudonym {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Pseudonym {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Pseudonym, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pseudonym_depends_on_the_key_the_attribute_and_the_value() {
        let key = PseudonymKey::secret(b"0123456789abcdef");
        let name = key.value("jwt:sub", b"ann").to_string();
        assert_eq!(name.len(), 16);
        assert_eq!(name, PseudonymKey::secret(b"0123456789abcdef").value("jwt:sub", b"ann").to_string());
        for other in [
            key.value("jwt:sub", b"bob"),
            key.value("jwt:org", b"ann"),
            key.value("jwt:su", b"bann"),
            PseudonymKey::default().value("jwt:sub", b"ann"),
            PseudonymKey::secret(b"0123456789abcdeg").value("jwt:sub", b"ann"),
        ] {
            assert_ne!(name, other.to_string());
        }
    }

    #[test]
    fn only_a_printed_pseudonym_is_parsed() {
        let name = PseudonymKey::default().value("jwt:sub", b"ann");
        assert_eq!(name.to_string().parse(), Ok(name));
        assert_eq!(
            "000000000000000f".parse().map(|name: Pseudonym| name.to_string()),
            Ok("000000000000000f".to_owned())
        );
        for text in ["", "f", "000000000000000F", "+00000000000000f", "000000000000000ff", "00000000000000é"] {
            assert_eq!(text.parse::<Pseudonym>(), Err(InvalidPseudonym), "{text}");
        }
    }

    #[test]
    fn a_key_does_not_print() {
        assert_eq!(format!("{:?}", PseudonymKey::secret(b"0123456789abcdef")), "PseudonymKey(Secret)");
    }
}
