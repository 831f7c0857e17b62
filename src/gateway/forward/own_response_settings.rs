//! Applies settings of the configuration to the gateway's own responses: fields of CORS, and the operator's texts.

use std::sync::Arc;

use http::request::Parts;

use crate::gateway::state::destinations::Destination;
use base::tls::identity::TlsIdentity;
use config::Config;
use decision::cors::CorsAnswer;
use decision::error_pages::{ErrorPage, ErrorPages};
use request::client_address::ClientAddress;
use request::request::Request;
use request::scheme::SchemeSource;
use rules::route::error_format::ErrorFormat;

/// The settings for responses that the gateway makes itself, for one request.
#[derive(Debug)]
pub(super) struct OwnResponses {
    cors: Option<CorsAnswer>,
    pages: Option<Arc<ErrorPages>>,
    format: Option<ErrorFormat>,
    client: ClientAddress,
    scheme: SchemeSource,
    /// The name of the listener on which the request arrived.
    listener: Box<str>,
}

impl OwnResponses {
    /// Returns the settings for responses that the gateway itself gives to this request. `None` if the configuration has
    /// none of `cors`, `error_pages` and `llm.error_format`.
    pub(super) fn of(config: &Config, request: &Request<'_>) -> Option<Box<OwnResponses>> {
        if config.cors.is_none() && config.error_pages.is_none() && !config.error_formats.is_used() {
            return None;
        }
        Some(Box::new(OwnResponses {
            cors: config.cors.as_ref().and_then(|cors| cors.answer(request)),
            pages: config.error_pages.clone(),
            format: config.error_formats.of(request, &config.routes),
            client: request.client,
            scheme: request.scheme,
            listener: request.listener.into(),
        }))
    }

    /// Returns the CORS answer for the request. `None` if CORS does not apply to the request.
    pub(super) fn cors(&self) -> Option<&CorsAnswer> {
        self.cors.as_ref()
    }

    /// Returns the format of error responses. `None` for problem documents and error pages.
    pub(super) fn format(&self) -> Option<ErrorFormat> {
        self.format
    }

    /// Returns the operator's error page for a response with this status, to a request with this head. `None` if no page
    /// applies.
    pub(super) fn page(
        &self,
        head: &Parts,
        tls: Option<&TlsIdentity>,
        destination: Option<&Destination>,
        status: u16,
    ) -> Option<&ErrorPage> {
        let pages = self.pages.as_ref()?;
        let request = Request::new(head, self.client).with_scheme(self.scheme).with_tls(tls);
        let request = request.with_listener(&self.listener);
        let request = match destination {
            Some(destination) => request.with_destination(destination.route.route(), destination.upstream_name()),
            None => request,
        };
        pages.find(Some(&request), status).map(|(_, page)| page)
    }
}
