//! Follows a request that is traced, from its head to the end of its answer.

use std::sync::Arc;

use http::HeaderMap;
use pingora::proxy::Session;

use super::sampling::{Beginning, random_span};
use super::spans::Journey;
use super::{Onward, traceparent};
use crate::gateway::proxy::request_record::RequestRecord;
use crate::gateway::state::GatewayState;
use crate::gateway::state::snapshot::Snapshot;
use crate::gateway::telemetry::access_log::request_end::RequestEnd;
use crate::store::Caller;
use crate::store::span_links::SpanLink;

/// None: the request is not traced.
#[derive(Debug)]
pub struct RequestTrace(Option<Box<Followed>>);

/// The numbers of a request's spans.
#[derive(Debug)]
pub struct Followed {
    pub snapshot: Arc<Snapshot>,
    pub trace: u128,
    /// Who called us.
    pub parent: Option<u64>,
    pub request: u64,
    pub decision: u64,
    pub upstream: u64,
}

impl RequestTrace {
    pub const NONE: RequestTrace = RequestTrace(None);

    pub fn new(Beginning { trace, parent }: Beginning, snapshot: &Arc<Snapshot>) -> RequestTrace {
        RequestTrace(Some(Box::new(Followed {
            snapshot: Arc::clone(snapshot),
            trace,
            parent,
            request: random_span(),
            decision: random_span(),
            upstream: random_span(),
        })))
    }

    /// Whether anybody will ask what became of the request.
    pub fn is_followed(&self) -> bool {
        self.0.is_some()
    }

    /// The same caller, by whom a call of the store can be told to have served this request.
    pub fn mark(&self, caller: Option<Arc<dyn Caller>>) -> Option<Arc<dyn Caller>> {
        match &self.0 {
            None => caller,
            Some(followed) => {
                let mark = SpanLink { trace: followed.trace, span: followed.decision };
                Some(Arc::new(Marked { caller, mark }))
            }
        }
    }

    /// Makes us the caller of the upstream.
    pub fn lead(&self, headers: &mut HeaderMap) {
        if let Some(followed) = &self.0 {
            traceparent::write(headers, followed.trace, followed.upstream, followed.parent);
        }
    }

    /// Tells of the whole request.
    pub fn end(
        &self,
        gateway: &GatewayState,
        record: &RequestRecord,
        end: &RequestEnd<'_>,
        session: &Session,
        onward: impl FnOnce() -> Option<Onward>,
    ) {
        let Some(followed) = &self.0 else { return };
        let (traces, began, onward) = (&gateway.tracer, end.began(&gateway.clock), onward());
        let line = record.line(end, session.req_header(), began);
        let address = session.as_downstream().server_addr().and_then(|address| address.as_inet()).copied();
        let journey = Journey { followed, line: &line, address, began, onward };
        // The last one first: who looks at a trace while it arrives sees the whole of what it has.
        if let Some(onward) = onward {
            traces.add(|scope| journey.upstream(onward, scope));
        }
        if line.decision_us.is_some() {
            traces.add(|scope| journey.decision(scope));
        }
        traces.add(|scope| journey.request(scope));
    }
}

/// A caller whose request is traced.
#[derive(Debug)]
struct Marked {
    caller: Option<Arc<dyn Caller>>,
    mark: SpanLink,
}

impl Caller for Marked {
    fn has_left(&self) -> bool {
        self.caller.as_ref().is_some_and(|caller| caller.has_left())
    }

    fn span_link(&self) -> Option<SpanLink> {
        Some(self.mark)
    }
}
