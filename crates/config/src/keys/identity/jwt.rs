//! Reads `jwt`: how JSON Web Tokens are verified, and what happens to requests without a valid token.

use jsonwebtoken::Algorithm;
use serde_json::{Value, json};

use crate::keys::identity::jwt_keys::{KEYS, keys};
use crate::keys::rules::algorithms::token_bucket::{NUMBERS, fixed_bucket};
use crate::language::duration;
use crate::language::environment::Environment;
use crate::language::key::{Key, Mapping, Type, names};
use crate::language::reader::{Field, Section, all};
use crate::language::shape::{Definition, Duration, List, Shape};
use crate::language::value_kind::{ParseText, ReadField, ValueKind};
use base::time::Micros;
use identity::jwt::algorithm::{ALGORITHMS, shortest_secret};
use identity::jwt::{Issuer, OnInvalid, OnMissing, Settings};
use request::attribute::Attribute;

const ON_INVALID: [(&str, OnInvalid); 2] = [("reject", OnInvalid::Reject), ("anonymous", OnInvalid::Anonymous)];
const ON_MISSING: [(&str, OnMissing); 2] = [("anonymous", OnMissing::Anonymous), ("reject", OnMissing::Reject)];

const ISSUER_TEXT: Shape =
    Shape::Defined(&Definition { name: "issuer", shape: Shape::NonEmptyText { must: "be a text that is not empty" } });

const AUDIENCE_TEXTS: Shape = Shape::Defined(&Definition {
    name: "audience",
    shape: Shape::OneOrList(List::non_empty(&ISSUER_NAME.shape, "have at least one value")),
});

const ISSUER_NAME: ValueKind<ParseText<String>> = ValueKind::new("text", ISSUER_TEXT, |text| Some(text.to_owned()));

const AUDIENCES: ValueKind<ReadField<Vec<String>>> =
    ValueKind::new("text, or a list of texts", AUDIENCE_TEXTS, |field| {
        all(field.one_or_list()?, |member| ISSUER_NAME.read(member))
    });

const BOUNDED_LEEWAY: ValueKind<ParseText<Micros>> = ValueKind::new(
    "duration, at most 5m",
    Shape::Duration(Duration::at_most(
        Micros(300_000_000),
        "be at most 5m: a token would outlive its end by that much",
    )),
    duration::parse,
);

const ISSUER: Key = Key::optional("issuer", ISSUER_NAME.declared(), "The value that `iss` must have.");
const AUDIENCE: Key = Key::optional("audience", AUDIENCES.declared(), "What `aud` must be, or contain one of.");
const ACCEPTED: Type = Type::Choices { names: &names(&ALGORITHMS), least: 1 };
const ACCEPTED_DOC: &str = "The only algorithms that are accepted.";
const KEYS_DOC: &str = "The keys of signatures: exactly one source.";
const LEEWAY: Key =
    Key::default("leeway", BOUNDED_LEEWAY.declared(), "30s", "How far the issuer's clock may differ from ours.");

/// The header or cookie that contains the token. Queries are excluded because they end up in logs (RFC 6750, section
/// 5.3).
const CARRIER: ValueKind<ParseText<Attribute>> = ValueKind::new(
    "`header:<name>`, `cookie:<name>`",
    Shape::text(&[r"^(header:[!#$%&'*+.^_`|~0-9A-Za-z-]+$|cookie:[\s\S])"], "be header:<name> or cookie:<name>"),
    |text| match Attribute::parse(text) {
        Ok(attribute @ (Attribute::Header(_) | Attribute::Cookie(_))) => Some(attribute),
        _ => None,
    },
);

const TOKEN_FROM: ValueKind<ReadField<Vec<Attribute>>> = ValueKind::new(
    "list of `header:<name>`, `cookie:<name>`",
    Shape::List(List::non_empty(&CARRIER.shape, "name at least one header or cookie")),
    |field| all(field.list()?, |member| CARRIER.read(member)),
);

pub(crate) static JWT: Mapping = Mapping {
    heading: Some("key in `jwt`"),
    definition: None,
    keys: &[
        ISSUER,
        AUDIENCE,
        Key::depends("algorithms", ACCEPTED, "required", ACCEPTED_DOC),
        Key::depends("keys", Type::Mapping(&KEYS), "required", KEYS_DOC),
        LEEWAY,
        Key::default(
            "token_from",
            TOKEN_FROM.declared(),
            "[header:authorization]",
            "Where a token is looked for. The first that the request has is used.",
        ),
        Key::default(
            "on_invalid",
            Type::Choice(&names(&ON_INVALID)),
            "reject",
            "With an invalid token. `reject`: 401. `anonymous`: no claims.",
        ),
        Key::default("on_missing", Type::Choice(&names(&ON_MISSING)), "anonymous", "The same without a token."),
        // The default numbers are far above what honest clients need, and far too low to keep a CPU core busy.
        Key::default(
            "invalid_limit",
            Type::Mapping(&NUMBERS),
            "{rps: 50, burst: 500}",
            "Invalid tokens that are examined for each client address. Beyond: 429.",
        ),
        Key::optional(
            "issuers",
            Type::List { of: &ISSUERS, least: 1 },
            "Several issuers, each with `issuer`, `audience`, `algorithms`, `keys` and `leeway`.",
        ),
    ],
    constraints: jwt_constraints,
};

static ISSUERS: Mapping = Mapping {
    heading: None,
    definition: None,
    keys: &[
        ISSUER,
        AUDIENCE,
        Key::required("algorithms", ACCEPTED, ACCEPTED_DOC),
        Key::required("keys", Type::Mapping(&KEYS), KEYS_DOC),
        LEEWAY,
    ],
    constraints: no_secrets_in_public,
};

/// The set under `jwks_url` is public, so it verifies no algorithm with a shared secret.
fn no_secrets_in_public() -> Value {
    json!({
        "if": {"required": ["keys"], "properties": {"keys": {"required": ["jwks_url"]}}},
        "then": {"properties": {"algorithms": {"items": {"not": {"enum": ["HS256", "HS384", "HS512"]}}}}}
    })
}

fn jwt_constraints() -> Value {
    json!({
        "allOf": [no_secrets_in_public()],
        "if": {"required": ["issuers"]},
        "then": {"properties": {
            "issuer": false, "audience": false, "algorithms": false, "keys": false, "leeway": false,
            "issuers": {"if": {"minItems": 2}, "then": {"items": {"required": ["issuer"]}}}
        }},
        "else": {"required": ["algorithms", "keys"]}
    })
}

pub(crate) fn jwt(field: Field<'_>, environment: Environment<'_>) -> Option<Settings> {
    let section = field.section(&JWT)?;
    let issuers = match section.get("issuers") {
        Some(field) => {
            for key in ["issuer", "audience", "algorithms", "keys", "leeway"] {
                section.unwanted(key, "must not stand beside `issuers`: it belongs in one of them");
            }
            issuers(&field, environment)
        }
        None => issuer(&section, environment).map(|issuer| vec![issuer]),
    };
    let token_from = section.value("token_from", |field| TOKEN_FROM.read(field));
    let on_invalid = section.choice("on_invalid", &ON_INVALID);
    let on_missing = section.choice("on_missing", &ON_MISSING);
    let invalid_limit = section.value("invalid_limit", |field| {
        let section = field.section(&NUMBERS)?;
        let bucket = fixed_bucket(&section);
        section.close();
        bucket
    });
    section.close();
    Some(Settings {
        issuers: issuers?,
        token_from: token_from?,
        shared_with_keys: Vec::new(),
        on_invalid: on_invalid?,
        on_missing: on_missing?,
        invalid_limit: invalid_limit?,
    })
}

/// Reads several issuers. Each must have a unique name.
fn issuers(field: &Field<'_>, environment: Environment<'_>) -> Option<Vec<Issuer>> {
    let members = field.list_of_mappings()?;
    if members.is_empty() {
        field.must("have at least one issuer");
        return None;
    }
    let several = members.len() > 1;
    let mut names = Vec::new();
    all(members, |member| {
        let whole = member.clone();
        let section = member.section(&ISSUERS)?;
        let issuer = issuer(&section, environment);
        let nameless = several && !section.has("issuer");
        if nameless {
            section.wrong("issuer", "missing: it tells the tokens of several issuers apart");
        }
        section.close();
        let issuer = issuer.filter(|_| !nameless)?;
        if names.contains(&issuer.name) {
            whole.wrong(format_args!("issuer `{}` is there twice", issuer.name.unwrap_or_default()), None);
            return None;
        }
        names.push(issuer.name.clone());
        Some(issuer)
    })
}

/// Reads the algorithms of one issuer. `keys` is the source of its keys: with fetched keys, no algorithm may use a shared secret.
fn algorithms(field: &Field<'_>, keys: Option<Field<'_>>) -> Option<Vec<Algorithm>> {
    let members = field.list()?;
    if members.is_empty() {
        field.must("have at least one algorithm");
        return None;
    }
    let fetched = keys.is_some_and(|keys| matches!(keys.entries(), [only] if only.key == "jwks_url"));
    all(members, |member| {
        let algorithm = member.choice(&ALGORITHMS)?;
        if fetched && shortest_secret(algorithm) > 0 {
            let hint =
                "list what the issuer signs with, such as RS256 or ES256, or name its `secret` in place of `jwks_url`";
            member.must_hinting(
                "be an algorithm with public keys, because a set under `jwks_url` is public",
                Some(hint.to_owned()),
            );
            return None;
        }
        Some(algorithm)
    })
}

/// Reads one issuer: the keys in `jwt` itself, or in a member of `issuers`.
fn issuer(section: &Section<'_>, environment: Environment<'_>) -> Option<Issuer> {
    let name = section.optional("issuer", |field| ISSUER_NAME.read(field));
    let audience = section.optional("audience", |field| AUDIENCES.read(field));
    let algorithms = section.need("algorithms").and_then(|field| algorithms(&field, section.get("keys")));
    let leeway = section.value("leeway", |field| BOUNDED_LEEWAY.read(field));
    let issuer = name.clone().flatten().unwrap_or_else(|| "default".to_owned());
    let keys = section.need("keys").and_then(|field| keys(&field.hidden(), issuer, algorithms.as_deref(), environment));
    let audience = audience?.unwrap_or_default();
    Some(Issuer { name: name?, audience, algorithms: algorithms?, keys: keys?, leeway: leeway? })
}
