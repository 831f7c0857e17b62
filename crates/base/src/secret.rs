//! Passwords and keys, which `Debug` never prints, and where they come from.

use std::fmt;

use super::named_file::NamedFile;

/// A text whose `Debug` output hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

/// Where a secret comes from: the configuration itself, or a file of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretSource {
    Inline(Secret),
    File(NamedFile),
}

impl Secret {
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    /// Makes a secret of the content of a file. Line ends at the end are left out, because editors add one. `None` if it is not
    /// UTF-8.
    pub fn from_file(content: &[u8]) -> Option<Secret> {
        let text = std::str::from_utf8(content).ok()?;
        Some(Secret::new(text.trim_end_matches(['\n', '\r'])))
    }

    /// The text itself, to send or compare it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl SecretSource {
    /// The secret as it was when the configuration was loaded.
    pub fn loaded(&self) -> Option<Secret> {
        match self {
            SecretSource::Inline(secret) => Some(secret.clone()),
            SecretSource::File(file) => Secret::from_file(file.loaded()),
        }
    }

    /// Reads the present secret. May block.
    ///
    /// # Errors
    ///
    /// Names the file and the mistake, if it cannot be read or is not UTF-8.
    pub fn read(&self) -> Result<Secret, String> {
        let file = match self {
            SecretSource::Inline(secret) => return Ok(secret.clone()),
            SecretSource::File(file) => file,
        };
        let path = file.path().display();
        let content = file.read().map_err(|error| format!("{path}: {error}"))?;
        Secret::from_file(&content).ok_or_else(|| format!("{path}: is not UTF-8 text"))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}
