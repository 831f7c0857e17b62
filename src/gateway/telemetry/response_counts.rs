//! Counts answers by method, code and origin.

use std::sync::OnceLock;

use metrics::Counter;
use metrics_exporter_prometheus::PrometheusRecorder;

use super::labels::{METHODS, Origin};
use super::metrics::{DEFAULT, counter};

/// One counter for each method, code and origin, made when it is first needed and found by its place.
pub struct ResponseCounts(Vec<OnceLock<Counter>>);

const CODES: usize = 500;

impl ResponseCounts {
    pub fn new() -> ResponseCounts {
        ResponseCounts((0..METHODS.len() * CODES * 2).map(|_| OnceLock::new()).collect())
    }

    #[allow(clippy::indexing_slicing, reason = "there is one for each of these methods and codes")]
    pub fn counter(&self, recorder: &PrometheusRecorder, method: &str, code: u16, origin: Origin) -> &Counter {
        let method_place = METHODS.iter().position(|known| *known == method).unwrap_or(METHODS.len() - 1);
        // An upstream's code outside of HTTP's range is none.
        let code = if (100..600).contains(&code) { code } else { 599 };
        let (origin, second) = match origin {
            Origin::Gateway => ("gateway", 0),
            Origin::Upstream => ("upstream", 1),
        };
        let place = (method_place * CODES + usize::from(code - 100)) * 2 + second;
        self.0[place].get_or_init(|| {
            let code = code.to_string();
            let labels = [("route", DEFAULT), ("method", METHODS[method_place]), ("code", &code), ("origin", origin)];
            counter(recorder, "tollgate_http_requests_total", &labels)
        })
    }
}
