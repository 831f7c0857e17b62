//! Says who asks: judges the token and the key of a request that nobody has sent, in the gateway's order.

use std::sync::Arc;

use serde_json::Value;

use crate::auth::api_keys;
use crate::auth::api_keys::Presented;
use crate::auth::jwt;
use crate::auth::jwt::{Keys, OnInvalid, OnMissing, Settings, Verifier};
use crate::base::time::{Clock, Timestamp};
use crate::cli::Failure;
use crate::config::Config;
use crate::gateway::Reason;
use crate::limit::attribute::Attribute;
use crate::limit::identity::{Claims, KnownKey};
use crate::limit::matcher::Quoted;
use crate::limit::request::Request;

/// What the credentials prove, and how that came.
#[derive(Debug, Default)]
pub struct Identity {
    pub claims: Option<Arc<Claims>>,
    pub key: Option<Arc<KnownKey>>,
    pub token: Told,
    pub api_key: Told,
}

/// A few words on a credential; none where the file does not ask for it.
type Told = Option<String>;

/// The gateway's own answer to a credential.
#[derive(Debug)]
pub struct Refused {
    pub code: u16,
    pub reason: Reason,
    /// For the operator alone: clients are not told.
    pub detail: String,
}

/// Where the keys of issuers that publish them may be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetching {
    Allowed,
    Forbidden,
}

/// The claims as they are given, taken for a good token's.
pub fn given(json: &str, settings: &Settings) -> Result<Arc<Claims>, Failure> {
    let values = match serde_json::from_str(json) {
        Ok(Value::Object(values)) => values,
        Ok(other) => return Err(format!("--claims: must be a JSON object, is {other}").into()),
        Err(error) => return Err(format!("--claims: must be a JSON object: {error}").into()),
    };
    // The issuer is a part of what is counted where several are trusted.
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

/// The inner error is the gateway's own answer.
pub fn judge(
    config: &Config,
    request: &Request<'_>,
    given: Option<Arc<Claims>>,
    fetching: Fetching,
) -> Result<Result<Identity, Refused>, Failure> {
    let mut identity = Identity::default();
    match (&config.jwt, given) {
        (_, Some(claims)) => {
            identity.claims = Some(claims);
            identity.token = Some("claims as given, not verified".to_owned());
        }
        (None, None) => {}
        (Some(settings), None) => match judge_token(config, settings, request, fetching)? {
            Ok((claims, told)) => (identity.claims, identity.token) = (claims, Some(told)),
            Err(refused) => return Ok(Err(refused)),
        },
    }
    let Some(api_keys) = &config.api_keys else { return Ok(Ok(identity)) };
    let told = match api_keys.find(request) {
        Presented::Nothing => format!("none in {}", api_keys.from),
        Presented::Known(key) => {
            let told = format!("known, id {}, plan {}", key.id, key.plan);
            identity.key = Some(key);
            told
        }
        Presented::Unknown if api_keys.on_invalid == api_keys::OnInvalid::Anonymous => {
            "not known, taken as none (on_invalid: anonymous)".to_owned()
        }
        Presented::Unknown => {
            let detail = format!("the key in {} is not in {}", api_keys.from, api_keys.file.display());
            return Ok(Err(Refused { code: 401, reason: Reason::KeyInvalid, detail }));
        }
    };
    identity.api_key = Some(told);
    Ok(Ok(identity))
}

type Judged = Result<(Option<Arc<Claims>>, String), Refused>;

fn judge_token(
    config: &Config,
    settings: &Settings,
    request: &Request<'_>,
    fetching: Fetching,
) -> Result<Judged, Failure> {
    let clock = Clock::system();
    let tokens = Verifier::new(settings, clock.clone());
    let Some(token) = tokens.find(request) else {
        let places: Vec<String> = settings.token_from.iter().map(ToString::to_string).collect();
        let told = format!("none in {}", places.join(", "));
        return Ok(match settings.on_missing {
            OnMissing::Anonymous => Ok((None, told)),
            OnMissing::Reject => Err(Refused { code: 401, reason: Reason::TokenMissing, detail: told }),
        });
    };
    let mut fetched = String::new();
    let mut verified = tokens.verify(&token);
    if verified == Err(jwt::TokenError::KeysUnavailable) {
        if fetching == Fetching::Forbidden {
            return Err(format!(
                "the token's signature cannot be checked: its issuer's keys are fetched from {}\n  hint: fetch them \
                 with --live, or say with --claims what a good token would hold",
                urls(settings)
            )
            .into());
        }
        fetched = fetch(&tokens)?;
        verified = tokens.verify(&token);
    }
    Ok(match verified {
        Ok(claims) => {
            let told = valid(&claims, &claims_read(config), clock.wall());
            Ok((Some(claims), told))
        }
        Err(jwt::TokenError::KeysUnavailable) => {
            Err(Refused { code: 503, reason: Reason::KeysUnavailable, detail: fetched })
        }
        Err(jwt::TokenError::Invalid(why)) => match settings.on_invalid {
            OnInvalid::Anonymous => Ok((None, format!("{}, taken as none (on_invalid: anonymous)", words(why)))),
            OnInvalid::Reject => Err(Refused {
                code: 401,
                reason: Reason::TokenInvalid,
                detail: format!("the token is bad: {}", words(why)),
            }),
        },
    })
}

fn urls(settings: &Settings) -> String {
    let url = |issuer: &jwt::Issuer| match &issuer.keys {
        Keys::Fetched(fetched) => Some(fetched.url.clone()),
        Keys::Fixed(_) => None,
    };
    settings.issuers.iter().filter_map(url).collect::<Vec<_>>().join(", ")
}

/// Has every set fetched once; says what went wrong.
fn fetch(tokens: &Verifier) -> Result<String, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let wrong = parking_lot::Mutex::new(Vec::new());
    for remote in tokens.remotes() {
        let told = |issuer: &str, outcome: Result<usize, jwt::jwks::Failure>| {
            if let Err(failure) = outcome {
                wrong.lock().push(format!("keys of {issuer}: {failure}"));
            }
        };
        runtime.block_on(async {
            tokio::select! {
                biased;
                () = remote.tried() => {}
                () = remote.keep(told) => {}
            }
        });
    }
    runtime.shutdown_background();
    Ok(wrong.into_inner().join("; "))
}

/// The claims that the rules read, each once.
fn claims_read(config: &Config) -> Vec<&str> {
    let source = config.rules.source();
    let rules = || source.policies.iter().flat_map(|policy| &policy.rules);
    let conditions = source.policies.iter().flat_map(|policy| &policy.conditions);
    let conditions = conditions.chain(rules().flat_map(|rule| &rule.conditions)).map(|condition| &condition.attribute);
    let parts = rules().flat_map(|rule| &rule.keys).flat_map(|key| &key.alternatives).map(|part| &part.attribute);
    let mut names = Vec::new();
    for attribute in conditions.chain(parts) {
        if let Attribute::Claim(name) = attribute
            && !names.contains(&name.as_str())
        {
            names.push(name);
        }
    }
    names
}

/// Whose token it is, what rules read of it, and how long it will be good.
fn valid(claims: &Claims, read: &[&str], now: Timestamp) -> String {
    let names = std::iter::once("iss").chain(read.iter().copied().filter(|name| *name != "iss"));
    let each = names.filter_map(|name| Some(format!("{name} {}", Quoted(claims.text(name)?.as_bytes()))));
    let expires = claims.text("exp").and_then(|text| text.parse::<u64>().ok());
    let left = expires.map(|seconds| format!("expires in {}", span(seconds.saturating_sub(now.0 / 1_000_000))));
    std::iter::once("valid".to_owned()).chain(each).chain(left).collect::<Vec<_>>().join(", ")
}

/// `41m`, `2h`, `3d`: rounded down.
fn span(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

fn words(why: jwt::Invalid) -> &'static str {
    match why {
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
