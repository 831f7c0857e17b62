//! Reads `tls` of a listener: its certificates, and whether clients must show certificates.

use serde_json::json;

use crate::language::environment::Environment;
use crate::language::key::{BOOLEAN, Key, Mapping, PATH, Type, names, unconstrained};
use crate::language::reader::{Field, Section};
use crate::language::shape::Shape;
use crate::language::value_kind::{ReadField, ValueKind};
use base::http_protocol::HttpProtocol;
use base::named_file::NamedFile;
use base::tls::server::{CertificateSettings, ClientAuth, FileKey, MinVersion, Server, Settings, UnknownNames};

const CLIENT_AUTH: [(&str, ClientAuth); 3] =
    [("off", ClientAuth::Off), ("optional", ClientAuth::Optional), ("required", ClientAuth::Required)];

const VERSIONS: [(&str, MinVersion); 2] = [("1.2", MinVersion::Tls12), ("1.3", MinVersion::Tls13)];

const MIN_VERSION: ValueKind<ReadField<MinVersion>> =
    ValueKind::new("`1.2`, `1.3`", Shape::Numerals(&names(&VERSIONS)), |field| field.choice(&VERSIONS));

static CERTIFICATE: Mapping = Mapping {
    heading: Some("key in `certificates`"),
    definition: None,
    keys: &[
        Key::required("cert_file", PATH, "PEM: the certificate, with its chain."),
        Key::required("key_file", PATH, "PEM: the private key of `cert_file`."),
        Key::optional("client_ca_file", PATH, "PEM: the authorities that may have signed a client's certificate."),
        Key::optional(
            "client_crl_file",
            PATH,
            "PEM: revocation lists of all authorities up to the root. An outdated one revokes all that it speaks for.",
        ),
        Key::depends(
            "client_auth",
            Type::Choice(&names(&CLIENT_AUTH)),
            "`off`; required with `client_ca_file`",
            "Whether clients show a certificate. `optional`: one that is shown must verify.",
        ),
    ],
    constraints: || json!({"dependencies": {"client_ca_file": ["client_auth"], "client_crl_file": ["client_ca_file"]}}),
};

pub(crate) static LISTENER_TLS: Mapping = Mapping {
    heading: Some("key in `tls` of a listener"),
    definition: None,
    keys: &[
        Key::required(
            "certificates",
            Type::List { of: &CERTIFICATE, least: 1 },
            "Chosen by the name that a client asks for (SNI): the same name, else a wildcard of one label, else the \
             first.",
        ),
        Key::default("min_version", MIN_VERSION.declared(), "\"1.2\"", "The oldest version of TLS."),
        Key::default(
            "strict_sni",
            BOOLEAN,
            "false",
            "Disconnects clients that ask for no known name; a request for another host than the certificate's is \
             answered 421.",
        ),
    ],
    constraints: unconstrained,
};

/// A file in an entry of `certificates`, and the key that names the file.
struct LocatedFile<'t> {
    entry: usize,
    key: FileKey,
    field: Field<'t>,
}

/// Reads `tls` of a listener. Every entry is checked, also after a problem. `None` after reporting a problem.
pub(crate) fn listener_tls(
    field: Field<'_>,
    environment: Environment<'_>,
    protocols: &[HttpProtocol],
) -> Option<Server> {
    let section = field.section(&LISTENER_TLS)?;
    let mut files = Vec::new();
    let certificates = section.need("certificates").and_then(|field| {
        let members = field.list_of_mappings()?;
        if members.is_empty() {
            field.must("have at least one certificate");
            return None;
        }
        let numbered = members.into_iter().enumerate();
        Some(numbered.map(|(entry, field)| certificate(field, entry, environment, &mut files)).collect::<Vec<_>>())
    });
    let min_version = section.value("min_version", |field| MIN_VERSION.read(field));
    let strict_sni = section.value("strict_sni", |field| field.boolean());
    section.close();
    let is_read = min_version.is_some() && strict_sni.is_some();
    let certificates = certificates?;
    let is_whole = certificates.iter().all(Option::is_some);
    let (indexes, certificates): (Vec<usize>, Vec<CertificateSettings>) =
        certificates.into_iter().enumerate().filter_map(|(index, one)| Some((index, one?))).unzip();
    let unknown_names = if strict_sni.unwrap_or(false) { UnknownNames::Closed } else { UnknownNames::First };
    let (min_version, protocols) = (min_version.unwrap_or(MinVersion::Tls12), protocols.to_vec());
    let settings = Settings { certificates, min_version, protocols, unknown_names };
    match Server::new(settings) {
        Ok(server) => (is_whole && is_read).then_some(server),
        Err(errors) => {
            for error in errors {
                let index = indexes.get(error.entry);
                let is_meant = |file: &&LocatedFile<'_>| Some(&file.entry) == index && file.key == error.key;
                if let Some(LocatedFile { field, .. }) = files.iter().find(is_meant) {
                    field.wrong(&error.what, None);
                }
            }
            None
        }
    }
}

fn certificate<'t>(
    field: Field<'t>,
    entry: usize,
    environment: Environment<'_>,
    files: &mut Vec<LocatedFile<'t>>,
) -> Option<CertificateSettings> {
    let section = field.section(&CERTIFICATE)?;
    let mut locate = |key: FileKey, field: &Field<'t>| files.push(LocatedFile { entry, key, field: field.clone() });
    let cert_file = section.need("cert_file").and_then(|field| {
        locate(FileKey::CertFile, &field);
        environment.known_file(&field)
    });
    let key_file = section.need("key_file").and_then(|field| {
        locate(FileKey::KeyFile, &field);
        environment.named_secret_file(&field)
    });
    let mut client_file = |key: FileKey| -> Option<Option<NamedFile>> {
        section.optional(key.name(), |field| {
            locate(key, &field);
            environment.named_file(&field)
        })
    };
    let (client_ca_file, client_crl_file) = (client_file(FileKey::ClientCaFile), client_file(FileKey::ClientCrlFile));
    let client_auth = client_auth(&section);
    section.close();
    Some(CertificateSettings {
        cert_file: cert_file?,
        key_file: key_file?,
        client_ca_file: client_ca_file?,
        client_crl_file: client_crl_file?,
        client_auth: client_auth?,
    })
}

/// Reads `client_auth`. The key is required beside `client_ca_file`. Without `client_ca_file`, the default is `off`.
fn client_auth(section: &Section<'_>) -> Option<ClientAuth> {
    let ca_file = section.has("client_ca_file");
    if section.has("client_crl_file") && !ca_file {
        section.wrong("client_ca_file", "missing: it belongs to `client_crl_file`");
    }
    let Some(field) = section.get("client_auth") else {
        if ca_file {
            section.wrong("client_auth", "missing: without it no client is asked for a certificate");
            return None;
        }
        return Some(ClientAuth::Off);
    };
    let client_auth = field.known_or("off", |field| field.choice(&CLIENT_AUTH))?;
    if client_auth != ClientAuth::Off && !ca_file {
        section.wrong("client_ca_file", "missing: it says which certificates of clients are believed");
        return None;
    }
    (ca_file || !section.has("client_crl_file")).then_some(client_auth)
}
