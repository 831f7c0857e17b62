//! Reports the measurements: Markdown tables of medians with the budgets beside them, and the same numbers as JSON.

use std::fmt;

use base::rfc3339::date_time;
use base::time::Clock;
use serde_json::{Value, json};

use super::bucket::{Limit, NARROW};
use super::load::{Keys, Measurement};
use super::subject::Implementation;
use super::{CALLERS, GREED};

const COLUMNS: &str = "ns per decision | decisions/s | Redis commands | client CPU µs | Redis CPU µs | failed";

/// One row: who was measured, on which keys, with how many callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    pub keys: Keys,
    pub callers: usize,
    pub implementation: Implementation,
}

/// The results of one round for a cell. Times are in microseconds. All numbers but the rate and the failures are for
/// each decision.
#[derive(Clone, Copy, Debug)]
struct Figures {
    rate: f64,
    calls: f64,
    client: f64,
    redis: f64,
    /// The percentage of requests without an answer.
    failed: f64,
}

impl Figures {
    fn new(measured: &Measurement) -> Figures {
        let decisions = float(measured.granted + measured.refused);
        Figures {
            rate: decisions / measured.took.seconds(),
            calls: float(measured.calls) / decisions,
            client: measured.client.as_secs_f64() * 1e6 / decisions,
            redis: measured.redis.as_secs_f64() * 1e6 / decisions,
            failed: 100.0 * float(measured.failed) / (decisions + float(measured.failed)),
        }
    }
}

#[derive(Debug)]
pub struct Report {
    head: Value,
    /// Each cell, with its results in each round.
    cells: Vec<(Cell, Vec<Figures>)>,
    over_grants: Vec<(Implementation, Measurement)>,
}

impl Report {
    pub fn new(redis: &str, rounds: u32, seconds: f64) -> Report {
        let head = json!({
            "date": date_time(Clock::system().wall()).date().to_string(),
            "machine": machine(),
            "redis": redis,
            "rounds": rounds,
            "seconds": seconds,
        });
        Report { head, cells: Vec::new(), over_grants: Vec::new() }
    }

    pub fn add(&mut self, cell: Cell, measured: Measurement) {
        let figures = Figures::new(&measured);
        match self.cells.iter_mut().find(|(other, _)| *other == cell) {
            Some((_, rounds)) => rounds.push(figures),
            None => self.cells.push((cell, vec![figures])),
        }
    }

    pub fn add_over_grant(&mut self, implementation: Implementation, measured: Measurement) {
        self.over_grants.push((implementation, measured));
    }

    fn rounds(&self, keys: Keys, callers: usize, implementation: Implementation) -> &[Figures] {
        let cell = Cell { keys, callers, implementation };
        self.cells.iter().find(|(other, _)| *other == cell).map_or(&[], |(_, rounds)| rounds)
    }

    /// Returns how many times as many decisions the store makes as the script that is called for each decision. The
    /// median over rounds.
    fn ratio(&self, keys: Keys, callers: usize) -> f64 {
        let ours = self.rounds(keys, callers, Implementation::Ours);
        let script = self.rounds(keys, callers, Implementation::EvalSha);
        median(ours.iter().zip(script).map(|(ours, script)| ours.rate / script.rate))
    }

    pub fn json(&self) -> Value {
        let cell = |(cell, rounds): &(Cell, Vec<Figures>)| {
            let figure = |figure: fn(&Figures) -> f64| median(rounds.iter().map(figure));
            json!({
                "implementation": cell.implementation.to_string(),
                "keys": cell.keys.to_string(),
                "callers": cell.callers,
                "decisions_per_second": figure(|figures| figures.rate),
                "commands": figure(|figures| figures.calls),
                "client_microseconds": figure(|figures| figures.client),
                "redis_microseconds": figure(|figures| figures.redis),
                "failed_percent": figure(|figures| figures.failed),
            })
        };
        let mut whole = self.head.clone();
        whole["cells"] = self.cells.iter().map(cell).collect();
        let over_grant = |(implementation, measured): &(Implementation, Measurement)| {
            let implementation = implementation.to_string();
            json!({"implementation": implementation, "percent": over_grant(measured)})
        };
        whole["over_grants"] = self.over_grants.iter().map(over_grant).collect();
        whole
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |name: &str| self.head[name].as_str().unwrap_or_default().to_owned();
        let (rounds, seconds) = (&self.head["rounds"], &self.head["seconds"]);
        let (date, machine, redis) = (text("date"), text("machine"), text("redis"));
        writeln!(f, "{date}, {machine}, Redis {redis}, one client thread, {rounds} rounds of {seconds} s")?;
        Keys::ALL.into_iter().try_for_each(|keys| self.speeds(f, keys))?;
        self.over_grants(f)?;
        self.budgets(f)
    }
}

/// Writes the tables.
impl Report {
    fn speeds(&self, f: &mut fmt::Formatter<'_>, keys: Keys) -> fmt::Result {
        writeln!(f, "\n| {keys} | callers | {COLUMNS} |\n|---|---|---|---|---|---|---|---|")?;
        let rows = CALLERS.into_iter().flat_map(|callers| Implementation::ALL.map(|each| (callers, each)));
        for (callers, implementation) in rows {
            let rounds = self.rounds(keys, callers, implementation);
            let figure = |figure: fn(&Figures) -> f64| median(rounds.iter().map(figure));
            let rate = figure(|figures| figures.rate);
            write!(f, "| {implementation} | {callers} | {:.0} | {rate:.0} | ", 1e9 / rate)?;
            write!(f, "{:.3} | {:.2} | ", figure(|figures| figures.calls), figure(|figures| figures.client))?;
            writeln!(f, "{:.2} | {:.0} % |", figure(|figures| figures.redis), figure(|figures| figures.failed))?;
        }
        Ok(())
    }

    fn over_grants(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Limit { per_second, burst }, (seconds, callers)) = (NARROW, GREED);
        let tried = format!("burst {burst}, {per_second}/s, {callers} callers, {seconds} s");
        writeln!(f, "\n| {tried} | asked | allowed | over-grant | failed |\n|---|---|---|---|---|")?;
        for (implementation, measured) in &self.over_grants {
            let Measurement { granted, refused, failed, .. } = *measured;
            let (asked, over) = (granted + refused + failed, over_grant(measured));
            writeln!(f, "| {implementation} | {asked} | {granted} | {over:+.1} % | {failed} |")?;
        }
        Ok(())
    }

    fn budgets(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n| Tollgate | | budget |\n|---|---|---|")?;
        let budgets =
            [(Keys::Hot, 64, "2.5"), (Keys::Hot, 256, "8.0"), (Keys::Own, 256, "1.5"), (Keys::Random, 256, "1.5")];
        for (keys, callers, budget) in budgets {
            let ratio = self.ratio(keys, callers);
            writeln!(f, "| decisions/s against EVALSHA, {keys}, {callers} callers | {ratio:.2} × | ≥ {budget} × |")?;
        }
        let hot = self.rounds(Keys::Hot, 64, Implementation::Ours);
        let calls = median(hot.iter().map(|figures| figures.calls));
        writeln!(f, "| Redis calls for each granted request, {}, 64 callers | {calls:.3} | ≤ 0.020 |", Keys::Hot)?;
        let ours = self.over_grants.iter().find(|(implementation, _)| *implementation == Implementation::Ours);
        let over = ours.map_or(f64::NAN, |(_, measured)| over_grant(measured).max(0.0));
        writeln!(f, "| over-grant | {over:.1} % | 0 % |")
    }
}

/// Returns how much was granted beyond the burst and the refill, in percent of both.
fn over_grant(measured: &Measurement) -> f64 {
    100.0 * (float(measured.granted) / f64::from(NARROW.burst + GREED.0 * NARROW.per_second) - 1.0)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    match (values.get(values.len().wrapping_sub(1) / 2), values.get(values.len() / 2)) {
        (Some(lower), Some(upper)) => f64::midpoint(*lower, *upper),
        _ => f64::NAN,
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of a few seconds are far below 2^53")]
fn float(count: u64) -> f64 {
    count as f64
}

fn machine() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split_once(": "));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{cores} cores of {}", model.map_or("unknown", |(_, model)| model))
}
