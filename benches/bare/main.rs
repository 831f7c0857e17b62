//! A bare Pingora proxy, to compare with: `bare LISTEN UPSTREAM docs|sockets|ours`.
//!
//! `docs` is what Pingora's documentation shows: one service, work stealing, one thread per core. `sockets` has a service
//! with one thread and one listening socket for each core, on Pingora's usual runtime. `ours` has single-threaded runtimes
//! as well, and so all of our layout.

use async_trait::async_trait;
use pingora::prelude::{ProxyHttp, Server, Session, http_proxy_service};
use pingora::proxy::http_proxy;
use pingora::server::configuration::ServerConf;
use pingora::upstreams::peer::HttpPeer;
use tollgate::gateway::server::listener::ListeningSockets;
use tollgate::gateway::server::queued_connections::AcceptingSockets;

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

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, listen, upstream, layout] = &arguments[..] else {
        return Err("bare LISTEN UPSTREAM docs|sockets|ours".into());
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
        let bound = ListeningSockets::bind(listen.parse()?, cores, Vec::new())?;
        for service in
            bound.services("bare", &AcceptingSockets::default(), |_| http_proxy(&server.configuration, bare()))
        {
            server.add_service(service);
        }
    } else {
        let mut service = http_proxy_service(&server.configuration, bare());
        service.add_tcp(listen);
        server.add_service(service);
    }
    server.run_forever();
}
