//! Reads `jwt`: whose tokens are believed, and what becomes of those that are not.

use jsonwebtoken::Algorithm;

use super::Environment;
use super::document::{optional, or_default};
use super::reader::{Field, Section, all, listed};
use super::rule_limits;
use super::store::read;
use crate::auth::jwt::keys::{Key, KeySet, Origin, SHORTEST_SECRET, UnfitKey, name};
use crate::auth::jwt::token::ALGORITHMS;
use crate::auth::jwt::{Issuer, Keys, OnInvalid, OnMissing, Settings, jwks};
use crate::base::time::Micros;
use crate::limit::algorithm::token_bucket::{Rate, TokenBucket};
use crate::limit::attribute::Attribute;
use crate::limit::cost::Cost;

pub fn tokens(field: Field<'_>, surroundings: Environment<'_>) -> Option<Settings> {
    let section = field.section()?;
    let issuers = match section.get("issuers") {
        Some(field) => {
            for key in ["issuer", "audience", "algorithms", "keys", "leeway"] {
                section.get(key);
                section.unwanted(key, "must not stand beside `issuers`: it belongs into one of them");
            }
            several(&field, surroundings)
        }
        None => issuer(&section, surroundings).map(|issuer| vec![issuer]),
    };
    let default = Attribute::Header(http::header::AUTHORIZATION);
    let token_from = or_default(section.get("token_from"), vec![default], |field| {
        let members = field.list()?;
        if members.is_empty() {
            field.must("name at least one header or cookie");
            return None;
        }
        all(members, |member| place(&member))
    });
    let on_invalid = or_default(section.get("on_invalid"), OnInvalid::Reject, |field| {
        field.choice(&[("reject", OnInvalid::Reject), ("anonymous", OnInvalid::Anonymous)])
    });
    let on_missing = or_default(section.get("on_missing"), OnMissing::Anonymous, |field| {
        field.choice(&[("anonymous", OnMissing::Anonymous), ("reject", OnMissing::Reject)])
    });
    let invalid_limit = match section.get("invalid_limit") {
        Some(field) => field.section().and_then(|section| {
            let numbers = rule_limits::numbers(&section);
            section.close();
            numbers
        }),
        // Far more than honest clients need, and far less than it takes to keep a core busy.
        None => TokenBucket::new(Rate { amount: Cost::from_tokens(50), period: Micros(1_000_000) }, 500).ok(),
    };
    section.close();
    Some(Settings {
        issuers: issuers?,
        token_from: token_from?,
        on_invalid: on_invalid?,
        on_missing: on_missing?,
        invalid_limit: invalid_limit?,
    })
}

/// Each must say which tokens are its own.
fn several(field: &Field<'_>, surroundings: Environment<'_>) -> Option<Vec<Issuer>> {
    let members = field.list()?;
    if members.is_empty() {
        field.must("have at least one issuer");
        return None;
    }
    let many = members.len() > 1;
    let mut names = Vec::new();
    all(members, |member| {
        let place = member.clone();
        let section = member.section()?;
        let issuer = issuer(&section, surroundings);
        let nameless = many && !section.has("issuer");
        if nameless {
            section.wrong("issuer", "missing: it tells the tokens of several issuers apart");
        }
        section.close();
        let issuer = issuer.filter(|_| !nameless)?;
        if names.contains(&issuer.name) {
            place.wrong(format_args!("issuer `{}` is there twice", issuer.name.unwrap_or_default()), None);
            return None;
        }
        names.push(issuer.name.clone());
        Some(issuer)
    })
}

fn issuer(section: &Section<'_>, surroundings: Environment<'_>) -> Option<Issuer> {
    let name = optional(section.get("issuer"), |field| filled(&field));
    let audience = or_default(section.get("audience"), Vec::new(), |field| {
        let members = field.one_or_list()?;
        if members.is_empty() {
            field.must("have at least one value");
            return None;
        }
        all(members, |member| filled(&member))
    });
    let algorithms = section.need("algorithms").and_then(|field| {
        let members = field.list()?;
        if members.is_empty() {
            field.must("have at least one algorithm");
            return None;
        }
        all(members, |member| member.choice(&ALGORITHMS))
    });
    let leeway = or_default(section.get("leeway"), Micros(30_000_000), |field| {
        let leeway = field.duration()?;
        if leeway > Micros(300_000_000) {
            field.must("be at most 5m: a token would outlive its end by that much");
            return None;
        }
        Some(leeway)
    });
    let issuer = name.clone().flatten().unwrap_or_else(|| "default".to_owned());
    let keys =
        section.need("keys").and_then(|field| keys(&field.hidden(), issuer, algorithms.as_deref(), surroundings));
    Some(Issuer { name: name?, audience: audience?, algorithms: algorithms?, keys: keys?, leeway: leeway? })
}

/// Exactly one source.
fn keys(
    field: &Field<'_>,
    issuer: String,
    algorithms: Option<&[Algorithm]>,
    surroundings: Environment<'_>,
) -> Option<Keys> {
    const SOURCES: [&str; 5] = ["jwks_file", "jwks_url", "public_key_file", "secret", "secret_file"];
    let section = field.clone().section()?;
    let given: Vec<(&str, Field<'_>)> = SOURCES.iter().filter_map(|key| Some((*key, section.get(key)?))).collect();
    section.close();
    let [(key, field)] = &given[..] else {
        let found: Vec<&str> = given.iter().map(|(key, _)| *key).collect();
        let found = if found.is_empty() { "none of them".to_owned() } else { found.join(" and ") };
        field.wrong(format_args!("must have exactly one of {}, has {found}", listed(&SOURCES)), None);
        return None;
    };
    if *key == "jwks_url" {
        let url = field.text()?.to_owned();
        if !jwks::is_acceptable(&url) {
            field.clone().hidden().must("be an https URL (http only to this machine), without a user");
            return None;
        }
        return Some(Keys::Fetched(jwks::Settings { issuer, url }));
    }
    let set = match *key {
        "secret" => Key::secret(field.written()?.as_bytes()).map(KeySet::of),
        "secret_file" => {
            let bytes = read(field, surroundings)?;
            // An editor ends the last line.
            let ends = bytes.iter().rev().take_while(|byte| matches!(byte, b'\n' | b'\r')).count();
            Key::secret(bytes.get(..bytes.len() - ends).unwrap_or_default()).map(KeySet::of)
        }
        "public_key_file" => Key::pem(&read(field, surroundings)?).map(KeySet::of),
        _ => KeySet::jwks(&read(field, surroundings)?, Origin::File),
    };
    let set = match set {
        Ok(set) => set,
        Err(unfit) => {
            // What was found is not shown: it may be the secret.
            let hint = matches!(unfit, UnfitKey::ShortSecret(_))
                .then(|| format!("make one with: head -c {SHORTEST_SECRET} /dev/urandom | base64"));
            field.wrong(unfit, hint);
            return None;
        }
    };
    let algorithms = algorithms?;
    // One key is all there will be; of a set, some may be for what is still to come.
    let useless = algorithms.iter().find(|algorithm| !set.fits(**algorithm));
    let unusable = if *key == "jwks_file" { algorithms.iter().all(|one| !set.fits(*one)) } else { useless.is_some() };
    if let Some(algorithm) = useless.filter(|_| unusable) {
        field.wrong(format_args!("has no key for {}, which `algorithms` lists", name(*algorithm)), None);
        return None;
    }
    Some(Keys::Fixed(set))
}

fn filled(field: &Field<'_>) -> Option<String> {
    let text = field.text()?;
    if text.is_empty() {
        field.must("be a text that is not empty");
        return None;
    }
    Some(text.to_owned())
}

/// A header or a cookie: what stands in a query ends up in logs (RFC 6750, section 5.3).
fn place(field: &Field<'_>) -> Option<Attribute> {
    match Attribute::parse(field.text()?) {
        Ok(attribute @ (Attribute::Header(_) | Attribute::Cookie(_))) => Some(attribute),
        _ => {
            field.must("be header:<name> or cookie:<name>");
            None
        }
    }
}
