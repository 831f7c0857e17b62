//! An HTTPS server that answers every request with the same text.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::Certificates;

/// Starts the server. It uses the server certificate for `localhost`.
pub(crate) fn serve(certificates: &Certificates, answer: String) -> SocketAddr {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let chain = CertificateDer::pem_slice_iter(certificates.server.0.as_bytes()).collect::<Result<_, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_slice(certificates.server.1.as_bytes()).unwrap();
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = Arc::new(builder.with_no_client_auth().with_single_cert(chain, key).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (config, answer) = (Arc::clone(&config), answer.clone());
            std::thread::spawn(move || {
                let mut stream = StreamOwned::new(ServerConnection::new(config).unwrap(), stream);
                if read_whole(&mut stream).is_some() {
                    let _ = stream.write_all(answer.as_bytes());
                    stream.conn.send_close_notify();
                    let _ = stream.flush();
                }
            });
        }
    });
    address
}

/// Reads a whole request, because closing a connection with unread bytes can lose the answer.
fn read_whole(stream: &mut impl Read) -> Option<()> {
    let mut request = Vec::new();
    loop {
        let mut part = [0; 4096];
        let length = stream.read(&mut part).ok().filter(|length| *length > 0)?;
        request.extend_from_slice(&part[..length]);
        let Some(end) = request.windows(4).position(|bytes| bytes == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&request[..end]).to_lowercase();
        let body = head.split("content-length:").nth(1).and_then(|rest| rest.lines().next()?.trim().parse().ok());
        if request.len() >= end + 4 + body.unwrap_or(0) {
            return Some(());
        }
    }
}
