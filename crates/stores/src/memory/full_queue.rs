//! Orders buckets by the moment at which they are full: the soonest full in front.
//!
//! A binary heap in which the position of each bucket is known, so that a bucket can be updated and removed. An item names its
//! bucket by the slot, which is the bucket's index in the map of the shard. The map stores the bucket's position in the heap.
//! Whenever a position changes, the heap calls `moved(slot, position)`, and the caller updates the map. The heap stores the
//! moments itself, so that no comparison reads the map.

use base::time::Timestamp;

#[derive(Debug, Default)]
pub(crate) struct FullQueue(Vec<Item>);

/// A bucket in a queue.
#[derive(Clone, Copy, Debug)]
pub struct Item {
    pub full_at: Timestamp,
    pub slot: usize,
}

impl FullQueue {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn first(&self) -> Option<Item> {
        self.0.first().copied()
    }

    pub fn get(&self, position: usize) -> Option<Item> {
        self.0.get(position).copied()
    }

    pub fn push(&mut self, item: Item, moved: impl FnMut(usize, usize)) {
        // By an eighth, not by doubling: what is reserved and not used is memory that an operator pays for.
        if self.0.len() == self.0.capacity() {
            self.0.reserve_exact((self.0.len() / 8).max(4));
        }
        self.0.push(item);
        self.rise(self.0.len() - 1, moved);
    }

    /// Changes the moment of the item at this position.
    pub fn update(&mut self, position: usize, full_at: Timestamp, moved: impl FnMut(usize, usize)) {
        if let Some(item) = self.0.get_mut(position) {
            let before = std::mem::replace(&mut item.full_at, full_at);
            if full_at < before {
                self.rise(position, moved);
            } else {
                self.sink(position, moved);
            }
        }
    }

    /// Removes the item at this position, which is one of the queue.
    pub fn remove(&mut self, position: usize, mut moved: impl FnMut(usize, usize)) {
        let removed = self.0.swap_remove(position);
        if let Some(item) = self.0.get(position) {
            if item.full_at < removed.full_at {
                self.rise(position, &mut moved);
            } else {
                self.sink(position, &mut moved);
            }
        }
    }

    /// Notes that the bucket at this position has another slot.
    pub(crate) fn set_slot(&mut self, position: usize, slot: usize) {
        if let Some(item) = self.0.get_mut(position) {
            item.slot = slot;
        }
    }

    /// Frees memory that is no longer needed after many buckets were removed.
    pub(crate) fn shrink(&mut self) {
        if self.0.capacity() > 1024 && self.0.len() < self.0.capacity() / 4 {
            self.0.shrink_to_fit();
        }
    }

    /// Moves the item at `position` towards the front until it is in order.
    #[allow(clippy::indexing_slicing, reason = "`position` is that of an item, and a parent is before its child")]
    fn rise(&mut self, mut position: usize, mut moved: impl FnMut(usize, usize)) {
        let item = self.0[position];
        while position > 0 {
            let parent = (position - 1) / 2;
            let above = self.0[parent];
            if above.full_at <= item.full_at {
                break;
            }
            self.0[position] = above;
            moved(above.slot, position);
            position = parent;
        }
        self.0[position] = item;
        moved(item.slot, position);
    }

    /// Moves the item at `position` towards the end until it is in order.
    #[allow(clippy::indexing_slicing, reason = "`position` is that of an item, and so is a child that `get` finds")]
    fn sink(&mut self, mut position: usize, mut moved: impl FnMut(usize, usize)) {
        let item = self.0[position];
        loop {
            let left = 2 * position + 1;
            let Some(mut below) = self.get(left) else { break };
            let mut child = left;
            if let Some(right) = self.get(left + 1).filter(|right| right.full_at < below.full_at) {
                (child, below) = (left + 1, right);
            }
            if item.full_at <= below.full_at {
                break;
            }
            self.0[position] = below;
            moved(below.slot, position);
            position = child;
        }
        self.0[position] = item;
        moved(item.slot, position);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Slots 0 to 9: whatever is done, the first is the soonest full, and the positions that were reported hold.
        #[test]
        fn the_soonest_full_is_first_and_every_item_is_where_it_was_reported(
            steps in prop::collection::vec((0usize..10, prop::option::weighted(0.7, 0u64..20)), 0..200)
        ) {
            let mut queue = FullQueue::default();
            let (mut positions, mut expected) = ([usize::MAX; 10], BTreeMap::new());
            for (slot, full_at) in steps {
                let position = positions[slot];
                let moved = |slot: usize, position: usize| positions[slot] = position;
                match full_at.map(Timestamp) {
                    Some(full_at) if expected.insert(slot, full_at).is_some() => queue.update(position, full_at, moved),
                    Some(full_at) => queue.push(Item { full_at, slot }, moved),
                    None if expected.remove(&slot).is_some() => queue.remove(position, moved),
                    None => {}
                }
                prop_assert_eq!(queue.first().map(|item| item.full_at), expected.values().min().copied());
                for (slot, full_at) in &expected {
                    let item = queue.get(positions[*slot]).map(|item| (item.slot, item.full_at));
                    prop_assert_eq!(item, Some((*slot, *full_at)));
                }
            }
        }
    }
}
