//! Finds configurations with which web pages of other origins cannot send requests through the gateway.

use super::file::File;
use super::location::Finding;
use identity::jwt::OnMissing;

/// Finds configurations that require a token for preflights too. Browsers send a preflight without a token, so the
/// gateway answers 401.
pub(super) fn refused_preflight(file: &File<'_>) -> Vec<Finding> {
    let config = file.config;
    if config.cors.is_some() || config.jwt.as_ref().is_none_or(|jwt| jwt.on_missing != OnMissing::Reject) {
        return Vec::new();
    }
    let what = "pages of other origins cannot send requests: the browser asks first, without a token, and gets 401";
    let hint = "name their origins in cors, or say that no browser is a client";
    vec![file.root.key("jwt").key("on_missing").finding(what, hint)]
}
