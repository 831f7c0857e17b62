//! Answers requests to the admin listener: liveness, readiness, metrics, buckets and the status page.

pub(crate) mod bucket_levels;
pub(crate) mod bucket_lookup;
pub(crate) mod bucket_query;
pub(crate) mod bucket_report;
pub(crate) mod buckets;
mod host_check;
mod idle_eviction;
pub(super) mod server;
pub(super) mod status;

use std::sync::Arc;

use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, VARY};
use http::request::Parts;
use http::{HeaderValue, Method, Response};
use pingora::protocols::http::ServerSession;

use super::state::GatewayState;
use super::state::readiness::Readiness;
use host_check::HostKind;
use status::{Document, Status};

#[derive(Debug)]
pub(super) struct Admin {
    pub gateway: Arc<GatewayState>,
    pub status: Arc<Status>,
}

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

impl Admin {
    pub(super) async fn response(&self, session: &ServerSession) -> Response<Vec<u8>> {
        let head = session.req_header();
        if head.uri.path() == "/buckets" || head.uri.path().starts_with("/buckets/") {
            return self.buckets(head).await;
        }
        if !matches!(head.method, Method::GET | Method::HEAD) {
            return answer(405, TEXT, "only GET and HEAD\n");
        }
        let path = head.uri.path();
        let shows =
            matches!(path, "/status.json" | "/history.json") || path == "/" && status::is_browser(&head.headers);
        if shows && HostKind::of(head, self.status.host()) == HostKind::Foreign {
            let host = self.status.host();
            let hint =
                format!("use an address, localhost or {host}: any other host name may be that of another site\n");
            return answer(403, TEXT, &hint);
        }
        let mut response = match path {
            "/livez" => answer(200, TEXT, "alive\n"),
            "/readyz" => self.ready(),
            "/metrics" => {
                let buckets = u32::try_from(self.gateway.store.buckets()).unwrap_or(u32::MAX);
                self.gateway.metrics.buckets.set(f64::from(buckets));
                let (snapshot, now) = (self.gateway.snapshot.load(), self.gateway.clock.now());
                let upstreams = snapshot.destinations.upstreams().map(Arc::as_ref);
                answer(200, "text/plain; version=0.0.4", &self.gateway.metrics.render(upstreams, now))
            }
            "/" if shows => status::page(),
            "/" => list(),
            "/status.json" => self.document(Document::Status).await,
            "/history.json" => self.document(Document::History).await,
            _ => {
                answer(404, TEXT, "not found; there are /, /status.json, /history.json, /metrics, /livez and /readyz\n")
            }
        };
        if head.method == Method::HEAD {
            response.body_mut().clear();
        }
        response
    }

    async fn document(&self, which: Document) -> Response<Vec<u8>> {
        let document = self.status.document(&self.gateway, which).await;
        document.unwrap_or_else(|| answer(500, TEXT, "the document could not be made\n"))
    }

    async fn buckets(&self, head: &Parts) -> Response<Vec<u8>> {
        let method = &head.method;
        if !matches!(*method, Method::GET | Method::HEAD | Method::DELETE | Method::PATCH) {
            return answer(405, TEXT, "only GET, HEAD, DELETE and PATCH\n");
        }
        let mut response = match buckets::answer(&self.gateway, self.status.host(), head).await {
            (code, Ok(document)) => answer(code, JSON, &format!("{document}\n")),
            (code, Err(text)) => answer(code, TEXT, &format!("{text}\n")),
        };
        if *method == Method::HEAD {
            response.body_mut().clear();
        }
        response
    }

    fn ready(&self) -> Response<Vec<u8>> {
        let readiness = self.gateway.readiness();
        let code = match readiness {
            // After a handover, the next process serves the address, so the answer is still 200.
            Readiness::Ready | Readiness::HandedOver => 200,
            Readiness::Draining | Readiness::KeysMissing => 503,
        };
        let status = readiness.name();
        let (store, up) = (self.gateway.store.name(), self.gateway.store_health.is_up());
        answer(code, JSON, &format!("{{\"status\":\"{status}\",\"store\":{{\"kind\":\"{store}\",\"up\":{up}}}}}\n"))
    }
}

/// Lists the paths, for clients other than browsers.
fn list() -> Response<Vec<u8>> {
    let paths = "/metrics\n/status.json\n/history.json\n/livez\n/readyz\n/buckets/KEY\n";
    let mut response = answer(200, TEXT, &format!("tollgate; a browser gets the status page\n\n{paths}"));
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn answer(code: u16, kind: &'static str, body: &str) -> Response<Vec<u8>> {
    let response = Response::builder().status(code).header(CONTENT_TYPE, kind).header(CONTENT_LENGTH, body.len());
    response.body(body.as_bytes().to_vec()).unwrap_or_default()
}
