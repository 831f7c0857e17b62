//! A vector in segments of equal size: it grows and shrinks without copying, and reserves at most one unused segment.

/// A vector that stores its elements in segments. Each segment but the last has `SEGMENT` elements.
#[derive(Debug)]
pub(crate) struct SegmentedVec<T, const SEGMENT: usize> {
    /// The segments. No segment is empty.
    segments: Vec<Vec<T>>,
    len: usize,
}

impl<T, const SEGMENT: usize> Default for SegmentedVec<T, SEGMENT> {
    fn default() -> Self {
        SegmentedVec { segments: Vec::new(), len: 0 }
    }
}

impl<T, const SEGMENT: usize> SegmentedVec<T, SEGMENT> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn get(&self, index: usize) -> Option<&T> {
        self.segments.get(index / SEGMENT)?.get(index % SEGMENT)
    }

    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.segments.get_mut(index / SEGMENT)?.get_mut(index % SEGMENT)
    }

    pub(super) fn push(&mut self, value: T) {
        if self.len.is_multiple_of(SEGMENT) {
            // The first segment grows as needed, because there may be many short vectors.
            let reserved = if self.segments.is_empty() { 0 } else { SEGMENT };
            self.segments.push(Vec::with_capacity(reserved));
        }
        if let Some(last) = self.segments.last_mut() {
            if last.len() == last.capacity() {
                last.reserve_exact((last.len() / 4).max(4).min(SEGMENT - last.len()));
            }
            last.push(value);
            self.len += 1;
        }
    }

    /// Removes and returns the element at `index`, and moves the last element to its place.
    pub(super) fn swap_remove(&mut self, index: usize) -> Option<T> {
        if index >= self.len {
            return None;
        }
        let segment = self.segments.last_mut()?;
        let last = segment.pop()?;
        if segment.is_empty() {
            self.segments.pop();
        }
        self.len -= 1;
        // If the last element was at `index`, it is already removed.
        Some(match self.get_mut(index) {
            Some(place) => std::mem::replace(place, last),
            None => last,
        })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.segments.iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_holds_what_a_plain_vector_does(steps in prop::collection::vec(prop::option::weighted(0.6, 0usize..100), 0..200)) {
            let (mut segmented, mut plain) = (SegmentedVec::<usize, 8>::default(), Vec::new());
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Some(_) => {
                        segmented.push(number);
                        plain.push(number);
                    }
                    None => {
                        let index = number % (plain.len() + 1);
                        let expected = (index < plain.len()).then(|| plain.swap_remove(index));
                        prop_assert_eq!(segmented.swap_remove(index), expected);
                    }
                }
                prop_assert_eq!(segmented.len(), plain.len());
                prop_assert!(segmented.iter().eq(&plain));
                prop_assert_eq!(segmented.get(plain.len()), None);
                let segments = &segmented.segments;
                prop_assert!(segments.iter().all(|segment| segment.capacity() <= 8));
                prop_assert_eq!(segments.len(), plain.len().div_ceil(8));
            }
        }
    }
}
