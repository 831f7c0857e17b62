//! Reads what a file may refer to outside itself: environment variables and other files.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::language::problem::HIDDEN;
use crate::language::reader::Field;
use crate::language::remarks::FileRole;
use base::named_file::NamedFile;
use base::secret::{Secret, SecretSource};

/// The variable with the folder of a service's credentials, which systemd sets. The path is no secret.
pub(crate) const CREDENTIALS_FOLDER: &str = "CREDENTIALS_DIRECTORY";

/// Gives a configuration access to the variables and files to which it refers.
#[derive(Clone, Copy)]
pub struct Environment<'s> {
    pub variable: &'s dyn Fn(&str) -> Option<String>,
    /// The folder to which relative paths in the configuration refer.
    pub folder: &'s Path,
    /// Reads a file. The path is as the configuration writes it, so it may be relative to `folder`.
    pub read: &'s dyn Fn(&Path) -> io::Result<Vec<u8>>,
}

impl fmt::Debug for Environment<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Environment")
    }
}

impl Environment<'_> {
    /// Reads the file that a value names, and returns its content. `None` after reporting that the file cannot be read.
    pub(crate) fn file(&self, field: &Field<'_>) -> Option<Vec<u8>> {
        let path = field.written()?;
        match (self.read)(Path::new(path)) {
            Ok(bytes) => {
                field.note_named_file(self.folder.join(path), FileRole::Other);
                Some(bytes)
            }
            Err(error) => {
                field.must(format_args!("be a readable file ({error})"));
                None
            }
        }
    }

    /// Returns the path that a value names. The file need not exist yet. `None` after reporting that it cannot exist.
    pub(crate) fn new_file(&self, field: &Field<'_>) -> Option<PathBuf> {
        let path = Path::new(field.written()?);
        let folder = path.parent().unwrap_or(Path::new(""));
        let is_named = path.file_name().is_some() && !path.as_os_str().as_encoded_bytes().ends_with(b"/");
        // A folder without a name is the folder of gateway.yaml itself, so it exists.
        let missing = match (self.read)(folder) {
            _ if folder == Path::new("") => None,
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => None,
            Err(error) => Some(error),
            Ok(_) => Some(io::ErrorKind::NotADirectory.into()),
        };
        match missing {
            _ if !is_named => field.must("be the path of a file"),
            Some(error) => field.must(format_args!("be a file in a folder that exists ({error})")),
            None => return Some(self.folder.join(path)),
        }
        None
    }

    /// Reads the secret file that a value names, and returns its content. `Some(None)`: the content is unknown but not
    /// needed. `None` after reporting that the file cannot be read.
    pub(crate) fn secret_content(&self, field: &Field<'_>) -> Option<Option<Vec<u8>>> {
        if field.is_unknown() {
            return Some(None);
        }
        let path = field.written()?;
        field.note_named_file(self.folder.join(path), FileRole::Secret);
        match (self.read)(Path::new(path)) {
            Ok(bytes) => Some(Some(bytes)),
            Err(_) if self.is_hidden(path) && field.allows_hidden(format!("`{path}`{HIDDEN}")) => Some(None),
            Err(error) if field.allows_unknown(format!("`{path}` cannot be read here ({error})")) => Some(None),
            Err(error) => {
                field.must(format_args!("be a readable file ({error})"));
                None
            }
        }
    }

    /// Whether a file is a credential in a folder that cannot be opened. systemd opens this folder only to the main
    /// process of a service.
    fn is_hidden(&self, path: &str) -> bool {
        let Some(folder) = (self.variable)(CREDENTIALS_FOLDER).filter(|folder| !folder.is_empty()) else {
            return false;
        };
        let is_closed = |folder: &Path| match (self.read)(folder) {
            Err(error) => error.kind() != io::ErrorKind::IsADirectory,
            Ok(_) => false,
        };
        Path::new(path).starts_with(&folder) && is_closed(Path::new(&folder))
    }

    /// Reads the secret file that a value names, and returns its content as text. `Some(None)` if the content is
    /// unknown but not needed. `None` after reporting a problem.
    pub(crate) fn secret(&self, field: &Field<'_>) -> Option<Option<Secret>> {
        match self.secret_content(field)? {
            Some(content) => utf8(field, &content).map(Some),
            None => Some(None),
        }
    }

    /// Returns the file that a value names, to be read again later. `None` after reporting that it cannot be read.
    pub(crate) fn named_file(&self, field: &Field<'_>) -> Option<NamedFile> {
        let content = self.file(field)?;
        Some(NamedFile::new(self.folder.join(field.written()?), content))
    }

    /// Returns the file that a value names, as [`Environment::named_file`] does. Returns `Some(None)` if the configuration is
    /// only examined and the path is not known.
    pub(crate) fn known_file(&self, field: &Field<'_>) -> Option<Option<NamedFile>> {
        if field.is_unknown() { Some(None) } else { self.named_file(field).map(Some) }
    }

    /// Returns the secret file that a value names, to be read again later. `Some(None)`: the content is unknown but not
    /// needed. `None` after reporting a problem.
    pub(crate) fn named_secret_file(&self, field: &Field<'_>) -> Option<Option<NamedFile>> {
        let Some(content) = self.secret_content(field)? else { return Some(None) };
        Some(Some(NamedFile::new(self.folder.join(field.written()?), content)))
    }

    /// Returns the secret in the file that a value names, to be read again later. `Some(None)`: the content is unknown
    /// but not needed. `None` after reporting a problem.
    pub(crate) fn secret_file(&self, field: &Field<'_>) -> Option<Option<SecretSource>> {
        match self.named_secret_file(field)? {
            Some(file) => utf8(field, file.loaded()).map(|_| Some(SecretSource::File(file))),
            None => Some(None),
        }
    }
}

fn utf8(field: &Field<'_>, content: &[u8]) -> Option<Secret> {
    let secret = Secret::from_file(content);
    if secret.is_none() {
        field.wrong("must be a file of UTF-8 text", None);
    }
    secret
}
