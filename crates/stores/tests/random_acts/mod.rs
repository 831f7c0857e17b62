//! Chooses random acts on purses and words to homes: right ones, doubled ones, late ones and wrong ones. All times are multiples of a unit:
//! a second, or less for a test that cannot set the clock.

use std::collections::HashMap;

use fastrand::Rng;
use ledger::algorithm::Algorithm;
use ledger::algorithm::budget::SpentLimit;
use ledger::algorithm::fixed_window::{FixedWindow, Window};
use ledger::algorithm::lease::{
    Home, HomeAnswer, HomeRaise, LeaseAct, LeaseReply, MarkedWord, Purse, PurseAct, PurseReply, RegionId, Word, WordId,
    WordKind,
};
use ledger::algorithm::token_bucket::{Rate, TokenBucket};
use ledger::calendar::{Anchor, Calendar, CalendarUnit, TimeOfDay, Zone};
use ledger::cost::Cost;
use ledger::{Micros, Timestamp};
use stores::BucketAct;

/// Returns one of the limits under which a bucket is charged: two with other numbers, as while a file is reloaded.
pub(crate) fn limit(bucket: u8, is_reloaded: bool, unit: u64) -> Algorithm {
    let size = if is_reloaded { 40 } else { 60 };
    let window = |window| SpentLimit::FixedWindow(FixedWindow::new(size, window).unwrap());
    let rate = |amount, period| {
        let rate = Rate { amount: Cost::from_thousandths(amount), period: Micros(period) };
        SpentLimit::TokenBucket(TokenBucket::new(rate, size).unwrap())
    };
    let month = || {
        let (anchor, zone) = (Anchor::default_of(CalendarUnit::Month), Zone::parse("Europe/Berlin").unwrap());
        window(Window::Calendar(Calendar::new(anchor, TimeOfDay::default(), zone)))
    };
    let home = |limit| Algorithm::Home(Home::new(limit, 3, Micros(20 * unit)).unwrap());
    let purse = |limit| {
        let largest = Cost::from_tokens(if is_reloaded { 3 } else { 12 });
        Algorithm::Purse(Purse::new(limit, largest, Micros(unit / 2), Micros(5 * unit)).unwrap())
    };
    let counting = |limit| match purse(limit) {
        Algorithm::Purse(purse) if is_reloaded => Algorithm::Purse(purse.with_unspent_shares(2)),
        Algorithm::Purse(purse) => Algorithm::Purse(purse.with_shares(7)),
        other => other,
    };
    match bucket {
        0 => home(window(Window::Epoch(Micros(10 * unit)))),
        1 => home(window(Window::FirstRequest(Micros(7 * unit)))),
        2 => home(month()),
        3 => home(rate(1000, unit)),
        4 => home(rate(997_123, 900 * unit)),
        5 => purse(window(Window::Epoch(Micros(10 * unit)))),
        6 => purse(rate(1000, unit)),
        7 => purse(month()),
        // A reload changes whether the first one counts.
        8 if is_reloaded => purse(window(Window::Epoch(Micros(10 * unit)))),
        8 => counting(window(Window::Epoch(Micros(10 * unit)))),
        9 => counting(rate(997_123, 900 * unit)),
        _ => counting(month()),
    }
}

pub(crate) const BUCKETS: u8 = 11;

/// What was said and answered before, so that it can be said again, late or changed.
#[derive(Default)]
pub(crate) struct Said {
    words: Vec<MarkedWord>,
    answers: Vec<(HomeAnswer, Timestamp)>,
}

fn amount(rng: &mut Rng) -> Cost {
    Cost::from_thousandths(match rng.u8(0..4) {
        0 => rng.u64(0..5000),
        1 => rng.u64(0..70_000),
        _ => 1000 * rng.u64(0..15),
    })
}

fn word(rng: &mut Rng, said: &Said, now: Timestamp, unit: u64) -> Word {
    let number = now.0 / 1000 + rng.u64(0..3);
    if !said.words.is_empty() && rng.u8(0..3) > 0 {
        let recent = said.words.len().saturating_sub(6);
        let mut word = said.words[rng.usize(recent..said.words.len())].word;
        match rng.u8(0..8) {
            0 => word.id.tag = rng.u64(0..9),
            1 => word.id.number -= 1,
            2 => word.left = amount(rng),
            _ => {}
        }
        return word;
    }
    let kind = if rng.bool() { WordKind::Lease } else { WordKind::Return };
    let period = Timestamp(now.0 / (10 * unit) * 10 * unit);
    let (amount, least, left) = (amount(rng), amount(rng), amount(rng));
    Word { id: WordId { number, tag: rng.u64(0..1 << 53) }, kind, amount, least, left, period }
}

/// How long a purse must be untouched to give back what it holds: not at all after a reload.
fn idle(rng: &mut Rng, unit: u64) -> Micros {
    Micros(if rng.u8(0..4) == 0 { 0 } else { 5 * unit })
}

pub(crate) fn act(rng: &mut Rng, bucket: u8, said: &Said, now: Timestamp, unit: u64) -> LeaseAct {
    if bucket < 5 {
        return LeaseAct::Word(RegionId(rng.u64(1..4)), word(rng, said, now, unit));
    }
    let tag = rng.u64(0..1 << 53);
    LeaseAct::Purse(match rng.u8(0..8) {
        0..3 => PurseAct::Mark { cost: amount(rng), tag },
        3 => match said.words.last() {
            Some(word) => PurseAct::Resend { id: word.word.id },
            None => PurseAct::Resend { id: WordId { number: 1, tag } },
        },
        4 => PurseAct::Surplus { tag, idle: idle(rng, unit) },
        _ if said.answers.is_empty() || rng.u8(0..4) == 0 => {
            let Some(word) = said.words.last() else {
                return LeaseAct::Purse(PurseAct::Surplus { tag, idle: idle(rng, unit) });
            };
            let answer = HomeAnswer::Answer {
                id: word.word.id,
                kind: word.word.kind,
                given: word.word.amount,
                period: Timestamp(now.0 / unit),
                remains: Micros(rng.u64(0..20 * unit)),
                again_after: Micros(rng.u64(0..8 * unit)),
                rest: amount(rng),
                raise: HomeRaise {
                    amount: if rng.bool() { amount(rng) } else { Cost::default() },
                    remains: Micros(rng.u64(0..20 * unit)),
                },
            };
            PurseAct::Credit { answer, mark: word.mark, wanted: amount(rng) }
        }
        _ => {
            let recent = said.answers.len().saturating_sub(4);
            let (answer, mark) = said.answers[rng.usize(recent..said.answers.len())];
            PurseAct::Credit { answer, mark, wanted: amount(rng) }
        }
    })
}

/// Counts the kinds of results, and keeps what was said.
pub(crate) fn note(
    kinds: &mut HashMap<&str, usize>,
    said: &mut Said,
    one: &BucketAct,
    reply: LeaseReply,
    now: Timestamp,
    unit: u64,
) {
    let kind = match (reply, one.act) {
        (LeaseReply::Purse(PurseReply::Send(word)), _) => {
            said.words.push(word);
            "sent"
        }
        (LeaseReply::Purse(PurseReply::Credited), _) => "credited",
        (LeaseReply::Purse(PurseReply::Nothing), _) => "nothing",
        (LeaseReply::Home(answer), LeaseAct::Word(_, word)) => {
            let mark = said.words.last().map_or(now, |word| word.mark);
            said.answers.push((answer, mark));
            match answer {
                HomeAnswer::Older { .. } => "older",
                HomeAnswer::Answer { kind: WordKind::Return, .. } => "returned",
                HomeAnswer::Answer { given, .. } if given == Cost::default() => "refused",
                HomeAnswer::Answer { remains, .. } if remains < Micros(3 * unit) => "again",
                HomeAnswer::Answer { given, .. } if given < word.amount => "given in part",
                HomeAnswer::Answer { .. } => "given",
            }
        }
        (LeaseReply::Home(_), LeaseAct::Purse(_)) => panic!("{one:?}"),
    };
    *kinds.entry(kind).or_default() += 1;
}
