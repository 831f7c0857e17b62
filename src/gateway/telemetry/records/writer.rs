//! Writes the records of one destination: a thread ends the intervals, makes the lines, and keeps them until they are on the disk.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::Shared;
use super::backlog::Backlog;
use super::interval_sums::{Interval, LineOrigin, lines};
use super::notice_queue::NoticeQueue;
use super::table::{AddResult, RecordKey, StreamId, Table, Use};
use crate::gateway::telemetry::events::EventKind;
use crate::gateway::telemetry::line_sink::LineSink;
use base::time::{Micros, Timestamp};
use config::Records;
use config::access_log::Destination;
use rules::settled_price::Unit;
use stores::Worker;

/// How long a write that failed is not tried again.
const RETRY: Micros = Micros(5_000_000);
/// The shortest time between two log lines about lost records.
const LOST_EVERY: Micros = Micros(60_000_000);

/// A kind of records: those of one limit about the subjects of one attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RecordStream {
    pub meter: String,
    pub rule: String,
    pub unit: Unit,
    /// The attribute that names the subjects. `None` for requests without a subject.
    pub subject_from: Option<String>,
}

/// The handle with which requests add to the records. The thread ends when it is dropped and everything is written.
#[derive(Debug)]
pub(crate) struct RecordWriter {
    pub(super) state: Arc<WriterState>,
}

/// What the handle and the thread of a writer share.
#[derive(Debug)]
pub(super) struct WriterState {
    shared: Arc<Shared>,
    to: Destination,
    /// The number of this writer in its process.
    number: u64,
    /// One table for each worker. Only the thread locks a table of another thread, for a moment at the end of an interval.
    tables: Box<[Mutex<Table>]>,
    streams: Mutex<Vec<RecordStream>>,
    /// The additions that were lost because a table was full.
    lost: AtomicU64,
    asked: Mutex<Asked>,
    /// Wakes the thread.
    work: Condvar,
    /// Wakes the callers of `wait_until_finished`.
    finished: Condvar,
}

/// What the thread is asked to do.
#[derive(Debug, Default)]
struct Asked {
    every: Micros,
    reopen: bool,
    /// Whether the interval must end now, because a table has become large.
    early: bool,
    /// How often the thread was asked to write everything, and how often it has done so.
    finish: u64,
    finished: u64,
    closed: bool,
    /// The lines about bans and thresholds.
    notices: NoticeQueue,
    /// The number of such lines so far, for their ids.
    noticed: u64,
}

/// What the thread does next.
#[derive(Debug)]
struct Task {
    reopen: bool,
    ends_interval: bool,
    /// The value of `finish` that is done after this task.
    finish: u64,
    is_finishing: bool,
    closed: bool,
    every: Micros,
    notices: Vec<Vec<u8>>,
}

impl RecordWriter {
    pub(super) fn new(state: Arc<WriterState>) -> RecordWriter {
        RecordWriter { state }
    }

    /// Adds what a request has used to its record.
    pub(crate) fn add(&self, worker: Worker, key: &RecordKey, one: Use<'_>) {
        let Some(table) = self.state.tables.get(worker.0) else { return };
        let added = table.lock().add(key, one);
        match added {
            AddResult::Fits => {}
            AddResult::Large => {
                self.state.asked.lock().early = true;
                self.state.work.notify_one();
            }
            AddResult::Lost => self.state.count_lost(),
        }
    }

    /// Counts a record that is lost before it could be added.
    pub(crate) fn count_lost(&self) {
        self.state.count_lost();
    }

    pub(super) fn destination(&self) -> &Destination {
        &self.state.to
    }

    /// Changes the length of an interval.
    pub(super) fn set_interval(&self, every: Micros) {
        self.state.asked.lock().every = every;
        self.state.work.notify_one();
    }

    /// Returns the id of a stream, the same for equal streams.
    pub(super) fn stream(&self, stream: RecordStream) -> StreamId {
        let mut streams = self.state.streams.lock();
        let index = streams.iter().position(|known| *known == stream).unwrap_or_else(|| {
            streams.push(stream);
            streams.len() - 1
        });
        StreamId(u32::try_from(index).unwrap_or(u32::MAX))
    }
}

impl Drop for RecordWriter {
    fn drop(&mut self) {
        self.state.asked.lock().closed = true;
        self.state.work.notify_one();
    }
}

impl WriterState {
    /// Starts the thread of a writer.
    pub(super) fn start(shared: &Arc<Shared>, settings: &Records) -> Arc<WriterState> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let state = Arc::new(WriterState {
            shared: Arc::clone(shared),
            to: settings.to.clone(),
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            tables: (0..shared.workers).map(|_| Mutex::default()).collect(),
            streams: Mutex::default(),
            lost: AtomicU64::new(0),
            asked: Mutex::new(Asked { every: settings.every, ..Asked::default() }),
            work: Condvar::new(),
            finished: Condvar::new(),
        });
        let thread = std::thread::Builder::new().name("records".to_owned());
        let of_thread = Arc::clone(&state);
        if let Err(error) = thread.spawn(move || RecordThread::new(of_thread).run()) {
            log::error!(error:%; "records not written");
        }
        state
    }

    /// Passes a line to the thread, which writes it at once. `line` makes the line from its id, the `source` and the present time.
    pub(super) fn note(&self, kind: &str, line: impl FnOnce(String, &str, Timestamp) -> Vec<u8>) {
        let now = self.shared.clock.wall();
        let mut asked = self.asked.lock();
        asked.noticed += 1;
        let id = self.origin().id(asked.noticed, &[kind.as_bytes()]);
        let fits = asked.notices.add(line(id, &self.shared.source, now));
        drop(asked);
        if fits {
            self.work.notify_one();
        } else {
            self.count_lost();
        }
    }

    /// Returns the kind of records with this id.
    pub(super) fn stream_of(&self, StreamId(stream): StreamId) -> Option<RecordStream> {
        self.streams.lock().get(usize::try_from(stream).ok()?).cloned()
    }

    pub(super) fn reopen(&self) {
        self.asked.lock().reopen = true;
        self.work.notify_one();
    }

    /// Asks the thread to end the interval and to write everything. Returns what to pass to
    /// [`WriterState::wait_until_finished`].
    pub(super) fn ask_to_finish(&self) -> u64 {
        let mut asked = self.asked.lock();
        asked.finish += 1;
        self.work.notify_one();
        asked.finish
    }

    /// Counts a record that is lost before it reaches the thread, which may hang in a write. The thread logs it.
    fn count_lost(&self) {
        self.shared.metrics.lost.increment(1);
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn wait_until_finished(&self, finish: u64, timeout: Duration) {
        let mut asked = self.asked.lock();
        let unfinished = |asked: &mut Asked| asked.finished < finish;
        if self.finished.wait_while_for(&mut asked, unfinished, timeout).timed_out() {
            drop(asked);
            log::error!(timeout:? = timeout; "records not written before the exit");
        }
    }

    /// Waits until the interval ends, a write must be tried again, or the thread is asked for something.
    fn next(&self, ends: Timestamp, every: Micros, retry: Option<Timestamp>) -> Task {
        let clock = &self.shared.clock;
        let until = retry.map_or(ends, |retry| retry.min(ends));
        let idle = |asked: &mut Asked| {
            let Asked { reopen, early, finish, finished, closed, ref notices, .. } = *asked;
            // A closed writer whose disk is full goes on until the disk has room.
            !reopen && !early && finish == finished && (!closed || retry.is_some()) && notices.is_empty()
        };
        let mut asked = self.asked.lock();
        // A change of the interval wakes the thread too.
        let waits = |asked: &mut Asked| idle(asked) && asked.every == every;
        self.work.wait_while_for(&mut asked, waits, until.since(clock.now()).into());
        let is_finishing = asked.finish > asked.finished;
        let is_over = clock.now() >= ends;
        Task {
            reopen: std::mem::take(&mut asked.reopen),
            ends_interval: std::mem::take(&mut asked.early) || is_finishing || asked.closed || is_over,
            finish: asked.finish,
            is_finishing,
            closed: asked.closed,
            every: asked.every,
            notices: asked.notices.take(),
        }
    }

    fn note_finished(&self, finish: u64) {
        self.asked.lock().finished = finish;
        self.finished.notify_all();
    }

    fn origin(&self) -> LineOrigin<'_> {
        LineOrigin { run: self.shared.run, writer: self.number, source: &self.shared.source }
    }
}

/// The thread of a writer.
struct RecordThread {
    state: Arc<WriterState>,
    sink: LineSink,
    backlog: Backlog,
    /// The number of the interval, and its beginning by the wall clock.
    interval: u64,
    from: Timestamp,
    /// When a write that failed is tried again. `None` if the last write succeeded.
    retry: Option<Timestamp>,
    /// The lost records that no log line has reported, and when the last log line was written.
    unreported: u64,
    reported: Option<Timestamp>,
}

impl RecordThread {
    fn new(state: Arc<WriterState>) -> RecordThread {
        let (sink, from) = (LineSink::new(state.to.clone()), state.shared.clock.wall());
        let backlog = Backlog::default();
        RecordThread { state, sink, backlog, interval: 0, from, retry: None, unreported: 0, reported: None }
    }

    fn run(mut self) {
        // The file exists from the start, and a destination that cannot be opened is reported at once.
        self.write(Task::FIRST);
        let mut every = self.state.asked.lock().every;
        let mut ends = self.end_of_interval(every);
        loop {
            let task = self.state.next(ends, every, self.retry);
            let (closed, finish) = (task.closed, task.finish);
            if task.ends_interval || task.every != every {
                every = task.every;
                if task.ends_interval {
                    self.end_interval();
                }
                ends = self.end_of_interval(every);
            }
            self.write(task);
            self.state.note_finished(finish);
            if closed && self.backlog.lines() == 0 && !self.sink.has_torn_line() {
                return;
            }
        }
    }

    /// Returns when the present interval ends, by the clock of the process. Intervals end at multiples of their length.
    fn end_of_interval(&self, every: Micros) -> Timestamp {
        let clock = &self.state.shared.clock;
        let left = every.0 - clock.wall().0 % every.0.max(1);
        clock.now().plus(Micros(left))
    }

    /// Makes the lines about the interval that ends now.
    fn end_interval(&mut self) {
        let to = self.state.shared.clock.wall();
        let mut sums = HashMap::new();
        for table in &self.state.tables {
            let used = std::mem::take(&mut *table.lock());
            if !used.is_empty() {
                used.into_sums(&mut sums);
            }
        }
        let interval = Interval { number: self.interval, from: self.from, to: to.max(self.from) };
        (self.interval, self.from) = (self.interval + 1, to);
        if !sums.is_empty() {
            let streams = self.state.streams.lock().clone();
            let state = Arc::clone(&self.state);
            lines(&sums, &streams, interval, state.origin(), |line| self.keep(&line));
        }
    }

    fn keep(&mut self, line: &[u8]) {
        match self.backlog.add(line) {
            true => self.state.shared.metrics.kept.increment(1.0),
            false => self.lose(1),
        }
    }

    fn lose(&mut self, records: u64) {
        self.state.shared.metrics.lost.increment(records);
        self.unreported += records;
    }

    /// Writes the lines about bans and thresholds, and all lines that are kept.
    fn write(&mut self, task: Task) {
        task.notices.iter().for_each(|notice| self.keep(notice));
        let lost = self.state.lost.swap(0, Ordering::Relaxed);
        self.unreported += lost;
        let must_write = self.backlog.lines() > 0 || self.sink.has_torn_line();
        let now = self.state.shared.clock.now();
        // What failed is tried again after a while, also if only the destination could not be opened and no line waits for it.
        let reopens = task.reopen || self.retry.is_some_and(|retry| now >= retry);
        // A failed write is not repeated for each line, but before an exit it is.
        let waits = self.retry.is_some() && !task.is_finishing;
        if must_write && !waits || reopens {
            let reopened = if reopens { self.sink.reopen() } else { Ok(()) };
            let (written, done) = match reopened {
                Ok(()) => self.backlog.write(&mut self.sink),
                Err(error) => (0, Err(error)),
            };
            self.note_written(written, done.err(), now);
        }
        self.report_lost(now);
        // Of a torn line, only the beginning is in the file.
        let unwritten = self.backlog.lines() + u64::from(self.sink.has_torn_line());
        if task.is_finishing && unwritten > 0 {
            log::error!(records = unwritten; "records lost at the exit");
        }
    }

    /// Counts what was written, and reports the first failure and its end.
    fn note_written(&mut self, written: u64, error: Option<std::io::Error>, now: Timestamp) {
        let shared = Arc::clone(&self.state.shared);
        shared.metrics.written.increment(written);
        #[expect(clippy::cast_precision_loss, reason = "fewer lines are kept than a double counts exactly")]
        shared.metrics.kept.decrement(written as f64);
        match error {
            Some(error) => {
                if self.retry.is_none() {
                    shared.events.note(EventKind::RecordsNotWritten, &error.to_string());
                    log::warn!(kept = self.backlog.lines(), error:%; "records not written, kept in memory");
                }
                self.retry = Some(now.plus(RETRY));
            }
            None => {
                if self.retry.take().is_some() {
                    shared.events.note(EventKind::RecordsWrittenAgain, "");
                    log::info!(written; "records written again");
                }
            }
        }
    }

    fn report_lost(&mut self, now: Timestamp) {
        let is_due = self.reported.is_none_or(|at| now.since(at) >= LOST_EVERY);
        if self.unreported > 0 && is_due {
            let records = std::mem::take(&mut self.unreported);
            self.reported = Some(now);
            self.state.shared.events.note(EventKind::RecordsLost, "");
            log::error!(records; "records lost");
        }
    }
}

impl Task {
    /// What the thread does before it waits for the first time: it opens the destination.
    const FIRST: Task = Task {
        reopen: true,
        ends_interval: false,
        finish: 0,
        is_finishing: false,
        closed: false,
        every: Micros(0),
        notices: Vec::new(),
    };
}
