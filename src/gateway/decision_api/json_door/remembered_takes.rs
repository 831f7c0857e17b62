//! Remembers the answers to calls with an id, so that a repeated call is answered as the first one and charges nothing.
//!
//! All threads share one table. A call that arrives while the first is being decided waits for its answer. The memory is
//! bounded: at the bound, the oldest answers are forgotten before their time.

use std::collections::{HashMap, VecDeque};
use std::hash::RandomState;
use std::sync::Arc;

use metrics::Counter;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::take_answer::TakeAnswer;
use crate::gateway::telemetry::metrics::registry::Registry;
use base::time::{Micros, Timestamp};

/// How long an answer is remembered, counted from the decision.
const KEPT_FOR: Micros = Micros(60_000_000);

/// The maximum memory of all remembered answers, in bytes.
const MOST_BYTES: usize = 64 << 20;

/// The memory that one remembered answer needs in addition to its texts, in bytes.
const OVERHEAD: usize = 512;

/// The answers that are remembered, with their counters.
#[derive(Debug)]
pub(in crate::gateway) struct RememberedTakes {
    table: Mutex<Table>,
    /// The hasher for the questions of calls.
    pub(super) hasher: RandomState,
    most_bytes: usize,
    repeated: Counter,
    forgotten: Counter,
}

/// The name of a call: ids of different listeners and domains do not collide.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct TakeId {
    pub listener: String,
    pub domain: Option<String>,
    pub id: String,
}

#[derive(Debug, Default)]
struct Table {
    entries: HashMap<Arc<TakeId>, Entry>,
    /// The ids in the order of their first calls and of their decisions, each with its time and the number of its entry at that time.
    /// A decided entry has a new number.
    order: VecDeque<(Timestamp, u64, Arc<TakeId>)>,
    bytes: usize,
    /// The number of the next entry. It distinguishes entries of the same id.
    next: u64,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    question: u64,
    answer: AwaitedAnswer,
    bytes: usize,
}

/// The answer to the first call with an id; `None` until the call is decided.
pub(super) type AwaitedAnswer = watch::Receiver<Option<Arc<TakeAnswer>>>;

/// What a call with an id is.
#[derive(Debug)]
pub(super) enum BegunTake {
    /// The first call with its id. It must be decided.
    First(FirstTake),
    /// A repeated call.
    Repeated(AwaitedAnswer),
    /// A call with the id of another call that asks for something else.
    OtherQuestion,
}

/// The first call with its id, while it is being decided. If it is dropped before, its id is free again.
#[derive(Debug)]
pub(super) struct FirstTake {
    remembered: Arc<RememberedTakes>,
    id: Arc<TakeId>,
    number: u64,
    answer: watch::Sender<Option<Arc<TakeAnswer>>>,
}

impl RememberedTakes {
    /// Makes an empty table. This call makes the series of its counters appear in `/metrics`.
    pub(in crate::gateway) fn new(registry: &Registry) -> RememberedTakes {
        let ids = |result| registry.counter("tollgate_take_ids_total", &[("result", result)]);
        RememberedTakes::with(MOST_BYTES, ids("repeated"), ids("forgotten"))
    }

    fn with(most_bytes: usize, repeated: Counter, forgotten: Counter) -> RememberedTakes {
        RememberedTakes { table: Mutex::default(), hasher: RandomState::new(), most_bytes, repeated, forgotten }
    }

    /// Begins a call with this id at `now`.
    pub(super) fn begin(self: &Arc<RememberedTakes>, id: TakeId, question: u64, now: Timestamp) -> BegunTake {
        let mut table = self.table.lock();
        table.expire(now);
        match table.entries.get(&id) {
            Some(entry) if entry.question == question => {
                self.repeated.increment(1);
                return BegunTake::Repeated(entry.answer.clone());
            }
            Some(_) => return BegunTake::OtherQuestion,
            None => {}
        }
        let (sender, answer) = watch::channel(None);
        let bytes = OVERHEAD + id.listener.len() + id.domain.as_ref().map_or(0, String::len) + id.id.len();
        let (id, number) = (Arc::new(id), table.next);
        table.next += 1;
        table.bytes += bytes;
        table.entries.insert(Arc::clone(&id), Entry { number, question, answer, bytes });
        table.order.push_back((now, number, Arc::clone(&id)));
        self.forget_oldest(&mut table);
        BegunTake::First(FirstTake { remembered: Arc::clone(self), id, number, answer: sender })
    }

    /// Forgets the oldest answers until the others fit into the memory.
    fn forget_oldest(&self, table: &mut Table) {
        while table.bytes > self.most_bytes
            && let Some((_, number, id)) = table.order.pop_front()
        {
            if table.remove(&id, number) {
                self.forgotten.increment(1);
            }
        }
    }
}

impl Table {
    /// Forgets the answers whose time has passed.
    fn expire(&mut self, now: Timestamp) {
        while self.order.front().is_some_and(|(begun, ..)| now.since(*begun) >= KEPT_FOR)
            && let Some((_, number, id)) = self.order.pop_front()
        {
            self.remove(&id, number);
        }
    }

    /// Removes this entry. Returns whether it was there.
    fn remove(&mut self, id: &TakeId, number: u64) -> bool {
        if self.entries.get(id).is_none_or(|entry| entry.number != number) {
            return false;
        }
        let removed = self.entries.remove(id);
        self.bytes -= removed.map_or(0, |entry| entry.bytes);
        true
    }
}

impl FirstTake {
    /// Remembers the answer from `now` on, and gives it to the repeated calls that wait for it.
    pub(super) fn finish(self, answer: Arc<TakeAnswer>, now: Timestamp) {
        let bytes = answer.bytes();
        self.answer.send_replace(Some(answer));
        let table = &mut *self.remembered.table.lock();
        if let Some(entry) = table.entries.get_mut(&self.id).filter(|entry| entry.number == self.number) {
            entry.bytes += bytes;
            entry.number = table.next;
            table.order.push_back((now, table.next, Arc::clone(&self.id)));
            table.next += 1;
            table.bytes += bytes;
            self.remembered.forget_oldest(table);
        }
    }
}

impl Drop for FirstTake {
    fn drop(&mut self) {
        if self.answer.borrow().is_none() {
            self.remembered.table.lock().remove(&self.id, self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::response::own_response::OwnResponse;

    fn remembered(most_bytes: usize) -> Arc<RememberedTakes> {
        Arc::new(RememberedTakes::with(most_bytes, Counter::noop(), Counter::noop()))
    }

    fn id(id: &str) -> TakeId {
        TakeId { listener: "a".to_owned(), domain: None, id: id.to_owned() }
    }

    fn answer(status: u16) -> Arc<TakeAnswer> {
        Arc::new(TakeAnswer { response: OwnResponse::new(status), refusal: None })
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp(seconds * 1_000_000)
    }

    #[track_caller]
    fn first(begun: BegunTake) -> FirstTake {
        let BegunTake::First(first) = begun else { panic!("{begun:?}") };
        first
    }

    fn status(begun: &BegunTake) -> Option<u16> {
        let BegunTake::Repeated(answer) = begun else { panic!("{begun:?}") };
        answer.borrow().as_ref().map(|answer| answer.response.status)
    }

    #[test]
    fn an_answer_is_remembered_for_a_minute() {
        let takes = remembered(MOST_BYTES);
        first(takes.begin(id("x"), 1, at(5))).finish(answer(200), at(10));
        assert_eq!(status(&takes.begin(id("x"), 1, at(69))), Some(200), "the minute begins with the decision");
        assert!(matches!(takes.begin(id("x"), 2, at(69)), BegunTake::OtherQuestion));
        let other = TakeId { domain: Some(String::new()), ..id("x") };
        drop(first(takes.begin(other, 2, at(69))));
        drop(first(takes.begin(id("x"), 2, at(70))));
        let table = takes.table.lock();
        assert_eq!((table.bytes, table.entries.len()), (0, 0));
    }

    #[test]
    fn a_call_waits_for_the_first_and_an_undecided_one_frees_its_id() {
        let takes = remembered(MOST_BYTES);
        let undecided = first(takes.begin(id("x"), 1, at(0)));
        let waiting = takes.begin(id("x"), 1, at(1));
        assert_eq!(status(&waiting), None);
        drop(undecided);
        let BegunTake::Repeated(receiver) = waiting else { panic!("not repeated") };
        assert!(receiver.has_changed().is_err());
        let again = first(takes.begin(id("x"), 1, at(1)));
        let waiting = takes.begin(id("x"), 1, at(2));
        again.finish(answer(429), at(2));
        assert_eq!(status(&waiting), Some(429));
        // The place of the first, undecided call in the order does not end the second one.
        assert_eq!(status(&takes.begin(id("x"), 1, at(60))), Some(429));
    }

    #[test]
    fn at_the_bound_the_oldest_are_forgotten() {
        let one = OVERHEAD + 2 + answer(200).bytes();
        let takes = remembered(3 * one);
        for (number, name) in (0..).zip(["a", "b", "c", "d"]) {
            first(takes.begin(id(name), 1, at(number))).finish(answer(200), at(number));
        }
        for name in ["b", "c", "d"] {
            assert_eq!(status(&takes.begin(id(name), 1, at(5))), Some(200));
        }
        assert_eq!(takes.table.lock().bytes, 3 * one);
        // A call that is forgotten while it is decided is answered all the same.
        let forgotten = first(takes.begin(id("a"), 1, at(5)));
        let undecided: Vec<FirstTake> = ["e", "f", "g", "h"].map(|name| first(takes.begin(id(name), 1, at(6)))).into();
        forgotten.finish(answer(200), at(6));
        drop(undecided);
        assert_eq!(takes.table.lock().bytes, 0);
    }
}
