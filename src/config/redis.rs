//! Reads `redis` in `store`: which Redis has the buckets.

use std::sync::Arc;

use serde_json::json;

use super::client_tls::{CLIENT_TLS, ClientTls, client_tls};
use super::environment::Environment;
use super::key::{Key, Mapping, PATH, POSITIVE_DURATION, TEXT, Type};
use super::reader::{Field, Section};
use super::value_kind::{ReadField, ValueKind};
use super::value_types::reference;
use crate::base::secret::{Secret, SecretSource};
use crate::base::tls::client::Client;
use crate::store::breaker;
use crate::store::redis::{LONGEST_PREFIX, Login, Settings, Url};

const URL_SHAPE: &str = "must be a URL like redis://127.0.0.1:6379 or rediss://user@redis.internal:6380/0";

const URL: ValueKind<ReadField<Url>> = ValueKind {
    text: "URL",
    schema: || {
        json!({"anyOf": [
            {"type": "string", "pattern": "^rediss?://[^?#]+$", "patternErrorMessage": URL_SHAPE},
            reference()
        ]})
    },
    read: url,
};

const PREFIX: ValueKind<ReadField<String>> = ValueKind {
    text: "1 to 11 of letters, digits, `_`, `.`, `-` and `:`",
    schema: || {
        json!({"anyOf": [
            {
                "type": ["string", "number", "boolean"],
                "pattern": format!("^[A-Za-z0-9_.:-]{{1,{LONGEST_PREFIX}}}$"),
                "patternErrorMessage": format!("must be 1 to {LONGEST_PREFIX} of letters, digits, _ . - and :")
            },
            reference()
        ]})
    },
    read: prefix,
};

pub static REDIS: Mapping = Mapping {
    heading: Some("key in `redis`"),
    definition: None,
    keys: &[
        Key::required(
            "url",
            URL.declared(),
            "`redis://HOST`, or `rediss://HOST` for TLS. `:PORT` (6379) and `/DATABASE` (0) may follow. `USER:PASSWORD@` may \
             precede the host, percent-encoded.",
        ),
        Key::optional("username", TEXT, "The user who logs in; without a password, a user who needs none."),
        Key::optional(
            "password",
            TEXT,
            "The password. An empty one counts as missing. Better from the environment, or as `password_file`.",
        ),
        Key::optional(
            "password_file",
            PATH,
            "A file that holds the password. Line ends after it are ignored. It is read for every connection.",
        ),
        Key::depends(
            "tls",
            Type::Switch(&CLIENT_TLS),
            "`true` with `rediss://`, else `false`",
            "Whether the connection is encrypted, and how. `true` is short for a mapping without keys.",
        ),
        Key::default("timeout", POSITIVE_DURATION, "50ms", "The longest time that a decision waits for Redis."),
        Key::default("prefix", PREFIX.declared(), "tollgate", "The beginning of every key in Redis."),
    ],
    constraints: || json!({"dependencies": {"password": {"properties": {"password_file": false}}}}),
};

pub fn redis(field: Field<'_>, environment: Environment<'_>) -> Option<Settings> {
    let section = field.section(&REDIS)?;
    // In place of an unknown host, one to which every password may be sent.
    let url = section.need("url").and_then(|field| field.known_or("redis://localhost", URL.read));
    let username = section.optional("username", |field| Some(field.written()?.to_owned()));
    let password = password(&section, environment);
    for (key, in_url) in [
        ("username", url.as_ref().is_some_and(|url| url.username.is_some())),
        ("password", url.as_ref().is_some_and(|url| url.password.is_some())),
        ("password_file", url.as_ref().is_some_and(|url| url.password.is_some())),
    ] {
        if in_url {
            section.unwanted(key, "must not stand beside the one in `url`");
        }
    }
    let tls = tls(&section, url.as_ref(), environment);
    let timeout = section.positive_duration("timeout");
    let prefix = section.value("prefix", PREFIX.read);
    section.close();
    let (url, username, password) = (url?, username?, password?);
    let username = username.or(url.username).filter(|name| !name.is_empty());
    let password = password.or(url.password.map(SecretSource::Inline));
    let password = password.filter(|password| *password != SecretSource::Inline(Secret::new("")));
    Some(Settings {
        host: url.host,
        port: url.port,
        database: url.database,
        login: Login { username, password, tls: tls? },
        timeout: timeout?,
        prefix: prefix?,
        breaker: breaker::Settings::default(),
        gateways: 1,
    })
}

fn url(field: Field<'_>) -> Option<Url> {
    let url = Url::parse(field.text()?);
    if url.is_none() {
        // The value is not repeated: it may hold a password.
        field.wrong(format_args!("{URL_SHAPE}; what it is is not shown, it may hold a password"), None);
    }
    url
}

/// In gateway.yaml, or in a file of its own.
fn password(section: &Section<'_>, environment: Environment<'_>) -> Option<Option<SecretSource>> {
    let inline = section.optional("password", |field| Some(SecretSource::Inline(Secret::new(field.written()?))));
    let in_file = section.optional("password_file", |field| environment.secret_file(&field));
    if section.has("password") && section.has("password_file") {
        section.unwanted("password_file", "must not stand beside `password`");
        return None;
    }
    Some(inline?.or(in_file?.flatten()))
}

/// TLS by the key `tls`, or by the scheme of the URL. `Some(None)` without it; `None` after reporting a problem, or if
/// `url` has one.
fn tls(section: &Section<'_>, url: Option<&Url>, environment: Environment<'_>) -> Option<Option<Arc<Client>>> {
    let tls = section.optional("tls", |field| {
        let tls = client_tls(field.clone(), environment)?;
        if tls.is_none() && url.is_some_and(|url| url.tls) {
            field.wrong("must not be false with a `url` that begins with rediss://", None);
            return None;
        }
        Some(tls)
    });
    let (tls, url) = (tls?.flatten(), url?);
    match tls.or_else(|| url.tls.then(ClientTls::default)) {
        Some(tls) => tls.client(&url.host, section).map(|client| Some(Arc::new(client))),
        None => Some(None),
    }
}

fn prefix(field: Field<'_>) -> Option<String> {
    let text = field.written()?;
    let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-' | b':'));
    if !(1..=LONGEST_PREFIX).contains(&text.len()) || !plain {
        field.must(format_args!("be 1 to {LONGEST_PREFIX} of letters, digits, `_`, `.`, `-` and `:`"));
        return None;
    }
    Some(text.to_owned())
}
