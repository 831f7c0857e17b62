//! Answers on the admin listener: whether we live, whether we are ready, what we counted, what buckets hold.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::request::Parts;
use http::{Method, Response};
use pingora::apps::http_app::ServeHttp;
use pingora::protocols::http::ServerSession;

use super::buckets;
use super::shared::Gateway;

#[derive(Debug)]
pub struct Admin(pub Arc<Gateway>);

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

#[async_trait]
impl ServeHttp for Admin {
    async fn response(&self, session: &mut ServerSession) -> Response<Vec<u8>> {
        let head = session.req_header();
        if head.uri.path() == "/buckets" || head.uri.path().starts_with("/buckets/") {
            return self.buckets(head).await;
        }
        if !matches!(head.method, Method::GET | Method::HEAD) {
            return answer(405, TEXT, "only GET and HEAD\n");
        }
        let mut response = match head.uri.path() {
            "/livez" => answer(200, TEXT, "alive\n"),
            "/readyz" => self.ready(),
            "/metrics" => {
                let buckets = u32::try_from(self.0.store.buckets()).unwrap_or(u32::MAX);
                self.0.metrics.buckets.set(f64::from(buckets));
                answer(200, "text/plain; version=0.0.4", &self.0.metrics.render())
            }
            "/" => answer(200, TEXT, "tollgate\n\n/metrics\n/livez\n/readyz\n/buckets/KEY\n"),
            _ => answer(404, TEXT, "not found; there are /metrics, /livez and /readyz\n"),
        };
        if head.method == Method::HEAD {
            response.body_mut().clear();
        }
        response
    }
}

impl Admin {
    async fn buckets(&self, head: &Parts) -> Response<Vec<u8>> {
        let method = &head.method;
        if !matches!(*method, Method::GET | Method::HEAD | Method::DELETE) {
            return answer(405, TEXT, "only GET, HEAD and DELETE\n");
        }
        let mut response = match buckets::answer(&self.0, head).await {
            (code, Ok(document)) => answer(code, JSON, &format!("{document}\n")),
            (code, Err(text)) => answer(code, TEXT, &format!("{text}\n")),
        };
        if *method == Method::HEAD {
            response.body_mut().clear();
        }
        response
    }

    /// Ready while a configuration and its keys are in force and we are not leaving; the store is reported, and does not decide: one
    /// blip of it would take every gateway out of rotation.
    fn ready(&self) -> Response<Vec<u8>> {
        let handed_over = self.0.handed_over.load(Ordering::Relaxed);
        let (code, status) = match (self.0.is_draining(), self.0.has_keys()) {
            // Who asks is asking about the address, and the next process is there.
            (true, _) if handed_over => (200, "handed over"),
            (true, _) => (503, "draining"),
            (false, false) => (503, "keys missing"),
            (false, true) => (200, "ready"),
        };
        let (store, up) = (self.0.store.name(), self.0.store_health.is_up());
        answer(code, JSON, &format!("{{\"status\":\"{status}\",\"store\":{{\"kind\":\"{store}\",\"up\":{up}}}}}\n"))
    }
}

fn answer(code: u16, kind: &'static str, body: &str) -> Response<Vec<u8>> {
    let response = Response::builder().status(code).header(CONTENT_TYPE, kind).header(CONTENT_LENGTH, body.len());
    response.body(body.as_bytes().to_vec()).unwrap_or_default()
}
