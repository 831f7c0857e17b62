//! Makes random schedules: a limit, requests, and faults.

use super::random::Random;

pub(super) const SECOND: u64 = 1_000_000;
pub(super) const END: u64 = 12 * SECOND;
const MILLISECOND: u64 = 1000;

/// A limit that three regions share, in whole tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ModelLimit {
    Window { limit: u64, window: u64 },
    Rate { burst: u64, per_second: u64 },
}

impl ModelLimit {
    pub(super) fn amount(self) -> u64 {
        match self {
            ModelLimit::Window { limit, .. } => limit,
            ModelLimit::Rate { burst, .. } => burst,
        }
    }
}

/// The way of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    ToHome,
    FromHome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disturbance {
    Lost,
    Doubled,
    Late,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Until a moment, a share of the messages of a region is disturbed, by up to `by` microseconds.
    Link {
        region: usize,
        link: Link,
        what: Disturbance,
        until: u64,
        percent: u64,
        by: u64,
    },
    /// The region's store loses everything.
    Flush {
        region: usize,
    },
    /// The region's store loses everything, and its clock is set so that the next word has the number that home knows last.
    RepeatNumber {
        region: usize,
    },
    SetClock {
        region: usize,
        by: i64,
    },
    SetHomeClock {
        by: i64,
    },
    /// The region's store comes back as it was some microseconds ago.
    Restore {
        region: usize,
        back: u64,
    },
    /// Home fails over to a server that lacks the last microseconds.
    RestoreHome {
        back: u64,
    },
    /// A file with a fifth of the share comes into force everywhere.
    Reload,
    /// An operator raises the limit at home by these tokens for some microseconds.
    Raise {
        tokens: u64,
        length: u64,
    },
}

#[derive(Clone, Debug)]
pub(super) struct Schedule {
    pub seed: u64,
    pub limit: ModelLimit,
    pub largest_cost: u64,
    /// The largest lease as a share of the limit, in percent.
    pub share: u64,
    /// How far the clocks of the regions are from that of home at the start.
    pub apart: [i64; 4],
    /// Whether there is a second store for the first region, by mistake.
    pub has_twin: bool,
    pub faults: Vec<(u64, Fault)>,
    /// Time, region and cost in tokens.
    pub requests: Vec<(u64, usize, u64)>,
}

impl Schedule {
    pub(super) fn random(seed: u64) -> Schedule {
        let random = &mut Random::new(seed);
        let limit = match random.percent(60) {
            true => {
                ModelLimit::Window { limit: random.one_of(&[8, 30, 60]), window: random.one_of(&[1, 3, 5]) * SECOND }
            }
            false => ModelLimit::Rate { burst: random.one_of(&[20, 60]), per_second: random.one_of(&[2, 10, 30]) },
        };
        let largest_cost = random.one_of(&[1, 1, 3]);
        let is_apart = random.percent(50);
        let mut apart = || if is_apart { signed(random.below(4000)) - 2000 } else { 0 } * signed(MILLISECOND);
        let apart = [apart(), apart(), apart(), apart()];
        let has_twin = random.percent(5);
        let share = random.one_of(&[5, 10, 25, 40]);
        let count = 1 + random.below(6);
        let mut faults: Vec<(u64, Fault)> = (0..count).map(|_| fault(random, limit)).collect();
        // A clock that is set back twice by a window would not believe the stored period, like any fixed window.
        let first = faults.iter().position(|(_, fault)| matches!(fault, Fault::SetHomeClock { .. }));
        let mut index = 0;
        faults.retain(|(_, fault)| {
            index += 1;
            !matches!(fault, Fault::SetHomeClock { .. }) || Some(index - 1) == first
        });
        let requests = requests(random, limit, largest_cost);
        Schedule { seed, limit, largest_cost, share, apart, has_twin, faults, requests }
    }
}

fn fault(random: &mut Random, limit: ModelLimit) -> (u64, Fault) {
    let (at, region) = (random.below(END), usize::try_from(random.below(3)).unwrap());
    let fault = match random.below(20) {
        kind @ 0..9 => Fault::Link {
            region,
            link: random.one_of(&[Link::ToHome, Link::FromHome]),
            what: [Disturbance::Lost, Disturbance::Doubled, Disturbance::Late][usize::try_from(kind % 3).unwrap()],
            until: at + (200 + random.below(5800)) * MILLISECOND,
            percent: random.one_of(&[20, 50, 100]),
            by: random.one_of(&[100, 600, 3000]) * MILLISECOND,
        },
        9..12 => {
            Fault::SetClock { region, by: random.one_of(&[-4000, -2000, -1000, -100, 2000]) * signed(MILLISECOND) }
        }
        12..14 => Fault::Flush { region },
        14 => Fault::RepeatNumber { region },
        15 => {
            let most = match limit {
                ModelLimit::Window { window, .. } => signed(window),
                ModelLimit::Rate { .. } => 4 * signed(SECOND),
            };
            Fault::SetHomeClock { by: (random.one_of(&[-4000, -1000, -100, 2000]) * signed(MILLISECOND)).max(-most) }
        }
        16 => Fault::Restore { region, back: random.one_of(&[100, 400, 1000, 4000]) * MILLISECOND },
        17 => Fault::RestoreHome { back: random.one_of(&[100, 400, 1000, 4000]) * MILLISECOND },
        18 => Fault::Reload,
        _ => Fault::Raise { tokens: random.one_of(&[1, 10]), length: random.one_of(&[1, 5]) * SECOND },
    };
    (at, fault)
}

/// Makes silence, steady demand around the limit, and crowds that want all of it at once, in turns.
fn requests(random: &mut Random, limit: ModelLimit, largest_cost: u64) -> Vec<(u64, usize, u64)> {
    let every = match limit {
        ModelLimit::Window { limit, window } => window / limit,
        ModelLimit::Rate { per_second, .. } => SECOND / per_second,
    };
    let (mut now, mut requests) = (0, Vec::new());
    while now < END && requests.len() < 500 {
        let (is_silent, is_crowd) = (random.percent(40), random.percent(40));
        let end = now + (200 + random.below(2300)) * MILLISECOND;
        let every = if is_crowd { 200 * MILLISECOND / limit.amount() } else { every / random.one_of(&[1, 2, 4]) };
        let mut left = 2 * limit.amount();
        while !is_silent && now < end && left > 0 {
            now += 1 + random.below(2 * every);
            left -= 1;
            requests.push((now, usize::try_from(random.below(4)).unwrap(), 1 + random.below(largest_cost)));
        }
        now = now.max(end);
    }
    requests
}

pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap()
}
