//! The commands show where the costs of a budget come from, what it reserves, and which buckets a change starts again.

use crate::support::tollgate;

const RULES: &str = "
upstream: http://127.0.0.1:9000
check: {allow: [short_first_byte]}
rules:
  - name: pro
    limit_keys: [ip:address]
    limits:
      tokens: {rate: 1000/min, cost_source: llm_tokens, reserve: 50, weights: {output: 4, cached: 0.1}}
      named: {rate: 1000/min, cost_source: response_header:x-cost, reserve: 5, default_cost: 0}
      guesses: {rate: 10/min, count_on: [401, 5xx]}
";

/// Writes files with these rules into a folder, and returns their paths.
fn written<const FILES: usize>(folder: &tempfile::TempDir, rules: [&str; FILES]) -> [String; FILES] {
    let mut number = 0;
    rules.map(|rules| {
        number += 1;
        let file = folder.path().join(format!("{number}.yaml"));
        std::fs::write(&file, rules).unwrap();
        file.display().to_string()
    })
}

#[test]
fn an_explanation_has_the_source_of_a_cost_its_weights_and_its_reserve() {
    let folder = tempfile::tempdir().unwrap();
    let [file] = written(&folder, [RULES]);
    let page = tollgate(&["explain", "-c", &file, "-X", "POST", "/v1/chat/completions"]).out;
    for part in [
        "cost 50  1000/min burst 1000; cost from llm_tokens (input 1, output 4, cached 0.1, cache_write 1), reserve 50",
        "cost from response_header:x-cost, reserve 5, otherwise 0",
        "counts on [401, 5xx], reserve 1",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
}

#[test]
fn an_explanation_names_limits_on_models_that_do_not_count_the_request() {
    let folder = tempfile::tempdir().unwrap();
    let [file, charged] = written(&folder, [RULES, &RULES.replace("\nrules:", "\nllm: {other: 2}\nrules:")]);
    let page = tollgate(&["explain", "-c", &file, "/v1/chat/completions"]).out;
    assert!(page.contains("pro.tokens") && page.contains("no charge: the request asks no language model"), "{page}");
    assert!(!page.contains("reserve 50") && page.contains("reserve 5, otherwise 0"), "{page}");
    let json = tollgate(&["explain", "-c", &file, "--json", "/v1/chat/completions"]).out;
    let report: serde_json::Value = serde_json::from_str(&json).unwrap();
    let rule = &report["policies"][0]["rules"][0];
    assert_eq!(rule["no_model"], serde_json::json!(["pro.tokens"]), "{json}");
    assert_eq!(rule["charges"].as_array().map(Vec::len), Some(2), "{json}");
    let page = tollgate(&["explain", "-c", &charged, "-X", "POST", "/v1/files"]).out;
    assert!(page.contains("cost 2  1000/min burst 1000; cost from llm_tokens"), "{page}");
}

#[test]
fn a_replay_names_the_limits_that_it_leaves_out() {
    let folder = tempfile::tempdir().unwrap();
    let line = r#"192.0.2.7 - - [21/Nov/2026:12:00:00 +0000] "GET / HTTP/1.1" 200 5 "-" "-""#;
    let rules = RULES.replace("10/min", "1/min").replace(", count_on: [401, 5xx]", "");
    let [file, log] = written(&folder, [&rules, &format!("{line}\n{line}\n")]);
    let report = tollgate(&["replay", "-c", &file, &log]);
    assert_eq!(report.code, Some(0), "{report:?}");
    for part in [
        "default/pro.tokens leaves out 2 requests (100.0 %): the log does not tell what the response has cost",
        "default/pro.named leaves out 2 requests (100.0 %): the log does not tell what the response has cost",
        "1 refused",
    ] {
        assert!(report.out.contains(part), "{part}: {}", report.out);
    }
    assert!(!report.out.contains("pro.guesses leaves out"), "{}", report.out);
}

#[test]
fn a_check_against_the_old_file_names_changes_of_costs() {
    let folder = tempfile::tempdir().unwrap();
    let changed = RULES
        .replace("llm_tokens, reserve: 50, weights: {output: 4, cached: 0.1}", "response_header:x-tokens, reserve: 50")
        .replace("reserve: 5,", "reserve: 7,")
        .replace(", count_on: [401, 5xx]", "");
    let [old, new] = written(&folder, [RULES, &changed]);
    let changes = tollgate(&["check", "--against", &old, &new]).out;
    assert_eq!(
        changes,
        "buckets reset: policy default, limit pro.tokens: cost_source was llm_tokens, is response_header:x-tokens\n\
         buckets reset: policy default, limit pro.guesses: cost_source was count_on [401, 5xx], is not of the response\n\
         buckets kept: policy default, limit pro.named: was 1000/min burst 1000; cost from response_header:x-cost, \
         reserve 5, otherwise 0, is 1000/min burst 1000; cost from response_header:x-cost, reserve 7, otherwise 0; what was \
         spent stays spent\nok\n"
    );
}

#[test]
fn a_check_against_the_old_file_names_limits_that_reset_their_buckets_from_now_on() {
    let folder = tempfile::tempdir().unwrap();
    let changed = RULES.replace("count_on: [401, 5xx]", "count_on: [401, 5xx], reset_on: [2xx, OK]");
    let more = changed.replace("reset_on: [2xx, OK]", "reset_on: [200]");
    let [old, new, newer] = written(&folder, [RULES, &changed, &more]);
    let changes = |old: &str, new: &str| tollgate(&["check", "--against", old, new]).out;
    let limit = "buckets reset: policy default, limit pro.guesses: it has";
    assert_eq!(changes(&old, &new), format!("{limit} reset_on now\nok\n"));
    assert_eq!(changes(&new, &old), format!("{limit} no reset_on any more\nok\n"));
    let kept = changes(&new, &newer);
    assert!(kept.contains("counts on [401, 5xx], resets on [2xx, OK]") && kept.contains("resets on [200]"), "{kept}");
    assert!(!kept.contains("buckets reset"), "{kept}");
}

#[test]
fn a_limit_that_counts_money_from_now_on_starts_its_buckets_again() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("prices.csv"), "model,input,output\nm,1,2\n").unwrap();
    let rules = |limit: &str, source: &str| {
        format!(
            "
upstream: http://127.0.0.1:9000
prices: {{file: prices.csv}}
check: {{allow: [short_first_byte]}}
rules:
  - name: spend
    limit_keys: [ip:address]
    algorithm: fixed_window
    algorithm_config: {{limit: {limit}, window: 1h, cost_source: {source}, reserve: 0.5}}
"
        )
    };
    let [tokens, money, more] =
        written(&folder, [&*rules("100", "llm_tokens"), &*rules("100.50", "llm_cost"), &*rules("0.75", "llm_cost")]);
    let against = |old: &str, new: &str| tollgate(&["check", "--against", old, new]).out;
    assert_eq!(
        against(&tokens, &money),
        "buckets reset: policy default, limit spend: cost_source was llm_tokens, is llm_cost\nok\n"
    );
    assert_eq!(
        against(&money, &more),
        "buckets kept: policy default, limit spend: was 100.50 USD/1h; cost from llm_cost, reserve 0.50 USD, is \
         0.75 USD/1h; cost from llm_cost, reserve 0.50 USD; what was spent stays spent\nok\n"
    );
}

#[test]
fn an_explanation_has_the_form_of_a_reserve_and_its_amount_without_the_body() {
    let folder = tempfile::tempdir().unwrap();
    let reserves = [
        "{worst: {default_output: 200}}",
        "{from: request_json:/max|request_json:/b, plus: input, default: 300}",
        "{learn: 99.5%, by: llm:model, min: 5, default: 400}",
    ];
    let limits: Vec<String> = reserves
        .iter()
        .enumerate()
        .map(|(index, reserve)| {
            let reserve = reserve.replace("request_json:/max|request_json:/b", "\"request_json:/max|request_json:/b\"");
            format!("      l{index}: {{rate: 1000/min, cost_source: llm_tokens, weights: {{output: 4}}, reserve: {reserve}}}\n")
        })
        .collect();
    let rules = "upstream: http://127.0.0.1:9000\nrules:\n  - name: pro\n    limit_keys: [ip:address]\n    limits:\n";
    let [file] = written(&folder, [&format!("{rules}{}", limits.concat())]);
    let page = tollgate(&["explain", "-c", &file, "-X", "POST", "/v1/chat/completions"]).out;
    for part in [
        "cost 800  1000/min burst 1000",
        "reserve worst case, 200 tokens of output by default",
        "cost 300  1000/min burst 1000",
        "reserve from request_json:/max|request_json:/b plus input (without it 300)",
        "cost 400  1000/min burst 1000",
        "reserve learned, 99.5% by llm:model, 400 at first",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
}

#[test]
fn an_explanation_says_that_a_worst_case_in_money_depends_on_the_body() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("prices.csv"), "model,input,output\nm,1,2\n").unwrap();
    let rules = "
upstream: http://127.0.0.1:9000
prices: {file: prices.csv}
rules:
  - name: spend
    limit_keys: [ip:address]
    limits:
      month: {algorithm: fixed_window, limit: 250.00, window: month, cost_source: llm_cost, reserve: {worst: {default_output: 200}}}
      day: {algorithm: fixed_window, limit: 25.00, window: day, cost_source: llm_cost, reserve: 0.50}
";
    let [file] = written(&folder, [rules]);
    let page = tollgate(&["explain", "-c", &file, "-X", "POST", "/v1/chat/completions"]).out;
    for part in [
        "cost not known without the body  250.00 USD/month",
        "cost 0.50 USD                    25.00 USD/day",
        "PASSES if spend.month holds its worst case, which depends on the body and its model and spend.day holds 0.50 USD",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let json = tollgate(&["explain", "-c", &file, "--json", "-X", "POST", "/v1/chat/completions"]).out;
    let report: serde_json::Value = serde_json::from_str(&json).unwrap();
    let costs = &report["policies"][0]["rules"][0]["charges"];
    assert_eq!([&costs[0]["cost"], &costs[1]["cost"]], [&serde_json::Value::Null, &serde_json::json!(0.5)], "{json}");
}
