//! A bare Pingora proxy for comparisons: `bare LISTEN UPSTREAM docs|sockets|ours [CERTIFICATE KEY]`.
//!
//! The layout `docs` is that of Pingora's documentation: one service, work stealing, one thread for each core.
//! `sockets` has a service with one thread and one listening socket for each core, on Pingora's usual runtime. `ours`
//! is the gateway's layout: it has single-threaded runtimes too. With a certificate and its key, both as PEM,
//! connections are encrypted by the library that Pingora's own listener uses, and HTTP/2 is offered. The layout `docs`
//! does not support this.

use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use pingora::apps::ServerApp;
use pingora::prelude::{ProxyHttp, Server, Session, http_proxy_service};
use pingora::protocols::Stream;
use pingora::proxy::{HttpProxy, http_proxy};
use pingora::server::ShutdownWatch;
use pingora::server::configuration::ServerConf;
use pingora::upstreams::peer::HttpPeer;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;
use tollgate::gateway::AcceptingSockets;
use tollgate::gateway::EncryptedStream;
use tollgate::gateway::ListeningSockets;

#[cfg(feature = "bench-mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

struct Bare(HttpPeer);

#[async_trait]
impl ProxyHttp for Bare {
    type CTX = ();
    fn new_ctx(&self) {}
    async fn upstream_peer(&self, _: &mut Session, _: &mut ()) -> pingora::Result<Box<HttpPeer>> {
        Ok(Box::new(self.0.clone()))
    }
}

/// The proxy after a TLS handshake.
struct EncryptedEcho {
    acceptor: TlsAcceptor,
    proxy: Arc<HttpProxy<Bare>>,
}

#[async_trait]
impl ServerApp for EncryptedEcho {
    async fn process_new(self: &Arc<Self>, stream: Stream, shutdown: &ShutdownWatch) -> Option<Stream> {
        let mut stream: Stream = Box::new(EncryptedStream::new(self.acceptor.accept(stream).await.ok()?));
        while let Some(reused) = self.proxy.process_new(stream, shutdown).await {
            stream = reused;
        }
        None
    }
}

type Error = Box<dyn std::error::Error>;

fn acceptor(certificate: &str, key: &str) -> Result<TlsAcceptor, Error> {
    let chain = CertificateDer::pem_file_iter(certificate)?.collect::<Result<Vec<_>, _>>()?;
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions()?.with_no_client_auth();
    let mut config = builder.with_single_cert(chain, PrivateKeyDer::from_pem_file(key)?)?;
    // If HTTP/2 was negotiated, Pingora uses its own loop for it.
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, listen, upstream, layout, files @ ..] = &arguments[..] else {
        return Err("bare LISTEN UPSTREAM docs|sockets|ours [CERTIFICATE KEY]".into());
    };
    let acceptor = match files {
        [certificate, key] => Some(acceptor(certificate, key)?),
        _ => None,
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let conf = ServerConf {
        threads: cores,
        work_stealing: layout != "ours",
        upstream_keepalive_pool_size: 256,
        ..ServerConf::default()
    };
    let mut server = Server::new_with_opt_and_conf(None, conf);
    server.bootstrap();
    let bare = || Bare(HttpPeer::new(upstream.as_str(), false, String::new()));
    if layout != "docs" {
        let bound = ListeningSockets::bind(listen.parse::<SocketAddr>()?.into(), None, cores, Vec::new())?;
        let accepting = AcceptingSockets::default();
        match acceptor {
            None => {
                for service in bound.services("bare", &accepting, |_| http_proxy(&server.configuration, bare())) {
                    server.add_service(service);
                }
            }
            Some(acceptor) => {
                let app = |_| {
                    let proxy = Arc::new(http_proxy(&server.configuration, bare()));
                    EncryptedEcho { acceptor: acceptor.clone(), proxy }
                };
                let services = bound.services("bare", &accepting, app);
                for service in services {
                    server.add_service(service);
                }
            }
        }
    } else {
        let mut service = http_proxy_service(&server.configuration, bare());
        service.add_tcp(listen);
        server.add_service(service);
    }
    server.run_forever();
}
