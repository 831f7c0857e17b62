//! Counts amounts that need not be whole, such as costs, and writes them in Prometheus' text format.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use metrics::Key;

use ledger::cost::Cost;
use rules::settled_price::Unit;

/// The sum of the costs at one budget.
#[derive(Debug)]
pub(super) struct AmountCells {
    unit: Unit,
    /// The sum in thousandths of a [`Cost`].
    thousandths: AtomicU64,
}

/// Counts costs. Copies of the counter add to the same series.
#[derive(Clone, Debug)]
pub(crate) struct AmountCounter(Arc<AmountCells>);

impl AmountCounter {
    pub(super) fn new(cells: Arc<AmountCells>) -> AmountCounter {
        AmountCounter(cells)
    }

    /// Returns a counter that belongs to no series.
    pub(crate) fn noop(unit: Unit) -> AmountCounter {
        AmountCounter(Arc::new(AmountCells::new(unit)))
    }

    pub(crate) fn add(&self, cost: Cost) {
        self.0.thousandths.fetch_add(cost.thousandths(), Ordering::Relaxed);
    }
}

impl AmountCells {
    pub(super) fn new(unit: Unit) -> AmountCells {
        AmountCells { unit, thousandths: AtomicU64::new(0) }
    }

    /// Returns the sum in its unit.
    pub(super) fn amount(&self) -> f64 {
        self.unit.number(Cost::from_thousandths(self.thousandths.load(Ordering::Relaxed)))
    }

    /// Writes the line of the series.
    pub(super) fn write(&self, text: &mut String, name: &str, key: &Key) {
        let escaped = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let labels = key.labels().map(|label| format!("{}=\"{}\"", label.key(), escaped(label.value())));
        let labels: Vec<String> = labels.collect();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name}{{{}}} {}", labels.join(","), self.amount());
    }
}
