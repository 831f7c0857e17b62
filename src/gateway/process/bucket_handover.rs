//! Transfers buckets in memory from one process to the next, so that an upgrade does not refill them.
//!
//! The previous process stops accepting connections, closes each open connection after the current request, and sends
//! its buckets. Amounts taken after a bucket was copied are lost. The next process accepts connections when it has the
//! buckets. If the next process ends before that, the previous process accepts connections again, see [`resume`].

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::bucket_saver::BucketSaver;
use super::slot_handover;
use super::upgrade::{BucketStream, InheritedSockets, NextProcess, PreviousStreams, SlotRequest};
use crate::gateway::state::GatewayState;
use crate::gateway::state::lifecycle::AcceptPhase;
use stores::memory::bucket_stream::InvalidBuckets;

/// How long listening sockets may take to stop accepting.
const STOP_ACCEPTING: Duration = Duration::from_secs(2);

/// Receives the buckets of the previous process, or reads the file of buckets if that process sends no buckets.
/// Connections are accepted from then on. Returns `inherited`, for [`report_ready`].
pub(crate) async fn receive(
    gateway: &Arc<GatewayState>,
    saver: Option<&Arc<BucketSaver>>,
    inherited: InheritedSockets,
) -> InheritedSockets {
    if !inherited.is_upgrade() || gateway.store.is_shared() {
        gateway.lifecycle.set_accept_phase(AcceptPhase::Open);
        return inherited;
    }
    let (receiving, saver) = (Arc::clone(gateway), saver.cloned());
    let received = tokio::task::spawn_blocking(move || {
        let source = receive_buckets(&receiving, &inherited);
        hold_if_tested();
        if let Some(saver) = saver {
            claim_file(&saver, &receiving, source);
        }
        report_ready(inherited);
    });
    // A panic in the thread is logged. The previous process notices the end of the stream and continues.
    let _ = received.await;
    gateway.lifecycle.set_accept_phase(AcceptPhase::Open);
    InheritedSockets::default()
}

/// Reports to the previous process that this process is ready, so that the previous process can exit.
pub(crate) fn report_ready(inherited: InheritedSockets) {
    if let Err(error) = inherited.ready() {
        log::warn!(error:%; "the previous process exited before the handover finished");
    }
}

/// For tests: waits while the file exists that an environment variable names.
fn hold_if_tested() {
    #[cfg(feature = "test-hooks")]
    if let Some(file) = std::env::var_os("TOLLGATE_TEST_HOLD_BUCKETS").map(std::path::PathBuf::from)
        && file.exists()
    {
        log::info!("test-hooks: the buckets are held");
        while file.exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The source of this process's buckets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BucketSource {
    PreviousProcess,
    /// The file of buckets, if there is one.
    File,
}

fn receive_buckets(gateway: &Arc<GatewayState>, inherited: &InheritedSockets) -> BucketSource {
    let Some(memory) = gateway.store.local_buckets() else { return BucketSource::File };
    let (received, slots) = match inherited.request_buckets() {
        Ok(PreviousStreams { buckets, slots }) => (memory.read_buckets(buckets), slots),
        Err(error) => (Err(InvalidBuckets::Read(error)), None),
    };
    let heard = slots.map_or(Ok(()), |slots| slot_handover::receive(gateway, slots));
    match received {
        Ok(buckets) => {
            log::info!(buckets; "buckets received from the previous process");
            // Reported only if buckets came, because a process without buckets reports no slots either.
            if let Err(error) = heard {
                gateway.metrics.slot_handover_errors.increment(1);
                log::warn!(error:%; "the previous process does not report which slots it holds");
            }
            BucketSource::PreviousProcess
        }
        Err(error) => {
            log::warn!(error:%; "the previous process hands over no buckets");
            BucketSource::File
        }
    }
}

/// Claims the file of buckets, which the previous process has released. Reads it unless that process has sent its
/// buckets.
fn claim_file(saver: &BucketSaver, gateway: &GatewayState, source: BucketSource) {
    if let Err(error) = saver.claim() {
        // The next save tries again, and reports a failure.
        log::warn!(file:% = saver.settings().path.display(), error:%; "buckets are not saved for now");
        return;
    }
    if let (BucketSource::File, Some(memory)) = (source, gateway.store.local_buckets()) {
        saver.load(memory);
    }
}

/// Sends the buckets to the next process, and waits until that process is ready. Returns the number of buckets. `None` if this
/// process has no buckets in memory, or the next process cannot read them. A process with buckets in memory accepts no
/// connections from then on.
///
/// # Errors
/// When the next process has ended, or takes too long. The caller must then end the next process, and call [`resume`].
pub(crate) async fn send(
    gateway: &Arc<GatewayState>,
    saver: Option<&Arc<BucketSaver>>,
    next: &NextProcess,
    slots: SlotRequest,
) -> io::Result<Option<u64>> {
    // The next process waits for this stream first. The stream is empty if this process has no buckets in memory.
    let slots = if slots == SlotRequest::Stream { Some(next.slot_stream()?) } else { None };
    let mut stream = next.bucket_stream()?;
    if gateway.store.is_shared() {
        drop(slots);
        stream.end()?;
        tokio::task::spawn_blocking(move || stream.wait_until_ready()).await.map_err(io::Error::other)??;
        return Ok(None);
    }
    // From here on, every response closes its connection. So each connection charges at most once after its bucket was
    // copied.
    gateway.lifecycle.begin_draining();
    gateway.lifecycle.set_accept_phase(AcceptPhase::Paused);
    if tokio::time::timeout(STOP_ACCEPTING, gateway.lifecycle.accepts_no_more()).await.is_err() {
        log::warn!("a listener still accepts connections while buckets are copied");
    }
    if let Some(leases) = &gateway.leases {
        // What home gives after the copy belongs to the next process.
        leases.keeper.pause().await;
    }
    let (sending, saver, pid) = (Arc::clone(gateway), saver.cloned(), next.process_id());
    let sent = tokio::task::spawn_blocking(move || {
        if let Some(saver) = saver {
            // Unlocks the file, because the next process claims it before it reports that it is ready.
            saver.give_up();
        }
        let buckets = match write_buckets(&sending, &stream) {
            Ok(buckets) => buckets,
            // The next process reads no more. It may have another version, and start without these buckets.
            Err(error) if !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                drop(slots);
                stream.wait_until_ready()?;
                log::error!(pid, error:%; "the next process does not receive the buckets, they are full there");
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let slots = slots.map(|slots| slot_handover::begin(&sending, slots)).transpose()?;
        stream.wait_until_ready()?;
        slots.into_iter().for_each(|slots| slots.follow(&sending));
        Ok(buckets)
    });
    let buckets = sent.await.map_err(io::Error::other)??;
    gateway.lifecycle.set_accept_phase(AcceptPhase::Closed);
    Ok(buckets)
}

fn write_buckets(gateway: &GatewayState, stream: &BucketStream) -> io::Result<Option<u64>> {
    let Some(memory) = gateway.store.local_buckets() else { return Ok(None) };
    memory.hand_over();
    let buckets = memory.write_buckets(stream)?;
    stream.end()?;
    Ok(Some(buckets))
}

/// Undoes [`send`] after a failure: this process accepts connections again, and uses its file of buckets. The next process must
/// have ended, because it may have locked the file.
pub(crate) fn resume(gateway: &GatewayState, saver: Option<&Arc<BucketSaver>>) {
    if let Some(saver) = saver {
        saver.take_back();
    }
    if let Some(memory) = gateway.store.local_buckets() {
        memory.resume();
    }
    if let Some(leases) = &gateway.leases {
        leases.keeper.resume();
    }
    gateway.lifecycle.resume();
}
