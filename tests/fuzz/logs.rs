//! Tests properties of the parsers of access logs, on any input.

use std::io::Cursor;
use std::path::Path;
use std::sync::Arc;

use super::mutation::fuzz;
use config::{Config, Environment};
use replay::entry::Format;
use replay::field_map::{FieldMap, FieldMapping};
use replay::line_reader::Lines;
use replay::merge::Merge;
use replay::result::SimulatedResult;
use replay::simulation::Simulation;

const FILE: &str = "\
upstream: http://127.0.0.1:9000
jwt: {algorithms: [HS256], keys: {secret: 0123456789abcdef0123456789abcdef}}
exempt: [{ip:address: {cidr: [10.0.0.0/8]}}]
policies:
  - name: plan
    rules:
      - {name: gold, match: {jwt:plan: gold}, limit_keys: [jwt:sub], limits: {second: {rps: 1, burst: 2}, day: {rate: 9/day}}}
      - {name: free, match: {path: /v1/*}, limit_keys: [\"jwt:sub|ip:address\"],
         algorithm_config: {rps: 1, burst: 2, cost_source: query:b, max_cost: 2, shadow: {rps: 1, burst: 1}}}
";

#[test]
fn log_line() {
    let words: &[&[u8]] = &[
        b"{",
        b"}",
        b"\"",
        b":",
        b",",
        b"\\",
        b"\\x22",
        b" [",
        b"] ",
        b" - - ",
        b"HTTP/1.1",
        b"\n",
        b"null",
        b"1e9",
        b"-",
        b"\"limits\":[",
        b"\"attributes\":{",
        b"\"reason\":\"denied\"",
        b"\"decision_us\":",
        b"GET ",
        b"%2f",
        b"9999",
    ];
    let read = |_: &Path| Err(std::io::ErrorKind::NotFound.into());
    let surroundings = Environment { variable: &|_| None, folder: Path::new(""), read: &read };
    let config = Config::parse("gateway.yaml", FILE.as_bytes(), surroundings).unwrap_or_else(|wrong| panic!("{wrong}"));
    let map = "time=ts,ip:address=client,method=req.method,path=req.uri,jwt:sub=user.id,jwt:plan=user.plan,host=vhost";
    let map: Vec<_> = map.split(',').map(|member| FieldMapping::parse(member).unwrap()).collect();
    let formats =
        [Format::Detect, Format::Combined, Format::Own, Format::Mapped(Arc::new(FieldMap::new(&map).unwrap()))];
    fuzz("log-line", words, |bytes| {
        formats.clone().map(|format| {
            let lines = Lines::over("log", Cursor::new(bytes.to_vec())).unwrap();
            let mut merge = Merge::new([(lines, format)]);
            let mut trial = Simulation::new(&config, None, &[]);
            let (mut last, mut fates) = (None, [0u8; 3]);
            // Bytes that begin like gzip but are invalid cause an error of reading.
            while let Ok(Some(entry)) = merge.advance() {
                assert!(last <= Some(entry.at), "time steps back");
                last = Some(entry.at);
                let index = match trial.decide(&entry, None) {
                    SimulatedResult::Allowed => 0,
                    SimulatedResult::Refused => 1,
                    SimulatedResult::Undecided => 2,
                };
                fates[index] = fates[index].saturating_add(1);
            }
            let counts = [trial.counts.allowed, trial.counts.refused, trial.counts.undecided];
            let seen = &merge.counts;
            assert!(counts.iter().sum::<u64>() + seen.unreadable + seen.before_rules <= seen.lines);
            assert_eq!(seen.unreadable > 0, seen.first_unreadable.is_some());
            // The length of the message distinguishes one fault from another.
            let why = seen.first_unreadable.as_ref().map(|why| why.len().min(60));
            (fates, trial.counts.open.len(), trial.counts.as_logged.len(), why)
        })
    });
}
