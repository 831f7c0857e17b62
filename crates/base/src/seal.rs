//! Seals short texts that a client keeps and sends back: nobody else can read, make or change them.

use std::fmt;

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};

/// A key that seals and opens texts with ChaCha20-Poly1305.
#[derive(Clone)]
pub struct SealKey(LessSafeKey);

impl SealKey {
    /// Makes a key from 32 secret bytes. `None` if there is another number of bytes.
    pub(crate) fn new(key: &[u8]) -> Option<SealKey> {
        UnboundKey::new(&CHACHA20_POLY1305, key).ok().map(|key| SealKey(LessSafeKey::new(key)))
    }

    /// Seals a text. `None` if the system has no random numbers.
    pub fn seal(&self, text: &[u8]) -> Option<Vec<u8>> {
        let mut nonce = [0; NONCE_LEN];
        SystemRandom::new().fill(&mut nonce).ok()?;
        let mut sealed = text.to_vec();
        let nonce_of_text = Nonce::assume_unique_for_key(nonce);
        self.0.seal_in_place_append_tag(nonce_of_text, Aad::empty(), &mut sealed).ok()?;
        Some(nonce.into_iter().chain(sealed).collect())
    }

    /// Opens a sealed text. `None` for bytes that were not sealed with this key.
    pub fn open(&self, sealed: &[u8]) -> Option<Vec<u8>> {
        let (nonce, sealed) = sealed.split_first_chunk::<NONCE_LEN>()?;
        let mut text = sealed.to_vec();
        let opened = self.0.open_in_place(Nonce::assume_unique_for_key(*nonce), Aad::empty(), &mut text).ok()?;
        Some(opened.to_vec())
    }
}

impl fmt::Debug for SealKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealKey")
    }
}

#[cfg(test)]
mod tests {
    use crate::pseudonym::PseudonymKey;

    #[test]
    fn only_the_same_key_opens_what_is_not_changed() {
        let key = |secret: &[u8], purpose| PseudonymKey::secret(secret).seal_key(purpose).unwrap();
        let sealed = key(b"0123456789abcdef", "hold").seal(b"text").unwrap();
        assert_eq!(key(b"0123456789abcdef", "hold").open(&sealed).as_deref(), Some(&b"text"[..]));
        assert_eq!(key(b"0123456789abcdeF", "hold").open(&sealed), None);
        assert_eq!(key(b"0123456789abcdef", "other").open(&sealed), None);
        for index in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[index] ^= 1;
            assert_eq!(key(b"0123456789abcdef", "hold").open(&changed), None, "{index}");
        }
        assert_eq!(key(b"0123456789abcdef", "hold").open(b"short"), None);
        assert!(PseudonymKey::default().seal_key("hold").is_none(), "the public key seals nothing");
    }
}
