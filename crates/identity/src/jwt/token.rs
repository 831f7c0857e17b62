//! Parses a token. Nothing in the token is trusted yet.
//!
//! Only the compact form of a signed token is accepted (RFC 7515, section 7.1): three parts in base64url without
//! padding, the first two of them JSON objects. Any other token is rejected here, before any signature is verified.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::Algorithm;
use serde_json::{Map, Value};

use super::algorithm::ALGORITHMS;
use super::error::Invalid;
use super::json;

/// The largest token that is parsed, in bytes.
pub(crate) const MAX_TOKEN_BYTES: usize = 8 << 10;

/// The longest key id, in bytes.
const LONGEST_KEY_ID: usize = 256;

/// A parsed token. Its signature has not been verified.
#[derive(Debug)]
pub(crate) struct UnverifiedToken<'t> {
    pub algorithm: Algorithm,
    pub key_id: Option<String>,
    pub claims: Map<String, Value>,
    /// The bytes that the signature covers.
    pub message: &'t [u8],
    pub signature: Vec<u8>,
}

impl<'t> UnverifiedToken<'t> {
    /// Splits a token into its parts, without verifying anything.
    ///
    /// # Errors
    /// If the token is too long or malformed, has a critical extension, or names an unknown algorithm.
    pub(crate) fn parse(token: &'t [u8]) -> Result<UnverifiedToken<'t>, Invalid> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(Invalid::Malformed);
        }
        let mut parts = token.split(|byte| *byte == b'.');
        let (Some(header), Some(claims), Some(signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(Invalid::Malformed);
        };
        let message = token.get(..header.len() + 1 + claims.len()).ok_or(Invalid::Malformed)?;
        let header = json::object(&decode(header)?).ok_or(Invalid::Malformed)?;
        // A token with a critical extension is rejected, because no such extension is supported (RFC 7515, section
        // 4.1.11).
        if header.contains_key("crit") {
            return Err(Invalid::Malformed);
        }
        let named = header.get("alg").and_then(Value::as_str).ok_or(Invalid::Malformed)?;
        let (_, algorithm) = ALGORITHMS.iter().find(|(name, _)| *name == named).ok_or(Invalid::Algorithm)?;
        let key_id = match header.get("kid") {
            None => None,
            Some(Value::String(id)) if id.len() <= LONGEST_KEY_ID => Some(id.clone()),
            Some(_) => return Err(Invalid::Malformed),
        };
        let claims = json::object(&decode(claims)?).ok_or(Invalid::Malformed)?;
        Ok(UnverifiedToken { algorithm: *algorithm, key_id, claims, message, signature: decode(signature)? })
    }
}

fn decode(part: &[u8]) -> Result<Vec<u8>, Invalid> {
    URL_SAFE_NO_PAD.decode(part).map_err(|_| Invalid::Malformed)
}
