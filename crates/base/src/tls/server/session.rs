//! A connection of a client, as far as TLS knows it: which requests may be sent on it.

use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::pki_types::CertificateDer;

use super::UnknownNames;
use super::certificates::{Certificates, Entry};
use crate::time::Timestamp;
use crate::tls::client_certificate::ClientCertificate;
use crate::tls::identity::{TlsIdentity, without_final_dot};

/// What was negotiated with a client.
#[derive(Debug)]
pub struct Session {
    /// Those that were in force when it was negotiated.
    certificates: Arc<Certificates>,
    entry: Arc<Entry>,
    identity: TlsIdentity,
    hosts: Hosts,
    /// What the client has shown: its certificate, and those that certify it.
    shown: Vec<CertificateDer<'static>>,
    /// The last of those in force that would have admitted the client as well.
    admitted_by: ArcSwap<Certificates>,
}

/// Whether the host of a request matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hosts {
    /// A request for any host may be sent: no entry would have asked for more.
    Any,
    Checked,
}

impl Session {
    /// Of a client that asked for this name and so has got this entry, and has shown this chain, its own certificate first.
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

    /// The same, where the certificate has been read.
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

    /// Whether its client would be admitted by the certificates that are in force now, which may have other authorities, another
    /// list of what is revoked, or ask where those of the handshake did not.
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

    /// Whether a request for this host, without its port, may be sent on the connection. It may not if the certificate of
    /// the host would have come with more authentication of the client; nor, where unknown names are closed, if it is
    /// not for the host.
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
