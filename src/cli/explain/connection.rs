//! Determines the connection of an explained request: the listener, and the TLS session.

use std::fmt::Write as _;
use std::path::Path;

use super::answer::ExplainedRefusal;
use super::sample_request::SampleRequest;
use crate::cli::failure::Failure;
use base::tls::client_certificate_properties::ClientCertificate;
use base::tls::identity::TlsIdentity;
use base::tls::server::{ClientAuth, Server, Session};
use config::{Config, Listener};
use decision::refusal::Refusal;
use request::door::Door;

/// The connection on which an explained request would arrive.
#[derive(Debug)]
pub(super) struct SampleConnection<'c> {
    pub listener: &'c Listener,
    pub tls: Option<TlsIdentity>,
    /// The refusal, if the TLS session of this connection does not serve the request's host.
    pub refusal: Option<ExplainedRefusal>,
}

impl<'c> SampleConnection<'c> {
    /// Returns the way in which the request reaches the gateway.
    pub(super) fn door(&self) -> Door {
        // A door that has only descriptors explains a request if the listener has no other.
        let mut doors = self.listener.doors().iter().copied();
        let first = doors.clone().next().unwrap_or(Door::Proxy);
        doors.find(|door| !door.has_only_descriptors()).unwrap_or(first)
    }

    /// Makes the connection to the listener `name`, or to the first listener that fits the scheme of the URL. `shown`
    /// is the file with the client's certificate, which counts as verified. If the listener decides for other proxies,
    /// one of them asks about the request.
    ///
    /// # Errors
    /// If there is no such listener, the certificate cannot be read or used, or the handshake would fail.
    pub(super) fn new(
        name: Option<&str>,
        shown: Option<&Path>,
        sample: &SampleRequest,
        config: &'c Config,
    ) -> Result<SampleConnection<'c>, Failure> {
        let listener = find(name, sample, config)?;
        if listener.decide.is_some() {
            let connection = SampleConnection { listener, tls: None, refusal: None };
            if connection.door() == Door::ExtAuthz && sample.encrypted == Some(true) {
                let (certificate, server_name) = (shown.map(read_certificate).transpose()?, sample.server_name.clone());
                return Ok(SampleConnection { tls: Some(TlsIdentity { server_name, certificate }), ..connection });
            }
            if let Some(file) = shown {
                let what = match connection.door() {
                    Door::ExtAuthz => "decides for other proxies, and the URL does not say https",
                    _ => "decides for other proxies: what a client shows them is not known there",
                };
                return Err(format!("--client-cert {}: the listener `{}` {what}", file.display(), listener.name).into());
            }
            return Ok(connection);
        }
        let Some(server) = &listener.tls else {
            if let Some(file) = shown {
                let reason = format!("--client-cert {}: the listener `{}` has no `tls`", file.display(), listener.name);
                return Err(reason.into());
            }
            return Ok(SampleConnection { listener, tls: None, refusal: None });
        };
        let certificate = shown.map(read_certificate).transpose()?;
        let (tls, refusal) = handshake(server, certificate, sample, &listener.name)?;
        Ok(SampleConnection { listener, tls: Some(tls), refusal })
    }
}

fn find<'c>(name: Option<&str>, sample: &SampleRequest, config: &'c Config) -> Result<&'c Listener, Failure> {
    let listeners = &config.listeners;
    let found = match name {
        Some(name) => listeners.iter().find(|listener| listener.name == name),
        None => {
            let mut proxies = listeners.iter().filter(|one| one.decide.is_none()).peekable();
            let first = proxies.peek().copied().or(listeners.first());
            proxies.find(|one| sample.encrypted.is_none_or(|tls| tls == one.tls.is_some())).or(first)
        }
    };
    found.ok_or_else(|| {
        let names = listeners.iter().fold(String::new(), |mut names, listener| {
            // Writing to a string cannot fail.
            let _ = write!(names, "{}{}", if names.is_empty() { "" } else { ", " }, listener.name);
            names
        });
        format!("--listener: must be one of {names}, is `{}`", name.unwrap_or_default().escape_debug()).into()
    })
}

fn read_certificate(file: &Path) -> Result<ClientCertificate, Failure> {
    let bytes = std::fs::read(file).map_err(|error| error.to_string());
    let certificate = bytes.and_then(|bytes| ClientCertificate::read_pem(&bytes));
    certificate.map_err(|error| Failure::from(format!("--client-cert: {}: {error}", file.display())))
}

/// Returns the TLS session that would be negotiated, and the reason why it refuses the host of `sample`.
fn handshake(
    server: &Server,
    certificate: Option<ClientCertificate>,
    sample: &SampleRequest,
    listener: &str,
) -> Result<(TlsIdentity, Option<ExplainedRefusal>), Failure> {
    let (certificates, server_name) = (server.in_force(), sample.server_name.as_deref());
    let Some(entry) = certificates.choose(server_name) else {
        // If no private key is known here, the listener's certificates are not known either.
        if certificates.is_empty() {
            return Ok((TlsIdentity { server_name: sample.server_name.clone(), certificate }, None));
        }
        let name = server_name.map_or("a client that asks for no name".to_owned(), |name| format!("`{name}`"));
        return Err(format!("no response: the listener `{listener}` has no certificate for {name}").into());
    };
    let asked = entry.client_auth();
    if asked == ClientAuth::Required && certificate.is_none() {
        let what = format!("no response: the listener `{listener}` requires a certificate of the client");
        return Err(format!("{what}; show one with --client-cert").into());
    }
    // A client presents a certificate only if it is asked for one.
    let certificate = certificate.filter(|_| asked != ClientAuth::Off);
    let session = Session::with_certificate(certificates.clone(), entry.clone(), server_name, certificate);
    let host = sample.host().to_ascii_lowercase();
    let refusal = (!session.serves(&host)).then(|| {
        let detail = format!(
            "TLS was negotiated for {}, and the host is {}",
            server_name.unwrap_or("no name"),
            String::from_utf8_lossy(&host)
        );
        ExplainedRefusal::new(Refusal::misdirected(), detail)
    });
    Ok((session.identity().clone(), refusal))
}
