//! Responds to a request that failed before its response began.

use pingora::Error;
use pingora::proxy::{FailToProxy, Session};

use super::Proxy;
use super::exchange::Exchange;
use super::proxy_error::{describe, refusal, response_status};
use crate::gateway::response::problem::ProblemResponse;
use crate::gateway::server::session::response_code;
use crate::gateway::telemetry::labels::Origin;

pub async fn respond(proxy: &Proxy, session: &mut Session, error: &Error, exchange: &mut Exchange) -> FailToProxy {
    let status = response_status(error, session, exchange, proxy.gateway.clock.now());
    let responded = response_code(session).is_some();
    if status > 0 && !responded {
        // A request of which the upstream has seen the beginning counts as the upstream's, whatever the client did then.
        let begun = exchange.forwarded.is_some() && matches!(status, 400 | 408 | 413);
        exchange.origin = if begun { Origin::Upstream } else { Origin::Gateway };
        // The rest of the request could not be distinguished from a next one.
        session.set_keepalive(None);
        let refusal = refusal(status, exchange.upstream_error);
        let response = match &refusal {
            Some(refusal) => {
                proxy.gateway.metrics.http.count_refusal(refusal.reason);
                if let Some(record) = &mut exchange.record {
                    record.refuse(refusal, None);
                }
                ProblemResponse::refusal(refusal)
            }
            None => ProblemResponse::fault(status),
        };
        // What was charged stays charged, and is reported.
        let page = exchange.page(session.req_header(), response.status());
        let response = ProblemResponse { fields: exchange.fields.as_deref(), page, cors: exchange.cors(), ..response };
        let (id, pending) = (&exchange.request_id, exchange.pending_fields());
        if let Err(error) = response.write(session, id, pending, proxy.reuse()).await {
            log::debug!(error = describe(&error); "response not written");
        }
    }
    FailToProxy { error_code: status, can_reuse_downstream: false }
}
