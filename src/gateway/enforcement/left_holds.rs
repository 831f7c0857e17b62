//! Leaves the timed holds of a process that ends to the next process that writes the same records, so that what is spent at their
//! end is recorded.

use std::sync::Arc;
use std::time::Duration;

use super::held_slots::UnsettledReserve;
use super::recording::{UnsettledRecord, moment, period};
use super::running_holds::RunningHolds;
use crate::gateway::state::GatewayState;
use crate::gateway::state::snapshot::Snapshot;
use crate::gateway::telemetry::records::{LeftReserve, RecordWriter};
use base::interval::fixed_interval;
use base::time::Timestamp;
use decision::left_hold::LeftHold;
use decision::record_line::Quantity;
use ledger::charge::{Charge, LimitId};
use ledger::holds::Owner;
use rules::rule_set::CompiledLimit;
use stores::Worker;

/// The interval at which a process looks for holds that others have left.
const EVERY: Duration = Duration::from_secs(1);
/// How long a process that ends waits for the disk.
const DISK_TIMEOUT: Duration = Duration::from_secs(2);

/// Leaves all holds to the next process.
pub(crate) async fn leave(gateway: &GatewayState, running: &RunningHolds) {
    let mut files: Vec<(Arc<RecordWriter>, Vec<LeftHold<'static>>)> = Vec::new();
    for (owner, ends, reserve) in running.take_all().await {
        let record = &reserve.record;
        let Some(line) = line(gateway, owner, ends, &reserve) else {
            record.lose();
            continue;
        };
        match files.iter_mut().find(|(writer, _)| Arc::ptr_eq(writer, &record.writer)) {
            Some((_, lines)) => lines.push(line),
            None => files.push((Arc::clone(&record.writer), vec![line])),
        }
    }
    for (writer, lines) in files {
        let (count, to) = (lines.len(), Arc::clone(&writer));
        let written = tokio::task::spawn_blocking(move || to.leave(&lines));
        let error = match tokio::time::timeout(DISK_TIMEOUT, written).await {
            Ok(Ok(Ok(()))) => {
                log::info!(holds = count; "holds left to the next process");
                continue;
            }
            Ok(Ok(Err(error))) => error.to_string(),
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        log::error!(holds = count, error:%; "holds not left to the next process");
        (0..count).for_each(|_| writer.count_lost());
    }
}

/// Takes the holds that earlier processes have left, at intervals.
pub(crate) async fn take_over(gateway: &Arc<GatewayState>, running: &Arc<RunningHolds>) {
    let mut is_failing = false;
    loop {
        tokio::time::sleep(fixed_interval("left_holds", EVERY)).await;
        let snapshot = gateway.snapshot.load_full();
        if snapshot.records.is_none() || gateway.lifecycle.is_handed_over() {
            continue;
        }
        // A disk that hangs delays nothing else.
        let state = Arc::clone(gateway);
        let taken = tokio::task::spawn_blocking(move || taken(&state, &snapshot)).await;
        match taken.map_err(|error| error.to_string()).and_then(|taken| taken) {
            Ok(left) => {
                is_failing = false;
                if !left.is_empty() {
                    log::info!(holds = left.len(); "holds of an earlier process taken over");
                    running.resume(gateway, left);
                }
            }
            Err(error) if !is_failing => {
                is_failing = true;
                log::warn!(error:%; "holds of an earlier process not read");
            }
            Err(_) => {}
        }
    }
}

/// Reads and removes the holds that earlier processes have left. Returns each with the time of its end.
fn taken(gateway: &GatewayState, snapshot: &Snapshot) -> Result<Vec<(Owner, Timestamp, UnsettledReserve)>, String> {
    let Some(records) = &snapshot.records else { return Ok(Vec::new()) };
    let (mut left, mut unknown) = (Vec::new(), 0);
    let (now, wall) = (gateway.clock.now(), gateway.clock.wall());
    let broken = records.writer.take_left(|hold| match reserve(gateway, snapshot, hold) {
        Some(reserve) => {
            let ends = Timestamp(now.plus(hold.ends.0.since(wall)).0.saturating_sub(wall.since(hold.ends.0).0));
            left.push((hold.owner(), ends, reserve));
        }
        None => unknown += 1,
    });
    (0..broken.map_err(|error| error.to_string())? + unknown).for_each(|_| records.writer.count_lost());
    Ok(left)
}

/// Returns the line about a hold that ends at this time of the process's clock. `None` if its subject is no text.
fn line(
    gateway: &GatewayState,
    owner: Owner,
    ends: Timestamp,
    UnsettledReserve { reserved, record, .. }: &UnsettledReserve,
) -> Option<LeftHold<'static>> {
    let UnsettledRecord { writer, key, charge, admitted, admitted_here, .. } = record;
    let period = period(&charge.algorithm, admitted.plus(ends.since(*admitted_here)), None);
    let (now, wall) = (gateway.clock.now(), gateway.clock.wall());
    let ends = Timestamp(wall.plus(ends.since(now)).0.saturating_sub(now.since(ends).0));
    writer.left_hold(key, LeftReserve { owner, charge, reserved: *reserved, ends, period })
}

/// Returns what a left hold reserves. `None` if the configuration does not record its limit any more.
fn reserve(gateway: &GatewayState, snapshot: &Snapshot, hold: &LeftHold<'_>) -> Option<UnsettledReserve> {
    let records = snapshot.records.as_ref()?;
    let is_same = |limit: &CompiledLimit| limit.name == *hold.rule && limit.meter.as_deref() == Some(&*hold.meter);
    let (id, limit) = (0..).map(LimitId).zip(snapshot.config.rules.limits()).find(|(_, limit)| is_same(limit))?;
    let variant = usize::try_from(hold.variant).ok().and_then(|variant| limit.variants.get(variant));
    let algorithm = *variant.or_else(|| limit.variants.first())?;
    let amount = |quantity: &Quantity| quantity.amount(&hold.unit).filter(|_| hold.unit == limit.unit().name());
    let (bucket, reserved) = (hold.key()?, amount(&hold.quantity)?);
    // Thresholds are shares of the limit that the customer has. One from a credential is not known here.
    let is_known = amount(&hold.limit) == Some(algorithm.ceiling());
    let recorded = if is_known { records.with_thresholds(&algorithm) } else { algorithm };
    let subject =
        records.subject_of(hold.subject_from.as_deref(), hold.subject.as_deref().unwrap_or_default().as_bytes());
    let charge = Charge::new(bucket, recorded, reserved);
    let record = UnsettledRecord {
        writer: Arc::clone(&records.writer),
        worker: Worker(0),
        key: records.key(id, &subject)?,
        charge: Charge { limit: id, tag: limit.tag(hold.variant), variant: hold.variant, ..charge },
        level: algorithm.ceiling(),
        thresholds: Arc::clone(&gateway.records.settled_thresholds),
        admitted: moment(gateway, &algorithm),
        admitted_here: gateway.clock.now(),
        clock: gateway.clock.clone(),
    };
    Some(UnsettledReserve { bucket, algorithm, reserved, record })
}
