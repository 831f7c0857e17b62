//! Reads `tls` in `redis`: the certificates of a connection to Redis.

use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::environment::Environment;
use super::key::{Key, Mapping, PATH};
use super::reader::{Field, Section};
use crate::base::tls;
use crate::base::tls::{ClientCertificate, InputError, Roots};
use crate::store::redis::{Tls, Url};

pub static TLS: Mapping = Mapping {
    heading: Some("key in `tls`"),
    definition: None,
    keys: &[
        Key::depends(
            "ca_file",
            PATH,
            "the authorities that the system trusts",
            "PEM: the authorities that are trusted, and no others.",
        ),
        Key::optional("cert_file", PATH, "PEM: the certificate that the gateway presents, with its chain."),
        Key::optional("key_file", PATH, "PEM: the private key of `cert_file`."),
    ],
    constraints: || json!({"dependencies": {"cert_file": ["key_file"], "key_file": ["cert_file"]}}),
};

/// A file that `tls` names, and the key that names it.
struct NamedFile<'t> {
    field: Field<'t>,
    bytes: Vec<u8>,
}

/// The files that `tls` names. All are `None` without `tls`.
#[derive(Default)]
struct Files<'t> {
    ca: Option<NamedFile<'t>>,
    certificate: Option<NamedFile<'t>>,
    key: Option<NamedFile<'t>>,
}

/// `Some(None)` where `url` asks for no TLS. `None` after reporting a problem, or if `url` has one.
pub fn tls(redis: &Section<'_>, url: Option<&Url>, environment: Environment<'_>) -> Option<Option<Tls>> {
    let field = redis.get("tls");
    let plain = url.is_some_and(|url| !url.tls);
    if let Some(field) = field.as_ref().filter(|_| plain) {
        field.wrong("must stand beside a `url` that begins with rediss://", None);
    }
    let files = match field.clone() {
        Some(field) => files(field, environment),
        None => Some(Files::default()),
    };
    if plain && field.is_some() {
        return None;
    }
    let (files, url) = (files?, url?);
    if plain {
        return Some(None);
    }
    let config = config(redis, &files)?;
    match ServerName::try_from(url.host.clone()) {
        Ok(name) => Some(Some(Tls { config, name, source: source(&files) })),
        Err(_) => {
            redis.wrong("url", "must have a host name that a certificate can bear");
            None
        }
    }
}

fn files<'t>(field: Field<'t>, environment: Environment<'_>) -> Option<Files<'t>> {
    let section = field.section(&TLS)?;
    let file = |name: &str| {
        section.optional(name, |field| {
            let bytes = environment.file(&field)?;
            Some(NamedFile { field, bytes })
        })
    };
    let (ca, certificate, key) = (file("ca_file"), file("cert_file"), file("key_file"));
    let mut paired = true;
    for (one, other) in [("cert_file", "key_file"), ("key_file", "cert_file")] {
        if section.has(one) && !section.has(other) {
            section.wrong(other, format_args!("missing: it belongs to `{one}`"));
            paired = false;
        }
    }
    section.close();
    let files = Files { ca: ca?, certificate: certificate?, key: key? };
    paired.then_some(files)
}

fn config(redis: &Section<'_>, files: &Files<'_>) -> Option<Arc<ClientConfig>> {
    let roots = files.ca.as_ref().map_or(Roots::System, |file| Roots::Pem(&file.bytes));
    let identity = files.certificate.as_ref().zip(files.key.as_ref());
    let identity =
        identity.map(|(certificate, key)| ClientCertificate { certificate: &certificate.bytes, key: &key.bytes });
    let (file, what) = match tls::client(roots, identity) {
        Ok(config) => return Some(config),
        Err(InputError::Roots(what)) => (&files.ca, what),
        Err(InputError::Certificate(what)) => (&files.certificate, what),
        Err(InputError::Key(what)) => (&files.key, what),
    };
    match file {
        Some(file) => file.field.wrong(format_args!("cannot be used: {what}"), None),
        None => redis.wrong("tls", format_args!("ca_file is missing: {what}")),
    }
    None
}

/// One hash of the content of all files, missing ones included.
fn source(files: &Files<'_>) -> Box<[u8; 32]> {
    let mut hash = Sha256::new();
    for file in [&files.ca, &files.certificate, &files.key] {
        hash.update(Sha256::digest(file.as_ref().map_or(&[][..], |file| &file.bytes)));
    }
    Box::new(hash.finalize().into())
}
