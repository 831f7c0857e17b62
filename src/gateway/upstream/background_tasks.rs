//! Starts the background tasks of upstreams: lookups of their names, and health checks.

use std::net::SocketAddr;
use std::sync::Arc;

use super::Upstream;
use super::health::keep_checking;
use super::health_state::HealthChange;
use super::resolver::keep_resolving;
use base::endpoint_address::EndpointAddress;

/// Starts the missing background tasks of these upstreams: look-ups of host names, and health checks. Logs a warning if
/// a name resolves to one of `listeners`. `report` is called when the checks find an endpoint down, or up again.
pub(crate) fn start_background_tasks<'u>(
    upstreams: impl Iterator<Item = &'u Arc<Upstream>>,
    listeners: &[SocketAddr],
    report: impl Fn(&Upstream, &EndpointAddress, HealthChange) + Clone + Send + Sync + 'static,
) {
    for upstream in upstreams {
        if upstream.needs_resolver() {
            tokio::spawn(keep_resolving(Arc::downgrade(upstream), listeners.to_vec()));
        }
        if upstream.needs_checks() {
            tokio::spawn(keep_checking(Arc::downgrade(upstream), report.clone()));
        }
    }
}
