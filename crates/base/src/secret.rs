//! Passwords and keys, which `Debug` never prints, and the sources from which they are read.

use std::fmt;

use super::named_file::NamedFile;

/// A secret text, such as a password. Its `Debug` output does not show the text.
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

    /// Makes a secret from the content of a file, without line breaks at the end. `None` if the content is not UTF-8.
    pub fn from_file(content: &[u8]) -> Option<Secret> {
        let text = std::str::from_utf8(content).ok()?;
        Some(Secret::new(text.trim_end_matches(['\n', '\r'])))
    }

    /// Returns the secret text itself, to send or compare it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl SecretSource {
    /// Returns the secret as it was when the configuration was loaded. `None` if the secret is in a file that is not UTF-8.
    pub fn loaded(&self) -> Option<Secret> {
        match self {
            SecretSource::Inline(secret) => Some(secret.clone()),
            SecretSource::File(file) => Secret::from_file(file.loaded()),
        }
    }

    /// Returns the present secret. If the secret is in a file, the file is read again, which may block.
    ///
    /// # Errors
    ///
    /// If the file cannot be read or is not UTF-8. The message names the file and the problem.
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
