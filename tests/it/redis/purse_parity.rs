//! Plays requests, acts and undone charges on purses, on the Rust steps and on the scripts on a real redis-server: with and without a share
//! of the region, under other settings after a reload, with clocks that are set back. The results and the states are equal.

use std::collections::HashMap;

use base::time::{Micros, Timestamp};
use fastrand::Rng;
use ledger::algorithm::budget::SpentLimit;
use ledger::algorithm::fixed_window::{FixedWindow, Window};
use ledger::algorithm::lease::{
    HomeAnswer, HomeRaise, LeaseAct, LeaseReply, MarkedWord, Purse, PurseAct, PurseReply, WordId, WordKind,
};
use ledger::algorithm::token_bucket::{Rate, TokenBucket};
use ledger::algorithm::{Algorithm, ChargeResult, State};
use ledger::bucket_key::{BucketKey, LimitTag};
use ledger::charge::settle;
use ledger::cost::Cost;
use redis::ConnectionLike;
use stores::redis::codec::{LeaseCall, add_undone, key_name};
use stores::redis::script;
use stores::{ActResult, BucketAct};

use crate::support::charge::{plan_of, spend};
use crate::support::{Redis, TakeScript, short_or_long};

const SECOND: u64 = 1_000_000;
const START: u64 = 1_763_672_400_123_456;

/// The words of a stored purse: what is left, when it ends, when it was last touched, what was spent since the last mark, and since when
/// charges can be undone.
const LEFT: usize = 2;
const ENDS: usize = 4;
const TOUCHED: usize = 6;
const SINCE_MARK: usize = 8;
const UNDONE_SINCE: usize = 11;
/// The words of a share: what is spent, the unit of a token bucket, and what was spent without a lease.
const SHARE: usize = 12;
const UNIT: usize = 13;
const DEBT: usize = 15;

/// Returns whether a purse has a share.
fn is_counting(state: &[u64]) -> bool {
    matches!(state[0] & 0xff, 2 | 4)
}

/// What requests a play makes.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Course {
    #[default]
    Mixed,
    /// Small ones with small leases, most of them while home gives no answer, in a short time: several of them are paid from the share of a
    /// region, one after the other.
    Indebted,
}

impl Course {
    fn cost(self, rng: &mut Rng) -> Cost {
        match self {
            Course::Mixed => amount(rng),
            Course::Indebted => Cost::from_thousandths(rng.u64(0..1500)),
        }
    }

    /// Returns the number of a purse. Those from 2 have shares.
    fn purse(self, rng: &mut Rng) -> u8 {
        match self {
            Course::Mixed => rng.u8(0..4),
            Course::Indebted => rng.u8(2..4),
        }
    }
}

/// Returns the settings of one of the purses: sometimes those after a reload, and sometimes those while home gives no answer.
fn limit(rng: &mut Rng, purse: u8, course: Course) -> Purse {
    let limit = match purse % 2 {
        0 => SpentLimit::FixedWindow(FixedWindow::new(60, Window::Epoch(Micros(10 * SECOND))).unwrap()),
        _ => {
            let rate = Rate { amount: Cost::from_thousandths(1003), period: Micros(SECOND) };
            SpentLimit::TokenBucket(TokenBucket::new(rate, 60).unwrap())
        }
    };
    let largest = Cost::from_tokens(if course == Course::Indebted || rng.u8(0..8) == 0 { 3 } else { 12 });
    let plain = Purse::new(limit, largest, Micros(SECOND / 2), Micros(5 * SECOND)).unwrap();
    let counting = plain.with_shares(3);
    match rng.u8(0..8) {
        _ if purse < 2 => plain,
        0 => plain,
        4 => plain.with_unspent_shares(3),
        5.. if course == Course::Indebted => counting.without_home().unwrap(),
        1..4 => counting.without_home().unwrap(),
        _ => counting,
    }
}

fn amount(rng: &mut Rng) -> Cost {
    Cost::from_thousandths(if rng.bool() { 1000 * rng.u64(0..9) } else { rng.u64(0..15_000) })
}

/// A granted request whose charge may be undone.
#[derive(Clone, Copy)]
struct PastCharge {
    limit: Purse,
    cost: Cost,
    at: Timestamp,
}

/// What came of undoing a charge.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Undoing {
    Kept,
    /// The share may be of another period than the debt.
    DebtKept,
    Undone,
    DebtUndone,
}

#[derive(Default)]
struct Model {
    course: Course,
    states: HashMap<BucketKey, State>,
    words: HashMap<BucketKey, MarkedWord>,
    charged: HashMap<BucketKey, Vec<PastCharge>>,
}

impl Model {
    /// Undoes a charge as the script does. There is no such step in Rust, because only stores with several nodes need one. Returns
    /// what came of it.
    fn undo(&mut self, key: BucketKey, PastCharge { limit, cost, at }: PastCharge, now: Timestamp) -> Undoing {
        let Some(state) = self.states.get(&key) else { return Undoing::Kept };
        let cost = cost.thousandths();
        if at.0 <= state[UNDONE_SINCE] || at.0 > state[TOUCHED] || state[ENDS] <= now.0 {
            return Undoing::Kept;
        }
        let ChargeResult::Fits { entry, .. } = Algorithm::Purse(limit).step(Some(state), Cost::default(), now).charge
        else {
            panic!("a purse pays nothing")
        };
        let mut undone = entry.state;
        undone[TOUCHED] = state[TOUCHED];
        let mut back = 0;
        if is_counting(&undone) {
            back = cost.min(undone[DEBT]);
            if back > 0 && at.0 != state[TOUCHED] {
                return Undoing::DebtKept;
            }
            let unit = if limit.limit().token_bucket().is_some() { undone[UNIT] } else { 1 };
            undone[SHARE] = undone[SHARE].saturating_sub(back * unit);
            undone[DEBT] -= back;
        }
        undone[LEFT] += cost - back;
        undone[SINCE_MARK] = undone[SINCE_MARK].saturating_sub(cost);
        let has_changed = undone != *state;
        self.states.insert(key, undone);
        match (has_changed, back) {
            (false, _) => Undoing::Kept,
            (true, 0) => Undoing::Undone,
            (true, _) => Undoing::DebtUndone,
        }
    }

    fn act(&self, rng: &mut Rng, key: BucketKey, now: Timestamp) -> PurseAct {
        let (tag, word) = (rng.u64(0..1 << 53), self.words.get(&key));
        match (rng.u8(0..8), word) {
            (0..3, _) | (4.., None) => PurseAct::Mark { cost: amount(rng), tag },
            (3, None) => PurseAct::Resend { id: WordId { number: 1, tag } },
            (3, Some(word)) => PurseAct::Resend { id: word.word.id },
            (4, _) => PurseAct::Surplus { tag, idle: Micros(if rng.bool() { 0 } else { 5 * SECOND }) },
            (_, Some(word)) => {
                let given = if word.word.kind == WordKind::Lease { word.word.amount } else { Cost::default() };
                let answer = HomeAnswer::Answer {
                    id: word.word.id,
                    kind: word.word.kind,
                    given: if rng.u8(0..4) == 0 { Cost::default() } else { given },
                    period: Timestamp(now.0 / (10 * SECOND)),
                    remains: Micros(rng.u64(0..40 * SECOND)),
                    again_after: Micros(if rng.bool() { 0 } else { rng.u64(0..8 * SECOND) }),
                    rest: amount(rng),
                    raise: HomeRaise {
                        amount: if rng.bool() { amount(rng) } else { Cost::default() },
                        remains: Micros(rng.u64(0..9 * SECOND)),
                    },
                };
                PurseAct::Credit { answer, mark: word.mark, wanted: amount(rng) }
            }
        }
    }
}

/// Returns how far the clock moves, in microseconds.
fn passed(rng: &mut Rng, course: Course) -> i64 {
    match rng.u8(0..16) {
        0..6 if course == Course::Indebted => rng.i64(0..500_000),
        0 => -rng.i64(0..9_000_000),
        1 => rng.i64(0..60_000_000),
        2..6 => rng.i64(0..2_000_000),
        _ => 0,
    }
}

/// The three scripts on a server.
struct Scripts {
    take: TakeScript,
    leases: String,
    give_back: String,
    connection: redis::Connection,
}

impl Scripts {
    /// Loads the scripts, with a change of their text.
    fn load(redis: &Redis, change: impl Fn(&str) -> String) -> Scripts {
        let load = |text: &str| redis.command(&["SCRIPT", "LOAD", &script::at_chosen_moment(&change(text))]);
        Scripts {
            take: TakeScript::with(redis, &change(&script::take())),
            leases: load(&script::leases()),
            give_back: load(&script::give_back()),
            connection: redis.connection(),
        }
    }
}

/// Plays random requests, acts and undone charges. Returns the first difference.
fn play(scripts: &mut Scripts, seed: u64, kinds: &mut HashMap<&str, usize>) -> Result<(), String> {
    let rng = &mut Rng::with_seed(seed);
    redis::cmd("FLUSHALL").exec(&mut scripts.connection).unwrap();
    let course = if seed.is_multiple_of(3) { Course::Indebted } else { Course::Mixed };
    let (mut model, mut now) = (Model { course, ..Model::default() }, Timestamp(START));
    let mut purse = course.purse(rng);
    for step in 0..120 {
        now = Timestamp(now.0.saturating_add_signed(passed(rng, course)));
        purse = if rng.u8(0..3) > 0 { purse } else { course.purse(rng) };
        let (key, of_purse) = (BucketKey([purse + 1; 16]), limit(rng, purse, course));
        let [takes, hears] = if course == Course::Mixed { [4, 8] } else { [4, 7] };
        let kind = match rng.u8(0..10) {
            number if number < takes => model.take(scripts, rng, (key, of_purse), now)?,
            number if number < hears => model.hear(scripts, rng, (key, of_purse), now)?,
            _ => model.undo_one(scripts, rng, key, now)?,
        };
        let stored = scripts.take.stored(&key);
        agree(&stored, &model.states.get(&key).map(|state| state.to_vec()))
            .map_err(|difference| format!("seed {seed}, step {step}, {kind}: {difference}"))?;
        let is_raised = stored.as_ref().is_some_and(|state| state[0] & 0xff > 2);
        let is_indebted = stored.is_some_and(|state| is_counting(&state) && state[DEBT] > 0);
        *kinds.entry(kind).or_default() += 1;
        *kinds.entry("in debt").or_default() += usize::from(is_indebted);
        *kinds.entry("raised").or_default() += usize::from(is_raised);
    }
    Ok(())
}

fn agree<T: PartialEq + std::fmt::Debug>(found: &T, expected: &T) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{found:?} is not {expected:?}")) }
}

impl Model {
    /// Makes some equal requests.
    fn take(
        &mut self,
        scripts: &mut Scripts,
        rng: &mut Rng,
        (key, limit): (BucketKey, Purse),
        now: Timestamp,
    ) -> Result<&'static str, String> {
        let cost = self.course.cost(rng);
        let plan = plan_of(spend(key, Algorithm::Purse(limit), cost));
        let mut kind = "refused";
        for settlement in scripts.take.take(&vec![plan.clone(); rng.usize(1..4)], now).settlements {
            let (expected, entries) = settle(&plan, &[self.states.get(&key).cloned()], now);
            agree(&settlement, &expected)?;
            if let Some(Some(entry)) = entries.into_iter().next() {
                self.states.insert(key, entry.state);
            }
            if settlement.is_granted() {
                self.charged.entry(key).or_default().push(PastCharge { limit, cost, at: now });
                kind = "granted";
            }
        }
        Ok(kind)
    }

    /// Does a random act.
    fn hear(
        &mut self,
        scripts: &mut Scripts,
        rng: &mut Rng,
        (key, limit): (BucketKey, Purse),
        now: Timestamp,
    ) -> Result<&'static str, String> {
        let (limit, act) = (Algorithm::Purse(limit), LeaseAct::Purse(self.act(rng, key, now)));
        let acts = [BucketAct { key, limit, tag: LimitTag::default(), act }];
        let call = LeaseCall::new(&acts);
        let reply = scripts.connection.req_command(&call.command(&scripts.leases, "test", now, Some(now))).unwrap();
        let results = call.results(&reply).map_err(|error| format!("{error:?}: {reply:?}"))?.results;
        let (entry, reply) = act.apply(&limit, self.states.get(&key).map(|state| &state[..]), now).unwrap();
        agree(&results, &vec![ActResult::Done(reply)])?;
        if let Some(entry) = entry {
            self.states.insert(key, entry.state);
        }
        Ok(match reply {
            LeaseReply::Purse(PurseReply::Send(marked)) => {
                self.words.insert(key, marked);
                if marked.word.kind == WordKind::Lease { "lease" } else { "return" }
            }
            LeaseReply::Purse(PurseReply::Credited) => "credited",
            _ => "nothing",
        })
    }

    /// Undoes one of the last charges, perhaps for the second time.
    fn undo_one(
        &mut self,
        scripts: &mut Scripts,
        rng: &mut Rng,
        key: BucketKey,
        now: Timestamp,
    ) -> Result<&'static str, String> {
        let place = if rng.bool() { 0 } else { rng.usize(0..8) };
        let last = self.charged.get(&key).and_then(|charged| charged.iter().nth_back(place));
        let Some(charged) = last.copied() else { return Ok("kept") };
        let charge = spend(key, Algorithm::Purse(charged.limit), charged.cost);
        let mut text = Vec::new();
        add_undone(&mut text, &charge, charged.at, now);
        let mut undo = redis::cmd("EVALSHA");
        undo.arg(&scripts.give_back).arg(1).arg(key_name("test", &key)).arg(text).arg(now.0);
        let (_, before, after): (redis::Value, redis::Value, redis::Value) =
            undo.query(&mut scripts.connection).unwrap();
        let undoing = self.undo(key, charged, now);
        agree(&(before != after), &matches!(undoing, Undoing::Undone | Undoing::DebtUndone))?;
        Ok(match undoing {
            Undoing::Kept => "kept",
            Undoing::DebtKept => "debt kept",
            Undoing::Undone => "undone",
            Undoing::DebtUndone => "debt undone",
        })
    }
}

#[test]
fn requests_acts_and_undone_charges_have_the_same_results_on_purses_in_rust_and_in_the_scripts() {
    let redis = Redis::start();
    let (mut scripts, mut kinds) = (Scripts::load(&redis, str::to_owned), HashMap::new());
    for seed in 0..short_or_long(300, 10_000) {
        play(&mut scripts, seed, &mut kinds).unwrap_or_else(|difference| panic!("{difference}"));
    }
    let of_acts = ["granted", "refused", "lease", "return", "credited", "nothing", "raised"];
    let of_undoing = ["undone", "kept", "debt undone", "debt kept", "in debt"];
    for kind in of_acts.into_iter().chain(of_undoing) {
        assert!(kinds.get(kind).is_some_and(|count| *count >= 100), "{kind}: {kinds:?}");
    }
}

#[test]
fn a_mistake_in_charges_and_their_undoing_is_found() {
    let redis = Redis::start();
    let mistakes = [
        (
            "bucket.left - cost + lacking, plus(bucket.since_mark, cost)",
            "bucket.left - cost + lacking, bucket.since_mark",
        ),
        ("plus(bucket.debt, lacking)", "bucket.debt"),
        ("charged <= bucket.undone_since or ", ""),
        ("charged > bucket.touched or ", ""),
        ("max(bucket.since_mark - cost, 0)", "bucket.since_mark"),
        ("or bucket.ends <= now then return false", "then return false"),
        ("local back = share_twin and min(cost, bucket.debt) or 0", "local back = 0"),
        ("plus(bucket.left, cost - back)", "plus(bucket.left, cost)"),
        ("if bucket.touched ~= charged then return false end", ""),
        ("max(bucket.share[1] - price(limit, back), 0), bucket.debt - back", "bucket.share[1], bucket.debt - back"),
        ("max(bucket.share[1] - price(limit, back), 0)", "max(bucket.share[1] - back, 0)"),
        ("bucket.debt - back", "bucket.debt"),
        ("97 + shared", "97"),
    ];
    for (right, wrong) in mistakes {
        assert!(script::take().contains(right), "{right}");
        let mut scripts = Scripts::load(&redis, |text| text.replace(right, wrong));
        let is_found = (0..300).any(|seed| play(&mut scripts, seed, &mut HashMap::new()).is_err());
        assert!(is_found, "`{wrong}` in place of `{right}`");
    }
}
