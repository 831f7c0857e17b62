//! Reads `hash_key`: what the names of buckets and clients in logs and reports are made with.

use super::Environment;
use super::document::optional;
use super::reader::{Field, Section};
use super::store::secret_file;
use crate::base::pseudonym::PseudonymKey;

pub fn hash_key(file: &Section<'_>, surroundings: Environment<'_>) -> Option<PseudonymKey> {
    let inline = file.get("hash_key").map(Field::hidden);
    let in_file = file.get("hash_key_file");
    if inline.is_some() && in_file.is_some() {
        file.unwanted("hash_key_file", "must not stand beside `hash_key`");
    }
    let given = optional(inline, |field| secret(&field, field.written()?));
    let read = optional(in_file, |field| secret(&field, secret_file(&field, surroundings)?.reveal()));
    Some(given?.or(read?).flatten().unwrap_or_default())
}

/// An empty one is none, as it is where a variable of the environment is not set.
fn secret(field: &Field<'_>, text: &str) -> Option<Option<PseudonymKey>> {
    match text.len() {
        0 => Some(None),
        PseudonymKey::SHORTEST.. => Some(Some(PseudonymKey::secret(text.as_bytes()))),
        // How long it is may be told, what it is may not.
        length => {
            let hint = "make one with: head -c 32 /dev/urandom | base64".to_owned();
            field.wrong(format_args!("must have at least {} bytes, has {length}", PseudonymKey::SHORTEST), Some(hint));
            None
        }
    }
}
