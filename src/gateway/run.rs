//! Starts a bootstrapped gateway: a thread for each core, the admin listener, housekeeping and the signals.

use std::sync::Arc;

use parking_lot::Mutex;
use pingora::proxy::http_proxy;
use pingora::server::configuration::ServerConf;
use pingora::server::{RunArgs, Server};
use pingora::services::background::background_service;

use super::admin::Admin;
use super::admin::server::AdminServer;
use super::bootstrap::{Bootstrapped, Listening};
use super::process::signals::{Housekeeping, Signals};
use super::proxy::{Proxy, ProxyLogs};
use super::runtime::stalled_writes::StalledWrites;
use super::server::connection::ConnectionServer;
use super::server::connection_limits::ConnectionLimits;
use super::server::http1::Http1Server;
use super::server::listener::Thread;
use super::server::proxy_protocol::ProxyProtocol;
use crate::store::Worker;

/// Idle connections to the upstream, for each thread.
const UPSTREAM_POOL: usize = 256;

impl Bootstrapped {
    /// What is listened on, in the order in which it is announced.
    pub fn listening(&self) -> Vec<Listening> {
        let http = self.http.iter().map(|(bound, _)| Listening { name: "http", address: bound.address });
        let admin = self.admin.as_ref().map(|admin| Listening { name: "admin", address: admin.address });
        http.chain(admin).collect()
    }

    /// Runs until the process is told to leave. `ready` is called when everything is in force.
    #[allow(clippy::indexing_slicing, reason = "remainders of the number of threads, which is how many there are")]
    pub fn run(self, ready: impl FnOnce() + Send + 'static) {
        let mut server = Server::new_with_opt_and_conf(None, server_conf(self.threads));
        server.bootstrap();

        let stalled_writes = StalledWrites::default();
        let limits = Arc::new(ConnectionLimits::new(self.fd_budget));
        let (conf, logs) = (Arc::clone(&server.configuration), Arc::new(ProxyLogs::default()));
        let proxy = |thread| {
            let (gateway, stalled_writes) = (Arc::clone(&self.gateway), stalled_writes.clone());
            let proxy = Proxy { gateway, worker: Worker(thread), stalled_writes, logs: Arc::clone(&logs) };
            Arc::new(http_proxy(&conf, proxy))
        };
        let proxies: Vec<_> = (0..self.threads).map(proxy).collect();
        let thread = |number| {
            let gateway = Arc::clone(&self.gateway);
            Thread::new(format!("http {number}"), async move { gateway.store.run(Worker(number)).await })
        };
        let mut threads: Vec<_> = (0..self.threads).map(thread).collect();
        let alone = self.http.len() == 1;
        for (bound, listener) in self.http {
            // What one gateway is watched by should not hang on where it listens.
            let label = if alone { "http".to_owned() } else { bound.address.to_string() };
            let gauge = self.gateway.metrics.http.connections(&label);
            let (metrics, clock) = (&self.gateway.metrics, &self.gateway.clock);
            let proxy_protocol =
                listener.proxy_protocol.then(|| Arc::new(ProxyProtocol::new(metrics, clock.clone(), &label)));
            let connection_server = |number: usize| ConnectionServer {
                gateway: Arc::clone(&self.gateway),
                limits: Arc::clone(&limits),
                gauge: gauge.clone(),
                proxy_protocol: proxy_protocol.clone(),
                http1: Http1Server {
                    app: Arc::clone(&proxies[number % self.threads]),
                    gateway: Arc::clone(&self.gateway),
                    stalled_writes: stalled_writes.clone(),
                },
            };
            // There may be more sockets than threads: where the process before this one had more of them.
            for (number, socket) in (0..).zip(bound.services("http", connection_server)) {
                threads[number % self.threads].listen(socket);
            }
        }
        for thread in threads {
            server.add_service(thread);
        }
        if let Some(admin) = self.admin {
            let most = self.fd_budget.admin();
            let app = |_| {
                let admin = Admin { gateway: Arc::clone(&self.gateway), status: Arc::clone(&self.status) };
                AdminServer::new(admin, most)
            };
            for service in admin.services("admin", app) {
                server.add_service(service);
            }
        }
        let reload = Mutex::new(Some(self.reload));
        let open = limits.open();
        let housekeeping = Housekeeping { gateway: Arc::clone(&self.gateway), status: self.status, open, reload };
        server.add_service(background_service("housekeeping", housekeeping));
        let inherited = self.inherited;
        let ready = move || {
            ready();
            if let Err(error) = inherited.ready() {
                log::warn!(error:% = error; "the process before this one has not waited");
            }
        };
        let signals =
            Signals { gateway: self.gateway, handover: self.handover, ready: Mutex::new(Some(Box::new(ready))) };
        server.run(RunArgs { shutdown_signal: Box::new(signals) });
    }
}

fn server_conf(threads: usize) -> ServerConf {
    ServerConf {
        threads: 1,
        work_stealing: false,
        // One pool serves all threads.
        upstream_keepalive_pool_size: UPSTREAM_POOL * threads,
        // Connecting is tried again at the next address; an idempotent request, when the pooled connection that it was
        // sent on turns out to have been closed by the upstream.
        max_retries: 8,
        // We leave by ourselves, after `drain.timeout`, which may change: this is never met.
        grace_period_seconds: Some(u64::MAX),
        graceful_shutdown_timeout_seconds: Some(1),
        ..ServerConf::default()
    }
}
