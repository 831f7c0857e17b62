//! Answers requests to the admin listener: liveness, readiness, metrics, buckets and the status page.

pub(crate) mod ban_listing;
pub(crate) mod ban_lookup;
mod bucket_document;
pub(crate) mod bucket_levels;
pub(crate) mod bucket_lookup;
pub(crate) mod bucket_query;
pub(crate) mod bucket_report;
pub(crate) mod buckets;
mod host_check;
mod idle_eviction;
mod known_subjects;
mod raise_document;
pub(crate) mod raise_request;
pub(super) mod server;
pub(super) mod status;
mod subject_listing;
pub(super) mod write_access;

use std::sync::Arc;

use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, VARY};
use http::request::Parts;
use http::{HeaderValue, Method, Response};
use pingora::protocols::http::ServerSession;

use super::runtime::peer_user::PeerUser;
use super::state::GatewayState;
use super::state::readiness::Readiness;
use super::telemetry::metrics::registry::Reader;
use host_check::HostKind;
use status::{Document, Status};
use write_access::{AdminListener, Operator};

#[derive(Debug)]
pub(super) struct Admin {
    pub gateway: Arc<GatewayState>,
    pub status: Arc<Status>,
    /// The listener of these requests.
    pub listener: AdminListener,
}

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

impl Admin {
    pub(super) async fn response(&self, session: &mut ServerSession) -> Response<Vec<u8>> {
        if session.req_header().uri.path() == raise_document::PATH {
            return self.raise(session).await;
        }
        let head = session.req_header();
        if head.uri.path() == "/buckets" || head.uri.path().starts_with("/buckets/") {
            return self.buckets(head, PeerUser::of_session(session)).await;
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
            "/metrics" => answer(200, "text/plain; version=0.0.4", &self.gateway.exposition(Reader::Scrape)),
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

    async fn raise(&self, session: &mut ServerSession) -> Response<Vec<u8>> {
        if let Err((code, text)) = raise_document::check(session.req_header(), self.status.host()) {
            return answer(code, TEXT, &format!("{text}\n"));
        }
        let operator = match self.operator(session.req_header(), PeerUser::of_session(session)) {
            Ok(operator) => operator,
            Err(refused) => return *refused,
        };
        let mut body = Vec::new();
        loop {
            match session.read_request_body().await {
                Ok(Some(part)) => body.extend_from_slice(&part),
                Ok(None) => break,
                Err(_) => return answer(400, TEXT, "the document ends too early\n"),
            }
            if body.len() > raise_document::LONGEST {
                return answer(413, TEXT, "the document has 16 KiB at most\n");
            }
        }
        match raise_document::answer(&self.gateway, &body, &operator).await {
            (code, Ok(document)) => answer(code, JSON, &format!("{document}\n")),
            (code, Err(text)) => answer(code, TEXT, &format!("{text}\n")),
        }
    }

    async fn document(&self, which: Document) -> Response<Vec<u8>> {
        let document = self.status.document(&self.gateway, which).await;
        document.unwrap_or_else(|| answer(500, TEXT, "the document could not be made\n"))
    }

    /// Returns who wants to change buckets, or the response to a request that may change nothing.
    fn operator(&self, head: &Parts, user: Option<PeerUser>) -> Result<Operator, Box<Response<Vec<u8>>>> {
        let config = &self.gateway.snapshot.load().config;
        let refused = |(code, text)| Box::new(answer(code, TEXT, &format!("{text}\n")));
        Operator::of(config, self.listener, user, head).map_err(refused)
    }

    async fn buckets(&self, head: &Parts, user: Option<PeerUser>) -> Response<Vec<u8>> {
        let method = &head.method;
        if !matches!(*method, Method::GET | Method::HEAD | Method::DELETE | Method::PATCH) {
            return answer(405, TEXT, "only GET, HEAD, DELETE and PATCH\n");
        }
        let is_open = matches!(*method, Method::GET | Method::HEAD) && !bucket_query::lists_clients(head);
        let operator = match is_open {
            true => Operator::Unverified,
            false => match self.operator(head, user) {
                Ok(operator) => operator,
                Err(refused) => return *refused,
            },
        };
        let mut response = match buckets::answer(&self.gateway, self.status.host(), head, &operator).await {
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
    let paths = "/metrics\n/status.json\n/history.json\n/livez\n/readyz\n/buckets/KEY\n/buckets/raise\n";
    let mut response = answer(200, TEXT, &format!("tollgate; a browser gets the status page\n\n{paths}"));
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn answer(code: u16, kind: &'static str, body: &str) -> Response<Vec<u8>> {
    let response = Response::builder().status(code).header(CONTENT_TYPE, kind).header(CONTENT_LENGTH, body.len());
    response.body(body.as_bytes().to_vec()).unwrap_or_default()
}
