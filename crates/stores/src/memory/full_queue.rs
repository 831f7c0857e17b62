//! Orders buckets by the moment at which they are full. The bucket that is full first is in front.
//!
//! The queue is a heap. An item names its bucket by the slot, the bucket's index in the shard. The shard stores the
//! bucket's position in the heap. Whenever a position changes, the heap calls `moved(slot, position)`.

use super::segmented_vec::SegmentedVec;
use base::time::Timestamp;

/// The number of children of an item. With four, an item is moved half as often as with two.
const CHILDREN: usize = 4;

#[derive(Debug, Default)]
pub(crate) struct FullQueue(SegmentedVec<PackedItem, 256>);

/// An item of the queue: a bucket's slot (its index in the shard), and the moment at which the bucket is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Item {
    pub full_at: Timestamp,
    pub slot: u32,
}

/// An [`Item`] in 12 bytes instead of 16, to save memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PackedItem {
    full_at: [u8; 8],
    slot: [u8; 4],
}

impl From<Item> for PackedItem {
    fn from(item: Item) -> PackedItem {
        PackedItem { full_at: item.full_at.0.to_ne_bytes(), slot: item.slot.to_ne_bytes() }
    }
}

impl From<PackedItem> for Item {
    fn from(packed: PackedItem) -> Item {
        let full_at = Timestamp(u64::from_ne_bytes(packed.full_at));
        Item { full_at, slot: u32::from_ne_bytes(packed.slot) }
    }
}

impl FullQueue {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn first(&self) -> Option<Item> {
        self.get(0)
    }

    pub(super) fn get(&self, position: usize) -> Option<Item> {
        self.0.get(position).map(|item| (*item).into())
    }

    pub(super) fn push(&mut self, item: Item, moved: impl FnMut(u32, usize)) {
        self.0.push(item.into());
        self.rise(self.0.len() - 1, item, moved);
    }

    /// Changes the moment at which the bucket of the item at this position is full.
    pub(super) fn update(&mut self, position: usize, full_at: Timestamp, moved: impl FnMut(u32, usize)) {
        if let Some(before) = self.get(position) {
            self.place(position, Item { full_at, ..before }, before.full_at, moved);
        }
    }

    pub(super) fn remove(&mut self, position: usize, moved: impl FnMut(u32, usize)) {
        let removed = self.0.swap_remove(position).map(Item::from);
        if let Some((removed, item)) = removed.zip(self.get(position)) {
            self.place(position, item, removed.full_at, moved);
        }
    }

    /// Notes that the bucket of the item at this position is now in another slot of the shard.
    pub(crate) fn set_slot(&mut self, position: usize, slot: u32) {
        if let Some(item) = self.0.get_mut(position) {
            item.slot = slot.to_ne_bytes();
        }
    }

    fn set(&mut self, position: usize, item: Item) {
        if let Some(place) = self.0.get_mut(position) {
            *place = item.into();
        }
    }

    /// Puts an item at `position`, and restores the order. `before` is the moment of the former item there.
    fn place(&mut self, position: usize, item: Item, before: Timestamp, moved: impl FnMut(u32, usize)) {
        if item.full_at < before {
            self.rise(position, item, moved);
        } else {
            self.sink(position, item, moved);
        }
    }

    /// Puts an item at `position`, and moves it to the front while its parent is full later than the item.
    fn rise(&mut self, mut position: usize, item: Item, mut moved: impl FnMut(u32, usize)) {
        while position > 0 {
            let parent = (position - 1) / CHILDREN;
            let Some(above) = self.get(parent).filter(|above| above.full_at > item.full_at) else { break };
            self.set(position, above);
            moved(above.slot, position);
            position = parent;
        }
        self.set(position, item);
        moved(item.slot, position);
    }

    /// Puts an item at `position`, and moves it to the back while one of its children is full earlier than the item.
    fn sink(&mut self, mut position: usize, item: Item, mut moved: impl FnMut(u32, usize)) {
        loop {
            let first = CHILDREN * position + 1;
            let children = (first..first + CHILDREN).map_while(|child| Some((child, self.get(child)?)));
            let soonest = children.min_by_key(|(_, below)| below.full_at);
            let Some((child, below)) = soonest.filter(|(_, below)| below.full_at < item.full_at) else { break };
            self.set(position, below);
            moved(below.slot, position);
            position = child;
        }
        self.set(position, item);
        moved(item.slot, position);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// After each random step, the first item is full first, and the reported positions are right.
        #[test]
        fn the_soonest_full_is_first_and_every_item_is_where_it_was_reported(
            steps in prop::collection::vec((0u32..40, prop::option::weighted(0.7, 0u64..20)), 0..300)
        ) {
            let mut queue = FullQueue::default();
            let (mut positions, mut expected) = ([usize::MAX; 40], BTreeMap::new());
            let index = |slot: u32| usize::try_from(slot).unwrap();
            for (slot, full_at) in steps {
                let position = positions[index(slot)];
                let moved = |slot: u32, position: usize| positions[index(slot)] = position;
                match full_at.map(Timestamp) {
                    Some(full_at) if expected.insert(slot, full_at).is_some() => queue.update(position, full_at, moved),
                    Some(full_at) => queue.push(Item { full_at, slot }, moved),
                    None if expected.remove(&slot).is_some() => queue.remove(position, moved),
                    None => {}
                }
                prop_assert_eq!(queue.first().map(|item| item.full_at), expected.values().min().copied());
                for (slot, full_at) in &expected {
                    let item = queue.get(positions[index(*slot)]).map(|item| (item.slot, item.full_at));
                    prop_assert_eq!(item, Some((*slot, *full_at)));
                }
            }
        }
    }
}
