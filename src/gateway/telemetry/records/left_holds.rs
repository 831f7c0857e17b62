//! Leaves the timed holds of a process that ends to the next process that writes the same file of records, in a file beside it.
//!
//! The file is locked while lines are appended or taken, and removed when they are taken: each line is taken once.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

use rustix::fs::{FlockOperation, flock};

use super::table::{KeyParts, RecordKey, parts};
use super::writer::RecordWriter;
use base::time::Timestamp;
use config::access_log::Destination;
use decision::left_hold::LeftHold;
use decision::record_line::{Moment, Quantity};
use ledger::algorithm::Period;
use ledger::charge::Charge;
use ledger::cost::Cost;
use ledger::holds::Owner;

/// What a timed hold of a process that ends reserves of one recorded budget.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeftReserve<'r> {
    pub owner: Owner,
    /// The charge of the take.
    pub charge: &'r Charge,
    pub reserved: Cost,
    /// When the hold ends at the latest, by the machine's clock.
    pub ends: Timestamp,
    /// The period in which it ends.
    pub period: Option<Period>,
}

impl RecordWriter {
    /// Returns the line about a hold of the subject of this key. `None` if the subject is no text.
    pub(crate) fn left_hold(&self, RecordKey(key): &RecordKey, left: LeftReserve<'_>) -> Option<LeftHold<'static>> {
        let LeftReserve { owner, charge, reserved, ends, period } = left;
        let KeyParts { stream, subject, .. } = parts(key)?;
        let stream = self.state.stream_of(stream)?;
        let subject = String::from_utf8(subject.to_vec()).ok()?;
        Some(LeftHold {
            hold: owner.0,
            bucket: format!("{:?}", charge.key).into(),
            meter: stream.meter.into(),
            rule: stream.rule.into(),
            variant: charge.variant,
            limit: Quantity::of(stream.unit, charge.algorithm.ceiling()),
            subject: stream.subject_from.is_some().then(|| subject.into()),
            subject_from: stream.subject_from.map(Into::into),
            unit: stream.unit.name().into(),
            quantity: Quantity::of(stream.unit, reserved),
            ends: Moment(ends),
            period_begin: period.map(|period| Moment(period.begin)),
            period_end: period.map(|period| Moment(period.end)),
        })
    }

    /// Leaves these holds to the next process.
    ///
    /// # Errors
    /// If the records go to no file, or the file cannot be written.
    pub(crate) fn leave(&self, holds: &[LeftHold<'_>]) -> io::Result<()> {
        let path = self.left_file().ok_or_else(|| io::Error::other("the records go to no file"))?;
        let lines: Vec<u8> = holds.iter().flat_map(LeftHold::line).collect();
        loop {
            let mut file = OpenOptions::new().append(true).create(true).mode(0o640).open(&path)?;
            lock(&file)?;
            // Another process may have taken the file before it was locked.
            if file.metadata()?.nlink() > 0 {
                file.write_all(&lines)?;
                return file.sync_all();
            }
        }
    }

    /// Takes the holds that earlier processes have left, and passes each to `each`. Returns the number of lines that are no holds.
    ///
    /// # Errors
    /// If the file cannot be read or removed. Then it is left as it is.
    pub(crate) fn take_left(&self, mut each: impl FnMut(&LeftHold<'_>)) -> io::Result<u64> {
        let Some(path) = self.left_file() else { return Ok(0) };
        let mut file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            opened => opened?,
        };
        lock(&file)?;
        let mut text = Vec::new();
        if file.metadata()?.nlink() > 0 {
            file.read_to_end(&mut text)?;
            std::fs::remove_file(&path)?;
        }
        let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        Ok(lines.map(|line| LeftHold::read(line).map(|hold| each(&hold)).map_or(1_u64, |()| 0)).sum())
    }

    /// Returns the path of the file with holds. `None` if the records go to no file.
    fn left_file(&self) -> Option<PathBuf> {
        match self.destination() {
            Destination::File(path) => Some(LeftHold::file(path)),
            Destination::Stdout | Destination::Stderr => None,
        }
    }
}

/// Locks a file until it is closed. Nobody keeps the lock for longer than it takes to read or append lines.
fn lock(file: &File) -> io::Result<()> {
    Ok(flock(file, FlockOperation::LockExclusive)?)
}
