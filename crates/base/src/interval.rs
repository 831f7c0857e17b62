//! Intervals and deadlines that no setting changes. A test can change them in a build with the feature `test-hooks`.

use std::time::Duration;

/// The environment variable with the intervals that a test changes, in milliseconds, such as
/// `watch=20,jwks_cooldown=100`.
#[cfg(feature = "test-hooks")]
const VARIABLE: &str = "TOLLGATE_TEST_INTERVALS";

/// Returns `length`, or the length that a test has chosen for the interval with this name.
#[cfg_attr(not(feature = "test-hooks"), inline(always))]
pub fn fixed_interval(name: &str, length: Duration) -> Duration {
    #[cfg(feature = "test-hooks")]
    if let Ok(text) = std::env::var(VARIABLE)
        && let Some(chosen) = chosen(&text, name)
    {
        return chosen;
    }
    let _ = name;
    length
}

/// Returns the length that `text` gives to the interval `name`. `None` if `text` does not contain the name.
#[cfg(feature = "test-hooks")]
fn chosen(text: &str, name: &str) -> Option<Duration> {
    let mut intervals = text.split(',').filter_map(|interval| interval.split_once('='));
    let (_, length) = intervals.find(|(named, _)| *named == name)?;
    length.parse().ok().map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_that_no_test_changes_keeps_its_length() {
        assert_eq!(fixed_interval("watch", Duration::from_secs(3)), Duration::from_secs(3));
    }

    #[test]
    #[cfg(feature = "test-hooks")]
    fn a_test_changes_only_the_intervals_that_it_names() {
        let text = "watch=20,jwks_cooldown=1500";
        assert_eq!(chosen(text, "watch"), Some(Duration::from_millis(20)));
        assert_eq!(chosen(text, "jwks_cooldown"), Some(Duration::from_millis(1500)));
        assert_eq!(chosen(text, "jwks"), None);
        assert_eq!(chosen("watch", "watch"), None);
        assert_eq!(chosen("watch=soon", "watch"), None);
    }
}
