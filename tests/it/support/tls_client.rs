//! A TLS client over one connection. The test determines every byte.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, RootCertStore, StreamOwned, SupportedProtocolVersion};

use super::authority::IssuedCertificate;

/// The settings that several clients share. Clients with the same settings can resume sessions.
#[derive(Clone, Debug)]
pub(crate) struct TlsSettings(Arc<ClientConfig>);

impl TlsSettings {
    /// Makes settings that trust this authority and present this certificate.
    pub(crate) fn new(
        authority: &str,
        shows: Option<&IssuedCertificate>,
        versions: &[&'static SupportedProtocolVersion],
    ) -> TlsSettings {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(authority.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).unwrap();
        let builder = builder.with_root_certificates(roots);
        let config = match shows {
            None => builder.with_no_client_auth(),
            Some(IssuedCertificate { certificate, key, .. }) => {
                let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
                builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap()).unwrap()
            }
        };
        TlsSettings(Arc::new(config))
    }

    /// Returns the settings for another client.
    pub(crate) fn config(&self) -> ClientConfig {
        ClientConfig::clone(&self.0)
    }

    /// Connects and makes the TLS handshake.
    ///
    /// # Errors
    /// If the handshake fails.
    pub(crate) fn connect(&self, address: SocketAddr, name: &str) -> io::Result<TlsClient> {
        self.over(TcpStream::connect(address)?, name)
    }

    /// Makes the handshake on a connection on which something was already sent.
    pub(crate) fn over(&self, mut stream: TcpStream, name: &str) -> io::Result<TlsClient> {
        stream.set_read_timeout(Some(Duration::from_secs(15)))?;
        stream.set_nodelay(true)?;
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let mut connection = ClientConnection::new(Arc::clone(&self.0), name).map_err(io::Error::other)?;
        while connection.is_handshaking() {
            connection.complete_io(&mut stream)?;
        }
        Ok(TlsClient { stream: StreamOwned::new(connection, stream), read: Vec::new() })
    }
}

#[derive(Debug)]
pub(crate) struct TlsClient {
    stream: StreamOwned<ClientConnection, TcpStream>,
    read: Vec<u8>,
}

impl TlsClient {
    /// Sends a request without a body, and returns the status of its response.
    pub(crate) fn get(&mut self, host: &str, target: &str) -> u16 {
        self.write(&format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        self.response().0
    }

    /// Sends a request like `get` on a connection that may already be closed.
    ///
    /// # Errors
    /// If the connection is closed.
    pub(crate) fn try_get(&mut self, host: &str, target: &str) -> io::Result<u16> {
        write!(self.stream, "GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n")?;
        self.stream.flush()?;
        let mut first = [0; 12];
        self.stream.read_exact(&mut first)?;
        self.read.extend_from_slice(&first);
        Ok(self.response().0)
    }

    pub(crate) fn write(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).unwrap();
        self.stream.flush().unwrap();
    }

    /// Reads one response that states its length. Returns its status, head and body.
    pub(crate) fn response(&mut self) -> (u16, String, String) {
        let head = self.until("\r\n\r\n");
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let length = head.lines().find_map(|line| {
            line.to_ascii_lowercase().strip_prefix("content-length:").map(|length| length.trim().parse().unwrap())
        });
        let length: usize = length.unwrap_or(0);
        while self.read.len() < length {
            assert!(self.more() > 0, "closed in a body: {head}");
        }
        let body = self.read.drain(..length).collect();
        (status, head, String::from_utf8(body).unwrap())
    }

    /// Reads up to the end of this text.
    pub(crate) fn until(&mut self, text: &str) -> String {
        loop {
            if let Some(at) = self.read.windows(text.len()).position(|bytes| bytes == text.as_bytes()) {
                return String::from_utf8(self.read.drain(..at + text.len()).collect()).unwrap();
            }
            assert!(self.more() > 0, "closed before {text:?}: {:?}", String::from_utf8_lossy(&self.read));
        }
    }

    /// Whether the connection ends with `close_notify`. Reads to the end.
    pub(crate) fn is_closed_cleanly(&mut self) -> bool {
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest).is_ok()
    }

    /// Whether the connection stays open. Waits until it is closed in any way, or something is received.
    pub(crate) fn is_open(&mut self) -> bool {
        self.stream.read(&mut [0; 1]).is_ok_and(|length| length > 0)
    }

    pub(crate) fn is_resumed(&self) -> bool {
        self.stream.conn.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// Returns the certificate that the gateway has presented.
    pub(crate) fn certificate(&self) -> Vec<u8> {
        self.stream.conn.peer_certificates().unwrap()[0].to_vec()
    }

    /// Sends `close_notify`: the client will send nothing more.
    pub(crate) fn announce_end(&mut self) {
        self.stream.conn.send_close_notify();
        self.stream.flush().unwrap();
    }

    fn more(&mut self) -> usize {
        let mut part = [0; 16 << 10];
        let length = self.stream.read(&mut part).unwrap();
        self.read.extend_from_slice(&part[..length]);
        length
    }
}
