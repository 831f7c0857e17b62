//! Plays a schedule: three regions and a home with the released steps, and a network between them that loses, delays and doubles.

use std::collections::BTreeMap;

use super::judge::Judge;
use super::random::Random;
use super::schedule::{Disturbance, END, Fault, Link, ModelLimit, SECOND, Schedule, signed};
use crate::algorithm::budget::SpentLimit;
use crate::algorithm::fixed_window::{FixedWindow, Window};
use crate::algorithm::lease::purse::ASK_HOME;
use crate::algorithm::lease::{
    Home, HomeAnswer, HomeRaise, MarkedWord, Purse, PurseAct, PurseBalance, PurseReply, RegionId, WordId, WordKind,
};
use crate::algorithm::raise::{Raise, RaiseId};
use crate::algorithm::token_bucket::{Rate, TokenBucket};
use crate::algorithm::{Algorithm, ChargeResult, State};
use crate::cost::Cost;
use base::time::{Micros, Timestamp};

/// The first moment on an undisturbed clock, at no boundary.
const START: u64 = 1_763_672_400_123_456;
const TIMEOUT: u64 = SECOND / 2;
/// How long a message takes from the regions to home, and back.
const DELAYS: [u64; 4] = [500, 40_000, 125_000, 500];

/// The protocol that is played: the released one, or one with a deliberate mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Variant {
    Released,
    /// The purse has what it asks for before home has paid.
    CreditBeforeDebit,
    /// A purse outlives its period.
    PurseWithoutEnd,
    /// A purse ends when the period ends on the clock of its own region.
    OwnClock,
    /// Home forgets what it has answered.
    AnswersForgotten,
    /// Home gets what is returned, and the purse keeps it.
    ReturnedAndKept,
}

enum Event {
    Request(usize, u64),
    ToHome(usize, MarkedWord),
    FromHome(usize, HomeAnswer, Timestamp),
    Resend(usize, WordId),
    Sweep(usize),
    Keep(Option<usize>),
    Fault(Fault),
}

struct Region {
    id: RegionId,
    state: Option<State>,
    /// How far the clock is from the undisturbed one.
    offset: i64,
    /// The requests that wait for home: until when, and their costs in thousandths.
    waiting: Vec<(u64, u64)>,
    kept: (Option<State>, u64),
}

pub(super) struct World {
    variant: Variant,
    limit: ModelLimit,
    home: Algorithm,
    purse: Algorithm,
    largest: Cost,
    random: Random,
    now: u64,
    events: BTreeMap<(u64, u64), Event>,
    count: u64,
    regions: Vec<Region>,
    home_state: Option<State>,
    home_offset: i64,
    home_kept: (Option<State>, u64),
    debited: u64,
    disturbances: Vec<(u64, Fault)>,
    pub judge: Judge,
    /// When the first request was refused, and what had passed by then.
    pub first_refusal: Option<u64>,
    /// What is not in the balance, in thousandths: the least and the most at any moment.
    pub lost: [i64; 2],
}

fn spent_limit(limit: ModelLimit) -> SpentLimit {
    match limit {
        ModelLimit::Window { limit, window } => {
            SpentLimit::FixedWindow(FixedWindow::new(limit, Window::Epoch(Micros(window))).unwrap())
        }
        ModelLimit::Rate { burst, per_second } => {
            let rate = Rate { amount: Cost::from_tokens(per_second), period: Micros(SECOND) };
            SpentLimit::TokenBucket(TokenBucket::new(rate, burst).unwrap())
        }
    }
}

impl World {
    pub(super) fn new(variant: Variant, schedule: &Schedule) -> World {
        let names: &[&str] = if schedule.has_twin { &["eu", "us", "ap", "eu"] } else { &["eu", "us", "ap"] };
        let region = |(name, offset): (&&str, &i64)| Region {
            id: RegionId::of(name),
            state: None,
            offset: *offset,
            waiting: Vec::new(),
            kept: (None, 0),
        };
        let mut judge = Judge::new(schedule.limit);
        let (home, purse, largest) = limits(schedule, schedule.share);
        if schedule.has_twin && matches!(schedule.limit, ModelLimit::Rate { .. }) {
            // Home knows of one of the two purses.
            judge.allowed += largest.thousandths();
        }
        let mut world = World {
            variant,
            limit: schedule.limit,
            home,
            purse,
            largest,
            random: Random::new(schedule.seed ^ 0x5eed),
            now: 0,
            events: BTreeMap::new(),
            count: 0,
            regions: names.iter().zip(&schedule.apart).map(region).collect(),
            home_state: None,
            home_offset: 0,
            home_kept: (None, 0),
            debited: 0,
            disturbances: Vec::new(),
            judge,
            first_refusal: None,
            lost: [0; 2],
        };
        let regions = world.regions.len();
        for (time, region, cost) in &schedule.requests {
            world.at(*time, Event::Request(region % regions, cost * 1000));
        }
        for (time, fault) in &schedule.faults {
            match fault {
                Fault::Restore { region, back } => world.at(time.saturating_sub(*back), Event::Keep(Some(*region))),
                Fault::RestoreHome { back } => world.at(time.saturating_sub(*back), Event::Keep(None)),
                _ => {}
            }
            world.at(*time, Event::Fault(*fault));
        }
        (0..regions).for_each(|region| world.at(200_000, Event::Sweep(region)));
        world
    }

    pub(super) fn play(mut self, schedule: &Schedule) -> World {
        while let Some(((time, _), event)) = self.events.pop_first() {
            if time > END + 5 * SECOND {
                break;
            }
            self.now = time;
            match event {
                Event::Request(region, cost) => self.take(region, cost, time + TIMEOUT),
                Event::ToHome(region, word) => self.hear(region, word),
                Event::FromHome(region, answer, mark) => self.credit(region, answer, mark),
                Event::Resend(region, id) => drop(self.act(region, PurseAct::Resend { id })),
                Event::Sweep(region) => {
                    let tag = self.tag();
                    let Algorithm::Purse(purse) = self.purse else { panic!("no purse") };
                    // Reloads take what a purse holds also while it is used.
                    let is_reloaded = !schedule.faults.is_empty() && self.random.below(16) == 0;
                    let idle = if is_reloaded { Micros(0) } else { purse.return_after() };
                    self.act(region, PurseAct::Surplus { tag, idle });
                    self.at(self.now + 200_000, Event::Sweep(region));
                }
                Event::Keep(Some(region)) => {
                    self.regions[region].kept = (self.regions[region].state.clone(), self.judge.by_region[region]);
                }
                Event::Keep(None) => self.home_kept = (self.home_state.clone(), self.debited),
                Event::Fault(fault) => self.fault(fault, schedule),
            }
            let lost = self.lost();
            self.lost = [self.lost[0].min(lost), self.lost[1].max(lost)];
        }
        self
    }

    /// Returns what home counts as spent in its period, less what has passed and what is unspent. Zero for a token bucket.
    fn lost(&self) -> i64 {
        let (Algorithm::Home(home), Algorithm::Purse(purse)) = (self.home, self.purse) else { panic!("no limit") };
        let now = self.home_clock();
        let Some(period) = self.home.period(self.home_state.as_deref(), now) else { return 0 };
        let remembered = home.purses(self.home_state.as_deref(), now);
        let unspent = |(index, region): (usize, &Region)| {
            let remembered = remembered.iter().find(|purse| purse.region == region.id);
            let (state, now) = (region.state.as_deref(), self.clock(index));
            let PurseBalance { unspent, debt } = purse.balance(state, now, period.begin, remembered);
            assert_eq!(debt, Cost::default());
            unspent.thousandths()
        };
        let unspent: u64 = self.regions.iter().enumerate().map(unspent).sum();
        let passed = self.judge.leased_for(period.begin.0);
        signed(self.home.spent(self.home_state.as_deref(), now).thousandths()) - signed(passed + unspent)
    }

    fn at(&mut self, time: u64, event: Event) {
        self.count += 1;
        self.events.insert((time, self.count), event);
    }

    fn tag(&mut self) -> u64 {
        self.random.below(1 << 53)
    }

    fn clock(&self, region: usize) -> Timestamp {
        Timestamp((START + self.now).saturating_add_signed(self.regions[region].offset))
    }

    fn home_clock(&self) -> Timestamp {
        Timestamp((START + self.now).saturating_add_signed(self.home_offset))
    }

    /// Charges a request. Returns nothing if it waits for home.
    fn take(&mut self, region: usize, cost: u64, deadline: u64) {
        let now = self.clock(region);
        let cost_of = Cost::from_thousandths(cost);
        let state = self.regions[region].state.clone();
        let Algorithm::Purse(purse) = self.purse else { panic!("no purse") };
        let period = purse.leased_for(state.as_deref(), now).map_or(0, |period| period.0);
        match self.purse.step(state.as_deref(), cost_of, now).charge {
            ChargeResult::Fits { entry, .. } => {
                self.judge.pass(region, cost, period, START + self.now);
                let is_low = purse.is_low(&entry.state, cost_of, now);
                self.regions[region].state = Some(entry.state);
                if is_low {
                    self.mark(region, cost_of);
                }
            }
            ChargeResult::Short { wait } if wait == ASK_HOME => {
                if self.now < deadline {
                    self.regions[region].waiting.push((deadline, cost));
                    self.mark(region, cost_of);
                }
            }
            _ => {
                self.first_refusal.get_or_insert(self.judge.passed);
            }
        }
    }

    fn mark(&mut self, region: usize, cost: Cost) {
        let tag = self.tag();
        self.act(region, PurseAct::Mark { cost, tag });
    }

    /// Does an act in the region's store, and sends the word that it gives.
    fn act(&mut self, region: usize, act: PurseAct) -> PurseReply {
        let now = self.clock(region);
        let before = self.regions[region].state.clone();
        let (entry, reply) = self.purse.act(before.as_deref(), act, now).unwrap();
        if let Some(entry) = entry {
            self.regions[region].state = Some(entry.state);
        }
        let PurseReply::Send(marked) = reply else { return reply };
        if marked.word.kind == WordKind::Return && matches!(act, PurseAct::Surplus { .. }) {
            self.judge.by_region[region] += marked.word.amount.thousandths();
            if self.variant == Variant::ReturnedAndKept {
                self.regions[region].state = before;
            }
        }
        self.at(self.now + marked.again_after.0 + 1000, Event::Resend(region, marked.word.id));
        self.send(region, Link::ToHome, |_| Event::ToHome(region, marked));
        if self.variant == Variant::CreditBeforeDebit && marked.word.kind == WordKind::Lease {
            let window = match self.limit {
                ModelLimit::Window { window, .. } => window,
                ModelLimit::Rate { .. } => u64::MAX,
            };
            let answer = HomeAnswer::Answer {
                id: marked.word.id,
                kind: WordKind::Lease,
                given: marked.word.amount,
                period: Timestamp(now.0 / window * window),
                remains: Micros(window.min(3 * SECOND) - now.0 % window.min(3 * SECOND)),
                again_after: Micros(0),
                rest: Cost::default(),
                raise: HomeRaise::default(),
            };
            self.credit(region, answer, marked.mark);
        }
        reply
    }

    fn hear(&mut self, region: usize, marked: MarkedWord) {
        let now = self.home_clock();
        let id = self.regions[region].id;
        if self.variant == Variant::AnswersForgotten
            && let Some(state) = &mut self.home_state
        {
            // The entries follow three words, if there is no raise.
            state.truncate(3);
        }
        let (entry, mut answer) = self.home.hear(self.home_state.as_deref(), id, &marked.word, now).unwrap();
        if let (Some(_), HomeAnswer::Answer { given, .. }) = (&entry, &answer) {
            self.debited += given.thousandths();
        }
        if let Some(entry) = entry {
            self.home_state = Some(entry.state);
        }
        if let (HomeAnswer::Answer { remains, .. }, ModelLimit::Window { window, .. }) = (&mut answer, self.limit) {
            match self.variant {
                Variant::PurseWithoutEnd => *remains = Micros(100 * SECOND),
                Variant::OwnClock => *remains = Micros(window - marked.mark.0 % window),
                _ => {}
            }
        }
        self.send(region, Link::FromHome, |_| Event::FromHome(region, answer, marked.mark));
    }

    /// Credits an answer, and charges the requests that wait for it again.
    fn credit(&mut self, region: usize, answer: HomeAnswer, mark: Timestamp) {
        let wanted = self.regions[region].waiting.iter().map(|(_, cost)| cost).sum();
        let act = PurseAct::Credit { answer, mark, wanted: Cost::from_thousandths(wanted) };
        if self.act(region, act) == PurseReply::Credited {
            for (deadline, cost) in std::mem::take(&mut self.regions[region].waiting) {
                self.take(region, cost, deadline);
            }
        }
    }

    fn send(&mut self, region: usize, link: Link, event: impl Fn(()) -> Event) {
        let (mut copies, mut late) = (1, [0, 0]);
        for (from, fault) in self.disturbances.clone() {
            let Fault::Link { region: of, link: on, what, until, percent, by } = fault else { continue };
            if of != region || on != link || !(from..until).contains(&self.now) || !self.random.percent(percent) {
                continue;
            }
            match what {
                Disturbance::Lost => copies = 0,
                Disturbance::Doubled => (copies, late[1]) = (2 * copies, self.random.below(by)),
                Disturbance::Late => late[0] = self.random.below(by),
            }
        }
        for more in late.into_iter().take(copies) {
            self.at(self.now + DELAYS[region] + more, event(()));
        }
    }

    fn fault(&mut self, fault: Fault, schedule: &Schedule) {
        let is_rate = matches!(self.limit, ModelLimit::Rate { .. });
        match fault {
            Fault::Link { .. } => self.disturbances.push((self.now, fault)),
            Fault::Flush { region } => self.regions[region].state = None,
            Fault::RepeatNumber { region } => self.repeat_number(region),
            Fault::SetClock { region, by } => self.set_clock(region, by),
            Fault::SetHomeClock { by } => {
                self.judge.clocks_were_set = true;
                self.home_offset += by;
                if let ModelLimit::Rate { per_second, .. } = self.limit {
                    // A clock that is set forward refills any token bucket, and ends what is held of purses.
                    let forward = u64::try_from(by).unwrap_or(0);
                    self.judge.allowed += forward * per_second / 1000;
                    self.judge.allowed += if forward > 0 { 3 * self.largest.thousandths() } else { 0 };
                }
            }
            Fault::Restore { region, .. } => {
                let (state, before) = self.regions[region].kept.clone();
                self.regions[region].state = state;
                self.judge.allowed += self.judge.by_region[region] - before;
            }
            Fault::RestoreHome { .. } => {
                let (state, before) = self.home_kept.clone();
                self.home_state = state;
                self.judge.allowed += self.debited - before;
            }
            Fault::Reload => (self.home, self.purse, self.largest) = limits(schedule, (schedule.share / 5).max(1)),
            Fault::Raise { tokens, length } => {
                let end = self.home_clock().plus(Micros(length));
                let raise = Raise { id: RaiseId(self.now), amount: Cost::from_tokens(tokens), end };
                if let Ok(Some(entry)) = self.home.set_raise(self.home_state.as_deref(), raise, self.home_clock()) {
                    self.home_state = Some(entry.state);
                    self.judge.allowed += raise.amount.thousandths();
                }
            }
        }
        if is_rate && matches!(fault, Fault::SetClock { by, .. } if by < 0) {
            // What lies in the purse can be spent later than home counts it.
            self.judge.allowed += self.largest.thousandths();
        }
    }

    fn set_clock(&mut self, region: usize, by: i64) {
        self.judge.clocks_were_set = true;
        self.regions[region].offset += by;
    }

    fn repeat_number(&mut self, region: usize) {
        self.regions[region].state = None;
        let state = self.home_state.as_deref().and_then(crate::algorithm::raise::plain);
        let entries = state.and_then(|state| state.get(3..)).unwrap_or_default();
        let (entries, _) = entries.as_chunks::<8>();
        if let Some([_, number, ..]) = entries.iter().find(|entry| entry[0] == self.regions[region].id.0) {
            let now = self.clock(region);
            self.set_clock(region, signed((number - 1) * 1000) - signed(now.0));
        }
    }
}

/// Makes the limits of home and regions, with this share in percent.
fn limits(schedule: &Schedule, share: u64) -> (Algorithm, Algorithm, Cost) {
    let limit = spent_limit(schedule.limit);
    let largest = Cost::from_tokens((schedule.limit.amount() * share / 100).max(schedule.largest_cost));
    let home = Home::new(limit, 3, Micros(3 * SECOND)).unwrap();
    let purse = Purse::new(limit, largest, Micros(TIMEOUT), Micros(SECOND * 2 / 5)).unwrap();
    (Algorithm::Home(home), Algorithm::Purse(purse), largest)
}
