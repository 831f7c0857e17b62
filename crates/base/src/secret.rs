//! Passwords and keys, which `Debug` never prints, and where they come from.

use std::fmt;

use super::named_file::NamedFile;

/// A secret text: its `Debug` output does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

/// The source of a secret: the configuration itself, or a separate file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretSource {
    Inline(Secret),
    File(NamedFile),
}

impl Secret {
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    /// Makes a secret of the content of a file. Line ends at its end are removed, because editors add one. `None` if the
    /// content is not UTF-8.
    pub fn from_file(content: &[u8]) -> Option<Secret> {
        let text = std::str::from_utf8(content).ok()?;
        Some(Secret::new(text.trim_end_matches(['\n', '\r'])))
    }

    /// The text itself, for sending or comparing it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl SecretSource {
    /// The secret at the time when the configuration was loaded.
    pub fn loaded(&self) -> Option<Secret> {
        match self {
            SecretSource::Inline(secret) => Some(secret.clone()),
            SecretSource::File(file) => Secret::from_file(file.loaded()),
        }
    }

    /// Reads the secret again, from its file if it has one. May block.
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
