//! Shows the gateway to whoever opens the admin listener in a browser: a page, and the document that it asks for.
//!
//! The page is one file that asks nobody else for anything, and the browser is told to hold it to that. The numbers are
//! those of `/metrics`; the page makes rates of them. What is kept here is what came during the last hour.

mod document;
mod history;
mod readings;
mod top_refused;

use std::net::SocketAddr;
use std::path::Path;
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

use crate::base::host_name::host_name;
use crate::base::time::{Clock, Micros, Timestamp};
use crate::gateway::state::GatewayState;
use history::History;
use readings::Readings;
use top_refused::Whereabouts;

const PAGE: &str = include_str!("page.html");

/// What a browser lets the page do: run its own script, and ask where it came from.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    let (script, style) = (hash_of("script"), hash_of("style"));
    format!(
        "default-src 'none'; script-src '{script}'; style-src '{style}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
});

/// A document is good for as long, however many look.
const FRESH: Micros = Micros(500_000);

/// What is shown and not counted anywhere.
#[derive(Debug)]
pub struct Status {
    host: String,
    started: Timestamp,
    /// By the wall clock.
    started_at: Timestamp,
    whereabouts: Whereabouts,
    history: History,
    now: Mutex<Option<Made>>,
    hour: Mutex<Option<Made>>,
}

/// Which one is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Document {
    /// What is now.
    Status,
    /// What was during the last hour.
    History,
}

#[derive(Debug)]
struct Made {
    at: Timestamp,
    document: Vec<u8>,
}

impl Status {
    /// `file` is what the configuration is read from, `admin` where the page is.
    pub fn new(clock: &Clock, file: Option<&Path>, admin: Option<SocketAddr>) -> Status {
        let started = clock.now();
        Status {
            host: host_name(),
            started,
            started_at: clock.wall(),
            whereabouts: Whereabouts::new(file, admin),
            history: History::new(started),
            now: Mutex::default(),
            hour: Mutex::default(),
        }
    }

    /// The name of this machine.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Adds the counters' values to the history every half minute, for as long as the process runs.
    pub async fn keep_history(self: &Arc<Status>, gateway: &Arc<GatewayState>) {
        let mut pace = tokio::time::interval(history::PACE.into());
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first tick is now.
        pace.tick().await;
        loop {
            pace.tick().await;
            let (status, gateway) = (Arc::clone(self), Arc::clone(gateway));
            let add = move || {
                let rules = &gateway.snapshot.load().config.rules;
                status.history.add(gateway.clock.now(), rules, Readings(&gateway.metrics.registry));
            };
            if let Err(error) = tokio::task::spawn_blocking(add).await {
                log::error!(error:% = error; "the last hour is not kept");
            }
        }
    }

    fn hour(&self, gateway: &GatewayState) -> Vec<u8> {
        let rules = &gateway.snapshot.load().config.rules;
        let told = self.history.tell(gateway.clock.now(), rules, Readings(&gateway.metrics.registry));
        serde_json::to_vec(&told).unwrap_or_default()
    }

    /// Returns `None` if the document could not be made.
    pub async fn document(
        self: &Arc<Status>,
        gateway: &Arc<GatewayState>,
        which: Document,
    ) -> Option<Response<Vec<u8>>> {
        // A request that arrives while the document is being made waits, and gets the same one.
        let made = match which {
            Document::Status => &self.now,
            Document::History => &self.hour,
        };
        let mut made = made.lock().await;
        let now = gateway.clock.now();
        let document = match &*made {
            Some(made) if now.since(made.at) < FRESH => made.document.clone(),
            _ => {
                let (status, state) = (Arc::clone(self), Arc::clone(gateway));
                // On another thread, so that the listener can go on to answer liveness probes.
                let document = tokio::task::spawn_blocking(move || match which {
                    Document::Status => document::make(&state, &status),
                    Document::History => status.hour(&state),
                });
                let document = document.await.ok()?;
                // Its age counts from now, so that a slow machine too does something else in between.
                *made = Some(Made { at: gateway.clock.now(), document: document.clone() });
                document
            }
        };
        Some(answer("application/json", document))
    }
}

/// Whether the page is wanted, or what a person reads in a terminal.
pub fn is_browser(fields: &HeaderMap) -> bool {
    let wanted = fields.get_all(header::ACCEPT).into_iter().filter_map(|value| value.to_str().ok());
    wanted.flat_map(|value| value.split(',')).any(|range| {
        let kind = range.split(';').next().unwrap_or_default().trim();
        kind.eq_ignore_ascii_case("text/html")
    })
}

pub fn page() -> Response<Vec<u8>> {
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

/// Of what stands in the page's only such element, as a policy names it.
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
    fn the_page_goes_to_those_who_ask_for_html_and_to_no_other() {
        let wants = |accept: &'static str| {
            is_browser(&HeaderMap::from_iter([(header::ACCEPT, http::HeaderValue::from_static(accept))]))
        };
        assert!(wants("text/html,application/xhtml+xml,*/*;q=0.8"));
        assert!(wants("application/json, Text/HTML;q=0.5"));
        assert!(!wants("*/*") && !wants("application/json") && !wants("text/html2"));
        assert!(!is_browser(&HeaderMap::new()));
    }

    #[test]
    fn the_page_holds_one_script_and_one_style_and_asks_nobody_else() {
        for element in ["script", "style"] {
            assert_eq!(PAGE.matches(&format!("<{element}")).count(), 1);
            assert_eq!(PAGE.matches(&format!("<{element}>")).count(), 1);
        }
        // Neither a policy by hashes nor a reader would let these through.
        for word in ["style=", "onclick", "innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval("] {
            assert!(!PAGE.contains(word), "{word}");
        }
        let names = PAGE.split("http").skip(1).filter(|rest| rest.starts_with("://") || rest.starts_with("s://"));
        assert!(names.clone().all(|rest| rest.starts_with("://www.w3.org/2000/svg")), "{:?}", names.count());
    }
}
