//! Serves the status page for browsers, and the documents that the page loads.
//!
//! The page is one file that loads nothing from other sites. A content security policy enforces this. The page shows
//! the numbers of `/metrics`. Only the history of the last hour is kept here.

mod document;
mod endpoints;
mod held_buckets;
mod history;
mod readings;
mod rule_rows;
mod top_refused;

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::{
    CACHE_CONTROL, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, Response, header};
use sha2::{Digest, Sha256};
use tokio::sync::Mutex;
use tokio::time::MissedTickBehavior;

use crate::gateway::state::GatewayState;
use base::host_name::host_name;
use base::printable::write_json;
use base::time::{Clock, Micros, Timestamp};
use document::Instance;
use history::History;
use readings::Readings;

const PAGE: &str = include_str!("page.html");

/// The content security policy: the page may run its own script, and load documents from its own origin.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    let (script, style) = (hash_of("script"), hash_of("style"));
    format!(
        "default-src 'none'; script-src '{script}'; style-src '{style}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
});

/// How long a document is sent again before a new one is made.
const MAX_AGE: Micros = Micros(500_000);

/// The data of the status page that no metric has.
#[derive(Debug)]
pub(crate) struct Status {
    instance: Instance,
    history: History,
    now: Mutex<Option<CachedDocument>>,
    hour: Mutex<Option<CachedDocument>>,
}

/// A document that the status page loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Document {
    /// The document about the current state of the gateway.
    Status,
    /// The document about the last hour.
    History,
}

#[derive(Debug)]
struct CachedDocument {
    at: Timestamp,
    document: Vec<u8>,
}

impl Status {
    /// Makes the data of the status page. `admin` is the address of the admin listener.
    pub(crate) fn new(clock: &Clock, admin: Option<SocketAddr>) -> Status {
        let started = clock.now();
        Status {
            instance: Instance { host: host_name(), started, started_at: clock.wall(), admin },
            history: History::new(started),
            now: Mutex::default(),
            hour: Mutex::default(),
        }
    }

    /// Returns the name of this machine.
    pub(crate) fn host(&self) -> &str {
        &self.instance.host
    }

    /// Adds the counters' values to the history every half minute. Never returns.
    pub(crate) async fn keep_history(self: &Arc<Status>, gateway: &Arc<GatewayState>) {
        let mut interval = tokio::time::interval(history::INTERVAL.into());
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first tick comes at once, so it is skipped.
        interval.tick().await;
        loop {
            interval.tick().await;
            let (status, gateway) = (Arc::clone(self), Arc::clone(gateway));
            let add = move || {
                let rules = &gateway.snapshot.load().config.rules;
                status.history.add(gateway.clock.now(), rules, Readings(&gateway.metrics.registry));
            };
            if let Err(error) = tokio::task::spawn_blocking(add).await {
                log::error!(error:% = error; "cannot keep the history of the last hour");
            }
        }
    }

    fn hour(&self, gateway: &GatewayState) -> Vec<u8> {
        let rules = &gateway.snapshot.load().config.rules;
        let document = self.history.document(gateway.clock.now(), rules, Readings(&gateway.metrics.registry));
        let mut json = Vec::new();
        // Writing fails only for keys that are not text, and all keys here are text.
        let _ = write_json(&mut json, &document);
        json
    }

    /// Returns a response with the document `kind` for the status page. A document that is less than half a second old is sent
    /// again. `None` if the document could not be made.
    pub(crate) async fn document(
        self: &Arc<Status>,
        gateway: &Arc<GatewayState>,
        kind: Document,
    ) -> Option<Response<Vec<u8>>> {
        // A request that arrives while the document is being made waits, and gets the same document.
        let cached = match kind {
            Document::Status => &self.now,
            Document::History => &self.hour,
        };
        let mut cached = cached.lock().await;
        let now = gateway.clock.now();
        let document = match &*cached {
            Some(cached) if now.since(cached.at) < MAX_AGE => cached.document.clone(),
            _ => {
                let (status, state) = (Arc::clone(self), Arc::clone(gateway));
                // The document is made on another thread, so that this one can answer liveness probes.
                let document = tokio::task::spawn_blocking(move || match kind {
                    Document::Status => document::make(&state, &status.instance),
                    Document::History => status.hour(&state),
                });
                let document = document.await.ok()?;
                // If the age counted from the request, a slow machine would make one document after another.
                *cached = Some(CachedDocument { at: gateway.clock.now(), document: document.clone() });
                document
            }
        };
        Some(answer("application/json", document))
    }
}

/// Whether a client accepts HTML, as browsers do. Other clients get a list of paths.
pub(crate) fn is_browser(fields: &HeaderMap) -> bool {
    let wanted = fields.get_all(header::ACCEPT).into_iter().filter_map(|value| value.to_str().ok());
    wanted.flat_map(|value| value.split(',')).any(|range| {
        let kind = range.split(';').next().unwrap_or_default().trim();
        kind.eq_ignore_ascii_case("text/html")
    })
}

pub(crate) fn page() -> Response<Vec<u8>> {
    answer("text/html; charset=utf-8", PAGE.as_bytes().to_vec())
}

fn answer(kind: &'static str, body: Vec<u8>) -> Response<Vec<u8>> {
    let response = Response::builder()
        .header(CONTENT_TYPE, kind)
        .header(CONTENT_LENGTH, body.len())
        .header(CACHE_CONTROL, "no-store")
        .header(VARY, "Accept")
        .header(CONTENT_SECURITY_POLICY, POLICY.as_str())
        .header(X_CONTENT_TYPE_OPTIONS, "nosniff")
        .header(REFERRER_POLICY, "no-referrer")
        .header("cross-origin-resource-policy", "same-origin");
    response.body(body).unwrap_or_default()
}

/// Returns the hash of the content of the page's only element with this name, in the form of a content security policy.
fn hash_of(element: &str) -> String {
    let begin = format!("<{element}>");
    let inside = PAGE.split_once(&begin).and_then(|(_, rest)| rest.split_once(&format!("</{element}>")));
    let inside = inside.map_or("", |(inside, _)| inside);
    format!("sha256-{}", STANDARD.encode(Sha256::digest(inside)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_clients_that_accept_html_get_the_page() {
        let wants = |accept: &'static str| {
            is_browser(&HeaderMap::from_iter([(header::ACCEPT, http::HeaderValue::from_static(accept))]))
        };
        assert!(wants("text/html,application/xhtml+xml,*/*;q=0.8"));
        assert!(wants("application/json, Text/HTML;q=0.5"));
        assert!(!wants("*/*") && !wants("application/json") && !wants("text/html2"));
        assert!(!is_browser(&HeaderMap::new()));
    }

    #[test]
    fn the_page_has_one_script_and_one_style_and_loads_nothing_else() {
        for element in ["script", "style"] {
            assert_eq!(PAGE.matches(&format!("<{element}")).count(), 1);
            assert_eq!(PAGE.matches(&format!("<{element}>")).count(), 1);
        }
        // The content security policy does not allow what these words do in the page.
        for word in ["style=", "onclick", "innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval("] {
            assert!(!PAGE.contains(word), "{word}");
        }
        // On a phone there is no room for a box that scrolls within the page.
        for word in ["overflow: auto", "overflow-y", "overflow-x", "max-height"] {
            assert!(!PAGE.contains(word), "{word}");
        }
        let names = PAGE.split("http").skip(1).filter(|rest| rest.starts_with("://") || rest.starts_with("s://"));
        assert!(names.clone().all(|rest| rest.starts_with("://www.w3.org/2000/svg")), "{:?}", names.count());
    }
}
