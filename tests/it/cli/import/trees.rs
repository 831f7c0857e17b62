//! Files of various shapes: after the import, each descriptor is decided as by the service.

use super::calls::play;

pub const TREE: &str = r#"
domain: shop
descriptors:
  # A value with limits below it only.
  - key: region
    value: north
    descriptors:
      - key: user
        rate_limit: {unit: second, requests_per_unit: 2}
      - key: user
        value: alice
        rate_limit: {unit: SECOND, requests_per_unit: 4}
  - key: tenant
    rate_limit: {unit: minute, requests_per_unit: 3}
  - key: tenant
    value: big
    rate_limit: {unit: minute, requests_per_unit: 6}
  # Listed without a limit: it has none.
  - key: tenant
    value: friend
  - key: batch
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: daily
    value: report
    rate_limit: {name: report, unit: day, requests_per_unit: 5}
    descriptors:
      - key: part
        value: first
        rate_limit: {unit: week, requests_per_unit: 7}
  - key: free
    rate_limit: {unlimited: true}
  - key: closed
    rate_limit: {unit: second, requests_per_unit: 0}
  - key: month
    rate_limit: {unit: month, requests_per_unit: 9}
  - key: yearly
    rate_limit: {unit: year}
"#;

/// Checks that these files are imported without remarks, and that every call is decided as by the service.
#[track_caller]
fn check(files: &[&str]) {
    assert_eq!(play(files), [] as [&str; 0]);
}

#[test]
fn a_tree_decides_as_there() {
    check(&[TREE]);
}

#[test]
fn what_is_chosen_first_is_never_left_again() {
    let file = r#"
domain: shop
descriptors:
  - key: a
    value: one
    descriptors:
      - key: b
        value: one
        rate_limit: {unit: minute, requests_per_unit: 2}
      - {key: c}
  - key: a
    value: o*
    descriptors:
      - key: c
        rate_limit: {unit: minute, requests_per_unit: 4}
  - key: a
    rate_limit: {unit: minute, requests_per_unit: 5}
    descriptors:
      - key: b
        rate_limit: {unit: minute, requests_per_unit: 3}
        descriptors:
          - key: c
            rate_limit: {unit: minute, requests_per_unit: 1}
      - key: c
        rate_limit: {unit: minute, requests_per_unit: 6}
"#;
    check(&[file]);
}

#[test]
fn a_shadow_never_refuses_and_hides_what_is_below() {
    let file = r#"
domain: shop
descriptors:
  - key: a
    value: one
    rate_limit: {unit: minute, requests_per_unit: 2}
    shadow_mode: true
  - key: a
    value: none
    rate_limit: {unit: minute, requests_per_unit: 0}
    shadow_mode: true
  - key: a
    rate_limit: {unit: minute, requests_per_unit: 3}
  - key: b
    value: two
    descriptors:
      - {key: c, value: x, rate_limit: {unit: second, requests_per_unit: 1}, shadow_mode: true}
      - {key: c, rate_limit: {unit: second, requests_per_unit: 1}}
"#;
    check(&[file]);
}

#[test]
fn patterns_are_tried_in_their_order_between_values_and_the_rest() {
    let file = r#"
domain: shop
descriptors:
  - {key: end, value: foo*, rate_limit: {unit: minute, requests_per_unit: 2}}
  - {key: end, value: foox, rate_limit: {unit: minute, requests_per_unit: 4}}
  - {key: end, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: middle, value: bar*b, rate_limit: {unit: minute, requests_per_unit: 3}}
  - {key: middle, value: ba*, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: several, value: "f.o*b(r*baz", rate_limit: {unit: minute, requests_per_unit: 3}}
  - {key: begin, value: "*$x", rate_limit: {unit: minute, requests_per_unit: 3}}
  - {key: all, value: "*", rate_limit: {unit: minute, requests_per_unit: 3}}
  - {key: all, rate_limit: {unit: minute, requests_per_unit: 1}}
  - key: nested
    value: one
    descriptors:
      - {key: end, value: goo*, rate_limit: {unit: minute, requests_per_unit: 3}}
"#;
    check(&[file]);
}

#[test]
fn values_of_a_pattern_are_counted_together_where_the_file_says_so() {
    let file = r#"
domain: shop
descriptors:
  - {key: files, value: files/*, share_threshold: true, rate_limit: {unit: minute, requests_per_unit: 6}}
  - key: nested
    value: parent
    descriptors:
      - {key: files, value: nested/*, share_threshold: true, rate_limit: {unit: minute, requests_per_unit: 4}}
  - key: route
    value: api/*
    share_threshold: true
    descriptors:
      - {key: method, rate_limit: {unit: minute, requests_per_unit: 3}}
  - key: path
    value: path/*
    share_threshold: true
    descriptors:
      - key: file
        value: file/*
        descriptors:
          - {key: type, rate_limit: {unit: minute, requests_per_unit: 2}}
      - key: resource
        value: res*v2
        share_threshold: true
        descriptors:
          - {key: action, rate_limit: {unit: minute, requests_per_unit: 2}}
  - {key: both, value: test1, rate_limit: {unit: minute, requests_per_unit: 2}}
  - {key: both, value: test*, share_threshold: true, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: many, value: s*e*r, share_threshold: true, rate_limit: {unit: minute, requests_per_unit: 5}}
"#;
    check(&[file]);
}

#[test]
fn files_of_one_domain_are_one_tree_and_domains_are_apart() {
    let more = "domain: shop\ndescriptors:\n  - {key: extra, rate_limit: {unit: minute, requests_per_unit: 2}}\n";
    let other = "domain: other\ndescriptors:\n  - {key: tenant, rate_limit: {unit: minute, requests_per_unit: 1}}\n";
    let remarks = play(&[TREE, more]);
    assert_eq!(remarks.len(), 1, "{remarks:?}");
    assert!(remarks[0].starts_with("2.yaml:1:9: domain: `shop` is the domain of 1.yaml:2 too"), "{remarks:?}");
    assert!(remarks[0].ends_with("unless MERGE_DOMAIN_CONFIG is set"), "{remarks:?}");
    check(&[other, TREE, "domain: empty\ndescriptors:\n"]);
}

/// `generic_key` is the key of every entry whose value is written in a route.
#[test]
fn a_key_may_be_on_several_levels() {
    let file = r#"
domain: shop
descriptors:
  - key: generic_key
    value: one
    descriptors:
      - key: generic_key
        rate_limit: {unit: minute, requests_per_unit: 2}
        descriptors:
          - {key: generic_key, value: t*, rate_limit: {unit: minute, requests_per_unit: 3}}
          - key: user
            descriptors:
              - {key: generic_key, rate_limit: {unit: minute, requests_per_unit: 1}}
      - {key: generic_key, value: two}
      - {key: generic_key, value: three, rate_limit: {unit: minute, requests_per_unit: 4}}
  - key: generic_key
    rate_limit: {unit: minute, requests_per_unit: 5}
  - key: a/b
    descriptors:
      - {key: a/b, value: one, rate_limit: {unit: minute, requests_per_unit: 2}}
      - {key: a/b}
"#;
    check(&[file]);
}

#[test]
fn keys_with_a_slash_are_not_two_keys() {
    let file = r#"
domain: shop
descriptors:
  - {key: a/b, value: one, rate_limit: {unit: minute, requests_per_unit: 2}}
  - {key: a/b, value: two}
  - {key: a/b, rate_limit: {unit: minute, requests_per_unit: 3}}
  - key: a
    descriptors:
      - {key: b, value: one}
      - {key: b, rate_limit: {unit: minute, requests_per_unit: 4}}
"#;
    check(&[file]);
}
