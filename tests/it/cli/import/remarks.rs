//! `tollgate import ratelimit` remarks on what it cannot convert, and reports files that the service refuses.

use super::calls::{play, read};
use super::trees::TREE;
use crate::support::tollgate;

#[test]
fn what_cannot_be_carried_over_is_named_with_its_place() {
    let file = r#"domain: shop
descriptors:
  - key: a
    detailed_metric: true
    rate_limit:
      name: one
      unit: minute
      requests_per_unit: 3
      replaces:
        - name: two
        - name: three
  - key: b
    value: x*
    value_to_metric: true
    quota_mode: true
    rate_limit: {unit: minute, requests_per_unit: 3}
    metadata: {name: x, 3: [y]}
    descriptors:
      - key: b
        rate_limit: {unit: minute, requests_per_unit: 3}
        descriptors:
          - {key: "b#2", rate_limit: {unit: minute, requests_per_unit: 3}}
      - {key: domain, rate_limit: {unit: minute, requests_per_unit: 3}}
      - {key: "k*", rate_limit: {unit: minute, requests_per_unit: 3}}
      - {key: "k|l", rate_limit: {unit: minute, requests_per_unit: 3}}
"#;
    let losses = read(&[file]).unwrap().losses;
    let places: Vec<String> = losses
        .iter()
        .map(|loss| {
            let line = loss.line();
            line.splitn(3, ": ").take(2).collect::<Vec<_>>().join(" ")
        })
        .collect();
    assert_eq!(
        places,
        [
            "1.yaml:4:22 descriptors[0].detailed_metric",
            "1.yaml:10:9 descriptors[0].rate_limit.replaces",
            "1.yaml:14:22 descriptors[1].value_to_metric",
            "1.yaml:15:17 descriptors[1].quota_mode",
            "1.yaml:17:15 descriptors[1].metadata",
            "1.yaml:22:13 descriptors[1].descriptors[0].descriptors[0]",
            "1.yaml:23:9 descriptors[1].descriptors[1]",
            "1.yaml:24:9 descriptors[1].descriptors[2]",
            "1.yaml:25:9 descriptors[1].descriptors[3]",
        ]
    );
    let text = read(&[file]).unwrap().text;
    // Each of them is in the file as well, and what is left decides as there.
    assert!(losses.iter().all(|loss| text.contains(&format!("# {}\n", loss.line()))), "{text}");
    let kept = file.split("    descriptors:\n").next().unwrap();
    assert_eq!(play(&[kept]).len(), 5);
}

#[test]
fn limits_keep_their_names_or_say_so() {
    let limit = |key: &str, name: &str| {
        format!("  - {{key: {key}, rate_limit: {{name: {name}, unit: minute, requests_per_unit: 3}}}}\n")
    };
    // The first descriptor would be named like the second one's limit.
    let file = "domain: d\ndescriptors:\n  - {key: fast, rate_limit: {unit: minute, requests_per_unit: 1}}\n"
        .to_owned()
        + &limit("a", "fast")
        + &limit("b", "fast")
        + &limit("c", "two words");
    let import = read(&[&file]).unwrap();
    let names: Vec<&str> = import.text.lines().filter_map(|line| line.strip_prefix("      - name: ")).collect();
    assert_eq!(names, ["\"fast-3\"", "\"fast\"", "\"fast-2\"", "\"two-words\""], "{}", import.text);
    let losses: Vec<String> = import.losses.iter().map(|loss| loss.line()).collect();
    for (loss, begin) in losses.iter().zip([
        "1.yaml:5:33: descriptors[2].rate_limit.name: the rule is named `fast-2`",
        "1.yaml:6:33: descriptors[3].rate_limit.name: the rule is named `two-words`",
    ]) {
        assert!(loss.starts_with(begin), "{loss}");
    }
    assert_eq!(losses.len(), 2, "{losses:?}");
}

#[test]
fn what_the_service_does_not_accept_is_a_problem() {
    let limit = |limit: &str| format!("domain: d\ndescriptors:\n  - {{key: a, rate_limit: {limit}}}\n");
    for (file, problem) in [
        ("descriptors: []\n".to_owned(), "1.yaml:1:1: domain: must be a name, is missing or empty"),
        ("domain: d\ndescriptors:\n  - {value: a}\n".to_owned(), "1.yaml:3:5: descriptors[0].key: must be a name"),
        (
            "domain: d\ndescriptors:\n  - {key: a, value: b}\n  - {key: a, value: b}\n".to_owned(),
            "1.yaml:4:5: descriptors[1]: `a_b` is there twice, as key and value with `_` between: first in 1.yaml:3",
        ),
        (limit("{unit: fortnight}"), "1.yaml:3:33: descriptors[0].rate_limit.unit: must be one of second, minute"),
        (limit("{requests_per_unit: 1}"), "1.yaml:3:26: descriptors[0].rate_limit.unit: missing"),
        (limit("{unlimited: true, unit: day}"), "rate_limit.unit: must not be there"),
        (
            limit("{unit: day, requests_per_unit: many}"),
            "requests_per_unit: must be a whole number from 0 to 4294967295",
        ),
        (limit("{unit: day, requestsperunit: 1}"), "descriptors[0].rate_limit.requestsperunit: unknown key"),
        (limit("{name: x, unit: day, replaces: [{name: x}]}"), "replaces[0].name: must be the name of another limit"),
        (limit("{name: x, unit: day, replaces: [{name: }]}"), "replaces[0].name: must not be empty"),
        ("domain: d\ndescriptors: [a, b]\n".to_owned(), "1.yaml:2:15: descriptors[0]: must be a mapping"),
        (
            "domain: d\ndescriptors:\n  - {key: a, share_threshold: true}\n".to_owned(),
            "share_threshold: is for values with",
        ),
        ("0.25: d\n".to_owned(), "unknown key"),
        ("'''\n".to_owned(), "1.yaml:"),
    ] {
        let problems = read(&[&file]).unwrap_err();
        assert!(problems.iter().any(|line| line.contains(problem)), "{problem}: {problems:?}");
    }
    // Of all files at once, each under its own name.
    let twice = "domain: d\ndescriptors: [{key: a}]\n";
    let problems = read(&[twice, "domain: d\ndescriptors: [{key: a}, {}]\n", twice]).unwrap_err();
    assert!(problems[1].ends_with(": first in 1.yaml:2"), "{problems:?}");
    let files: Vec<&str> = problems.iter().map(|line| line.split(':').next().unwrap()).collect();
    assert_eq!(files, ["2.yaml", "3.yaml"], "{problems:?}");
}

#[test]
fn the_command_prints_a_file_that_check_accepts() {
    let folder = tempfile::TempDir::new().unwrap();
    let (source, target) = (folder.path().join("shop.yaml"), folder.path().join("gateway.yaml"));
    std::fs::write(&source, format!("{TREE}    shadow_mode: false\n    metadata: {{a: b}}\n")).unwrap();
    let printed = tollgate(&["import", "ratelimit", source.to_str().unwrap()]);
    assert_eq!(printed.code, Some(0), "{}", printed.err);
    assert!(printed.err.contains("shop.yaml:39:15: descriptors[9].metadata: "), "{}", printed.err);
    assert!(printed.err.ends_with("\n1 remark\n"), "{}", printed.err);
    std::fs::write(&target, &printed.out).unwrap();
    let checked = tollgate(&["check", target.to_str().unwrap()]);
    assert_eq!((checked.code, &*checked.out), (Some(0), "ok\n"), "{}\n{}", checked.err, printed.out);
    let missing = tollgate(&["import", "ratelimit", "nowhere.yaml"]);
    assert_eq!((missing.code, missing.err.starts_with("nowhere.yaml: ")), (Some(1), true), "{}", missing.err);
}
