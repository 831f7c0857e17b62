//! Checks that a release has none of the hooks of the feature `test-hooks`.

/// Texts in the binary: of the script that takes the time as an argument, of a script with a deliberate flaw, of a deliberate
/// panic, of the variable for fixed intervals, of the variable that holds buckets, of the variable that makes a file
/// hang, of the variable that logs what is observed of responses, and of the variable that names a deliberate flaw.
const MARKS: [&str; 8] = [
    "test-hooks: the moment can be an argument",
    "test-hooks: a flaw",
    "test-hooks: a panic on purpose",
    "TOLLGATE_TEST_INTERVALS",
    "TOLLGATE_TEST_HOLD_BUCKETS",
    "TOLLGATE_TEST_HANG",
    "TOLLGATE_TEST_RECORD_RESPONSES",
    "TOLLGATE_TEST_FLAW",
];

/// CI runs this test with the feature and without it. A release is built without it.
#[test]
fn the_hooks_are_in_the_binary_only_with_the_feature() {
    for mark in MARKS {
        assert_eq!(is_in_the_binary(mark), cfg!(feature = "test-hooks"), "{mark}");
    }
}

fn is_in_the_binary(mark: &str) -> bool {
    let binary = std::fs::read(env!("CARGO_BIN_EXE_tollgate")).unwrap();
    memchr::memmem::find(&binary, mark.as_bytes()).is_some()
}
