//! Holds the certificates that are in force together, and chooses one of them for each connection.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::CertificateDer;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, ProducesTickets};
use rustls::sign::SingleCertAndKey;
use rustls::version::{TLS12, TLS13};
use rustls::{ServerConfig, SupportedProtocolVersion};

use super::certificate::{ServerCertificate, content_hash, read_chain};
use super::client_verifier;
use super::{
    CertificateSettings, ClientAuth, FileError, FileKey, MinVersion, ReadFile, Settings, UnknownNames, Unusable,
    Validity,
};
use crate::named_file::NamedFile;
use crate::time::Timestamp;
use crate::tls::identity::without_final_dot;
use crate::tls::names::parent;

/// The certificates that one listener presents to clients. All of them have come into force together.
#[derive(Debug)]
pub struct Certificates {
    /// The entries in the order of the file, without those whose certificate or key is unknown.
    entries: Vec<Arc<Entry>>,
    /// For each name, the index of the first entry that has the name.
    exact: HashMap<String, usize>,
    /// For the part of each name after `*.`, the index of the first entry that has the name.
    wildcard: HashMap<String, usize>,
    unknown_names: UnknownNames,
    /// A hash of the content of all files.
    content: [u8; 32],
}

/// One certificate of a listener, with the TLS settings for connections that use this certificate.
#[derive(Debug)]
pub struct Entry {
    /// The index of the entry in the configuration.
    index: usize,
    cert_file: Option<PathBuf>,
    certificate: ServerCertificate,
    config: Arc<ServerConfig>,
    /// The earliest moment at which a revocation list is out of date, and the settings from that moment on. With these
    /// settings, no session can be resumed.
    out_of_date: Option<(Timestamp, Arc<ServerConfig>)>,
    client_auth: ClientAuth,
    /// A hash of the authorities and revocation lists for clients. `None` if clients are not asked for a certificate.
    authority: Option<[u8; 32]>,
    /// The verifier of client certificates.
    verifier: Option<Arc<dyn ClientCertVerifier>>,
}

impl Certificates {
    /// Reads every file with `read`. `before` are the former certificates. A client that connected under them can
    /// resume its session if clients are still verified in the same way.
    ///
    /// # Errors
    /// Returns one error for each file that cannot be used.
    pub(super) fn read<'s>(
        settings: &'s Settings,
        read: impl Fn(&'s NamedFile) -> io::Result<Cow<'s, [u8]>>,
        before: Option<&Certificates>,
    ) -> Result<Certificates, Vec<FileError>> {
        let provider = Arc::new(ring::default_provider());
        let (mut entries, mut errors): (Vec<Arc<Entry>>, Vec<FileError>) = (Vec::new(), Vec::new());
        let mut all = Vec::new();
        for (index, certificate) in settings.certificates.iter().enumerate() {
            let contents = match Contents::read(certificate, &read) {
                Ok(contents) => contents,
                Err(unusable) => {
                    errors.extend(unusable.into_iter().map(|error| error.of_entry(index)));
                    continue;
                }
            };
            all.push(content_hash(contents.all()));
            let known = before.iter().flat_map(|before| &before.entries).chain(&entries);
            match Entry::new(index, certificate, &contents, settings, &provider, known) {
                Ok(Some(entry)) => entries.push(Arc::new(entry)),
                Ok(None) => {}
                Err(unusable) => errors.extend(unusable.into_iter().map(|error| error.of_entry(index))),
            }
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        let content = content_hash(all.iter().map(|hash| Some(&hash[..])));
        let (mut exact, mut wildcard) = (HashMap::new(), HashMap::new());
        for (position, entry) in entries.iter().enumerate() {
            for name in entry.certificate.names.dns() {
                match name.strip_prefix("*.") {
                    Some(parent) => wildcard.entry(parent.to_owned()).or_insert(position),
                    None => exact.entry(name.clone()).or_insert(position),
                };
            }
        }
        Ok(Certificates { entries, exact, wildcard, unknown_names: settings.unknown_names, content })
    }

    pub(super) fn has_content_of(&self, other: &Certificates) -> bool {
        self.content == other.content
    }

    /// Returns an error for each certificate that is not valid at the moment `now`. Certificates that `before` also has
    /// are left out.
    pub(super) fn invalid_beside(&self, before: &Certificates, now: Timestamp) -> Vec<FileError> {
        let is_known =
            |entry: &Entry| before.entries.iter().any(|known| known.certificate.key.cert == entry.certificate.key.cert);
        let invalid = self.entries.iter().filter(|entry| !is_known(entry)).filter_map(|entry| {
            let what = entry.validity().problem(&entry.certificate.title, now)?;
            Some(FileError { entry: entry.index, key: FileKey::CertFile, what })
        });
        invalid.collect()
    }

    /// Returns the entry for the name that a client asks for (SNI), or for a client that asks for no name. `None` if
    /// the connection must be closed.
    pub fn choose(&self, server_name: Option<&str>) -> Option<&Arc<Entry>> {
        let named = server_name.and_then(|name| self.named(&without_final_dot(name).to_ascii_lowercase()));
        match self.unknown_names {
            UnknownNames::First => named.or_else(|| self.entries.first()),
            UnknownNames::Closed => named,
        }
    }

    /// Returns the entry whose certificate is for this name. `name` must be in lower case.
    pub(super) fn named(&self, name: &str) -> Option<&Arc<Entry>> {
        let index = self.exact.get(name).or_else(|| self.wildcard.get(parent(name)?))?;
        self.entries.get(*index)
    }

    /// Whether there is no entry. An entry is missing if its certificate or its private key is unknown.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn first(&self) -> Option<&Arc<Entry>> {
        self.entries.first()
    }

    pub(super) fn unknown_names(&self) -> UnknownNames {
        self.unknown_names
    }

    /// Whether any entry asks clients for certificates.
    pub(super) fn ask_clients(&self) -> bool {
        self.entries.iter().any(|entry| entry.client_auth != ClientAuth::Off)
    }

    /// Returns, for each certificate, the index of its entry in the configuration, its title and its validity.
    pub fn validities(&self) -> impl Iterator<Item = (usize, &str, Validity)> {
        self.entries.iter().map(|entry| (entry.index, &*entry.certificate.title, entry.validity()))
    }

    /// Returns, for each certificate, the path of its file and the moment at which the certificate expires.
    pub fn expiries(&self) -> impl Iterator<Item = (&Path, Timestamp)> {
        self.entries.iter().filter_map(|entry| Some((entry.cert_file.as_deref()?, entry.validity().not_after)))
    }
}

impl Entry {
    /// Makes an entry. `None` if the certificate or its key is unknown. `known` are the entries whose sessions may be
    /// resumed.
    fn new<'k>(
        index: usize,
        settings: &CertificateSettings,
        contents: &Contents<'_>,
        server: &Settings,
        provider: &Arc<CryptoProvider>,
        known: impl Iterator<Item = &'k Arc<Entry>>,
    ) -> Result<Option<Entry>, Vec<Unusable>> {
        let certificate = match (&contents.certificate, &contents.key) {
            (Some(certificate), Some(key)) => ServerCertificate::read(certificate, key, provider).map(Some),
            (Some(certificate), None) => read_chain(certificate).map(|_| None),
            (None, _) => Ok(None),
        };
        let (ca, lists) = (contents.client_ca.as_deref(), contents.client_crl.as_deref());
        let verifier = client_verifier::verifier(settings.client_auth, ca, lists, provider);
        let (certificate, verifier) = match (certificate, verifier) {
            (Ok(certificate), Ok(verifier)) => (certificate, verifier),
            (certificate, verifier) => return Err(certificate.err().into_iter().chain(verifier.err()).collect()),
        };
        let Some(certificate) = certificate else { return Ok(None) };
        let authority = verifier.is_some().then(|| content_hash([ca, lists]));
        let is_alike = |entry: &&Arc<Entry>| entry.authority == authority && entry.client_auth == settings.client_auth;
        let kept = known.filter(is_alike).last().map(|entry| Arc::clone(&entry.config.ticketer));
        let unusable = |error: rustls::Error| vec![Unusable::because(FileKey::CertFile, error)];
        let ticketer = kept.map_or_else(ring::Ticketer::new, Ok).map_err(unusable)?;
        let lists_end = lists.filter(|_| verifier.is_some()).and_then(client_verifier::lists_end);
        let config = server_config(&certificate, server, provider, verifier.clone(), ticketer).map_err(unusable)?;
        let out_of_date = lists_end.map(|end| {
            let mut config = config.clone();
            config.ticketer = Arc::new(NoTickets);
            config.send_tls13_tickets = 0;
            (end, Arc::new(config))
        });
        let (config, client_auth) = (Arc::new(config), settings.client_auth);
        let cert_file = settings.cert_file.as_ref().map(|file| file.path().to_owned());
        Ok(Some(Entry { index, cert_file, certificate, config, out_of_date, client_auth, authority, verifier }))
    }

    /// Returns the TLS settings for a handshake at the moment `now`. Once a revocation list is out of date, no session
    /// can be resumed.
    pub fn config(&self, now: Timestamp) -> Arc<ServerConfig> {
        match &self.out_of_date {
            Some((since, config)) if *since <= now => Arc::clone(config),
            _ => Arc::clone(&self.config),
        }
    }

    pub fn client_auth(&self) -> ClientAuth {
        self.client_auth
    }

    fn validity(&self) -> Validity {
        self.certificate.validity
    }

    /// Whether the certificate is valid for this host.
    pub(super) fn covers(&self, host: &str) -> bool {
        self.certificate.names.cover(host)
    }

    /// Whether a client that connected with this entry was authenticated as strictly as `other` requires.
    pub(super) fn authenticates_for(&self, other: &Entry) -> bool {
        other.client_auth == ClientAuth::Off
            || (self.client_auth >= other.client_auth && self.authority == other.authority)
    }
}

impl Entry {
    /// Whether both entries verify clients in the same way.
    pub(super) fn is_like(&self, other: &Entry) -> bool {
        self.client_auth == other.client_auth && self.authority == other.authority
    }

    /// Whether this entry accepts a client that presents the chain `shown`. An empty chain means that the client has no
    /// certificate.
    pub(super) fn admits(&self, shown: &[CertificateDer<'_>], now: Timestamp) -> bool {
        self.verifier.as_ref().is_none_or(|verifier| client_verifier::admits(&**verifier, self.client_auth, shown, now))
    }
}

fn server_config(
    certificate: &ServerCertificate,
    server: &Settings,
    provider: &Arc<CryptoProvider>,
    verifier: Option<Arc<dyn ClientCertVerifier>>,
    ticketer: Arc<dyn ProducesTickets>,
) -> Result<ServerConfig, rustls::Error> {
    let versions: &[&SupportedProtocolVersion] = match server.min_version {
        MinVersion::Tls12 => &[&TLS13, &TLS12],
        MinVersion::Tls13 => &[&TLS13],
    };
    let builder = ServerConfig::builder_with_provider(Arc::clone(provider)).with_protocol_versions(versions)?;
    let builder = match verifier {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(&certificate.key))));
    config.alpn_protocols = server.protocols.iter().map(|protocol| protocol.name().into()).collect();
    // A session is stored in its ticket, which the client keeps. So every thread can resume the session.
    config.ticketer = ticketer;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 1;
    Ok(config)
}

/// Issues no tickets, so that no session can be resumed.
#[derive(Debug)]
struct NoTickets;

impl ProducesTickets for NoTickets {
    fn enabled(&self) -> bool {
        false
    }

    fn lifetime(&self) -> u32 {
        0
    }

    fn encrypt(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }

    fn decrypt(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }
}

/// The content of the files of one entry. `None` for a file that the entry does not name.
struct Contents<'s> {
    certificate: Option<Cow<'s, [u8]>>,
    key: Option<Cow<'s, [u8]>>,
    client_ca: Option<Cow<'s, [u8]>>,
    client_crl: Option<Cow<'s, [u8]>>,
}

impl<'s> Contents<'s> {
    fn read(settings: &'s CertificateSettings, read: ReadFile<'_, 's>) -> Result<Contents<'s>, Vec<Unusable>> {
        let mut errors = Vec::new();
        let mut content = |key, file: Option<&'s NamedFile>| match file.map(read).transpose() {
            Ok(content) => content,
            Err(error) => {
                errors.push(Unusable { key, what: format!("must be a readable file ({error})") });
                None
            }
        };
        let contents = Contents {
            certificate: content(FileKey::CertFile, settings.cert_file.as_ref()),
            key: content(FileKey::KeyFile, settings.key_file.as_ref()),
            client_ca: content(FileKey::ClientCaFile, settings.client_ca_file.as_ref()),
            client_crl: content(FileKey::ClientCrlFile, settings.client_crl_file.as_ref()),
        };
        if errors.is_empty() { Ok(contents) } else { Err(errors) }
    }

    fn all(&self) -> [Option<&[u8]>; 4] {
        [self.certificate.as_deref(), self.key.as_deref(), self.client_ca.as_deref(), self.client_crl.as_deref()]
    }
}

impl Unusable {
    fn of_entry(self, entry: usize) -> FileError {
        FileError { entry, key: self.key, what: self.what }
    }
}
