//! Tests tables of prices: which line applies, the exact cost, and the reports about a wrong file.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    reason = "a test fails by panicking"
)]

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

use llm::prices::{NanoDollars, Prices};
use llm::usage::Usage;

fn prices(file: &str) -> Prices {
    Prices::parse(file.as_bytes()).unwrap()
}

#[test]
fn the_longest_pattern_and_the_length_of_the_prompt_choose_a_line() {
    let prices = prices(
        "model,input,output,above\n\
         # a comment, and a blank line\n\n\
         default,9,9,\n\
         gpt-4*,1,2,\n\
         gpt-4o*,3,4,\n\
         gpt-4o,5,6,\n\
         gpt-4o,7,8,1000\n\
         gpt-4o-mini,0,0,0\n",
    );
    let line = |model: &str, prompt: u64| prices.model(model).unwrap().line(prompt);
    assert_eq!(line("gpt-4.1", 0), 5);
    assert_eq!(line("gpt-4o-2024", 0), 6);
    assert_eq!([line("gpt-4o", 0), line("gpt-4o", 999), line("gpt-4o", 1000), line("gpt-4o", u64::MAX)], [7, 7, 8, 8]);
    assert_eq!(line("gpt-4o-mini", 5), 9);
    assert_eq!(line("GPT-4o", 5), 4);
    assert_eq!(line("default", 5), 4);
    assert_eq!(prices.model("gpt-4o-2024").unwrap().to_string(), "gpt-4o*");
    assert_eq!(prices.model("gpté").unwrap().to_string(), "default");
    // Cached tokens count in the length of the prompt, which selects the line of 1000 tokens.
    let usage = Usage { input: 1, output: 0, cached: 998, cache_write: 1 };
    assert_eq!(prices.model("gpt-4o").unwrap().cost(&usage), NanoDollars(7_000_000));
}

#[test]
fn a_line_can_be_the_price_of_every_other_model() {
    let table = prices("model,input,output\na,1,2\nb*,3,4\n");
    assert_eq!(table.count(), 2);
    assert!(table.clone().with_default("b").is_none());
    assert!(table.clone().with_default("default").is_none());
    let table = table.with_default("b*").unwrap();
    let of = |model: &str| table.model(model).unwrap().to_string();
    assert_eq!([of("a"), of("bc"), of("c"), of("")], ["a", "b*", "b*", "b*"]);
}

#[test]
fn the_most_that_a_request_costs_is_not_below_any_cost() {
    let table = prices("model,input,output,cached,cache_write,above\na,4,10,1,5,\na,2,20,1,1,100\n");
    let model = table.model("a").unwrap();
    // For a prompt below 100 tokens, tokens that are written to the cache have the highest price.
    assert_eq!(model.most(99, 7), NanoDollars(99 * 5_000 + 7 * 10_000));
    // From 100 tokens on, the second line of the table counts. Its output costs more.
    assert_eq!(model.most(100, 700), NanoDollars(100 * 2_000 + 700 * 20_000));
    for (prompt, output) in [(0, 0), (50, 3), (99, 500), (100, 0), (100, 1), (5_000, 70)] {
        for cached in [0, prompt / 2, prompt] {
            let most = model.most(prompt, output);
            let usage = Usage { input: prompt - cached, output, cached, cache_write: 0 };
            assert!(model.cost(&usage) <= most, "{prompt} {output} {cached}");
            let usage = Usage { input: prompt - cached, output, cached: 0, cache_write: cached };
            assert!(model.cost(&usage) <= most, "{prompt} {output} {cached}");
        }
    }
}

#[test]
fn a_cost_is_rounded_up_once() {
    let prices = prices("model,output,input,cached,cache_write\na,0.000000001,0.000000001,0.000000001,0\n");
    let cost =
        |input, output, cached| prices.model("a").unwrap().cost(&Usage { input, output, cached, cache_write: 5 }).0;
    assert_eq!([cost(0, 0, 0), cost(1, 0, 0), cost(1, 1, 1), cost(500_000, 499_999, 1)], [0, 1, 1, 1]);
    assert_eq!(cost(500_000, 500_000, 1), 2);
}

#[test]
fn a_cost_beyond_its_type_is_the_largest() {
    let prices = prices("model,input,output\na,1000000,1000000\n");
    let most = u64::MAX;
    let usage = Usage { input: most, output: most, cached: most, cache_write: most };
    assert_eq!(prices.model("a").unwrap().cost(&usage), NanoDollars(most));
}

#[track_caller]
fn check_wrong(file: &str, expected: &[&str]) {
    let faults: Vec<String> = Prices::parse(file.as_bytes()).unwrap_err().iter().map(ToString::to_string).collect();
    assert_eq!(faults, expected, "{file}");
}

#[test]
fn a_wrong_line_is_reported_with_what_must_hold_and_what_was_found() {
    let price = "must be USD for a million tokens, 0 to 1000000, with at most 9 digits after the point, found";
    check_wrong(
        "model,input,output,cached,cache_write,above\n\
         a,x,1,,,\nb,1,,,,\nc,1,1,-1,,\nd,1,1,1,1.0000000001,\ne,1,1,,,2k\nf,1,1\n,1,1,,,\ng*h,1,1,,,\ni,1,1,,,99999999999999999999\n",
        &[
            &format!("line 2: input {price} \"x\""),
            &format!("line 3: output {price} \"\""),
            &format!("line 4: cached {price} \"-1\""),
            &format!("line 5: cache_write {price} \"1.0000000001\""),
            "line 6: above must be a number of tokens, found \"2k\"",
            "line 7: must have 6 values, as the first line has, has 3",
            "line 8: model must be a name of at most 256 bytes, with * only at its end, found \"\"",
            "line 9: model must be a name of at most 256 bytes, with * only at its end, found \"g*h\"",
            "line 10: above must be a number of tokens, found \"99999999999999999999\"",
        ],
    );
    check_wrong(
        "model,input,output,above\na,1,1,\na,2,2,0\nb,1,1,500\nb,1,1,400\nc*,1,1,\n",
        &[
            "line 3: \"a\": must have one line above 0, line 2 is another",
            "line 5: \"b\": must have a line above 0 for shorter prompts, the first is above 400",
        ],
    );
    let columns = "model,input,output,cached,cache_write,above";
    check_wrong("", &[&format!("line 1: must name the columns: {columns}; the file is empty")]);
    check_wrong("\n# x\n", &[&format!("line 1: must name the columns: {columns}; the file is empty")]);
    check_wrong("\ngpt-4o,1,1\n", &[&format!("line 2: columns must be of {columns}, found \"gpt-4o\"")]);
    check_wrong("model,input,input\n", &["line 1: columns must be different, found \"input\" twice"]);
    check_wrong("model,input\n", &["line 1: columns must include output, found \"model,input\""]);
    let faults = Prices::parse(b"model,input,output\na,1,1\nb\xff,1,1\n").unwrap_err();
    assert_eq!(faults[0].to_string(), "line 3: must be UTF-8");
    let many = format!("model,input,output\n{}", "a,x,1\n".repeat(100));
    assert_eq!(Prices::parse(many.as_bytes()).unwrap_err().len(), 20);
}

/// Makes a table in which one pattern is the beginning of another.
fn random_table(random: &mut fastrand::Rng) -> String {
    let mut table = "model,input,output,cached,cache_write,above\n".to_owned();
    let price = |random: &mut fastrand::Rng| match random.u8(..4) {
        0 => random.u32(..200).to_string(),
        1 => format!("{}.{:02}", random.u32(..20), random.u32(..100)),
        2 => format!("0.{:09}", random.u32(..1_000_000_000)),
        _ => format!("{}.{}", random.u32(..=999_999), random.u32(..1000)),
    };
    for pattern in ["a", "a*", "ab", "ab*", "abc*", "b*", "*", "default"] {
        if random.u8(..3) == 0 {
            continue;
        }
        let mut above = 0;
        for tier in 0..random.u64(1..4) {
            let [cached, write] = [0; 2].map(|_| if random.bool() { price(random) } else { String::new() });
            let (input, output) = (price(random), price(random));
            let from = if tier == 0 && random.bool() { String::new() } else { above.to_string() };
            writeln!(table, "{pattern},{input},{output},{cached},{write},{from}").unwrap();
            above += random.u64(1..2000);
        }
    }
    table
}

#[test]
#[allow(clippy::print_stderr, reason = "says that nothing was compared")]
fn every_cost_is_that_of_an_independent_script() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/prices/recompute.py");
    if Command::new("python3").arg("--version").output().is_err() {
        assert!(std::env::var_os("CI").is_none(), "python3 is missing");
        eprintln!("NOT CHECKED: python3 is missing");
        return;
    }
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..20 {
        let table = random_table(&mut random);
        let prices = prices(&table);
        let (mut calls, mut expected) = (String::new(), String::new());
        for _ in 0..500 {
            let model = ["a", "ab", "abc", "abcd", "b", "c", "default"][random.usize(..7)];
            let [input, output, cached, cache_write] = [0; 4].map(|_| match random.u8(..4) {
                0 => 0,
                1 => random.u64(..100),
                2 => random.u64(..3000),
                _ => random.u64(..1_000_000_000),
            });
            let usage = Usage { input, output, cached, cache_write };
            writeln!(calls, "{model} {input} {output} {cached} {cache_write}").unwrap();
            match prices.model(model) {
                Some(found) => writeln!(expected, "{} {}", found.line(usage.prompt()), found.cost(&usage).0).unwrap(),
                None => expected.push_str("none\n"),
            }
        }
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(table.as_bytes()).unwrap();
        let mut child = Command::new("python3")
            .args([script, file.path().to_str().unwrap()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(calls.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected, "{table}");
    }
}
