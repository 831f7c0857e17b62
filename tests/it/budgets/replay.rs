//! A replay of a gateway's own log decides about budgets as the gateway did.

use config::Config;
use decision::access_log_line::Kind;
use replay::entry::{EntrySource, Format};
use replay::line_reader::Lines;
use replay::merge::Merge;
use replay::result::SimulatedResult;
use replay::simulation::Simulation;

use super::{budget, get, upstream};
use crate::support::{Gateway, eventually};

/// Each request begins when the one before has been settled, so the order of the log is that of the decisions.
#[test]
fn a_replay_of_a_gateways_log_repeats_its_decisions() {
    let (upstream, _finish) = upstream::start();
    let numbers = budget().replace("limit: 1000", "limit: 40");
    let gateway = Gateway::start(&upstream, &format!("access_log: {{to: access.jsonl}}{numbers}"));
    let paths = [
        "/cost/7.5",
        "/cost/0",
        "/nothing",
        "/cost/20",
        "/cost/2/status/500",
        "/cost/4",
        "/cost/30",
        "/cost/1",
        "/free",
    ];
    let statuses: Vec<u16> = paths
        .iter()
        .map(|path| {
            let status = get(&gateway, path, "ann").status;
            gateway.expect("rate_limiter_held", &["rule=\"spend\""], 0.0);
            status
        })
        .collect();
    // 7.5, 0, 3 by default, 20, 2, and 4: of 40 less is left than the reservation of 5.
    assert_eq!(statuses, [200, 200, 200, 200, 500, 200, 429, 429, 200]);
    let file = gateway.file("access.jsonl");
    eventually("every line is there", || {
        std::fs::read_to_string(&file).unwrap_or_default().lines().count() == paths.len()
    });
    let config = Config::load(&gateway.file("gateway.yaml")).unwrap_or_else(|problems| panic!("{problems}"));
    let mut trial = Simulation::new(&config, None, &[]);
    let mut merge = Merge::new([(Lines::open(file.to_str().unwrap()).unwrap(), Format::Detect)]);
    while let Some(entry) = merge.advance().unwrap() {
        let fate = trial.decide(&entry, None);
        let EntrySource::Own(logged) = &entry.source else { panic!("{entry:?}") };
        let expected = if logged.kind == Kind::Refused { SimulatedResult::Refused } else { SimulatedResult::Allowed };
        assert_eq!(fate, expected, "{entry:?}");
    }
    assert_eq!((trial.counts.refused, trial.counts.left_out.len()), (2, 0));
}
