//! Limits the bytes of request bodies that are held for the rules (`limits.inspect_total`).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of bytes that all requests together hold of their bodies.
#[derive(Debug, Default)]
pub(crate) struct InspectedBytes(AtomicUsize);

/// The bytes that one request holds of its body. They are subtracted from the sum when this value is dropped.
#[derive(Debug)]
pub(crate) struct InspectedShare {
    all: Arc<InspectedBytes>,
    bytes: usize,
}

/// The error for a request for which no memory is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InspectedFull;

impl InspectedBytes {
    /// Returns the share of a request that holds nothing yet.
    pub(crate) fn share(self: &Arc<InspectedBytes>) -> InspectedShare {
        InspectedShare { all: Arc::clone(self), bytes: 0 }
    }
}

impl InspectedShare {
    /// Raises the share to this number of bytes. `most` is the bound of all shares together.
    ///
    /// # Errors
    /// If all shares together would be above `most`. The share then stays as it is.
    pub(crate) fn raise_to(&mut self, bytes: usize, most: usize) -> Result<(), InspectedFull> {
        let more = bytes.saturating_sub(self.bytes);
        let fits = |held: usize| held.checked_add(more).filter(|held| *held <= most);
        self.all.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).map_err(|_| InspectedFull)?;
        self.bytes += more;
        Ok(())
    }
}

impl Drop for InspectedShare {
    fn drop(&mut self) {
        self.all.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_shares_together_stay_below_the_bound_and_are_given_back() {
        let all = Arc::new(InspectedBytes::default());
        let (mut one, mut other) = (all.share(), all.share());
        assert_eq!(one.raise_to(60, 100), Ok(()));
        assert_eq!(one.raise_to(50, 100), Ok(()), "a share is never lowered");
        assert_eq!(other.raise_to(41, 100), Err(InspectedFull));
        assert_eq!(other.raise_to(40, 100), Ok(()));
        assert_eq!(other.raise_to(41, 100), Err(InspectedFull));
        drop(one);
        assert_eq!(other.raise_to(100, 100), Ok(()));
        drop(other);
        assert_eq!(all.0.load(Ordering::Relaxed), 0);
    }
}
