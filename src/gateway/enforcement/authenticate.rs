//! Authenticates a request. If a credential is invalid, the request is refused before the rules.
//!
//! All kinds of credentials are checked here, in their order. The valid credentials form an [`Identity`]. An earlier
//! check ensures that no credential is ambiguous (`RuleSet::with_unambiguous`).

use crate::gateway::telemetry::labels::TokenResult;
use crate::gateway::telemetry::metrics::Metrics;
use decision::credentials::{check_api_key, check_token};
use decision::refusal::Refusal;
use decision::retry_after::Jitter;
use identity::api_keys::{ApiKeyLookup, ApiKeys};
use identity::token_auth::{TokenAuth, TokenStatus};
use request::identity::Identity;
use request::request::Request;

/// Receives the results of authentication, to count or to explain them.
pub(crate) trait Observer {
    fn token(&self, status: TokenStatus);
    fn api_key(&self, presented: &ApiKeyLookup);
}

/// Checks the credentials of requests, by the settings of a configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Authenticator<'s> {
    pub tokens: Option<&'s TokenAuth>,
    pub api_keys: Option<&'s ApiKeys>,
    pub jitter: Jitter,
}

impl Authenticator<'_> {
    /// Verifies the credentials of a request, and returns the identity that they prove. `observer` receives each result.
    ///
    /// # Errors
    /// Returns the refusal if credentials are invalid, or if required credentials are missing.
    pub(crate) async fn authenticate(
        &self,
        request: &Request<'_>,
        observer: &impl Observer,
    ) -> Result<Identity, Refusal> {
        let mut identity = Identity::default();
        if let Some(tokens) = self.tokens {
            let (status, claims) = tokens.verify(request).await;
            observer.token(status);
            check_token(status, tokens.on_missing, tokens.on_invalid, self.jitter)?;
            identity.claims = claims;
        }
        if let Some(api_keys) = self.api_keys {
            let presented = api_keys.find(request);
            observer.api_key(&presented);
            identity.key = check_api_key(presented, api_keys.on_invalid)?;
        }
        Ok(identity)
    }
}

impl Observer for Metrics {
    fn token(&self, status: TokenStatus) {
        match status {
            TokenStatus::Missing => {}
            TokenStatus::Valid => self.tokens.count(TokenResult::Valid),
            TokenStatus::Cached => self.tokens.count(TokenResult::Known),
            TokenStatus::Limited { .. } => self.tokens.count(TokenResult::Limited),
            TokenStatus::KeysUnavailable { .. } => self.tokens.count(TokenResult::NoKeys),
            TokenStatus::Invalid(invalid) => self.tokens.count(TokenResult::Invalid(invalid)),
        }
    }

    fn api_key(&self, _: &ApiKeyLookup) {}
}
