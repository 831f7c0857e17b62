//! Reads `store` and what to do while it is away.

use std::path::Path;

use rustls::pki_types::ServerName;
use sha2::{Digest, Sha256};

use super::Environment;
use super::document::{optional, or_default};
use super::reader::{Field, Section};
use super::rules;
use crate::base::secret::Secret;
use crate::base::time::Micros;
use crate::base::tls;
use crate::base::tls::{Identity, Roots, Unfit};
use crate::limit::rule::OnStoreFailure;
use crate::store::redis::{LONGEST_PREFIX, Tls, Url};
use crate::store::{Settings, breaker, memory, redis};

/// More are a slip of the hand: a limit divided by it would be none.
const MOST_GATEWAYS: u64 = 1_000;

pub fn store(field: Option<Field<'_>>, surroundings: Environment<'_>) -> Option<Settings> {
    let Some(field) = field else { return Some(Settings::default()) };
    let section = field.section()?;
    let memory = optional(section.get("memory"), memory);
    let breaker = or_default(section.get("breaker"), breaker::Settings::default(), breaker);
    let redis = optional(section.get("redis"), |field| redis(field.hidden(), surroundings));
    let gateways = or_default(section.get("gateways"), 1, |field| field.whole(1..=MOST_GATEWAYS));
    if !section.has("redis") && section.has("gateways") {
        section.unwanted("gateways", "must stand beside `redis`: buckets in memory are not shared");
    }
    let both = section.has("memory") && section.has("redis");
    if both {
        section.unwanted("memory", "must not stand beside `redis`: buckets live in one place");
    }
    section.close();
    match (memory?, redis?) {
        _ if both => None,
        (_, Some(redis)) => Some(Settings::Redis(redis::Settings { breaker: breaker?, gateways: gateways?, ..redis })),
        // It never fails, so nothing can break.
        (memory, None) => breaker.and(gateways).map(|_| Settings::Memory(memory.unwrap_or_default())),
    }
}

/// For the rules that do not say so themselves.
pub fn on_store_failure(file: &Section<'_>) -> Option<OnStoreFailure> {
    or_default(file.get("on_store_failure"), OnStoreFailure::Local, |field| rules::on_store_failure(&field))
}

fn breaker(field: Field<'_>) -> Option<breaker::Settings> {
    let default = breaker::Settings::default();
    let section = field.section()?;
    let failures = or_default(section.get("failures"), u64::from(default.failures), |field| field.whole(1..=1_000_000));
    let cooldown = or_default(section.get("cooldown"), default.cooldown, |field| field.positive_duration());
    let max = section.get("max_cooldown");
    let max_cooldown = or_default(max.clone(), default.max_cooldown, |field| field.positive_duration());
    section.close();
    let (failures, cooldown, max_cooldown) = (failures?, cooldown?, max_cooldown?);
    match max {
        Some(field) if max_cooldown < cooldown => {
            field.must("be at least `cooldown`");
            None
        }
        // A longer pause than the longest by default is meant.
        _ => Some(breaker::Settings {
            failures: u32::try_from(failures).ok()?,
            cooldown,
            max_cooldown: max_cooldown.max(cooldown),
        }),
    }
}

fn memory(field: Field<'_>) -> Option<memory::Settings> {
    let section = field.section()?;
    let default = u64::try_from(memory::Settings::default().max_buckets).ok()?;
    let max_buckets = or_default(section.get("max_buckets"), default, |field| field.whole(1..=1_000_000_000));
    section.close();
    Some(memory::Settings { max_buckets: usize::try_from(max_buckets?).ok()? })
}

fn redis(field: Field<'_>, surroundings: Environment<'_>) -> Option<redis::Settings> {
    let section = field.section()?;
    let url = section.need("url").and_then(|field| url(&field));
    let username = optional(section.get("username"), |field| Some(field.written()?.to_owned()));
    let password = password(&section, surroundings);
    for (key, in_url) in [
        ("username", url.as_ref().is_some_and(|url| url.username.is_some())),
        ("password", url.as_ref().is_some_and(|url| url.password.is_some())),
        ("password_file", url.as_ref().is_some_and(|url| url.password.is_some())),
    ] {
        if in_url {
            section.unwanted(key, "must not stand beside the one in `url`");
        }
    }
    let tls = tls_settings(&section, url.as_ref(), surroundings);
    let timeout = or_default(section.get("timeout"), Micros(50_000), |field| field.positive_duration());
    let prefix = or_default(section.get("prefix"), "tollgate".to_owned(), |field| prefix(&field));
    section.close();
    let (url, username, password) = (url?, username?, password?);
    let username = username.or(url.username).filter(|name| !name.is_empty());
    let password = password.or(url.password).filter(|password| !password.reveal().is_empty());
    Some(redis::Settings {
        host: url.host,
        port: url.port,
        database: url.database,
        username,
        password,
        tls: tls?,
        timeout: timeout?,
        prefix: prefix?,
        breaker: breaker::Settings::default(),
        gateways: 1,
    })
}

fn url(field: &Field<'_>) -> Option<Url> {
    let url = Url::parse(field.text()?);
    if url.is_none() {
        // What was found is not repeated: it may hold a password.
        let shape = "must be a URL like redis://127.0.0.1:6379 or rediss://user@redis.internal:6380/0";
        field.wrong(format_args!("{shape}; what it is is not shown, it may hold a password"), None);
    }
    url
}

/// From the file, or from a file of its own; one that is empty is none.
fn password(section: &Section<'_>, surroundings: Environment<'_>) -> Option<Option<Secret>> {
    let inline = optional(section.get("password"), |field| Some(Secret::new(field.written()?)));
    let file = optional(section.get("password_file"), |field| secret_file(&field, surroundings));
    if section.has("password") && section.has("password_file") {
        section.unwanted("password_file", "must not stand beside `password`");
        return None;
    }
    Some(inline?.or(file?))
}

/// A secret in a file of its own.
pub fn secret_file(field: &Field<'_>, surroundings: Environment<'_>) -> Option<Secret> {
    let text = String::from_utf8(read(field, surroundings)?).ok();
    if text.is_none() {
        field.wrong("must be a file of UTF-8 text", None);
    }
    // An editor ends the last line.
    Some(Secret::new(text?.trim_end_matches(['\n', '\r'])))
}

fn prefix(field: &Field<'_>) -> Option<String> {
    let text = field.written()?;
    let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-' | b':'));
    if !(1..=LONGEST_PREFIX).contains(&text.len()) || !plain {
        field.must(format_args!("be 1 to {LONGEST_PREFIX} of letters, digits, `_`, `.`, `-` and `:`"));
        return None;
    }
    Some(text.to_owned())
}

fn tls_settings(redis: &Section<'_>, url: Option<&Url>, surroundings: Environment<'_>) -> Option<Option<Tls>> {
    let field = redis.get("tls");
    let plain = url.is_some_and(|url| !url.tls);
    if let Some(field) = field.as_ref().filter(|_| plain) {
        field.wrong("must stand beside a `url` that begins with rediss://", None);
    }
    let section = match field {
        Some(field) => Some(field.section()?),
        None => None,
    };
    let get = |key| section.as_ref().and_then(|section| section.get(key));
    let file = |field: Option<Field<'_>>| optional(field, |field| read(&field, surroundings));
    let (ca_field, cert_field, key_field) = (get("ca_file"), get("cert_file"), get("key_file"));
    let (ca, certificate, key) = (file(ca_field.clone()), file(cert_field.clone()), file(key_field.clone()));
    let mut whole = true;
    if let Some(section) = section {
        if plain {
            whole = false;
        }
        for (one, other) in [("cert_file", "key_file"), ("key_file", "cert_file")] {
            if section.has(one) && !section.has(other) {
                section.wrong(other, format_args!("missing: it belongs to `{one}`"));
                whole = false;
            }
        }
        section.close();
    }
    if !whole {
        return None;
    }
    let (ca, certificate, key) = (ca?, certificate?, key?);
    let url = url?;
    if !url.tls {
        return Some(None);
    }
    let roots = ca.as_deref().map_or(Roots::System, Roots::Pem);
    let identity = certificate.as_deref().zip(key.as_deref());
    let config = tls::client(roots, identity.map(|(certificate, key)| Identity { certificate, key }));
    let config = match config {
        Ok(config) => config,
        Err(unfit) => {
            let (field, what) = match unfit {
                Unfit::Roots(what) => (ca_field, what),
                Unfit::Certificate(what) => (cert_field, what),
                Unfit::Key(what) => (key_field, what),
            };
            match field {
                Some(field) => field.wrong(format_args!("cannot be used: {what}"), None),
                None => redis.wrong("tls", format_args!("ca_file is missing: {what}")),
            }
            return None;
        }
    };
    match ServerName::try_from(url.host.clone()) {
        Ok(name) => Some(Some(Tls { config, name, source: source([ca, certificate, key]) })),
        Err(_) => {
            redis.wrong("url", "must have a host name that a certificate can bear");
            None
        }
    }
}

/// One hash of all files, of those that are not there as well.
fn source(files: [Option<Vec<u8>>; 3]) -> Box<[u8; 32]> {
    let mut hash = Sha256::new();
    for file in files {
        hash.update(Sha256::digest(file.as_deref().unwrap_or_default()));
    }
    Box::new(hash.finalize().into())
}

/// The content of a file that a value names.
pub fn read(field: &Field<'_>, surroundings: Environment<'_>) -> Option<Vec<u8>> {
    let path = field.written()?;
    match (surroundings.read)(Path::new(path)) {
        Ok(bytes) => Some(bytes),
        Err(error) => {
            field.must(format_args!("be a readable file ({error})"));
            None
        }
    }
}
