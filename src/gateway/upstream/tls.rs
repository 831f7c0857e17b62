//! Converts TLS settings to those of Pingora's connector.
//!
//! Pingora verifies nothing if a connection has no server name, and panics on a certificate that it cannot parse. So
//! every connection gets a server name, and certificates are parsed before Pingora gets them.

use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::quality::FixedState;
use pingora::upstreams::peer::HttpPeer;
use pingora::utils::tls::{CertKey, WrappedX509, parse_x509};
use rustls::pki_types::ServerName;

use base::tls::client::{Client, Verification};

/// The TLS settings for connections to an upstream, in the form that Pingora needs.
#[derive(Clone, Debug)]
pub(crate) struct PeerTls {
    authorities: Arc<[WrappedX509]>,
    identity: Option<Arc<CertKey>>,
    server_name: Option<String>,
    verification: Verification,
    /// The group to which connections with these settings belong in a pool. It changes with the content of the
    /// certificate files.
    group: u64,
}

impl PeerTls {
    pub(crate) fn new(client: &Client) -> PeerTls {
        let settings = client.settings();
        // The certificate files were valid when the configuration was loaded, so this does not fail.
        let material = client.material().ok();
        let group = material.as_ref().map_or(0, |material| FixedState::default().hash_one(material.hash));
        let (authorities, identity) =
            material.map_or((Vec::new(), None), |material| (material.authorities, material.identity));
        let known = |der: &[u8]| x509_parser::parse_x509_certificate(der).is_ok();
        let authorities = authorities.iter().filter(|der| known(der));
        let identity = identity.filter(|(chain, _)| chain.iter().all(|der| known(der)));
        PeerTls {
            authorities: authorities.map(|der| WrappedX509::new(der.to_vec(), parse_x509)).collect(),
            identity: identity.map(|(chain, key)| {
                Arc::new(CertKey::new(chain.iter().map(|der| der.to_vec()).collect(), key.secret_der().to_vec()))
            }),
            server_name: settings.server_name.as_ref().map(|name| name.to_str().into_owned()),
            verification: settings.verification,
            group,
        }
    }

    /// Applies these TLS settings to `peer`, Pingora's description of an endpoint. `host` is the host of the endpoint.
    pub(crate) fn apply(&self, peer: &mut HttpPeer, host: &str) {
        peer.sni = self.server_name.clone().unwrap_or_else(|| host.trim_end_matches('.').to_owned());
        peer.options.ca = Some(Arc::clone(&self.authorities));
        peer.client_cert_key = self.identity.clone();
        let verified = self.verification == Verification::Required;
        peer.options.verify_cert = verified;
        peer.options.verify_hostname = verified;
        // The pool does not compare certificate authorities, so their hash is part of the group key.
        peer.group_key ^= self.group & !1;
    }

    /// Returns the name that the certificate of `host` must contain. `None` if no certificate can contain this name.
    pub(crate) fn server_name(client: &Client, host: &str) -> Option<ServerName<'static>> {
        let named = || ServerName::try_from(host.trim_end_matches('.').to_owned()).ok();
        client.settings().server_name.clone().or_else(named)
    }
}
