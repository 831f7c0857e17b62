//! Counts responses by method, status code and origin.

use std::sync::OnceLock;

use metrics::Counter;

use super::registry::Registry;
use crate::gateway::telemetry::labels::{DEFAULT, METHODS, Origin};

/// One counter for each method, code and origin, made when it is first needed and found by its index.
#[derive(Debug)]
pub struct ResponseCounts(Vec<OnceLock<Counter>>);

const CODES: usize = 500;

impl Default for ResponseCounts {
    fn default() -> ResponseCounts {
        ResponseCounts((0..METHODS.len() * CODES * 2).map(|_| OnceLock::new()).collect())
    }
}

impl ResponseCounts {
    #[allow(clippy::indexing_slicing, reason = "there is one for each of these methods and codes")]
    pub fn counter(&self, registry: &Registry, method: &str, code: u16, origin: Origin) -> &Counter {
        let method = METHODS.iter().position(|known| *known == method).unwrap_or(METHODS.len() - 1);
        // An upstream may send a code outside HTTP's range.
        let code = if (100..600).contains(&code) { code } else { 599 };
        let (origin, origin_index) = match origin {
            Origin::Gateway => ("gateway", 0),
            Origin::Upstream => ("upstream", 1),
        };
        let index = (method * CODES + usize::from(code - 100)) * 2 + origin_index;
        self.0[index].get_or_init(|| {
            let code = code.to_string();
            let labels = [("route", DEFAULT), ("method", METHODS[method]), ("code", &code), ("origin", origin)];
            registry.counter("tollgate_http_requests_total", &labels)
        })
    }
}
