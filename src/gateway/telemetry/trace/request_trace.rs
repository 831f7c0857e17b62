//! Holds the ids of a request's spans, from the arrival of the request's head to the end of its response.

use std::sync::Arc;

use http::HeaderMap;

use super::sampling::{TraceStart, random_span};
use super::span_ids::SpanIds;
use super::traceparent;
use stores::Caller;
use stores::span_links::SpanLink;

/// The trace of one request, with the ids of its spans. Contains `None` if the request is not traced.
#[derive(Debug)]
pub(crate) struct RequestTrace(Option<Box<SpanIds>>);

impl RequestTrace {
    pub(crate) const NONE: RequestTrace = RequestTrace(None);

    pub(crate) fn new(TraceStart { trace, parent }: TraceStart) -> RequestTrace {
        let [request, decision, delay, upstream] = [(); 4].map(|()| random_span());
        let failed_attempts = Vec::new();
        RequestTrace(Some(Box::new(SpanIds { trace, parent, request, decision, delay, upstream, failed_attempts })))
    }

    pub(crate) fn is_sampled(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the ids of the request's spans. `None` if the request is not traced.
    pub(crate) fn span_ids(&self) -> Option<&SpanIds> {
        self.0.as_deref()
    }

    /// Adds a link to `caller`, so that the span of a store call can refer to the decision about this request. An untraced
    /// request adds no link.
    pub(crate) fn link(&self, caller: Option<Arc<dyn Caller>>) -> Option<Arc<dyn Caller>> {
        match &self.0 {
            None => caller,
            Some(ids) => {
                let link = SpanLink { trace: ids.trace, span: ids.decision };
                Some(Arc::new(LinkedCaller { caller, link }))
            }
        }
    }

    /// Gives a new span id to the next attempt, because the previous attempt to send the request has failed.
    pub(crate) fn next_attempt(&mut self) {
        if let Some(ids) = &mut self.0 {
            let failed = std::mem::replace(&mut ids.upstream, random_span());
            ids.failed_attempts.push(failed);
        }
    }

    /// Writes the trace context into the header fields of the request to the upstream.
    pub(crate) fn inject(&self, headers: &mut HeaderMap) {
        if let Some(ids) = &self.0 {
            traceparent::write(headers, ids.trace, ids.upstream, ids.parent);
        }
    }
}

/// A caller of the store whose request is traced.
#[derive(Debug)]
struct LinkedCaller {
    caller: Option<Arc<dyn Caller>>,
    link: SpanLink,
}

impl Caller for LinkedCaller {
    fn has_left(&self) -> bool {
        self.caller.as_ref().is_some_and(|caller| caller.has_left())
    }

    fn span_link(&self) -> Option<SpanLink> {
        Some(self.link)
    }
}
