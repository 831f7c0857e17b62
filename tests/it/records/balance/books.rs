//! Compares what clients were granted with the records and with the buckets. All amounts are thousandths.

use std::collections::BTreeMap;

/// The meters of a site, in the order of [`Call::costs`].
pub const METERS: [&str; 4] = ["calls", "units", "work", "short"];
pub const UNITS: usize = 1;
pub const WORK: usize = 2;
pub const SHORT: usize = 3;

/// How much later than its client the gateway may notice the end of a call, and report its cost to the store, in microseconds.
pub const LATE: u64 = 1_000_000;

/// What a client saw of its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    Granted,
    Refused,
    /// No answer, or one that says that the store gave none: the call may have been charged.
    Unknown,
    /// The gateway was not reached.
    Nothing,
}

/// A call that was made.
#[derive(Clone, Debug)]
pub struct Call {
    pub user: String,
    pub gateway: usize,
    /// What it costs at each meter if it is granted. 0 for a meter that does not count it.
    pub costs: [u64; 4],
    /// When it was sent and answered, in microseconds of the machine's clock.
    pub time: [u64; 2],
    pub seen: Seen,
    /// The answer, or the error in its place, of an unknown call.
    pub answer: String,
}

/// What a fault may have changed.
#[derive(Clone, Copy, Debug)]
pub struct Loss {
    pub of: LossOf,
    /// When it began and ended, in microseconds of the machine's clock.
    pub time: [u64; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossOf {
    /// The records of calls of this gateway, which was killed. `time` begins with the last interval that it has written.
    Records(usize),
    /// What was settled by this gateway, which was killed, and perhaps not reported to the store.
    Settled(usize),
    /// What the store knew.
    Store,
    /// Calls to the store got no answer.
    Answers,
}

/// The sums of one subject of a meter, or what may differ in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    pub least: u64,
    pub most: u64,
}

/// What was found to be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    RecordedTooMuch,
    RecordedTooLittle,
    SpentTooMuch,
    SpentTooLittle,
    /// The bucket has more than the records, and no fault explains all of it.
    MoreSpent,
    LessSpent,
    /// More was recorded of a period than its limit.
    BeyondLimit,
    /// A period in which calls were refused has not the whole limit.
    PeriodNotFull,
    /// Lines count other requests than those that were granted or refused.
    WrongCount,
    /// What `tollgate records check` says is not what the lines and the bucket say.
    WrongCheck,
    ThresholdTwice,
    ThresholdMissing,
}

#[derive(Clone, Debug, Default)]
pub struct Books {
    pub calls: Vec<Call>,
    pub losses: Vec<Loss>,
}

/// What one subject of a meter has used, by the calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct Account {
    pub recorded: Bounds,
    pub spent: Bounds,
    /// How much more the bucket may have than the records.
    pub more: u64,
    /// How much less.
    pub less: u64,
}

impl Call {
    /// Whether it was under way at a moment of this time.
    fn is_in(&self, [begin, end]: [u64; 2]) -> bool {
        self.time[0] <= end && self.time[1] >= begin
    }
}

impl Books {
    fn is_lost(&self, call: &Call, meter: usize, of: LossOf) -> bool {
        let later = if meter == WORK { LATE } else { 0 };
        let in_time = |loss: &Loss| call.is_in([loss.time[0].saturating_sub(later), loss.time[1]]);
        self.losses.iter().any(|loss| loss.of == of && in_time(loss))
    }

    /// Whether no fault changes anything: then everything is equal to the unit.
    pub fn is_exact(&self) -> bool {
        self.losses.is_empty()
    }

    /// Returns the account of each meter and subject that was asked for.
    pub fn accounts(&self) -> BTreeMap<(usize, String), Account> {
        let mut accounts: BTreeMap<(usize, String), Account> = BTreeMap::new();
        for call in &self.calls {
            for (meter, cost) in call.costs.into_iter().enumerate().filter(|(_, cost)| *cost > 0) {
                let account = accounts.entry((meter, call.user.clone())).or_default();
                self.add(account, call, meter, cost);
            }
        }
        accounts
    }

    fn add(&self, account: &mut Account, call: &Call, meter: usize, cost: u64) {
        if matches!(call.seen, Seen::Refused | Seen::Nothing) {
            return;
        }
        let is_unrecorded = self.is_lost(call, meter, LossOf::Records(call.gateway));
        let is_forgotten = self.is_lost(call, meter, LossOf::Store)
            || meter == WORK && self.is_lost(call, meter, LossOf::Settled(call.gateway));
        let is_certain = call.seen == Seen::Granted;
        let is_unanswered = !is_certain && self.is_lost(call, meter, LossOf::Answers);
        account.recorded.most += cost;
        account.spent.most += cost;
        account.recorded.least += if is_certain && !is_unrecorded { cost } else { 0 };
        account.spent.least += if is_certain && !is_forgotten { cost } else { 0 };
        account.more += if is_unrecorded || is_unanswered { cost } else { 0 };
        account.less += if is_forgotten { cost } else { 0 };
    }

    /// Returns how many requests of a subject a meter has charged, at least and at most, and how many were refused with it.
    pub fn counts(&self, meter: usize, user: &str) -> (Bounds, u64) {
        let own = || self.calls.iter().filter(|call| call.user == user && call.costs[meter] > 0);
        let count = |seen: Seen| own().filter(|call| call.seen == seen).count() as u64;
        let granted = count(Seen::Granted);
        (Bounds { least: granted, most: granted + count(Seen::Unknown) }, count(Seen::Refused))
    }

    /// Returns what a period of the short limit must have recorded: at least what was granted in it for certain, at most what may
    /// have been granted in it. The second value is whether calls were refused in it.
    pub fn period(&self, user: &str, [begin, end]: [u64; 2]) -> (Bounds, bool) {
        let (mut bounds, mut is_refused) = (Bounds::default(), false);
        for call in
            self.calls.iter().filter(|call| call.user == user && call.costs[SHORT] > 0 && call.is_in([begin, end]))
        {
            let is_inside = call.time[0] > begin && call.time[1] < end;
            let is_unrecorded = self.is_lost(call, SHORT, LossOf::Records(call.gateway));
            match call.seen {
                Seen::Granted if is_inside && !is_unrecorded => bounds.least += call.costs[SHORT],
                Seen::Refused if is_inside => is_refused = true,
                _ => {}
            }
            if matches!(call.seen, Seen::Granted | Seen::Unknown) {
                bounds.most += call.costs[SHORT];
            }
        }
        (bounds, is_refused)
    }

    /// Returns the calls whose ends no fault explains. In these times members did not answer, although no call was lost.
    pub fn unexplained(&self, interruptions: &[[u64; 2]]) -> Vec<&Call> {
        let is_explained = |call: &Call| {
            let lost = self.losses.iter().map(|loss| loss.time);
            lost.chain(interruptions.iter().copied()).any(|time| call.is_in(time))
        };
        let is_odd = |call: &&Call| matches!(call.seen, Seen::Unknown | Seen::Nothing) && !is_explained(call);
        self.calls.iter().filter(is_odd).collect()
    }
}

impl Account {
    /// Compares the account with the sums of the records and with what the bucket has spent.
    pub fn findings(&self, recorded: u64, spent: u64) -> Vec<Finding> {
        [
            (recorded > self.recorded.most, Finding::RecordedTooMuch),
            (recorded < self.recorded.least, Finding::RecordedTooLittle),
            (spent > self.spent.most, Finding::SpentTooMuch),
            (spent < self.spent.least, Finding::SpentTooLittle),
            (spent > recorded + self.more, Finding::MoreSpent),
            (spent + self.less < recorded, Finding::LessSpent),
        ]
        .into_iter()
        .filter_map(|(is_found, finding)| is_found.then_some(finding))
        .collect()
    }
}
