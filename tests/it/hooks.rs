//! What tests may do, no release can.

/// Stands in the script that takes the moment as an argument.
const MARK: &[u8] = b"test-hooks: the moment can be an argument";

/// Runs twice in CI, with the feature and without: a release is built without.
#[test]
fn the_binary_can_be_told_the_moment_only_when_it_was_built_for_that() {
    let binary = std::fs::read(env!("CARGO_BIN_EXE_tollgate")).unwrap();
    let marked = binary.windows(MARK.len()).any(|window| window == MARK);
    assert_eq!(marked, cfg!(feature = "test-hooks"));
}
