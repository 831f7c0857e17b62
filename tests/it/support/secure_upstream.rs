//! An upstream with TLS, with HTTP/2, or with both, that records every request.

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_rustls::TlsAcceptor;

use super::Certificates;

/// One received request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SecureRequest {
    /// The number of the connection, counted from 0.
    pub connection: usize,
    pub is_h2: bool,
    /// The authority of an HTTP/2 request.
    pub authority: String,
    pub path: String,
    pub body: usize,
    /// Whether the client has presented a certificate.
    pub has_certificate: bool,
}

#[derive(Clone)]
pub(crate) struct SecureUpstream {
    pub address: SocketAddr,
    seen: Arc<Mutex<Vec<SecureRequest>>>,
    /// Whether the gRPC health check answers `SERVING`.
    serving: Arc<AtomicBool>,
}

/// The properties of a connection that are known before its first request.
struct Connection {
    number: usize,
    is_h2: bool,
    has_certificate: bool,
}

impl SecureUpstream {
    /// Starts an upstream with HTTP/2 and without TLS.
    pub(crate) fn h2c() -> SecureUpstream {
        SecureUpstream::start(None, true)
    }

    /// Starts an upstream with TLS and the server certificate. Clients can use HTTP/2 if `protocols` has `h2`.
    pub(crate) fn tls(certificates: &Certificates, protocols: &[&str]) -> SecureUpstream {
        SecureUpstream::start(Some(config(certificates, protocols, false)), false)
    }

    /// Starts an upstream with TLS that requires a client certificate of the same authority.
    pub(crate) fn mutual_tls(certificates: &Certificates) -> SecureUpstream {
        SecureUpstream::start(Some(config(certificates, &["http/1.1"], true)), false)
    }

    fn start(tls: Option<ServerConfig>, is_h2: bool) -> SecureUpstream {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let upstream = SecureUpstream { address, seen: Arc::default(), serving: Arc::new(AtomicBool::new(true)) };
        let serving = upstream.clone();
        let acceptor = tls.map(|config| TlsAcceptor::from(Arc::new(config)));
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                listener.set_nonblocking(true).unwrap();
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                for number in 0.. {
                    let (stream, _) = listener.accept().await.unwrap();
                    let (upstream, acceptor) = (serving.clone(), acceptor.clone());
                    tokio::spawn(async move {
                        let Some(acceptor) = acceptor else {
                            return upstream.serve(stream, Connection { number, is_h2, has_certificate: false }).await;
                        };
                        let Ok(stream) = acceptor.accept(stream).await else { return };
                        let is_h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                        let has_certificate = stream.get_ref().1.peer_certificates().is_some();
                        upstream.serve(stream, Connection { number, is_h2, has_certificate }).await;
                    });
                }
            });
        });
        upstream
    }

    pub(crate) fn seen(&self) -> Vec<SecureRequest> {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn set_serving(&self, serving: bool) {
        self.serving.store(serving, Ordering::Relaxed);
    }

    async fn serve(&self, stream: impl AsyncRead + AsyncWrite + Unpin, connection: Connection) {
        match connection.is_h2 {
            true => drop(self.serve_h2(stream, &connection).await),
            false => drop(self.serve_h1(stream, &connection).await),
        }
    }

    fn record(&self, connection: &Connection, authority: String, path: String, body: usize) {
        self.seen.lock().unwrap().push(SecureRequest {
            connection: connection.number,
            is_h2: connection.is_h2,
            authority,
            path,
            body,
            has_certificate: connection.has_certificate,
        });
    }

    async fn serve_h1(
        &self,
        mut stream: impl AsyncRead + AsyncWrite + Unpin,
        connection: &Connection,
    ) -> std::io::Result<()> {
        let mut head = Vec::new();
        loop {
            if stream.read_buf(&mut head).await? == 0 {
                return Ok(());
            }
            if head.ends_with(b"\r\n\r\n") {
                let text = String::from_utf8_lossy(&head).into_owned();
                let path = text.split(' ').nth(1).unwrap_or_default().to_owned();
                self.record(connection, String::new(), path, 0);
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await?;
                stream.flush().await?;
                head.clear();
            }
        }
    }

    async fn serve_h2(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin,
        connection: &Connection,
    ) -> Result<(), h2::Error> {
        let mut server = h2::server::handshake(stream).await?;
        while let Some(accepted) = server.accept().await {
            let (request, mut respond) = accepted?;
            let (head, mut body) = request.into_parts();
            let path = head.uri.path().to_owned();
            if path == "/goaway" {
                server.graceful_shutdown();
            }
            let authority = head.uri.authority().map_or(String::new(), ToString::to_string);
            let (upstream, has_certificate, number) = (self.clone(), connection.has_certificate, connection.number);
            tokio::spawn(async move {
                let mut length = 0;
                while let Some(Ok(part)) = body.data().await {
                    length += part.len();
                    let _ = body.flow_control().release_capacity(part.len());
                }
                let connection = Connection { number, is_h2: true, has_certificate };
                upstream.record(&connection, authority, path.clone(), length);
                let health = path == "/grpc.health.v1.Health/Check";
                let answer = match health {
                    true => vec![0, 0, 0, 0, 2, 8, if upstream.serving.load(Ordering::Relaxed) { 1 } else { 2 }],
                    false => b"ok".to_vec(),
                };
                let Ok(mut sender) = respond.send_response(http::Response::new(()), false) else { return };
                let _ = sender.send_data(Bytes::from(answer), false);
                let mut trailers = http::HeaderMap::new();
                trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
                if path == "/trailers" {
                    for name in
                        ["content-length", "set-cookie", "cache-control", "x-tollgate-reason", "ratelimit", "x-sum"]
                    {
                        trailers.insert(name, http::HeaderValue::from_static("7"));
                    }
                }
                let _ = sender.send_trailers(trailers);
            });
        }
        Ok(())
    }
}

fn config(certificates: &Certificates, protocols: &[&str], asks_for_certificate: bool) -> ServerConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let chain = |pem: &str| CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<Vec<_>, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_slice(certificates.server.1.as_bytes()).unwrap();
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let builder = if asks_for_certificate {
        let mut roots = RootCertStore::empty();
        chain(&certificates.authority).into_iter().for_each(|certificate| roots.add(certificate).unwrap());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
        builder.with_client_cert_verifier(verifier)
    } else {
        builder.with_no_client_auth()
    };
    let mut config = builder.with_single_cert(chain(&certificates.server.0), key).unwrap();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    config
}
