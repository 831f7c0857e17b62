//! Makes valid and invalid tokens.

use std::path::Path;
use std::time::SystemTime;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rcgen::{PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519};
use ring::hmac;
use ring::rand::SystemRandom;
use ring::signature::{self, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RsaKeyPair};
use serde_json::{Value, json};

/// A key that signs tokens.
pub(crate) enum Signer {
    Hmac(hmac::Algorithm, Vec<u8>),
    Rsa(RsaKeyPair, &'static dyn signature::RsaEncoding),
    Ec(EcdsaKeyPair),
    Ed(Ed25519KeyPair),
    /// Signs with an empty signature.
    Nobody,
}

/// A key that signs tokens, with its public half as PEM and as JWK.
pub(crate) struct SigningKey {
    pub signer: Signer,
    pub pem: String,
    pub jwk: Value,
}

pub(crate) fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Returns the seconds since the epoch.
#[allow(clippy::disallowed_methods, reason = "a token's times are those of the wall clock")]
pub(crate) fn epoch() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

impl Signer {
    pub(crate) fn hs256(secret: &str) -> Signer {
        Signer::Hmac(hmac::HMAC_SHA256, secret.as_bytes().to_vec())
    }

    pub(crate) fn sign(&self, message: &[u8]) -> Vec<u8> {
        match self {
            Signer::Hmac(algorithm, secret) => {
                hmac::sign(&hmac::Key::new(*algorithm, secret), message).as_ref().to_vec()
            }
            Signer::Rsa(key, encoding) => {
                let mut signed = vec![0; key.public().modulus_len()];
                key.sign(*encoding, &SystemRandom::new(), message, &mut signed).unwrap();
                signed
            }
            Signer::Ec(key) => key.sign(&SystemRandom::new(), message).unwrap().as_ref().to_vec(),
            Signer::Ed(key) => key.sign(message).as_ref().to_vec(),
            Signer::Nobody => Vec::new(),
        }
    }

    /// Returns a token whose header and claims have exactly this text.
    pub(crate) fn token_of(&self, header: &str, claims: &str) -> String {
        let message = format!("{}.{}", encode(header), encode(claims));
        format!("{message}.{}", encode(self.sign(message.as_bytes())))
    }

    pub(crate) fn token(&self, header: &Value, claims: &Value) -> String {
        self.token_of(&header.to_string(), &claims.to_string())
    }
}

fn pem_file(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/keys").join(name)).unwrap()
}

/// Returns the RSA key of all tests. There is one, because making a key takes seconds.
pub(crate) fn rsa(encoding: &'static dyn signature::RsaEncoding) -> SigningKey {
    let private = pem_file("rsa.pem");
    let der = rcgen::KeyPair::from_pem(&private).unwrap().serialize_der();
    let key = RsaKeyPair::from_pkcs8(&der).unwrap();
    let components = signature::RsaPublicKeyComponents::<Vec<u8>>::from(key.public());
    let jwk = json!({"kty": "RSA", "n": encode(&components.n), "e": encode(&components.e)});
    SigningKey { signer: Signer::Rsa(key, encoding), pem: pem_file("rsa.pub.pem"), jwk }
}

pub(crate) fn es256() -> SigningKey {
    ec(&PKCS_ECDSA_P256_SHA256, &signature::ECDSA_P256_SHA256_FIXED_SIGNING, "P-256", 32)
}

pub(crate) fn es384() -> SigningKey {
    ec(&PKCS_ECDSA_P384_SHA384, &signature::ECDSA_P384_SHA384_FIXED_SIGNING, "P-384", 48)
}

fn ec(
    kind: &'static rcgen::SignatureAlgorithm,
    signing: &'static signature::EcdsaSigningAlgorithm,
    curve: &str,
    size: usize,
) -> SigningKey {
    let pair = rcgen::KeyPair::generate_for(kind).unwrap();
    let key = EcdsaKeyPair::from_pkcs8(signing, &pair.serialize_der(), &SystemRandom::new()).unwrap();
    let (x, y) = key.public_key().as_ref()[1..].split_at(size);
    let jwk = json!({"kty": "EC", "crv": curve, "x": encode(x), "y": encode(y)});
    SigningKey { pem: pair.public_key_pem(), jwk, signer: Signer::Ec(key) }
}

pub(crate) fn eddsa() -> SigningKey {
    let pair = rcgen::KeyPair::generate_for(&PKCS_ED25519).unwrap();
    let key = Ed25519KeyPair::from_pkcs8_maybe_unchecked(&pair.serialize_der()).unwrap();
    let jwk = json!({"kty": "OKP", "crv": "Ed25519", "x": encode(key.public_key())});
    SigningKey { pem: pair.public_key_pem(), jwk, signer: Signer::Ed(key) }
}

impl SigningKey {
    /// Returns the key as a member of a key set, under this name.
    pub(crate) fn jwk_as(&self, id: &str) -> Value {
        with(&self.jwk, "kid", json!(id))
    }
}

/// Returns an object with one member set.
pub(crate) fn with(object: &Value, name: &str, value: Value) -> Value {
    let mut object = object.clone();
    object[name] = value;
    object
}

/// Returns an object with one member removed.
pub(crate) fn without(object: &Value, name: &str) -> Value {
    let mut object = object.clone();
    object.as_object_mut().unwrap().remove(name);
    object
}
