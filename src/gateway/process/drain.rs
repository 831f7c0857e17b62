//! Ends the process: announces the exit, waits until its connections are closed, and cuts tunnels at the end.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pingora::server::ShutdownSignal;

use super::bucket_saver::BucketSaver;
use super::signal_listener::SignalListener;
use super::{purse_index, subject_names};
use crate::gateway::enforcement::running_holds::RunningHolds;
use crate::gateway::enforcement::{left_holds, settled_thresholds};
use crate::gateway::server::connection_limits::ConnectionLimits;
use crate::gateway::server::queued_connections::AcceptingSockets;
use crate::gateway::state::GatewayState;
use crate::gateway::telemetry::FLUSH_TIMEOUT;
use crate::gateway::telemetry::events::EventKind;

/// The listener for exit signals, shared between the signal handling and the drain. With it, the drain notices a second signal.
pub(crate) type SecondSignal = Arc<Mutex<Option<SignalListener>>>;

/// What a process that ends saves for the next one: its buckets in memory, if they have a file, and its timed holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastActs<'a> {
    pub saver: Option<&'a BucketSaver>,
    pub holds: &'a RunningHolds,
}

/// The interval at which the number of open connections is checked.
const POLL: Duration = Duration::from_millis(5);

/// How long the exit waits for cut tunnels to end.
const CUT_TIMEOUT: Duration = Duration::from_millis(200);

/// How long the exit waits for each answer of the store: about thresholds, about slots that have ended, and about names.
const REPORT_TIMEOUT: Duration = Duration::from_millis(200);

/// Announces the drain. For `delay`, connections are still accepted, but responses say `Connection: close` and
/// `/readyz` fails, so that load balancers stop sending requests. A second signal to exit ends the delay.
pub(crate) async fn announce(gateway: &GatewayState, delay: Duration, exit: &mut SignalListener) -> ShutdownSignal {
    gateway.lifecycle.begin_draining();
    gateway.events.note(EventKind::Draining, "");
    let timeout = Duration::from(gateway.snapshot.load().config.drain.timeout);
    let seconds = |time: Duration| format!("{}s", time.as_secs_f64());
    log::info!(delay:% = seconds(delay), timeout:% = seconds(timeout); "draining");
    tokio::select! {
        () = tokio::time::sleep(delay) => ShutdownSignal::GracefulTerminate,
        _ = exit.next() => ShutdownSignal::FastShutdown,
    }
}

/// Closes upgraded connections, such as WebSockets, so that each connection gets its line in the access log.
async fn cut_tunnels(gateway: &GatewayState) {
    // A tunnel whose upstream reads nothing might never end, so the wait is limited.
    let _ = tokio::time::timeout(CUT_TIMEOUT, gateway.lifecycle.cut_tunnels()).await;
}

/// Ends the slots of all requests and tells the store, so that they are free for other gateways at once. Requests that
/// still run end with the process.
async fn end_slots(gateway: &GatewayState) {
    let reported = async {
        gateway.store.end_all_slots().await;
        // Costs that were settled after the handover must reach the next process, which charges them.
        while gateway.store.local_buckets().is_some_and(|memory| memory.has_unsent_costs()) {
            tokio::time::sleep(POLL).await;
        }
    };
    // A store that gives no answer frees the slots later, when this process has reported nothing for some time.
    let _ = tokio::time::timeout(REPORT_TIMEOUT, reported).await;
}

/// Does what must be done before the process ends: asks which thresholds were reached, ends tunnels and slots, leaves timed holds to
/// the next process, saves the buckets, and writes the access log and the records. Afterwards the process must end at once.
pub(crate) async fn end_all(gateway: &Arc<GatewayState>, LastActs { saver, holds }: LastActs<'_>) {
    let _ = tokio::time::timeout(REPORT_TIMEOUT, settled_thresholds::ask_all(gateway)).await;
    gateway.lifecycle.leave();
    cut_tunnels(gateway).await;
    end_slots(gateway).await;
    left_holds::leave(gateway, holds).await;
    let told = async { tokio::join!(subject_names::tell(gateway), purse_index::tell(gateway)) };
    let _ = tokio::time::timeout(REPORT_TIMEOUT, told).await;
    if let Some(saver) = saver {
        saver.save(gateway);
    }
    gateway.access_logs.finish();
    gateway.records.finish();
    log::logger().flush();
    // What was charged before `leave`, and recorded while the disk was written.
    gateway.records.finish();
}

/// Whether this process still tells the next process which slots the previous process holds. After two quick upgrades,
/// three processes run.
fn reports_for_previous(gateway: &GatewayState) -> bool {
    gateway.lifecycle.is_handed_over() && gateway.store.local_buckets().is_some_and(|memory| memory.counts_elsewhere())
}

/// Exits the process when the last connection has closed, after `drain.timeout`, or at a second signal. Connections in the
/// queues of the `accepting` sockets count as open.
pub(crate) async fn wait_and_exit(
    gateway: &Arc<GatewayState>,
    limits: &ConnectionLimits,
    accepting: &AcceptingSockets,
    last: LastActs<'_>,
    second_signal: &SecondSignal,
) -> ! {
    let (clock, tracer, metric_export) = (&gateway.clock, &gateway.tracer, &gateway.metric_export);
    let (began, timeout) = (clock.now(), Duration::from(gateway.snapshot.load().config.drain.timeout));
    let drained = async {
        // The queues are counted first, so that a connection that leaves a queue is then counted as open.
        while accepting.count() > 0 || limits.open() > 0 || reports_for_previous(gateway) {
            tokio::time::sleep(POLL).await;
        }
        let left = timeout.saturating_sub(clock.now().since(began).into());
        let left = left.min(FLUSH_TIMEOUT);
        tokio::join!(tracer.finish(left), metric_export.finish(left));
    };
    let timed_out = async {
        tokio::time::sleep(timeout.saturating_sub(FLUSH_TIMEOUT)).await;
        // Spans and metrics are sent now, because no time is left for them at the timeout.
        tracer.flush_soon();
        metric_export.flush_soon();
        tokio::time::sleep(timeout.min(FLUSH_TIMEOUT)).await;
    };
    let listener = second_signal.lock().take();
    let second_signal = async {
        match listener {
            Some(mut exit) => exit.next().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        () = drained => log::info!("drained"),
        () = timed_out => log::warn!(open = limits.open(); "drain timeout, closing open connections"),
        _ = second_signal => log::warn!(open = limits.open(); "second signal, closing open connections"),
    }
    end_all(gateway, last).await;
    std::process::exit(0)
}
