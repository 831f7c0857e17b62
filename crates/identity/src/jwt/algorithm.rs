//! Determines for which algorithms a key may be used. This depends on the key and never on a token (RFC 8725, sections
//! 3.1 and 3.2): an RSA key never verifies an HMAC, whatever a token's header says. Rejects keys that are too weak for
//! every algorithm.

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, DecodingKeyKind};
use ring::agreement::{self, EphemeralPrivateKey, agree_ephemeral};
use ring::rand::SystemRandom;

use super::keys::KeyError;

/// The shortest accepted RSA modulus, in bytes.
const SHORTEST_MODULUS: usize = 2048 / 8;
/// The longest modulus with which signatures can be verified, in bytes.
const LONGEST_MODULUS: usize = 8192 / 8;
/// The algorithms that a configuration may list, with their names in the configuration and in tokens (RFC 7518; EdDSA in RFC
/// 8037).
pub const ALGORITHMS: [(&str, Algorithm); 12] = [
    ("HS256", Algorithm::HS256),
    ("HS384", Algorithm::HS384),
    ("HS512", Algorithm::HS512),
    ("RS256", Algorithm::RS256),
    ("RS384", Algorithm::RS384),
    ("RS512", Algorithm::RS512),
    ("PS256", Algorithm::PS256),
    ("PS384", Algorithm::PS384),
    ("PS512", Algorithm::PS512),
    ("ES256", Algorithm::ES256),
    ("ES384", Algorithm::ES384),
    ("EdDSA", Algorithm::EdDSA),
];

/// Returns the name of an algorithm, for messages.
pub fn algorithm_name(algorithm: Algorithm) -> &'static str {
    ALGORITHMS.iter().find(|(_, known)| *known == algorithm).map_or("", |(name, _)| name)
}

/// The algorithms that use a shared secret.
pub(crate) const HMACS: [Algorithm; 3] = [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512];

/// Returns the length of the shortest secret for an algorithm, in bytes: the length of its hash (RFC 7518, section 3.2). 0 for
/// an algorithm without secrets.
pub fn shortest_secret(algorithm: Algorithm) -> usize {
    match algorithm {
        Algorithm::HS256 => 32,
        Algorithm::HS384 => 48,
        Algorithm::HS512 => 64,
        _ => 0,
    }
}

/// Returns the algorithms for which a key may verify signatures.
///
/// # Errors
/// If the key is too weak or invalid, or of a type that no supported algorithm uses.
pub(crate) fn algorithms_of(key: &DecodingKey) -> Result<Vec<Algorithm>, KeyError> {
    match (key.family(), key.kind()) {
        (AlgorithmFamily::Hmac, DecodingKeyKind::SecretOrDer(secret)) => {
            let found = secret.len();
            let long_enough = |algorithm: &Algorithm| shortest_secret(*algorithm) <= found;
            let algorithms: Vec<_> = HMACS.into_iter().filter(long_enough).collect();
            if algorithms.is_empty() {
                return Err(KeyError::ShortSecret { algorithm: Algorithm::HS256, found });
            }
            Ok(algorithms)
        }
        (AlgorithmFamily::Rsa, kind) => {
            let (modulus, exponent) = match kind {
                DecodingKeyKind::SecretOrDer(der) => der_numbers(der).ok_or(KeyError::Unusable)?,
                DecodingKeyKind::RsaModulusExponent { n, e } => (n.clone(), e.clone()),
            };
            if modulus.len() < SHORTEST_MODULUS {
                return Err(KeyError::ShortModulus(modulus.len()));
            }
            let odd = exponent.last().is_some_and(|last| last % 2 == 1) && exponent != [1];
            if modulus.len() > LONGEST_MODULUS || !odd {
                return Err(KeyError::Unusable);
            }
            Ok(AlgorithmFamily::Rsa.algorithms().to_vec())
        }
        (AlgorithmFamily::Ec, DecodingKeyKind::SecretOrDer(point)) => match point.len() {
            65 if is_on_curve(&agreement::ECDH_P256, point) => Ok(vec![Algorithm::ES256]),
            97 if is_on_curve(&agreement::ECDH_P384, point) => Ok(vec![Algorithm::ES384]),
            _ => Err(KeyError::Unusable),
        },
        (AlgorithmFamily::Ed, DecodingKeyKind::SecretOrDer(point)) if point.len() == 32 => Ok(vec![Algorithm::EdDSA]),
        _ => Err(KeyError::Unusable),
    }
}

/// Returns the algorithms for which a JWK may verify signatures: the algorithm that the JWK names, or else all of
/// `own`, the algorithms of its key.
///
/// # Errors
/// If the curve or the algorithm that the JWK names does not fit its key.
pub(crate) fn declared_algorithms(
    jwk: &Jwk,
    key: &DecodingKey,
    own: Vec<Algorithm>,
) -> Result<Vec<Algorithm>, KeyError> {
    if !curve_fits(jwk, &own) {
        return Err(KeyError::WrongCurve);
    }
    let Some(declared) = jwk.common.key_algorithm else { return Ok(own) };
    let algorithms: Vec<_> = own.into_iter().filter(|own| KeyAlgorithm::from(*own) == declared).collect();
    if !algorithms.is_empty() {
        return Ok(algorithms);
    }
    Err(match (&jwk.algorithm, key.kind()) {
        (AlgorithmParameters::OctetKey(_), DecodingKeyKind::SecretOrDer(secret)) => {
            let hmac = HMACS.into_iter().find(|hmac| KeyAlgorithm::from(*hmac) == declared);
            let short = |algorithm| KeyError::ShortSecret { algorithm, found: secret.len() };
            hmac.map_or(KeyError::Unusable, short)
        }
        (AlgorithmParameters::EllipticCurve(_) | AlgorithmParameters::OctetKeyPair(_), _) => KeyError::WrongCurve,
        _ => KeyError::Unusable,
    })
}

/// Whether a JWK's `crv` is the curve of its point. The library compares only the length of the point.
fn curve_fits(jwk: &Jwk, algorithms: &[Algorithm]) -> bool {
    let curve = match &jwk.algorithm {
        AlgorithmParameters::EllipticCurve(parameters) => &parameters.curve,
        AlgorithmParameters::OctetKeyPair(parameters) => &parameters.curve,
        _ => return true,
    };
    match curve {
        EllipticCurve::P256 => algorithms == [Algorithm::ES256],
        EllipticCurve::P384 => algorithms == [Algorithm::ES384],
        EllipticCurve::Ed25519 => algorithms == [Algorithm::EdDSA],
        _ => false,
    }
}

/// Removes the leading zeros of a big-endian number.
pub(crate) fn unpadded(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    number.get(zeros..).unwrap_or_default()
}

/// Returns the modulus and the exponent of an RSAPublicKey (RFC 8017, appendix A.1.1).
fn der_numbers(der: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let blocks = simple_asn1::from_der(der).ok()?;
    let simple_asn1::ASN1Block::Sequence(_, members) = blocks.first()? else { return None };
    let number = |index: usize| match members.get(index)? {
        simple_asn1::ASN1Block::Integer(_, number) => Some(unpadded(&number.to_signed_bytes_be()).to_vec()),
        _ => None,
    };
    Some((number(0)?, number(1)?))
}

/// Checks that a point is on the curve, by a key agreement with the point. The agreement fails for any other point.
fn is_on_curve(curve: &'static agreement::Algorithm, point: &[u8]) -> bool {
    let Ok(own) = EphemeralPrivateKey::generate(curve, &SystemRandom::new()) else { return false };
    agree_ephemeral(own, &agreement::UnparsedPublicKey::new(curve, point), |_| ()).is_ok()
}
