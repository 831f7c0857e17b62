//! What tests may do, no release can.

/// Stand in the script that takes the moment as an argument, in one that is wrong on purpose, and in a panic.
const MARKS: [&str; 3] =
    ["test-hooks: the moment can be an argument", "test-hooks: a flaw", "test-hooks: a panic on purpose"];

/// Runs twice in CI, with the feature and without: a release is built without.
#[test]
fn the_binary_can_be_told_the_moment_or_err_on_purpose_only_when_it_was_built_for_that() {
    for mark in MARKS {
        assert_eq!(is_in_the_binary(mark), cfg!(feature = "test-hooks"), "{mark}");
    }
}

fn is_in_the_binary(mark: &str) -> bool {
    let binary = std::fs::read(env!("CARGO_BIN_EXE_tollgate")).unwrap();
    memchr::memmem::find(&binary, mark.as_bytes()).is_some()
}
