//! Gives the gateway's own responses what the file says of them: fields of CORS, and texts of the operator's own.

use std::sync::Arc;

use http::request::Parts;
use pingora::Result;
use pingora::proxy::Session;

use super::Proxy;
use super::exchange::Exchange;
use crate::gateway::enforcement::RequestPurpose;
use crate::gateway::response::preflight;
use crate::gateway::server::connection_handle::ConnectionHandle;
use config::Config;
use decision::cors::CorsAnswer;
use decision::error_pages::{ErrorPage, ErrorPages};
use request::request::{ClientAddress, Request};
use request::scheme::SchemeSource;

/// What the file says of responses to one request.
#[derive(Debug)]
pub struct OwnResponses {
    cors: Option<CorsAnswer>,
    pages: Option<Arc<ErrorPages>>,
    client: ClientAddress,
    scheme: SchemeSource,
    /// The name of its listener.
    listener: Box<str>,
}

impl OwnResponses {
    /// `None` for a file with neither `cors` nor `error_pages`.
    pub fn of(config: &Config, request: &Request<'_>) -> Option<Box<OwnResponses>> {
        if config.cors.is_none() && config.error_pages.is_none() {
            return None;
        }
        Some(Box::new(OwnResponses {
            cors: config.cors.as_ref().and_then(|cors| cors.answer(request)),
            pages: config.error_pages.clone(),
            client: request.client,
            scheme: request.scheme,
            listener: request.listener.into(),
        }))
    }
}

impl Exchange {
    /// What CORS says of the request.
    pub fn cors(&self) -> Option<&CorsAnswer> {
        self.own_responses.as_ref()?.cors.as_ref()
    }

    pub fn purpose(&self) -> RequestPurpose {
        match self.cors() {
            Some(CorsAnswer { preflight: Some(_), .. }) => RequestPurpose::Preflight,
            _ => RequestPurpose::Ordinary,
        }
    }

    /// The operator's own text for a response of this status to the request with this head.
    pub fn page(&self, head: &Parts, status: u16) -> Option<&ErrorPage> {
        let own = self.own_responses.as_ref()?;
        let pages = own.pages.as_ref()?;
        let tls = self.connection.as_ref().and_then(ConnectionHandle::tls);
        let request = Request::new(head, own.client).with_scheme(own.scheme).with_tls(tls.map(|tls| tls.identity()));
        let request = request.with_listener(&own.listener);
        let request = match &self.destination {
            Some(destination) => request.with_destination(destination.route.route(), destination.upstream_name()),
            None => request,
        };
        pages.find(Some(&request), status).map(|(_, page)| page)
    }
}

/// Answers a preflight.
///
/// # Errors
/// If the client has gone.
pub async fn answer_preflight(proxy: &Proxy, session: &mut Session, exchange: &mut Exchange) -> Result<bool> {
    if let Some(answer) = exchange.cors() {
        preflight::write(session, answer, &exchange.request_id, exchange.pending_fields(), proxy.reuse()).await?;
    }
    exchange.answered = true;
    Ok(true)
}
