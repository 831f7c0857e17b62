//! Hands buckets in memory from one process to the next, so that an upgrade refills none.
//!
//! The previous process sends them when the next one is ready. First it stops accepting connections, and from then on it
//! closes each open one after the request under way. What it grants after a bucket was copied is not carried over: at most
//! one request for each open connection. The next process accepts connections only when it has the buckets.

use std::io;
use std::net::Shutdown;
use std::sync::Arc;
use std::time::Duration;

use super::bucket_saver::BucketSaver;
use super::upgrade::{InheritedSockets, NextProcess};
use crate::gateway::state::GatewayState;
use crate::gateway::state::lifecycle::AcceptPhase;
use crate::store::memory::bucket_stream::InvalidBuckets;

/// How long a listening socket may take to stop. One that has no file descriptors left pauses for a second.
const STOP_ACCEPTING: Duration = Duration::from_secs(2);

/// Receives the buckets of the previous process, or reads them from the file if that hands over none, and accepts
/// connections from then on. Returns what the previous process still waits for.
pub async fn receive(
    gateway: &Arc<GatewayState>,
    saver: Option<&Arc<BucketSaver>>,
    mut inherited: InheritedSockets,
) -> InheritedSockets {
    if !inherited.is_upgrade() || gateway.store.is_shared() {
        return inherited;
    }
    let (receiving, saver) = (Arc::clone(gateway), saver.cloned());
    let received = tokio::task::spawn_blocking(move || {
        let source = receive_buckets(&receiving, &mut inherited);
        if let Some(saver) = saver {
            claim_file(&saver, &receiving, source);
        }
        inherited
    });
    let inherited = received.await.unwrap_or_default();
    gateway.lifecycle.set_accept_phase(AcceptPhase::Open);
    inherited
}

/// Where the buckets of this process come from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BucketSource {
    PreviousProcess,
    /// If there is one.
    File,
}

fn receive_buckets(gateway: &GatewayState, inherited: &mut InheritedSockets) -> BucketSource {
    let Some(memory) = gateway.store.local_buckets() else { return BucketSource::File };
    let received = match inherited.request_buckets() {
        Ok(stream) => memory.read_buckets(stream),
        Err(error) => Err(InvalidBuckets::Read(error)),
    };
    match received {
        Ok(buckets) => {
            log::info!(buckets; "buckets received from the previous process");
            BucketSource::PreviousProcess
        }
        Err(error) => {
            log::warn!(error:%; "the previous process hands over no buckets");
            BucketSource::File
        }
    }
}

/// Claims the file, which the previous process has given up, and reads it if there are no buckets yet.
fn claim_file(saver: &BucketSaver, gateway: &GatewayState, source: BucketSource) {
    if let Err(error) = saver.claim() {
        // The next save tries again, and reports it if it has to.
        log::warn!(file:% = saver.settings().path.display(), error:%; "buckets are not saved for now");
        return;
    }
    if let (BucketSource::File, Some(memory)) = (source, gateway.store.local_buckets()) {
        saver.load(memory);
    }
}

/// Sends the buckets to the next process, and returns how many those are; `None` if they are not in this process.
///
/// # Errors
/// The next process does not read them.
pub async fn send(
    gateway: &Arc<GatewayState>,
    saver: Option<&Arc<BucketSaver>>,
    next: NextProcess,
) -> io::Result<Option<u64>> {
    if gateway.store.is_shared() {
        return Ok(None);
    }
    // Every response from here on closes its connection. So a connection charges once more at most after its bucket was
    // copied: the lock of the bucket's shard orders what it charges after that behind this.
    gateway.lifecycle.begin_draining();
    gateway.lifecycle.set_accept_phase(AcceptPhase::Closed);
    if tokio::time::timeout(STOP_ACCEPTING, gateway.lifecycle.accepts_no_more()).await.is_err() {
        log::warn!("a listener still accepts connections while buckets are copied");
    }
    let (gateway, saver) = (Arc::clone(gateway), saver.cloned());
    let sent = tokio::task::spawn_blocking(move || {
        if let Some(saver) = saver {
            saver.give_up();
        }
        let Some(memory) = gateway.store.local_buckets() else { return Ok(None) };
        let stream = next.bucket_stream()?;
        let buckets = memory.write_buckets(&stream)?;
        stream.shutdown(Shutdown::Write)?;
        Ok(Some(buckets))
    });
    sent.await.map_err(io::Error::other)?
}
