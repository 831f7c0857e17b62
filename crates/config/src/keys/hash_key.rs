//! Reads `hash_key` and `hash_key_file`: the secret that makes the pseudonyms of buckets and clients in logs and reports.

use crate::language::environment::Environment;
use crate::language::reader::{Field, Section};
use base::pseudonym::PseudonymKey;

pub(crate) fn hash_key(file: &Section<'_>, environment: Environment<'_>) -> Option<PseudonymKey> {
    if file.has("hash_key") {
        file.unwanted("hash_key_file", "must not stand beside `hash_key`");
    }
    let inline = file.optional("hash_key", |field| {
        let field = field.hidden();
        secret(&field, field.written()?)
    });
    let in_file = file.optional("hash_key_file", |field| match environment.secret(&field)? {
        Some(text) => secret(&field, text.reveal()),
        None => Some(Some(PseudonymKey::unknown())),
    });
    let key = inline?.or(in_file?).flatten();
    if file.is_unknown("hash_key") || file.is_unknown("hash_key_file") {
        return Some(PseudonymKey::unknown());
    }
    Some(key.unwrap_or_default())
}

/// Reads the secret. `Some(None)`: the text is empty, which counts as a missing key.
fn secret(field: &Field<'_>, text: &str) -> Option<Option<PseudonymKey>> {
    match text.len() {
        0 => Some(None),
        PseudonymKey::SHORTEST.. => Some(Some(PseudonymKey::secret(text.as_bytes()))),
        // The message shows the length, but not the secret.
        length => {
            let hint = "make one with: head -c 32 /dev/urandom | base64".to_owned();
            field.wrong(format_args!("must have at least {} bytes, has {length}", PseudonymKey::SHORTEST), Some(hint));
            None
        }
    }
}
