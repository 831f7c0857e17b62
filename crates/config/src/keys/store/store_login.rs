//! Reads the settings that all stores on a server have: TLS, and the password, which may be in one of three places.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::keys::client_tls::client_tls;
use crate::language::environment::Environment;
use crate::language::key::{Key, PATH, TEXT};
use crate::language::reader::{Field, Section};
use base::secret::{Secret, SecretSource};
use base::tls::client::Client;

pub(crate) const PASSWORD: Key = Key::optional("password", TEXT, "The password; an empty one does not count.");

pub(crate) const PASSWORD_FILE: Key =
    Key::optional("password_file", PATH, "A file that holds the password, read for every connection.");

/// Returns the constraint of the schema that a store must not have both `password` and `password_file`.
pub(crate) fn one_password() -> Value {
    json!({"password": {"properties": {"password_file": false}}})
}

/// Reports an invalid URL. The message does not repeat the URL, because it may hold a password.
pub(crate) fn wrong_url(field: &Field<'_>, must: &str) {
    field.wrong(format_args!("must {must}; the value is not shown: it may hold a password"), None);
}

/// Reads the password of a store: from gateway.yaml, from a file, or from `in_url`, the password in the URL.
/// `Some(None)`: no password, or an empty one. `None` after reporting a problem.
pub(crate) fn password(
    section: &Section<'_>,
    environment: Environment<'_>,
    in_url: Option<Secret>,
) -> Option<Option<SecretSource>> {
    let inline = section.optional("password", |field| {
        let field = field.hidden();
        Some(SecretSource::Inline(Secret::new(field.written()?)))
    });
    let in_file = section.optional("password_file", |field| environment.secret_file(&field));
    if in_url.is_some() {
        for key in ["password", "password_file"] {
            section.unwanted(key, "must not stand beside the one in `url`");
        }
    }
    if section.has("password") && section.has("password_file") {
        section.unwanted("password_file", "must not stand beside `password`");
        return None;
    }
    let password = inline?.or(in_file?.flatten()).or(in_url.map(SecretSource::Inline));
    Some(password.filter(|password| *password != SecretSource::Inline(Secret::new(""))))
}

/// Reads `tls` of a store that may have several hosts. `Some(None)`: the store has no TLS. `None` after reporting a
/// problem.
pub(crate) fn tls_of_any_host(section: &Section<'_>, environment: Environment<'_>) -> Option<Option<Arc<Client>>> {
    match section.optional("tls", |field| client_tls(field, environment))?.flatten() {
        Some(tls) => tls.client_of_any_host(section).map(|client| Some(Arc::new(client))),
        None => Some(None),
    }
}
