//! Tests resets under every loss, delay and repetition of reports: compares a bucket with the list of what its owners have
//! settled.

use proptest::prelude::*;

use super::{Call, Holdings, Owner, ReportAnswer, SettledCost, SlotTerms};
use crate::algorithm::budget::Budget;
use crate::algorithm::fixed_window::{FixedWindow, Window};
use crate::algorithm::{Algorithm, State};
use crate::bucket_key::BucketKey;
use crate::cost::Cost;
use base::time::{Micros, Timestamp};

const NOW: Timestamp = Timestamp(1 << 50);
const BUCKET: BucketKey = BucketKey([1; 16]);
const OWNERS: usize = 3;

#[derive(Clone, Copy, Debug)]
enum Act {
    Spend(usize, u64),
    Reset(usize, u64),
    Send(usize),
    /// The call with this number, counted from the last, reaches the bucket. It may reach the bucket more than once.
    Deliver(usize),
    /// The owner gets the answer to this call.
    Answer(usize),
    /// The owner gets no answer to this call.
    Lose(usize),
    /// The owner forgets the sums that are only kept.
    Forget(usize),
    /// The store loses the bucket.
    Flush,
    Save,
    /// The store goes back to the saved bucket, as after a failover.
    GoBack,
}

fn act() -> impl Strategy<Value = Act> {
    let owner = || 0..OWNERS;
    let call = || 0..4usize;
    prop_oneof![
        4 => (owner(), 1..5u64).prop_map(|(owner, cost)| Act::Spend(owner, cost)),
        3 => (owner(), 0..3u64).prop_map(|(owner, cost)| Act::Reset(owner, cost)),
        6 => owner().prop_map(Act::Send),
        8 => call().prop_map(Act::Deliver),
        5 => call().prop_map(Act::Answer),
        1 => call().prop_map(Act::Lose),
        1 => owner().prop_map(Act::Forget),
        1 => Just(Act::Flush),
        1 => Just(Act::Save),
        1 => Just(Act::GoBack),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Spent(u64),
    Reset,
}

/// An owner, and all that it has settled.
struct Client {
    holdings: Holdings,
    events: Vec<Event>,
    /// The number of events when the owner began to keep the bucket.
    base: usize,
    /// The number of events that the owner knows to be accepted.
    accepted: usize,
}

/// A call, and what it says in numbers of events.
struct Sent {
    owner: usize,
    call: Call,
    /// The number of events when the owner began to keep the bucket.
    base: usize,
    said: usize,
    accepted: usize,
    answer: Option<bool>,
    is_over: bool,
}

/// A bucket, and what it must have: the spent amount, and the number of events that it has of each owner.
#[derive(Clone, Default)]
struct Stored {
    state: Option<State>,
    spent: u64,
    known: [Option<usize>; OWNERS],
}

struct World {
    clients: Vec<Client>,
    sent: Vec<Sent>,
    stored: Stored,
    saved: Option<Stored>,
    /// Whether the store has ever lost what it had.
    has_lost: bool,
}

fn budget() -> Budget {
    let window = FixedWindow::new(1_000_000, Window::Epoch(Micros(3_600_000_000))).unwrap();
    Budget::of_fixed_window(window).with_resets()
}

impl World {
    fn new() -> World {
        let client = |owner| Client { holdings: Holdings::new(Owner(owner)), events: Vec::new(), base: 0, accepted: 0 };
        World {
            clients: (1..=OWNERS as u64).map(client).collect(),
            sent: Vec::new(),
            stored: Stored::default(),
            saved: None,
            has_lost: false,
        }
    }

    fn act(&mut self, act: Act) {
        self.has_lost |= matches!(act, Act::Flush | Act::GoBack);
        match act {
            Act::Spend(owner, cost) => self.end(owner, None, cost),
            Act::Reset(owner, cost) => self.end(owner, Some(Event::Reset), cost),
            Act::Send(owner) => self.send(owner),
            Act::Deliver(index) => self.deliver(index),
            Act::Answer(index) => self.answer(index),
            Act::Lose(index) => {
                if let Some(sent) = self.sent.iter_mut().rev().nth(index).filter(|sent| !sent.is_over) {
                    sent.is_over = true;
                    self.clients[sent.owner].holdings.lost(&sent.call);
                }
            }
            Act::Forget(owner) => self.clients[owner].holdings.forget_all_sums(),
            Act::Flush => self.stored = Stored::default(),
            Act::Save => self.saved = Some(self.stored.clone()),
            Act::GoBack => self.stored = self.saved.clone().unwrap_or(self.stored.clone()),
        }
    }

    fn end(&mut self, owner: usize, reset: Option<Event>, cost: u64) {
        let client = &mut self.clients[owner];
        if client.holdings.said(&BUCKET).is_none() {
            // The owner begins again. It knows nothing of an older state of the store.
            (client.base, client.accepted) = (client.events.len(), client.events.len());
            self.saved = None;
        }
        let terms = SlotTerms { amount: Cost::ONE, algorithm: Algorithm::Budget(budget()) };
        let slot = client.holdings.hold(BUCKET, terms, NOW);
        let spent = Cost::from_tokens(cost);
        let kept = match reset {
            Some(_) => client.holdings.reset(slot, spent),
            None => client.holdings.settle(slot, spent),
        };
        assert_eq!(kept, SettledCost::Kept);
        client.events.extend(reset);
        client.events.extend((cost > 0).then_some(Event::Spent(cost)));
    }

    fn send(&mut self, owner: usize) {
        let client = &mut self.clients[owner];
        let call = client.holdings.call(&[], NOW);
        let Some(report) = call.reports.first() else { return };
        // The events that have these sums. Before the owner has begun, the sums are zero.
        let (to, count) = (report.settled.to.whole(), report.settled.resets.count);
        let (mut sum, mut resets, mut said) = (0, 0, client.base);
        for event in &client.events[client.base..] {
            if (sum, resets) == (to, count) {
                break;
            }
            match event {
                Event::Spent(cost) => sum += cost,
                Event::Reset => resets += 1,
            }
            said += 1;
        }
        assert_eq!((sum, resets), (to, count));
        let (base, accepted) = (client.base, client.accepted);
        self.sent.push(Sent { owner, call, base, said, accepted, answer: None, is_over: false });
    }

    fn deliver(&mut self, index: usize) {
        let Some(sent) = self.sent.iter_mut().rev().nth(index) else { return };
        let report = sent.call.report(&sent.call.reports[0]);
        let entry = budget().accept(self.stored.state.as_deref(), report, NOW);
        sent.answer = Some(entry.is_some());
        let Some(entry) = entry else { return };
        self.stored.state = Some(entry.state);
        let mut first = self.stored.known[sent.owner].unwrap_or(sent.accepted);
        if first < sent.base {
            // A store that has lost the bucket got an older call again. What the owner has forgotten since, it cannot repeat.
            assert!(self.has_lost, "{report:?}");
            first = sent.base;
        }
        let new = self.clients[sent.owner].events.get(first..sent.said).unwrap_or_default();
        for event in new {
            match event {
                Event::Spent(cost) => self.stored.spent += cost,
                Event::Reset => self.stored.spent = 0,
            }
        }
        self.stored.known[sent.owner] = Some(sent.said);
        assert_eq!(budget().spent(self.stored.state.as_deref(), NOW).whole(), self.stored.spent, "{report:?} {new:?}");
    }

    fn answer(&mut self, index: usize) {
        let Some(sent) = self.sent.iter_mut().rev().nth(index).filter(|sent| !sent.is_over) else { return };
        let Some(is_accepted) = sent.answer else { return };
        sent.is_over = true;
        let client = &mut self.clients[sent.owner];
        let answer = if is_accepted { ReportAnswer::Accepted { granted: &[] } } else { ReportAnswer::Old };
        client.holdings.answered(&sent.call, &sent.call.reports[0], answer, NOW);
        if is_accepted {
            client.accepted = client.accepted.max(sent.said);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn each_reset_forgets_once_what_was_settled_before_and_never_what_was_settled_later(
        acts in prop::collection::vec(act(), 1..60)
    ) {
        let mut world = World::new();
        acts.into_iter().for_each(|act| world.act(act));
        world.sent.iter_mut().filter(|sent| !sent.is_over).for_each(|sent| {
            sent.is_over = true;
            world.clients[sent.owner].holdings.lost(&sent.call);
        });
        // All owners are heard in the end.
        for owner in (0..OWNERS).chain(0..OWNERS).chain(0..OWNERS) {
            world.send(owner);
            world.deliver(0);
            world.answer(0);
        }
        for (client, known) in world.clients.iter().zip(world.stored.known) {
            prop_assert!(client.holdings.is_reported());
            prop_assert!(world.has_lost || known.is_none_or(|known| known == client.events.len()));
        }
    }
}

#[test]
fn an_old_call_to_a_store_that_has_lost_the_bucket_brings_back_nothing_that_is_forgotten() {
    let mut world = World::new();
    let told = [
        Act::Spend(0, 1),
        Act::Send(0),
        Act::Deliver(0),
        Act::Answer(0),
        Act::Send(0),
        Act::Deliver(0),
        Act::Answer(0),
    ];
    told.into_iter().for_each(|act| world.act(act));
    assert_eq!((world.sent.len(), world.stored.spent), (2, 1));
    for act in [Act::Flush, Act::Forget(0), Act::Spend(0, 3), Act::Deliver(1)] {
        world.act(act);
    }
    assert_eq!(world.stored.known[0], Some(0));
    for _ in 0..2 {
        [Act::Send(0), Act::Deliver(0), Act::Answer(0)].into_iter().for_each(|act| world.act(act));
    }
    assert_eq!(world.stored.spent, 3);
}

#[test]
fn a_reset_is_reported_until_it_is_accepted_and_then_only_a_new_one_is() {
    let mut world = World::new();
    for act in [Act::Spend(0, 4), Act::Send(0), Act::Deliver(0), Act::Answer(0)] {
        world.act(act);
    }
    let said = |world: &mut World| {
        world.send(0);
        let resets = world.sent.last().unwrap().call.reports[0].settled.resets;
        (resets.accepted, resets.count, resets.sum.whole())
    };
    world.act(Act::Reset(0, 1));
    assert_eq!(said(&mut world), (0, 1, 4));
    // The answer to the first report is lost.
    for act in [Act::Deliver(0), Act::Lose(0), Act::Spend(0, 2)] {
        world.act(act);
    }
    assert_eq!((said(&mut world), world.stored.spent), ((0, 1, 4), 1));
    world.act(Act::Deliver(0));
    assert_eq!(world.stored.spent, 3);
    world.act(Act::Answer(0));
    world.act(Act::Spend(0, 5));
    assert_eq!(said(&mut world), (1, 1, 4));
    // The store has lost the bucket: the accepted reset is not repeated.
    world.act(Act::Flush);
    world.act(Act::Deliver(0));
    assert_eq!(world.stored.spent, 5);
}
