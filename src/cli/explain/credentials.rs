//! Authenticates an explained request, and formats the result.

use std::cell::RefCell;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::answer::ExplainedRefusal;
use crate::cli::failure::{Failure, with_hint};
use crate::gateway::authenticate::{Authenticator, Observer};
use base::time::{Clock, Timestamp};
use config::Config;
use decision::reason::Reason;
use decision::refusal::Refusal;
use identity::api_keys::{ApiKeyLookup, ApiKeys, OnInvalid};
use identity::jwt;
use identity::jwt::{KeySource, Settings, Verifier};
use identity::token_auth::{TokenAuth, TokenStatus};
use request::attribute::Attribute;
use request::attribute_value::AttributeValue;
use request::identity::{Claims, Identity};
use request::matcher::QuotedText;
use request::request::Request;

/// The credentials of the explained request. `token` and `api_key` describe them in words, or are `None` if the file
/// does not use them.
#[derive(Debug, Default)]
pub(super) struct Credentials {
    pub identity: Identity,
    pub token: Option<String>,
    pub api_key: Option<String>,
}

/// Whether the command may fetch the published keys of token issuers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyFetches {
    Allowed,
    Forbidden,
}

/// Checks the argument `--claims`, and returns it unchanged.
///
/// # Errors
/// If the argument is not a JSON object.
pub(super) fn claims_argument(json: &str) -> Result<String, String> {
    object(json).map(|_| json.to_owned())
}

fn object(json: &str) -> Result<Map<String, Value>, String> {
    match serde_json::from_str(json) {
        Ok(Value::Object(values)) => Ok(values),
        Ok(other) => Err(format!("must be a JSON object, is {other}")),
        Err(error) => Err(format!("must be a JSON object: {error}")),
    }
}

/// Reads the claims in the argument `--claims`. They count as the claims of a valid token.
///
/// # Errors
/// If the text is not a JSON object, or if the file trusts several issuers and `iss` is not one of these issuers.
pub(super) fn claims_of(json: &str, settings: &Settings) -> Result<Arc<Claims>, Failure> {
    let values = object(json).map_err(|wrong| format!("--claims: {wrong}"))?;
    // With several issuers, a limit key that is a claim needs `iss`.
    let several = settings.issuers.len() > 1;
    let issuer = match values.get("iss").and_then(Value::as_str).filter(|_| several) {
        Some(issuer) if settings.issuers.iter().any(|known| known.name.as_deref() == Some(issuer)) => {
            Some(issuer.to_owned())
        }
        _ if several => {
            let names: Vec<_> = settings.issuers.iter().filter_map(|known| known.name.as_deref()).collect();
            return Err(format!("--claims: iss must be one of {}: the file trusts several", names.join(", ")).into());
        }
        _ => None,
    };
    Ok(Arc::new(Claims::new(values, issuer)))
}

/// Authenticates a request as the gateway would. The inner error is the gateway's refusal. With the `claims` of
/// `--claims`, no token is verified.
///
/// # Errors
/// If a token cannot be verified, because a secret is not known here or keys may not be fetched.
pub(super) fn authenticate(
    config: &Config,
    request: &Request<'_>,
    claims: Option<Arc<Claims>>,
    fetching: KeyFetches,
) -> Result<Result<Credentials, ExplainedRefusal>, Failure> {
    let clock = Clock::system();
    let settings = config.jwt.as_ref().filter(|_| claims.is_none());
    let tokens = settings.map(|settings| TokenAuth::after(None, settings, clock.clone()));
    let authenticator = Authenticator {
        tokens: tokens.as_ref(),
        api_keys: config.api_keys.as_deref(),
        jitter: config.retry_after_jitter,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut findings = Findings::default();
    let mut fetch_errors = String::new();
    let mut result = runtime.block_on(authenticator.authenticate(request, &findings));
    if let (Some(settings), Some(tokens)) = (settings, &tokens)
        && is_keys_unavailable(&result)
    {
        if settings.issuers.iter().any(|issuer| issuer.keys == KeySource::Unknown) {
            return Err(with_hint(
                "the token's signature cannot be checked: the secret in `jwt` is not known here",
                "set it, or say with --claims what a good token would hold",
            ));
        }
        if fetching == KeyFetches::Forbidden {
            let urls = urls(settings);
            return Err(with_hint(
                format!("the token's signature cannot be checked: its issuer's keys are fetched from {urls}"),
                "fetch them with --live, or say with --claims what a good token would hold",
            ));
        }
        fetch_errors = runtime.block_on(fetch(tokens.verifier()));
        findings = Findings::default();
        result = runtime.block_on(authenticator.authenticate(request, &findings));
    }
    runtime.shutdown_background();
    let mut identity = match result {
        Ok(identity) => identity,
        Err(refusal) => {
            let detail = findings.refusal_detail(&refusal, config, fetch_errors);
            return Ok(Err(ExplainedRefusal::new(refusal, detail)));
        }
    };
    let token = match claims {
        Some(claims) => {
            identity.claims = Some(claims);
            Some("claims as given, not verified".to_owned())
        }
        None => settings.map(|settings| findings.token_words(settings, &identity, config, clock.wall())),
    };
    let api_key = config.api_keys.as_deref().map(|api_keys| findings.api_key_words(api_keys));
    Ok(Ok(Credentials { identity, token, api_key }))
}

fn is_keys_unavailable(result: &Result<Identity, Refusal>) -> bool {
    matches!(result, Err(refusal) if refusal.reason == Reason::KeysUnavailable)
}

/// The result of authentication. A credential that was not checked counts as missing.
#[derive(Debug)]
struct Findings {
    token: RefCell<TokenStatus>,
    api_key: RefCell<ApiKeyLookup>,
}

impl Default for Findings {
    fn default() -> Findings {
        Findings { token: RefCell::new(TokenStatus::Missing), api_key: RefCell::new(ApiKeyLookup::Absent) }
    }
}

impl Observer for Findings {
    fn token(&self, status: TokenStatus) {
        self.token.replace(status);
    }

    fn api_key(&self, presented: &ApiKeyLookup) {
        self.api_key.replace(presented.clone());
    }
}

impl Findings {
    fn refusal_detail(&self, refusal: &Refusal, config: &Config, fetch_errors: String) -> String {
        if let (ApiKeyLookup::Unknown(place), Some(api_keys)) = (&*self.api_key.borrow(), &config.api_keys)
            && refusal.reason == Reason::KeyInvalid
        {
            return format!("the key in {place} is not in {}", api_keys.file.display());
        }
        match (*self.token.borrow(), &config.jwt) {
            (TokenStatus::Missing, Some(settings)) => missing_token(settings),
            (TokenStatus::Invalid(invalid), _) => format!("the token is invalid: {}", words(invalid)),
            _ => fetch_errors,
        }
    }

    fn token_words(&self, settings: &Settings, identity: &Identity, config: &Config, now: Timestamp) -> String {
        match (*self.token.borrow(), &identity.claims) {
            (TokenStatus::Invalid(invalid), _) => {
                format!("{}, treated as missing (on_invalid: anonymous)", words(invalid))
            }
            (_, Some(claims)) => valid(claims, &claims_read(config), now),
            _ => missing_token(settings),
        }
    }

    fn api_key_words(&self, api_keys: &ApiKeys) -> String {
        match (&*self.api_key.borrow(), api_keys.on_invalid) {
            (ApiKeyLookup::Absent, _) => format!("none in {}", api_keys.from),
            (ApiKeyLookup::Known(key), _) => {
                let columns =
                    key.columns.names.iter().filter_map(|name| Some(format!(", {name} {}", key.column(name)?)));
                format!("known, id {}, plan {}{}", key.id, key.plan, columns.collect::<String>())
            }
            (ApiKeyLookup::Unknown(_), OnInvalid::Anonymous | OnInvalid::Reject) => {
                "not known, treated as missing (on_invalid: anonymous)".to_owned()
            }
        }
    }
}

fn missing_token(settings: &Settings) -> String {
    let sources: Vec<String> = settings.token_from.iter().map(ToString::to_string).collect();
    format!("none in {}", sources.join(", "))
}

fn urls(settings: &Settings) -> String {
    let url = |issuer: &jwt::Issuer| match &issuer.keys {
        // A query may have a secret.
        KeySource::Fetched(fetched) => Some(fetched.url.split('?').next().unwrap_or_default().to_owned()),
        KeySource::Fixed(_) | KeySource::Unknown => None,
    };
    settings.issuers.iter().filter_map(url).collect::<Vec<_>>().join(", ")
}

/// Fetches every key set once. Returns the errors as one text.
async fn fetch(tokens: &Verifier) -> String {
    let errors = RefCell::new(Vec::new());
    for remote in tokens.remotes() {
        let report = |issuer: &str, outcome: Result<usize, jwt::remote_key_set::FetchError>| {
            if let Err(failure) = outcome {
                errors.borrow_mut().push(format!("keys of {issuer}: {failure}"));
            }
        };
        tokio::select! {
            biased;
            () = remote.first_attempt() => {}
            () = remote.keep_fresh(report) => {}
        }
    }
    errors.into_inner().join("; ")
}

fn claims_read(config: &Config) -> Vec<&str> {
    let source = config.rules.source();
    let rules = || source.policies.iter().flat_map(|policy| &policy.rules);
    let conditions = source.policies.iter().flat_map(|policy| &policy.conditions);
    let conditions = conditions.chain(rules().flat_map(|rule| &rule.conditions)).map(|condition| &condition.attribute);
    let parts = rules().flat_map(|rule| &rule.keys).flat_map(|key| &key.alternatives);
    let mut names = Vec::new();
    let numbers = config.rules.limits().iter().filter_map(|limit| limit.claimed.as_ref());
    let numbers = numbers.flat_map(|claimed| &claimed.claimed.numbers).map(|number| &number.from);
    for attribute in conditions.chain(parts).chain(numbers) {
        if let Attribute::Claim(name) | Attribute::Words(name) | Attribute::ClaimedAmount(name) = attribute.source()
            && !names.contains(&name.as_str())
        {
            names.push(name);
        }
    }
    names
}

/// Formats the issuer of a token, the claims that rules read, and how long the token is valid.
fn valid(claims: &Claims, read: &[&str], now: Timestamp) -> String {
    let names = std::iter::once("iss").chain(read.iter().copied().filter(|name| *name != "iss"));
    let each = names.filter_map(|name| match claims.value(name) {
        AttributeValue::Missing => None,
        AttributeValue::Single(value) => Some(format!("{name} {}", QuotedText(&value))),
        AttributeValue::List(list) => Some(format!("{name} [{}]", quoted(&list.elements()))),
    });
    let expires = claims.text("exp").and_then(|text| text.parse::<u64>().ok());
    let left = expires.map(|seconds| format!("expires in {}", span(seconds.saturating_sub(now.0 / 1_000_000))));
    std::iter::once("valid".to_owned()).chain(each).chain(left).collect::<Vec<_>>().join(", ")
}

/// Returns the elements of a list, in quotes.
fn quoted(elements: &[Vec<u8>]) -> String {
    elements.iter().map(|element| QuotedText(element).to_string()).collect::<Vec<_>>().join(", ")
}

/// Formats a time span, rounded down: `41m`, `2h`, `3d`.
fn span(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

fn words(invalid: jwt::Invalid) -> &'static str {
    match invalid {
        jwt::Invalid::Malformed => "it is no token in the form that is accepted, or has no usable exp",
        jwt::Invalid::Algorithm => "its algorithm is not one of `algorithms`",
        jwt::Invalid::Issuer => "its iss is not the issuer",
        jwt::Invalid::Audience => "its aud is not one of `audience`",
        jwt::Invalid::Expired => "it has expired",
        jwt::Invalid::NotYetValid => "it is not valid yet",
        jwt::Invalid::UnknownKey => "none of the keys is its own",
        jwt::Invalid::Signature => "its signature is wrong",
    }
}
