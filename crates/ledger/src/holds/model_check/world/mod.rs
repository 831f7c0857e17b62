//! Defines the small world: two owners, a store, the network between them, and the actions.

mod calls;
mod invariants;
mod limit;
mod variant;

use crate::algorithm::State;
use crate::bucket_key::BucketKey;
use crate::cost::Cost;
use crate::holds::{Call, Holdings, LIFE, Owner, SlotId};
use base::time::Timestamp;
pub(super) use limit::Limit;
pub(super) use variant::Variant;

const SECOND: u64 = 1_000_000;
const START: u64 = 1 << 50;

/// The time of the store's clock at the start, in seconds.
const BEGIN: u64 = 100;

/// A fault in addition to the faults of any network, which may lose, delay and reorder messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Double,
    Kill,
    Flush,
    FailOver,
    ClockBack,
    ClockAhead,
    /// A request passes without asking the store.
    Pass,
}

/// How many actions of each kind may occur in one history.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub asks: u8,
    /// The number of calls that only contain reports.
    pub says: u8,
    /// The number of steps of the clock, of four seconds each.
    pub ticks: u8,
    pub faults: u8,
    pub of: &'static [Fault],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// The owner asks for one slot of each bucket whose bit in `mask` is set.
    Ask {
        owner: usize,
        mask: u8,
    },
    Say {
        owner: usize,
    },
    /// The response of a request begins. `Variant::EarlyRelease` now releases the request's slots.
    BeginAnswer {
        owner: usize,
        request: usize,
    },
    Finish {
        owner: usize,
        request: usize,
    },
    Arrive {
        call: usize,
    },
    ArriveTwice {
        call: usize,
    },
    Answer {
        answer: usize,
    },
    Tick,
    Kill {
        owner: usize,
    },
    Flush,
    Save,
    FailOver,
    ClockBack {
        seconds: u64,
    },
    ClockAhead,
    Pass {
        owner: usize,
    },
}

#[derive(Clone, Hash)]
struct Client {
    is_alive: bool,
    holdings: Holdings,
    /// The running requests: the mask of the buckets, and the slots that are still held.
    requests: Vec<(u8, Vec<SlotId>)>,
    /// For `Variant::PlusMinus`: how many slots of each bucket were given back since the last call.
    ended: [u64; 2],
    heard: [Heard; 2],
    settled: [Settled; 2],
}

/// The costs that an owner has settled of one bucket, as the checker knows them.
#[derive(Clone, Copy, Default, Hash)]
struct Settled {
    sum: u64,
    /// The part of the sum that the store had accepted, as far as the owner knows.
    known: u64,
    /// The largest sum in a report that the store has accepted.
    accepted: u64,
    /// The value of `accepted` when the store last lost charges.
    lost: u64,
    /// The smallest value of `known` in the owner or a call, when the store last lost all buckets.
    flushed: u64,
    /// The sum in the owner's last call.
    said: u64,
    /// For `Variant::SumsAddedAgain`: the sum in the store's entry.
    added: u64,
    /// The value of `sum` when the owner last began to keep the bucket.
    base: u64,
}

/// The state of the reports of an owner about one bucket, as the checker knows it.
#[derive(Clone, Copy, Default, Hash)]
struct Heard {
    /// The sequence of the newest accepted report. `at` is the time when this report was accepted.
    newest: u64,
    at: u64,
    /// `Some` if the store does not know all holds. A report with a sequence above this number tells the store all of
    /// them.
    unsaid: Option<u64>,
    /// The sequence of the newest report that was answered and that the store has not lost.
    answered: u64,
}

#[derive(Clone, Hash)]
struct SentCall {
    owner: usize,
    call: Call,
    /// Used by some variants: the amounts that the owner asked for without an answer, and the number of slots that
    /// have ended since the last call.
    unanswered: [Cost; 2],
    ended: [u64; 2],
    /// The sums in the owner's call before this one.
    said_before: [u64; 2],
    /// What the owner had settled, but forgotten.
    base: [u64; 2],
}

#[derive(Clone, Hash)]
struct SentAnswer {
    owner: usize,
    call: Call,
    accepted: Vec<bool>,
    base: [u64; 2],
    is_granted: bool,
    /// Whether the store has lost the reports of this call.
    is_lost: bool,
}

#[derive(Clone)]
pub(super) struct World {
    variant: Variant,
    limits: [Limit; 2],
    of: &'static [Fault],
    /// Whether owners forget at once the sums that the store has accepted.
    forgets: bool,
    shared: Changing,
}

/// The parts of the world that an action can change.
#[derive(Clone, Hash)]
struct Changing {
    stored: Vec<Option<State>>,
    saved: Option<Vec<Option<State>>>,
    /// The store's clock and the real time, both in seconds.
    clock: u64,
    time: u64,
    clients: Vec<Client>,
    calls: Vec<SentCall>,
    answers: Vec<SentAnswer>,
    arrivals: u64,
    asks: u8,
    says: u8,
    ticks: u8,
    faults: u8,
}

impl std::hash::Hash for World {
    fn hash<H: std::hash::Hasher>(&self, hasher: &mut H) {
        self.shared.hash(hasher);
    }
}

fn key(bucket: usize) -> BucketKey {
    BucketKey([u8::try_from(bucket).unwrap(); 16])
}

fn has(mask: u8, bucket: usize) -> bool {
    mask >> bucket & 1 == 1
}

fn micros(seconds: u64) -> Timestamp {
    Timestamp(START + seconds * SECOND)
}

impl World {
    pub(super) fn new(variant: Variant, limits: [Limit; 2], buckets: usize, budget: Bounds) -> World {
        let client = |owner: u64| Client {
            is_alive: true,
            holdings: Holdings::new(Owner(owner)),
            requests: Vec::new(),
            ended: [0; 2],
            heard: [Heard::default(); 2],
            settled: [Settled::default(); 2],
        };
        let shared = Changing {
            stored: vec![None; buckets],
            saved: None,
            clock: BEGIN,
            time: 0,
            clients: vec![client(1), client(2)],
            calls: Vec::new(),
            answers: Vec::new(),
            arrivals: 0,
            asks: budget.asks,
            says: budget.says,
            ticks: budget.ticks,
            faults: budget.faults,
        };
        World { variant, limits, of: budget.of, forgets: false, shared }
    }

    /// Makes owners forget at once the sums that the store has accepted.
    pub(super) fn forgetting(self) -> World {
        World { forgets: true, ..self }
    }

    /// Returns the actions that are possible in this state.
    pub(super) fn actions(&self) -> Vec<Action> {
        let Changing { clients, calls, answers, stored, saved, asks, says, ticks, faults, .. } = &self.shared;
        let mut actions = Vec::new();
        let may = |fault: Fault| *faults > 0 && self.of.contains(&fault);
        for (owner, client) in clients.iter().enumerate().filter(|(_, client)| client.is_alive) {
            if *asks > 0 {
                let masks = if stored.len() == 1 { 1..2 } else { 1..4 };
                actions.extend(masks.map(|mask| Action::Ask { owner, mask }));
            }
            let knows = |bucket| client.holdings.said(&key(bucket)).is_some();
            if *says > 0 && (0..stored.len()).any(knows) {
                actions.push(Action::Say { owner });
            }
            for (request, (_, slots)) in client.requests.iter().enumerate() {
                if self.variant == Variant::EarlyRelease && !slots.is_empty() {
                    actions.push(Action::BeginAnswer { owner, request });
                }
                actions.push(Action::Finish { owner, request });
            }
            if may(Fault::Kill) {
                actions.push(Action::Kill { owner });
            }
            if may(Fault::Pass) {
                actions.push(Action::Pass { owner });
            }
        }
        actions.extend((0..calls.len()).map(|call| Action::Arrive { call }));
        if may(Fault::Double) {
            actions.extend((0..calls.len()).map(|call| Action::ArriveTwice { call }));
        }
        actions.extend((0..answers.len()).map(|answer| Action::Answer { answer }));
        if *ticks > 0 {
            actions.push(Action::Tick);
        }
        let has_state = stored.iter().any(Option::is_some);
        if has_state && may(Fault::Flush) {
            actions.push(Action::Flush);
        }
        if has_state && may(Fault::FailOver) {
            actions.push(if saved.is_none() { Action::Save } else { Action::FailOver });
        }
        if has_state && may(Fault::ClockBack) {
            actions.extend([3, 20].map(|seconds| Action::ClockBack { seconds }));
        }
        if has_state && may(Fault::ClockAhead) {
            actions.push(Action::ClockAhead);
        }
        actions
    }

    /// Changes this state by an action.
    ///
    /// # Errors
    ///
    /// Returns the name of the invariant that the action breaks.
    pub(super) fn apply(&mut self, action: Action) -> Result<(), String> {
        if let Action::ArriveTwice { .. }
        | Action::Kill { .. }
        | Action::Flush
        | Action::FailOver
        | Action::ClockBack { .. }
        | Action::ClockAhead
        | Action::Pass { .. } = action
        {
            self.shared.faults -= 1;
        }
        match action {
            Action::Ask { owner, mask } => {
                self.shared.asks -= 1;
                let terms = self.limits[owner].terms();
                let asked = (0..self.shared.stored.len()).filter(|bucket| has(mask, *bucket));
                let asks: Vec<_> = asked.map(|bucket| (key(bucket), terms)).collect();
                self.send(owner, &asks);
            }
            Action::Say { owner } => {
                self.shared.says -= 1;
                self.shared.clients[owner].holdings.reconnected();
                self.send(owner, &[]);
            }
            Action::BeginAnswer { owner, request } => {
                let client = &mut self.shared.clients[owner];
                std::mem::take(&mut client.requests[request].1).into_iter().for_each(|slot| client.holdings.end(slot));
            }
            Action::Finish { owner, request } => {
                let client = &mut self.shared.clients[owner];
                let (mask, slots) = client.requests.remove(request);
                for slot in slots {
                    match self.limits[owner] {
                        Limit::Slots(_) => client.holdings.end(slot),
                        Limit::Budget(_) => drop(client.holdings.settle(slot, Cost::ONE)),
                    }
                }
                if let Limit::Budget(_) = self.limits[owner] {
                    (0..2).filter(|bucket| has(mask, *bucket)).for_each(|bucket| client.settled[bucket].sum += 1);
                }
                if self.variant == Variant::PlusMinus {
                    (0..2).filter(|bucket| has(mask, *bucket)).for_each(|bucket| client.ended[bucket] += 1);
                }
            }
            Action::Arrive { call } => {
                let sent = self.shared.calls.remove(call);
                return self.arrive(&sent);
            }
            Action::ArriveTwice { call } => {
                let sent = self.shared.calls[call].clone();
                return self.arrive(&sent);
            }
            Action::Answer { answer } => {
                let sent = self.shared.answers.remove(answer);
                self.answer(&sent);
            }
            Action::Tick => {
                self.shared.ticks -= 1;
                self.pass_time(4);
            }
            Action::Kill { owner } => self.kill(owner),
            Action::Flush => {
                self.shared.stored.iter_mut().for_each(|state| *state = None);
                self.settled().for_each(|settled| (settled.flushed, settled.added) = (settled.known, 0));
                // A call under way reports what the owner knew when the call was sent.
                for sent in &self.shared.calls {
                    for about in &sent.call.reports {
                        let settled = &mut self.shared.clients[sent.owner].settled[usize::from(about.bucket.0[0])];
                        let base = sent.base[usize::from(about.bucket.0[0])];
                        settled.flushed = settled.flushed.min(base + about.settled.from.whole());
                    }
                }
                self.lose();
            }
            Action::Save => self.shared.saved = Some(self.shared.stored.clone()),
            Action::FailOver => {
                self.shared.stored = self.shared.saved.clone().unwrap();
                self.lose();
            }
            Action::ClockBack { seconds } => self.shared.clock -= seconds,
            Action::ClockAhead => self.shared.clock += 8,
            Action::Pass { owner } => {
                let now = micros(self.shared.time);
                let client = &mut self.shared.clients[owner];
                let slot = client.holdings.hold(key(0), self.limits[owner].terms(), now);
                client.requests.push((1, vec![slot]));
                // No earlier call contains this slot.
                client.heard[0].unsaid = Some(client.holdings.last_sequence());
            }
        }
        Ok(())
    }

    fn pass_time(&mut self, seconds: u64) {
        if self.variant == Variant::HoldsForever {
            return;
        }
        self.shared.clock += seconds;
        self.shared.time += seconds;
        for client in &mut self.shared.clients {
            for heard in &mut client.heard {
                if (self.shared.time - heard.at) * SECOND >= LIFE.0 {
                    heard.unsaid = heard.unsaid.max(Some(heard.newest));
                }
            }
        }
        if self.variant == Variant::SequenceForgotten {
            for bucket in 0..self.shared.stored.len() {
                if self.holders(bucket).is_empty() {
                    self.shared.stored[bucket] = None;
                }
            }
        }
    }

    /// Notes that the store has lost all reports.
    fn lose(&mut self) {
        self.shared.answers.iter_mut().for_each(|sent| sent.is_lost = true);
        self.settled().for_each(|settled| settled.lost = settled.accepted);
        for heard in self.shared.clients.iter_mut().flat_map(|client| &mut client.heard) {
            heard.unsaid = heard.unsaid.max(Some(heard.newest));
            heard.answered = 0;
        }
    }

    fn settled(&mut self) -> impl Iterator<Item = &mut Settled> {
        self.shared.clients.iter_mut().flat_map(|client| &mut client.settled)
    }

    fn kill(&mut self, owner: usize) {
        let client = &mut self.shared.clients[owner];
        client.is_alive = false;
        client.requests.clear();
        self.shared.answers.retain(|sent| sent.owner != owner);
    }

    fn holders(&self, bucket: usize) -> Vec<(Owner, Cost)> {
        let state = self.shared.stored[bucket].as_deref();
        let mut holders: Vec<_> = self.limits[0]
            .holders(state, micros(self.shared.clock))
            .into_iter()
            .map(|holder| (holder.owner, holder.held))
            .collect();
        holders.sort();
        holders
    }

    /// Returns how much the store counts for an owner.
    fn counted(&self, owner: usize, bucket: usize) -> Cost {
        let found = self.holders(bucket).into_iter().find(|(one, _)| one.0 == owner as u64 + 1);
        found.map_or(Cost::default(), |(_, held)| held)
    }
}
