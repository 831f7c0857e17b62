//! Reads `tls` of a server to which the gateway connects, such as a store.

use rustls::pki_types::ServerName;
use serde_json::json;

use crate::language::environment::Environment;
use crate::language::key::{BOOLEAN, Key, Mapping, PATH, TEXT};
use crate::language::reader::{Field, Section};
use base::named_file::NamedFile;
use base::tls::client::{CertificateFiles, Client, FileKey, Settings, Verification};

pub(crate) static CLIENT_TLS: Mapping = Mapping {
    heading: Some("key in `tls`"),
    definition: None,
    keys: &[
        Key::depends(
            "ca_file",
            PATH,
            "the authorities that the system trusts",
            "PEM: the only authorities that are trusted.",
        ),
        Key::depends(
            "server_name",
            TEXT,
            "the host that is connected to",
            "The name or address in the server's certificate.",
        ),
        Key::optional("cert_file", PATH, "PEM: the certificate of the gateway, with its chain."),
        Key::optional("key_file", PATH, "PEM: the private key of `cert_file`."),
        Key::default("verify", BOOLEAN, "true", "`false` accepts any certificate."),
    ],
    constraints: || json!({"dependencies": {"cert_file": ["key_file"], "key_file": ["cert_file"]}}),
};

/// A file in `tls`, with its field.
struct LocatedFile<'t> {
    field: Field<'t>,
    file: NamedFile,
}

/// The value of `tls` for connections to a server. The default is the same as `true`.
#[derive(Default)]
pub(crate) struct ClientTls<'t> {
    ca: Option<LocatedFile<'t>>,
    certificate: Option<LocatedFile<'t>>,
    key: Option<LocatedFile<'t>>,
    server_name: Option<ServerName<'static>>,
    verification: Verification,
}

/// Reads the value of `tls`. Returns `Some(None)` for `false`. `None` after reporting a problem.
pub(crate) fn client_tls<'t>(field: Field<'t>, environment: Environment<'_>) -> Option<Option<ClientTls<'t>>> {
    if !field.is_map() {
        return Some(field.switch()?.then(ClientTls::default));
    }
    let section = field.section(&CLIENT_TLS)?;
    let file = |name: &str| {
        section.optional(name, |field| {
            let file = environment.named_file(&field)?;
            Some(LocatedFile { field, file })
        })
    };
    let (ca, certificate) = (file("ca_file"), file("cert_file"));
    let key = section.optional("key_file", |field| match environment.named_secret_file(&field)? {
        Some(file) => Some(Some(LocatedFile { field, file })),
        None => Some(None),
    });
    let server_name = section.optional("server_name", server_name);
    let verify = section.value("verify", |field| field.boolean());
    let mut paired = true;
    for (one, other) in [("cert_file", "key_file"), ("key_file", "cert_file")] {
        if section.has(one) && !section.has(other) {
            section.wrong(other, format_args!("missing: it belongs to `{one}`"));
            paired = false;
        }
    }
    section.close();
    let verification = if verify? { Verification::Required } else { Verification::Off };
    let tls =
        ClientTls { ca: ca?, certificate: certificate?, key: key?.flatten(), server_name: server_name?, verification };
    paired.then_some(Some(tls))
}

fn server_name(field: Field<'_>) -> Option<ServerName<'static>> {
    let name = ServerName::try_from(field.written()?.to_owned());
    if name.is_err() {
        field.must("be a host name or an IP address");
    }
    name.ok()
}

impl ClientTls<'_> {
    /// Makes the TLS client for connections to `host`, the host in the `url` of `server`. `None` after reporting a
    /// setting that cannot be used.
    pub(crate) fn client(self, host: &str, server: &Section<'_>) -> Option<Client> {
        let server_name = self.server_name.clone().or_else(|| ServerName::try_from(host.to_owned()).ok());
        if server_name.is_none() {
            server.wrong("url", "must have a host name that a certificate can bear");
            return None;
        }
        ClientTls { server_name, ..self }.client_of_any_host(server)
    }

    /// Makes the TLS client for servers with any host names. `None` after reporting a setting that cannot be used.
    pub(crate) fn client_of_any_host(self, server: &Section<'_>) -> Option<Client> {
        let ClientTls { ca, certificate, key, server_name, verification } = self;
        let file = |located: &Option<LocatedFile<'_>>| located.as_ref().map(|located| located.file.clone());
        let certificate_files =
            file(&certificate).zip(file(&key)).map(|(cert_file, key_file)| CertificateFiles { cert_file, key_file });
        let settings = Settings { ca_file: file(&ca), certificate: certificate_files, server_name, verification };
        let error = match Client::new(settings) {
            Ok(client) => return Some(client),
            Err(error) => error,
        };
        let located = match error.key {
            FileKey::CaFile => ca,
            FileKey::CertFile => certificate,
            FileKey::KeyFile => key,
        };
        match located {
            Some(located) => located.field.wrong(error.what, None),
            None => server.wrong("tls", format_args!("{} {}", error.key.name(), error.what)),
        }
        None
    }
}
