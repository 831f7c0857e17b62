//! Parses keys and sets of keys, and verifies signatures. [`super::algorithm`] determines the algorithms of a key.

use std::fmt;
use std::sync::Arc;

use jsonwebtoken::jwk::{AlgorithmParameters, Jwk, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind};
use ring::{hmac, signature};
use serde::Deserialize;
use serde_json::Value;

use super::algorithm::{algorithm_name, algorithms_of, declared_algorithms, shortest_secret, unpadded};

/// The maximum number of keys in a set.
const MAX_KEYS: usize = 256;
/// The maximum number of keys that are tried for a token without a key id.
const MAX_TRIED_KEYS: usize = 4;

/// A key that verifies signatures, with the algorithms for which it may be used.
#[derive(Debug)]
pub struct Key {
    id: Option<String>,
    algorithms: Vec<Algorithm>,
    key: DecodingKey,
}

/// The keys of one issuer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KeySet(Vec<Arc<Key>>);

/// The reason why a key cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyError {
    ShortSecret {
        algorithm: Algorithm,
        found: usize,
    },
    ShortModulus(usize),
    NotPem,
    NotJwks,
    /// No supported algorithm uses a key of this type, or the key is invalid.
    Unusable,
    /// The key is not meant for verifying signatures.
    OtherUse,
    /// The key is a shared secret, but its set was fetched and is public.
    PublicSecret,
    /// The curve that the key names does not fit its point, its type or its algorithm.
    WrongCurve,
    NoKeys,
    TooMany,
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyError::ShortSecret { algorithm: Algorithm::HS256, found } => {
                write!(f, "a secret must have at least {} bytes, has {found}", shortest_secret(Algorithm::HS256))
            }
            KeyError::ShortSecret { algorithm, found } => {
                let (name, least) = (algorithm_name(*algorithm), shortest_secret(*algorithm));
                write!(f, "a secret for {name} must have at least {least} bytes, has {found}")
            }
            KeyError::ShortModulus(found) => write!(f, "an RSA key must have at least 2048 bits, has {}", found * 8),
            KeyError::NotPem => f.write_str("must be a public key in PEM"),
            KeyError::NotJwks => f.write_str("must be a JWK set: an object with `keys`"),
            KeyError::Unusable => f.write_str("must be a key of RSA, P-256, P-384 or Ed25519, and sound"),
            KeyError::OtherUse => f.write_str("a key that is not for signatures"),
            KeyError::PublicSecret => f.write_str("a secret in a set that is fetched"),
            KeyError::WrongCurve => f.write_str("a key whose `crv` does not fit its `kty`, its `alg` or its point"),
            KeyError::NoKeys => f.write_str("must have a key that can be used"),
            KeyError::TooMany => write!(f, "must have at most {MAX_KEYS} keys"),
        }
    }
}

/// The place from which a key set was read. A fetched set is public, so it must not contain a shared secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    File,
    Fetched,
}

impl Key {
    /// Makes a key from a shared secret.
    ///
    /// # Errors
    /// If the secret is shorter than the shortest hash.
    pub fn secret(secret: &[u8]) -> Result<Key, KeyError> {
        Key::new(None, DecodingKey::from_secret(secret))
    }

    /// Parses an RSA, EC or Ed25519 public key in PEM.
    ///
    /// # Errors
    /// If the text is not the PEM of such a key, or if the key is too weak.
    pub fn pem(pem: &[u8]) -> Result<Key, KeyError> {
        let key = DecodingKey::from_rsa_pem(pem)
            .or_else(|_| DecodingKey::from_ec_pem(pem))
            .or_else(|_| DecodingKey::from_ed_pem(pem));
        Key::new(None, key.map_err(|_| KeyError::NotPem)?)
    }

    fn jwk(jwk: &Jwk, origin: Origin) -> Result<Key, KeyError> {
        let common = &jwk.common;
        let signs = common.public_key_use.as_ref().is_none_or(|used| *used == PublicKeyUse::Signature);
        let verifies =
            common.key_operations.as_ref().is_none_or(|operations| operations.contains(&KeyOperations::Verify));
        if !signs || !verifies {
            return Err(KeyError::OtherUse);
        }
        if origin == Origin::Fetched && matches!(jwk.algorithm, AlgorithmParameters::OctetKey(_)) {
            return Err(KeyError::PublicSecret);
        }
        let key = DecodingKey::from_jwk(jwk).map_err(|_| KeyError::Unusable)?;
        let key = Key::new(common.key_id.clone(), key)?;
        let algorithms = declared_algorithms(jwk, &key.key, key.algorithms)?;
        Ok(Key { id: key.id, algorithms, key: key.key })
    }

    fn new(id: Option<String>, key: DecodingKey) -> Result<Key, KeyError> {
        let key = match key.kind() {
            // Some issuers write a zero byte before the modulus.
            DecodingKeyKind::RsaModulusExponent { n, e } => {
                DecodingKey::from_rsa_raw_components(unpadded(n), unpadded(e))
            }
            DecodingKeyKind::SecretOrDer(_) => key,
        };
        let algorithms = algorithms_of(&key)?;
        Ok(Key { id, algorithms, key })
    }

    pub fn algorithms(&self) -> &[Algorithm] {
        &self.algorithms
    }

    /// Whether the signature of the message was made with this key. `false` if the key must not be used with `algorithm`.
    pub fn verifies(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> bool {
        if !self.algorithms.contains(&algorithm) {
            return false;
        }
        let check = |with: &'static dyn signature::VerificationAlgorithm, key: &[u8]| {
            signature::UnparsedPublicKey::new(with, key).verify(message, signature).is_ok()
        };
        let rsa = |with: &'static signature::RsaParameters| match self.key.kind() {
            DecodingKeyKind::SecretOrDer(der) => check(with, der),
            DecodingKeyKind::RsaModulusExponent { n, e } => {
                signature::RsaPublicKeyComponents { n, e }.verify(with, message, signature).is_ok()
            }
        };
        let DecodingKeyKind::SecretOrDer(bytes) = self.key.kind() else { return rsa_only(algorithm).is_some_and(rsa) };
        let mac = |with: hmac::Algorithm| hmac::verify(&hmac::Key::new(with, bytes), message, signature).is_ok();
        match algorithm {
            Algorithm::HS256 => mac(hmac::HMAC_SHA256),
            Algorithm::HS384 => mac(hmac::HMAC_SHA384),
            Algorithm::HS512 => mac(hmac::HMAC_SHA512),
            Algorithm::ES256 => check(&signature::ECDSA_P256_SHA256_FIXED, bytes),
            Algorithm::ES384 => check(&signature::ECDSA_P384_SHA384_FIXED, bytes),
            Algorithm::EdDSA => check(&signature::ED25519, bytes),
            _ => rsa_only(algorithm).is_some_and(rsa),
        }
    }

    pub fn is_named(&self, id: Option<&str>) -> bool {
        self.id.as_deref() == id
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        let material = match (self.key.kind(), other.key.kind()) {
            (DecodingKeyKind::SecretOrDer(one), DecodingKeyKind::SecretOrDer(another)) => one == another,
            (DecodingKeyKind::RsaModulusExponent { n, e }, DecodingKeyKind::RsaModulusExponent { n: m, e: f }) => {
                n == m && e == f
            }
            _ => false,
        };
        material && self.id == other.id && self.algorithms == other.algorithms
    }
}

fn rsa_only(algorithm: Algorithm) -> Option<&'static signature::RsaParameters> {
    Some(match algorithm {
        Algorithm::RS256 => &signature::RSA_PKCS1_2048_8192_SHA256,
        Algorithm::RS384 => &signature::RSA_PKCS1_2048_8192_SHA384,
        Algorithm::RS512 => &signature::RSA_PKCS1_2048_8192_SHA512,
        Algorithm::PS256 => &signature::RSA_PSS_2048_8192_SHA256,
        Algorithm::PS384 => &signature::RSA_PSS_2048_8192_SHA384,
        Algorithm::PS512 => &signature::RSA_PSS_2048_8192_SHA512,
        _ => return None,
    })
}

impl KeySet {
    pub fn of(key: Key) -> KeySet {
        KeySet(vec![Arc::new(key)])
    }

    /// Parses a JWK set (RFC 7517, section 5). A key that cannot be used is skipped. In a file, a key that contradicts itself
    /// is an error.
    ///
    /// # Errors
    ///
    /// If the bytes are not a JWK set, or if the set has too many keys or no key that can be used.
    pub fn jwks(bytes: &[u8], origin: Origin) -> Result<KeySet, KeyError> {
        let set: Value = serde_json::from_slice(bytes).map_err(|_| KeyError::NotJwks)?;
        let members = set.get("keys").and_then(Value::as_array).ok_or(KeyError::NotJwks)?;
        if members.len() > MAX_KEYS {
            return Err(KeyError::TooMany);
        }
        let read = |member: &Value| {
            let jwk = Jwk::deserialize(member).map_err(|_| KeyError::Unusable)?;
            Key::jwk(&jwk, origin).map(Arc::new)
        };
        let keys: Vec<Result<Arc<Key>, KeyError>> = members.iter().map(read).collect();
        // In a file, a key that contradicts itself is a mistake that an operator can correct.
        let contradicts = |error: &KeyError| matches!(error, KeyError::WrongCurve | KeyError::ShortSecret { .. });
        let fault = keys.iter().filter_map(|key| key.as_ref().err()).find(|error| contradicts(error));
        if let (Origin::File, Some(fault)) = (origin, fault) {
            return Err(*fault);
        }
        let first_fault = keys.iter().find_map(|key| key.as_ref().err().copied());
        let keys: Vec<_> = keys.into_iter().flatten().collect();
        if keys.is_empty() { Err(first_fault.unwrap_or(KeyError::NoKeys)) } else { Ok(KeySet(keys)) }
    }

    /// Returns this set. A key that `old` also has is taken from `old`, so that the tokens that this key has verified
    /// stay in the cache.
    pub fn replacing(self, old: &KeySet) -> KeySet {
        let kept = |key: Arc<Key>| old.0.iter().find(|known| **known == key).cloned().unwrap_or(key);
        KeySet(self.0.into_iter().map(kept).collect())
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the set has a key that can be used with this algorithm.
    pub fn fits(&self, algorithm: Algorithm) -> bool {
        self.0.iter().any(|key| key.algorithms.contains(&algorithm))
    }

    /// Returns at most four keys that may have signed a token with this algorithm and key id: first the keys with this
    /// id, then the keys without an id. A token without a key id may be signed by any key for the algorithm.
    pub fn candidates(&self, algorithm: Algorithm, id: Option<&str>) -> impl Iterator<Item = &Arc<Key>> {
        let fitting = move |key: &&Arc<Key>| key.algorithms.contains(&algorithm);
        let named = self.0.iter().filter(fitting).filter(move |key| id.is_some() && key.is_named(id));
        let others = self.0.iter().filter(fitting).filter(move |key| id.is_none() || key.id.is_none());
        named.chain(others).take(MAX_TRIED_KEYS)
    }
}

#[cfg(test)]
mod tests {
    use super::super::algorithm::HMACS;
    use super::*;

    const X: &str = "axfR8uEsQkf4vOblY6RA8ncDfYEt6zOg9KE5RdiYwpY";
    const Y: &str = "T-NC4v4af5uO5-tKfA-eFivOM1drMV7Oy7ZAaDe_UfU";

    /// Checks a set with this key and a valid key. `file` is the expected error if the set comes from a file. `fetched`
    /// is the number of keys that are kept if the set was fetched.
    #[track_caller]
    fn check(key: &str, file: Option<KeyError>, fetched: usize) {
        let sound = format!(r#"{{"kty":"EC","crv":"P-256","alg":"ES256","x":"{X}","y":"{Y}"}}"#);
        let set = format!(r#"{{"keys":[{sound},{{{key}}}]}}"#);
        assert_eq!(KeySet::jwks(set.as_bytes(), Origin::File).err(), file, "{key}");
        assert_eq!(KeySet::jwks(set.as_bytes(), Origin::Fetched).unwrap().len(), fetched, "{key}");
    }

    #[test]
    fn a_curve_must_match_the_key_type_the_algorithm_and_the_point() {
        let wrong = Some(KeyError::WrongCurve);
        check(&format!(r#""kty":"EC","crv":"P-256","x":"{X}","y":"{Y}""#), None, 2);
        check(&format!(r#""kty":"EC","crv":"P-384","x":"{X}","y":"{Y}""#), wrong, 1);
        check(&format!(r#""kty":"EC","crv":"P-521","x":"{X}","y":"{Y}""#), wrong, 1);
        check(&format!(r#""kty":"EC","crv":"Ed25519","x":"{X}","y":"{Y}""#), wrong, 1);
        check(&format!(r#""kty":"EC","crv":"P-256","alg":"ES384","x":"{X}","y":"{Y}""#), wrong, 1);
        check(&format!(r#""kty":"EC","crv":"P-256","alg":"EdDSA","x":"{X}","y":"{Y}""#), wrong, 1);
        check(&format!(r#""kty":"OKP","crv":"Ed25519","x":"{X}""#), None, 2);
        check(&format!(r#""kty":"OKP","crv":"P-256","x":"{X}""#), wrong, 1);
        check(&format!(r#""kty":"OKP","crv":"Ed25519","alg":"ES256","x":"{X}""#), wrong, 1);
    }

    #[test]
    fn a_secret_is_at_least_as_long_as_its_hash() {
        let fits = |length: usize| {
            let set = KeySet::of(Key::secret(&vec![7; length]).unwrap());
            HMACS.map(|algorithm| set.fits(algorithm))
        };
        assert_eq!(fits(32), [true, false, false]);
        assert_eq!(fits(47), [true, false, false]);
        assert_eq!(fits(48), [true, true, false]);
        assert_eq!(fits(64), [true, true, true]);
        let short = |algorithm, found| Some(KeyError::ShortSecret { algorithm, found });
        assert_eq!(Key::secret(&[7; 31]).err(), short(Algorithm::HS256, 31));
        let secret = "A".repeat(44);
        check(&format!(r#""kty":"oct","alg":"HS256","k":"{secret}""#), None, 1);
        check(&format!(r#""kty":"oct","alg":"HS384","k":"{secret}""#), short(Algorithm::HS384, 33), 1);
        check(&format!(r#""kty":"oct","alg":"HS512","k":"{secret}""#), short(Algorithm::HS512, 33), 1);
        check(r#""kty":"oct","k":"QUJD""#, short(Algorithm::HS256, 3), 1);
    }
}
