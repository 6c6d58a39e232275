//! A bounded map that readers look things up in without waiting, and one writer at a time changes.
//!
//! Parts of it are immutable: a change makes the part anew, so that a reader has what stood there
//! before or after. A part is small, and a change copies no more than one. Emptying the whole is a
//! matter of the caller's *generation*: what was put in under another one is not there.

use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use arc_swap::ArcSwap;
use foldhash::fast::RandomState;
use hashbrown::HashTable;

/// How many parts there are; a power of two.
const PARTS: usize = 64;
/// The most entries of one part: one more, and the oldest goes.
const IN_PART: usize = 64;
/// The most entries at all.
pub(super) const CAPACITY: usize = PARTS * IN_PART;

pub(super) struct Table<K, V> {
    parts: Box<[ArcSwap<Part<K, V>>]>,
    /// Seeded anew for each table: who may choose addresses here must not choose them to collide.
    hasher: RandomState,
}

#[derive(Clone)]
struct Part<K, V> {
    generation: u64,
    entries: HashTable<Entry<K, V>>,
    /// The age of the next entry.
    next: u64,
}

#[derive(Clone)]
struct Entry<K, V> {
    key: K,
    value: V,
    age: u64,
}

impl<K: Hash + Eq + Copy, V: Copy> Table<K, V> {
    pub(super) fn new() -> Table<K, V> {
        let nothing = || ArcSwap::from_pointee(Part::new(0));
        let parts = std::iter::repeat_with(nothing).take(PARTS).collect();
        Table { parts, hasher: RandomState::default() }
    }

    /// What stands there in this generation. Memory only: no system call, no lock, no allocation.
    #[inline]
    pub(super) fn get(&self, key: &K, generation: u64) -> Option<V> {
        let hash = self.hasher.hash_one(key);
        let part = self.part(hash).load();
        if part.generation != generation {
            return None;
        }
        part.entries.find(hash, |entry| entry.key == *key).map(|entry| entry.value)
    }

    /// Puts a value there, in place of what there is. One caller at a time.
    pub(super) fn insert(&self, key: K, value: V, generation: u64) {
        self.change(&key, generation, |part, hash, hasher| {
            if let Some(entry) = part.entries.find_mut(hash, |entry| entry.key == key) {
                entry.value = value;
                return;
            }
            if part.entries.len() >= IN_PART {
                let oldest = part.entries.iter().map(|entry| entry.age).min();
                part.entries.retain(|entry| Some(entry.age) != oldest);
            }
            part.next += 1;
            let entry = Entry { key, value, age: part.next };
            part.entries.insert_unique(hash, entry, |entry| hasher.hash_one(entry.key));
        });
    }

    /// Takes away what stands there. One caller at a time.
    pub(super) fn remove(&self, key: &K, generation: u64) {
        self.change(key, generation, |part, hash, _| {
            if let Ok(entry) = part.entries.find_entry(hash, |entry| entry.key == *key) {
                entry.remove();
            }
        });
    }

    fn change(
        &self,
        key: &K,
        generation: u64,
        change: impl FnOnce(&mut Part<K, V>, u64, &RandomState),
    ) {
        let hash = self.hasher.hash_one(key);
        let place = self.part(hash);
        let before = place.load();
        let mut part = match before.generation == generation {
            true => Part::clone(&before),
            false => Part::new(generation),
        };
        change(&mut part, hash, &self.hasher);
        place.store(Arc::new(part));
    }

    /// The low bits and the highest choose a place in a part.
    fn part(&self, hash: u64) -> &ArcSwap<Part<K, V>> {
        &self.parts[(hash >> 32) as usize % PARTS]
    }
}

impl<K, V> Part<K, V> {
    fn new(generation: u64) -> Part<K, V> {
        Part { generation, entries: HashTable::new(), next: 0 }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn put_changed_and_taken_away() {
        let table = Table::new();
        assert_eq!(table.get(&1, 1), None);
        table.insert(1, "one", 1);
        table.insert(2, "two", 1);
        assert_eq!((table.get(&1, 1), table.get(&2, 1)), (Some("one"), Some("two")));
        table.insert(1, "uno", 1);
        assert_eq!(table.get(&1, 1), Some("uno"));
        table.remove(&1, 1);
        table.remove(&3, 1);
        assert_eq!((table.get(&1, 1), table.get(&2, 1)), (None, Some("two")));
    }

    #[test]
    fn another_generation_has_nothing_of_this() {
        let table = Table::new();
        (0..1000).for_each(|key| table.insert(key, key, 1));
        assert!((0..1000).all(|key| table.get(&key, 2).is_none()));
        table.insert(5, 6, 2);
        assert_eq!(table.get(&5, 2), Some(6));
        assert_eq!((0..1000).filter(|key| table.get(key, 2).is_some()).count(), 1);
        table.remove(&7, 3);
        assert_eq!(table.get(&5, 1), None);
    }

    #[test]
    fn the_oldest_go_when_it_is_full() {
        let table = Table::new();
        const MANY: u32 = 20_000;
        (0..MANY).for_each(|key| table.insert(key, key, 1));
        let there = (0..MANY).filter(|key| table.get(key, 1) == Some(*key)).count();
        assert_eq!(there, CAPACITY);
        assert!((MANY - 500..MANY).all(|key| table.get(&key, 1).is_some()), "the newest stay");
    }

    /// Readers see one value or the other, never a mix.
    #[test]
    fn readers_beside_a_writer() {
        let table = Table::new();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        if let Some((a, b)) = table.get(&7_u32, 1) {
                            assert_eq!(a, b);
                        }
                    }
                });
            }
            for n in 0..20_000_u64 {
                table.insert(7, (n, n), 1);
                table.insert(n as u32, (n, n), 1);
                if n % 3 == 0 {
                    table.remove(&7, 1);
                }
            }
            done.store(true, Ordering::Relaxed);
        });
    }
}
