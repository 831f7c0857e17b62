//! Holds a client's TLS connection, and decides which requests may be sent on it.

use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::pki_types::CertificateDer;

use super::UnknownNames;
use super::certificates::{Certificates, Entry};
use crate::time::Timestamp;
use crate::tls::client_certificate_properties::ClientCertificate;
use crate::tls::identity::{TlsIdentity, without_final_dot};

/// The result of a TLS handshake with a client. Used to decide which requests the client may send on the connection.
#[derive(Debug)]
pub struct Session {
    /// The certificates that were in force when the session was negotiated.
    certificates: Arc<Certificates>,
    entry: Arc<Entry>,
    identity: TlsIdentity,
    hosts: Hosts,
    /// The chain that the client has presented, its own certificate first.
    shown: Vec<CertificateDer<'static>>,
    /// The certificates that were in force when the client was last found to be admitted.
    admitted_by: ArcSwap<Certificates>,
}

/// The hosts for which requests may be sent on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hosts {
    /// Any host is allowed, because no entry asks clients for certificates, and unknown names are accepted.
    Any,
    Checked,
}

impl Session {
    /// Makes the session of a client. `entry` was chosen from `certificates`, and `server_name` is the name that the client
    /// asked for. `shown` is the chain that the client has presented, its own certificate first.
    pub fn new(
        certificates: Arc<Certificates>,
        entry: Arc<Entry>,
        server_name: Option<&str>,
        shown: &[CertificateDer<'_>],
    ) -> Session {
        let certificate = shown.first().map(|certificate| ClientCertificate::read(certificate));
        let shown = shown.iter().map(|certificate| certificate.clone().into_owned()).collect();
        Session { shown, ..Session::with_certificate(certificates, entry, server_name, certificate) }
    }

    /// Makes the session of a client whose certificate has been parsed already. `certificate` is `None` if the client did not
    /// present a certificate.
    pub fn with_certificate(
        certificates: Arc<Certificates>,
        entry: Arc<Entry>,
        server_name: Option<&str>,
        certificate: Option<ClientCertificate>,
    ) -> Session {
        let checked = certificates.unknown_names() == UnknownNames::Closed || certificates.ask_clients();
        let hosts = if checked { Hosts::Checked } else { Hosts::Any };
        let server_name = server_name.map(without_final_dot).map(str::to_ascii_lowercase);
        let identity = TlsIdentity { server_name, certificate };
        let admitted_by = ArcSwap::new(Arc::clone(&certificates));
        Session { certificates, entry, identity, hosts, shown: Vec::new(), admitted_by }
    }

    /// Whether a new handshake of this client would succeed with the certificates `in_force`, which may be newer than
    /// the session.
    pub fn is_admitted_by(&self, in_force: &Arc<Certificates>, now: Timestamp) -> bool {
        if Arc::ptr_eq(&*self.admitted_by.load(), in_force) {
            return true;
        }
        let entry = in_force.choose(self.identity.server_name.as_deref());
        let is_admitted = entry.is_none_or(|entry| self.entry.is_like(entry) || entry.admits(&self.shown, now));
        if is_admitted {
            self.admitted_by.store(Arc::clone(in_force));
        }
        is_admitted
    }

    pub fn identity(&self) -> &TlsIdentity {
        &self.identity
    }

    /// Whether the client may send a request for this host on the connection. `host` has no port. `false` if the host's
    /// entry authenticates clients more strictly. Also `false` if unknown names are rejected and the connection's
    /// certificate does not cover the host.
    pub fn serves(&self, host: &[u8]) -> bool {
        if self.hosts == Hosts::Any || self.identity.server_name.as_ref().is_some_and(|name| name.as_bytes() == host) {
            return true;
        }
        let Ok(host) = std::str::from_utf8(host) else { return false };
        let host = host.to_ascii_lowercase();
        let is_covered = || self.entry.covers(&host);
        let wanted = self.certificates.named(&host).or_else(|| self.certificates.first());
        (self.certificates.unknown_names() == UnknownNames::First || is_covered())
            && wanted.is_none_or(|wanted| self.entry.authenticates_for(wanted))
    }
}
