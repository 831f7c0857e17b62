//! Writes the lines about bans that begin, and about thresholds that a subject reaches. They are rare, and written at once.

use super::table::{KeyParts, RecordKey, parts, subject_text};
use super::writer::RecordWriter;
use base::time::Micros;
use decision::record_line::{BAN, BanData, Moment, Quantity, RecordLine, THRESHOLD, ThresholdData};
use ledger::algorithm::thresholds::Thresholds;
use ledger::cost::Cost;
use ledger::outcome::ToldThresholds;

/// A ban that has begun, for its line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BegunBan<'b> {
    pub policy: &'b str,
    pub rule: &'b str,
    /// The attribute that names the subject, and its value.
    pub subject: Option<(&'b str, &'b [u8])>,
    pub step: u32,
    /// The length of the ban.
    pub length: Micros,
}

/// The thresholds of a limit that a charge has told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReachedThresholds {
    pub thresholds: Thresholds,
    pub told: ToldThresholds,
    /// The limit, with its raises.
    pub limit: Cost,
}

impl RecordWriter {
    /// Writes the line about a ban.
    pub(crate) fn add_ban(&self, BegunBan { policy, rule, subject, step, length }: BegunBan<'_>) {
        self.state.note(BAN, |id, source, from| {
            let data = BanData {
                policy,
                rule,
                subject: subject.map(|(_, value)| subject_text(value)),
                subject_from: subject.map(|(attribute, _)| attribute),
                step,
                from: Moment(from),
                to: Moment(from.plus(length)),
            };
            RecordLine::new(BAN, id, source, from, data).text()
        });
    }

    /// Writes a line about each threshold that the subject of this key has reached.
    pub(crate) fn add_thresholds(&self, RecordKey(key): &RecordKey, reached: ReachedThresholds) {
        let ReachedThresholds { thresholds, told: ToldThresholds { above, to }, limit } = reached;
        let Some(KeyParts { stream, period, subject }) = parts(key) else { return };
        let Some(stream) = self.state.stream_of(stream) else { return };
        for share in thresholds.shares() {
            let amount = Thresholds::amount(share, limit);
            if amount <= above || amount > to {
                continue;
            }
            let data = ThresholdData {
                meter: (&*stream.meter).into(),
                rule: (&*stream.rule).into(),
                subject: stream.subject_from.is_some().then(|| subject_text(subject)),
                subject_from: stream.subject_from.as_deref().map(Into::into),
                unit: stream.unit.name().into(),
                threshold: format!("{share}%").into(),
                quantity: Quantity::of(stream.unit, amount),
                limit: Quantity::of(stream.unit, limit),
                period_begin: period.map(|period| Moment(period.begin)),
                period_end: period.map(|period| Moment(period.end)),
            };
            self.state.note(THRESHOLD, |id, source, at| RecordLine::new(THRESHOLD, id, source, at, data).text());
        }
    }
}
