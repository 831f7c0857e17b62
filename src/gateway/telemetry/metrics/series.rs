//! Keeps every series, and forgets the series of rules, policies and issuers that a reload has removed.
//!
//! Removed series stay for two scrapes of `/metrics`, so that their last values are scraped. Without scrapes, later
//! reloads remove them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use metrics::Key;

use super::amounts::AmountCells;
use super::histogram_cells::HistogramCells;

/// The number of scrapes for which a removed series stays.
const SCRAPES: u8 = 2;
/// The number of removed series that may always wait for scrapes.
const WAITING: usize = 200;

/// All series of the process, by the name of their metric and their labels.
#[derive(Debug, Default)]
pub(super) struct SeriesTable {
    by_name: BTreeMap<&'static str, HashMap<Key, Series>>,
    /// The sum of the forgotten counters of each metric.
    forgotten: BTreeMap<&'static str, u64>,
    /// The number of the current configuration.
    config: u32,
}

#[derive(Debug)]
struct Series {
    cells: Cells,
    lifetime: Lifetime,
}

/// The memory that holds the value of a series. The handles of metrics share this memory, and may still change it after the
/// series was removed.
#[derive(Clone, Debug)]
pub(super) enum Cells {
    Counter(Arc<AtomicU64>),
    Gauge(Arc<AtomicU64>),
    Histogram(Arc<HistogramCells>),
    Amount(Arc<AmountCells>),
}

/// How long a series stays in `/metrics`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lifetime {
    Process,
    /// The series stays while the configuration with this number is in force, or a later configuration that also has the
    /// series.
    Config(u32),
    /// The series stays for `scrapes` more scrapes. The configuration with the number `by` no longer has this series.
    Removed {
        by: u32,
        scrapes: u8,
    },
}

impl SeriesTable {
    /// Returns the memory of a series, and adds the series if it does not exist. A series that was removed but not yet
    /// forgotten continues with its old value.
    pub(super) fn get_or_add(
        &mut self,
        name: &'static str,
        key: Key,
        lifetime: Lifetime,
        new: impl FnOnce() -> Cells,
    ) -> &Cells {
        let by_labels = self.by_name.entry(name).or_default();
        let series = by_labels.entry(key).or_insert_with(|| Series { cells: new(), lifetime });
        if series.lifetime != Lifetime::Process {
            series.lifetime = lifetime;
        }
        &series.cells
    }

    /// Gives a new lifetime to those series of a metric for which `stays` returns true.
    pub(super) fn renew(&mut self, name: &str, lifetime: Lifetime, stays: impl Fn(&Key) -> bool) {
        for (key, series) in self.by_name.get_mut(name).into_iter().flatten() {
            if series.lifetime != Lifetime::Process && stays(key) {
                series.lifetime = lifetime;
            }
        }
    }

    /// Returns all series of the metric with this name.
    pub(super) fn of(&self, name: &str) -> impl Iterator<Item = (&Key, &Cells)> {
        self.by_name.get(name).into_iter().flatten().map(|(key, series)| (key, &series.cells))
    }

    /// Returns the sum of the series of a counter that were forgotten.
    pub(super) fn forgotten(&self, name: &str) -> u64 {
        self.forgotten.get(name).copied().unwrap_or_default()
    }

    /// Returns all series, grouped by metric.
    pub(super) fn all(&self) -> Vec<(&'static str, Key, Cells)> {
        let all = self.by_name.iter().flat_map(|(name, by_labels)| {
            by_labels.iter().map(|(key, series)| (*name, key.clone(), series.cells.clone()))
        });
        all.collect()
    }

    /// Returns all series, grouped by metric. Counts as a scrape: removed series that have been shown often enough are
    /// forgotten.
    pub(super) fn scrape(&mut self) -> Vec<(&'static str, Key, Cells)> {
        let all = self.all();
        self.retain(|_, _, lifetime| match lifetime {
            Lifetime::Removed { scrapes, .. } => {
                *scrapes = scrapes.saturating_sub(1);
                *scrapes > 0
            }
            Lifetime::Process | Lifetime::Config(_) => true,
        });
        all
    }

    /// Removes the series that only configurations with a lower number have.
    ///
    /// Of the removed series that wait for scrapes, the newest are kept: at most as many as there are series in force,
    /// or [`WAITING`] if that is more.
    pub(super) fn reloaded(&mut self, config: u32) {
        self.config = config;
        let (mut in_force, mut removed) = (0, BTreeMap::<u32, usize>::new());
        for series in self.by_name.values_mut().flat_map(HashMap::values_mut) {
            if matches!(series.lifetime, Lifetime::Config(number) if number != config) {
                series.lifetime = Lifetime::Removed { by: config, scrapes: SCRAPES };
            }
            match series.lifetime {
                Lifetime::Process => {}
                Lifetime::Config(_) => in_force += 1,
                Lifetime::Removed { by, .. } => *removed.entry(by).or_default() += 1,
            }
        }
        let (mut waiting, mut oldest) = (0, config);
        for (by, count) in removed.into_iter().rev() {
            waiting += count;
            // Series that this reload has removed stay, because they cannot have been scraped yet.
            if by != config && waiting > in_force.max(WAITING) {
                break;
            }
            oldest = by;
        }
        self.retain(|_, _, lifetime| !matches!(lifetime, Lifetime::Removed { by, .. } if *by < oldest));
    }

    /// Removes the series for which `goes` returns true. Counters are kept for two more scrapes. Other series are
    /// forgotten at once.
    pub(super) fn forget(&mut self, goes: impl Fn(&Key) -> bool) {
        let by = self.config;
        let is_removed = |series: &&Series| matches!(series.lifetime, Lifetime::Removed { .. });
        let mut waiting = self.by_name.values().flat_map(HashMap::values).filter(is_removed).count();
        self.retain(|key, cells, lifetime| {
            if !goes(key) {
                return true;
            }
            let is_kept = matches!(cells, Cells::Counter(_)) && waiting < WAITING;
            waiting += usize::from(is_kept);
            *lifetime = Lifetime::Removed { by, scrapes: SCRAPES };
            is_kept
        });
    }

    fn retain(&mut self, mut stays: impl FnMut(&Key, &Cells, &mut Lifetime) -> bool) {
        for (name, by_labels) in &mut self.by_name {
            by_labels.retain(|key, series| {
                let stays = stays(key, &series.cells, &mut series.lifetime);
                if let (false, Cells::Counter(cell)) = (stays, &series.cells) {
                    *self.forgotten.entry(name).or_default() += cell.load(Ordering::Relaxed);
                }
                stays
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reloads to a configuration that has these series of one metric.
    fn reload(table: &mut SeriesTable, config: u32, names: &[&str]) {
        for name in names {
            counter(table, Lifetime::Config(config), name);
        }
        table.reloaded(config);
    }

    fn counter(table: &mut SeriesTable, lifetime: Lifetime, name: &str) -> Arc<AtomicU64> {
        let cells =
            table.get_or_add("total", Key::from_name(name.to_owned()), lifetime, || Cells::Counter(Arc::default()));
        let Cells::Counter(cell) = cells else { panic!("{cells:?}") };
        Arc::clone(cell)
    }

    fn names(table: &SeriesTable) -> Vec<&str> {
        let mut names: Vec<_> = table.of("total").map(|(key, _)| key.name()).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn a_removed_series_is_scraped_twice_more_and_then_forgotten() {
        let mut table = SeriesTable::default();
        counter(&mut table, Lifetime::Process, "process");
        reload(&mut table, 0, &["stays", "goes"]);
        for _ in 0..5 {
            assert_eq!(table.scrape().len(), 3);
        }
        let handle = counter(&mut table, Lifetime::Config(0), "goes");
        handle.store(7, Ordering::Relaxed);
        reload(&mut table, 1, &["stays"]);
        for _ in 0..2 {
            assert_eq!(table.scrape().len(), 3);
        }
        assert_eq!(names(&table), ["process", "stays"]);
        assert_eq!(table.scrape().len(), 2);
        assert_eq!((table.forgotten("total"), table.forgotten("other")), (7, 0));
        // A request that began before the reload still changes the counter. This does not bring the series back.
        handle.fetch_add(1, Ordering::Relaxed);
        assert_eq!(names(&table), ["process", "stays"]);
        // When the rule is added again, its series begins at 0.
        reload(&mut table, 2, &["stays", "goes"]);
        assert_eq!(counter(&mut table, Lifetime::Config(2), "goes").load(Ordering::Relaxed), 0);
    }

    #[test]
    fn counters_of_what_is_gone_are_scraped_twice_more_and_go_on_if_it_returns() {
        let mut table = SeriesTable::default();
        counter(&mut table, Lifetime::Process, "stays");
        counter(&mut table, Lifetime::Process, "node").store(3, Ordering::Relaxed);
        table.get_or_add("up", Key::from_name("node"), Lifetime::Process, || Cells::Gauge(Arc::default()));
        table.forget(|key| key.name() == "node");
        assert_eq!((names(&table), table.of("up").count()), (vec!["node", "stays"], 0));
        table.scrape();
        // The series is used again.
        assert_eq!(counter(&mut table, Lifetime::Process, "node").load(Ordering::Relaxed), 3);
        for _ in 0..5 {
            table.scrape();
        }
        assert_eq!(names(&table), ["node", "stays"]);
        table.forget(|key| key.name() == "node");
        table.scrape();
        table.scrape();
        assert_eq!((names(&table), table.forgotten("total")), (vec!["stays"], 3));
    }

    #[test]
    fn however_much_goes_without_a_scrape_little_is_kept() {
        let mut table = SeriesTable::default();
        for number in 0..1_000 {
            let name = format!("node{number}");
            counter(&mut table, Lifetime::Process, &name);
            table.forget(|key| key.name() == name);
        }
        assert_eq!(names(&table).len(), WAITING);
        table.scrape();
        table.scrape();
        assert_eq!(names(&table), [""; 0]);
    }

    #[test]
    fn a_series_that_returns_before_it_is_forgotten_keeps_its_value() {
        let mut table = SeriesTable::default();
        reload(&mut table, 0, &["a"]);
        counter(&mut table, Lifetime::Config(0), "a").store(3, Ordering::Relaxed);
        for config in [1, 3, 5] {
            reload(&mut table, config, &[]);
            table.scrape();
            reload(&mut table, config + 1, &["a"]);
            for _ in 0..5 {
                table.scrape();
            }
            assert_eq!(counter(&mut table, Lifetime::Config(config + 1), "a").load(Ordering::Relaxed), 3, "{config}");
        }
        assert_eq!(table.forgotten("total"), 0);
    }

    #[test]
    fn without_scrapes_no_more_removed_series_are_kept_than_are_in_force() {
        let mut table = SeriesTable::default();
        for config in 0..10 {
            let rename = |number: usize| if number < 100 { format!("{config}-{number}") } else { number.to_string() };
            let all: Vec<_> = (0..300).map(rename).collect();
            reload(&mut table, config, &all.iter().map(String::as_str).collect::<Vec<_>>());
            assert_eq!(names(&table).len(), 300 + 100 * usize::try_from(config.min(3)).unwrap());
        }
        assert!(names(&table).contains(&"6-0") && !names(&table).contains(&"5-0"));
        // All series that the last reload removed stay.
        reload(&mut table, 10, &["a"]);
        assert_eq!(names(&table).len(), 301);
        // Only some series of earlier reloads stay.
        for config in 11..14 {
            reload(&mut table, config, &[]);
            assert_eq!(names(&table), ["a"]);
        }
        table.scrape();
        table.scrape();
        assert_eq!(names(&table), [""; 0]);
    }

    #[test]
    fn series_of_a_configuration_that_never_came_into_force_are_removed() {
        let mut table = SeriesTable::default();
        reload(&mut table, 0, &["a"]);
        counter(&mut table, Lifetime::Config(1), "never");
        counter(&mut table, Lifetime::Config(1), "a");
        reload(&mut table, 1, &["a"]);
        reload(&mut table, 2, &["a"]);
        table.scrape();
        table.scrape();
        assert_eq!(names(&table), ["a"]);
    }
}
