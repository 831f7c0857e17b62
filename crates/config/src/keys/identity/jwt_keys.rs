//! Reads `keys` in `jwt`: the source of the keys that verify tokens.

use jsonwebtoken::Algorithm;
use serde_json::json;

use crate::language::environment::Environment;
use crate::language::key::{Key as DeclaredKey, Mapping, PATH, TEXT};
use crate::language::reader::Field;
use crate::language::shape::{Scalars, Shape, Text};
use crate::language::suggest::listed;
use crate::language::value_kind::{ParseText, ValueKind};
use identity::jwt::algorithm::{algorithm_name, shortest_secret};
use identity::jwt::keys::{Key, KeyError, KeySet, Origin};
use identity::jwt::{KeySource, remote_key_set};

const JWKS_URL: ValueKind<ParseText<String>> = ValueKind::reporting(
    "URL",
    Shape::Text(Text::new(
        Scalars::Text,
        &[r"^(https://[^/?#@]+|http://(localhost|127[0-9.]+|\[[0-9A-Fa-f:.]+\])(:[0-9]*)?)([/?#]|$)"],
        "be an https URL (http only to this machine), without a user",
    )),
    |url| remote_key_set::is_acceptable(url).then(|| url.to_owned()),
    |field, must| field.clone().hidden().must(must),
);

pub(crate) static KEYS: Mapping = Mapping {
    heading: Some("key in `keys`"),
    definition: Some("keys"),
    keys: &[
        DeclaredKey::optional("jwks_file", PATH, "A JWK set in a file."),
        DeclaredKey::optional(
            "jwks_url",
            JWKS_URL.declared(),
            "A JWK set under a URL: https, or http to this machine.",
        ),
        DeclaredKey::optional(
            "public_key_file",
            PATH,
            "PEM: a public key or a certificate; RSA from 2048 bits, P-256, P-384, Ed25519.",
        ),
        DeclaredKey::optional(
            "secret",
            TEXT,
            "The shared secret, of at least 32, 48 or 64 bytes for HS256, HS384 and HS512.",
        ),
        DeclaredKey::optional("secret_file", PATH, "A file that holds the secret."),
    ],
    constraints: || json!({"minProperties": 1, "maxProperties": 1}),
};

/// Reads the keys that verify tokens of this issuer. The mapping must name exactly one source of keys. A single key
/// must fit all of `algorithms`, a set of keys at least one.
pub(crate) fn keys(
    field: &Field<'_>,
    issuer: String,
    algorithms: Option<&[Algorithm]>,
    environment: Environment<'_>,
) -> Option<KeySource> {
    let section = field.clone().section(&KEYS)?;
    let sources = KEYS.names();
    let given = |key: &&'static str| {
        let field = section.get(key)?;
        Some((*key, if matches!(*key, "secret" | "jwks_url") { field.hidden() } else { field }))
    };
    let found: Vec<(&str, Field<'_>)> = sources.iter().filter_map(given).collect();
    section.close();
    let [(key, field)] = &found[..] else {
        let found: Vec<&str> = found.iter().map(|(key, _)| *key).collect();
        let found = if found.is_empty() { "none of them".to_owned() } else { found.join(" and ") };
        field.wrong(format_args!("must have exactly one of {}, has {found}", listed(&sources)), None);
        return None;
    };
    if field.is_unknown() {
        return Some(KeySource::Unknown);
    }
    if *key == "jwks_url" {
        let url = JWKS_URL.read(field.clone())?;
        let algorithms = algorithms?.to_vec();
        return Some(KeySource::Fetched(remote_key_set::Settings { issuer, url, algorithms }));
    }
    let set = match *key {
        "secret" => secret(field.written()?.as_bytes(), algorithms),
        "secret_file" => {
            let Some(bytes) = environment.secret_content(field)? else { return Some(KeySource::Unknown) };
            // Editors add a line break at the end of a file. This line break is not part of the secret.
            let ends = bytes.iter().rev().take_while(|byte| matches!(byte, b'\n' | b'\r')).count();
            secret(bytes.get(..bytes.len() - ends).unwrap_or_default(), algorithms)
        }
        "public_key_file" => Key::pem(&environment.file(field)?).map(KeySet::of),
        _ => KeySet::jwks(&environment.file(field)?, Origin::File),
    };
    let set = match set {
        Ok(set) => set,
        Err(unfit) => {
            // The message does not show the value, because it may be the secret.
            let hint = match unfit {
                KeyError::ShortSecret { algorithm, .. } if *key != "jwks_file" => {
                    Some(format!("make one with: head -c {} /dev/urandom | base64", shortest_secret(algorithm)))
                }
                _ => None,
            };
            field.wrong(unfit, hint);
            return None;
        }
    };
    let algorithms = algorithms?;
    // A single key must fit every algorithm. A set may get more keys later, so one algorithm is enough.
    let useless = algorithms.iter().find(|algorithm| !set.fits(**algorithm));
    let unusable = if *key == "jwks_file" { algorithms.iter().all(|one| !set.fits(*one)) } else { useless.is_some() };
    if let Some(algorithm) = useless.filter(|_| unusable) {
        field.wrong(format_args!("has no key for {}, which `algorithms` lists", algorithm_name(*algorithm)), None);
        return None;
    }
    Some(KeySource::Fixed(set))
}

/// Makes the key of a shared secret. The secret must be at least as long as the longest hash of these algorithms.
fn secret(secret: &[u8], algorithms: Option<&[Algorithm]>) -> Result<KeySet, KeyError> {
    let longest = algorithms.unwrap_or_default().iter().copied().max_by_key(|algorithm| shortest_secret(*algorithm));
    match longest.filter(|algorithm| shortest_secret(*algorithm) > secret.len()) {
        Some(algorithm) => Err(KeyError::ShortSecret { algorithm, found: secret.len() }),
        None => Key::secret(secret).map(KeySet::of),
    }
}
