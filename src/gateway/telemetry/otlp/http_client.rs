//! Posts batches of spans or metrics over HTTP, and keeps the reason for the last failure.
//!
//! The client blocks only the thread that sends. Connections are not kept, because the collector may close them.

use std::fmt;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response};
use opentelemetry_http::{HttpClient, HttpError};
use parking_lot::Mutex;
use ureq::Agent;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, TlsProvider};

use super::collector::CollectorSettings;
use base::tls::{certificate_error, system_roots};

/// The maximum number of bytes that are read of a collector's response.
const LARGEST: u64 = 64 << 10;

pub(crate) struct CollectorClient {
    agent: Agent,
    failure: Failure,
}

/// The reason why the last batch was not sent. Kept here because the SDK does not report the whole reason.
#[derive(Clone, Debug, Default)]
pub(crate) struct Failure(Arc<Mutex<Option<String>>>);

impl Failure {
    pub(crate) fn take(&self) -> Option<String> {
        self.0.lock().take()
    }
}

impl fmt::Debug for CollectorClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CollectorClient").field("failure", &self.failure).finish_non_exhaustive()
    }
}

impl CollectorClient {
    /// Makes an HTTP client for the collector in these settings. The client stores the reason of a failure in `failure`.
    ///
    /// # Errors
    /// If the certificate authorities for the collector cannot be read or used.
    pub(crate) fn new(settings: &CollectorSettings, failure: Failure) -> Result<CollectorClient, String> {
        let config = Agent::config_builder()
            .tls_config(tls(settings)?)
            .timeout_global(Some(settings.timeout))
            .max_idle_connections(0)
            // Redirects are not followed, because they would lead to an address that is not configured.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            .proxy(None)
            .user_agent("tollgate")
            .build();
        Ok(CollectorClient { agent: Agent::new_with_config(config), failure })
    }

    /// Sends a request, and waits for the answer.
    fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ureq::Error> {
        let (head, body) = request.into_parts();
        let (head, answer) = self.agent.run(Request::from_parts(head, &body[..]))?.into_parts();
        let mut body = Vec::new();
        answer.into_reader().take(LARGEST).read_to_end(&mut body)?;
        Ok(Response::from_parts(head, body.into()))
    }
}

#[async_trait]
impl HttpClient for CollectorClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        self.send_noting(request).map_err(Into::into)
    }
}

impl CollectorClient {
    /// Posts a batch, and blocks until the answer is there. Returns whether the collector has accepted the batch.
    pub(crate) fn post(&self, request: Request<Bytes>) -> bool {
        self.send_noting(request).is_ok_and(|answer| answer.status().is_success())
    }

    /// Sends a request, and keeps the reason if it is not accepted.
    fn send_noting(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ureq::Error> {
        let outcome = self.send(request);
        *self.failure.0.lock() = match &outcome {
            Ok(answer) if answer.status().is_success() => None,
            Ok(answer) => Some(format!("answered {}", answer.status().as_u16())),
            Err(error) => Some(certificate_error::of_site(&error.to_string()).into_owned()),
        };
        outcome
    }
}

fn tls(settings: &CollectorSettings) -> Result<TlsConfig, String> {
    let authorities = match &settings.authorities {
        Some(file) => read(file).map_err(|error| format!("{}: {error}", file.display()))?,
        None if settings.endpoint.starts_with("https") => {
            system_roots().iter().map(|certificate| Certificate::from_der(certificate).to_owned()).collect()
        }
        None => Vec::new(),
    };
    let builder = TlsConfig::builder()
        .provider(TlsProvider::Rustls)
        .root_certs(RootCerts::new_with_certs(&authorities))
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()));
    Ok(builder.build())
}

fn read(file: &Path) -> Result<Vec<Certificate<'static>>, String> {
    let pem = std::fs::read(file).map_err(|error| error.to_string())?;
    let items = ureq::tls::parse_pem(&pem).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    });
    let found: Vec<_> = items.collect();
    if found.is_empty() { Err("must hold a certificate as PEM, holds none".to_owned()) } else { Ok(found) }
}
