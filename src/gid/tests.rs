//! The cache over a device made by hand.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::*;
use crate::error::{Errno, Error, Object};
use crate::gid::{PortShape, Table};
use crate::types::{Gid, GidEntry, LinkLayer, PortNum};

/// A device whose two rows always carry the same number, which a test moves.
#[derive(Clone, Default)]
struct Fake {
    number: Arc<AtomicU32>,
    fails: Arc<AtomicBool>,
}

impl Source for Fake {
    fn read(&self, _: usize) -> Result<Table> {
        if self.fails.load(Ordering::Relaxed) {
            let object = Object::device("fake0");
            return Err(Error::Verb { verb: "ibv_query_gid_table", object, errno: Errno::EIO });
        }
        let number = self.number.load(Ordering::Relaxed);
        let gid = |half| Gid::from_parts(half, number.into());
        let port = PortNum::FIRST;
        Ok(Table {
            ports: vec![PortShape { port, len: 16, link_layer: LinkLayer::ETHERNET }],
            rows: vec![GidEntry::new(port, 0, gid(1)), GidEntry::new(port, 1, gid(2))],
        })
    }
}

fn cache_of(fake: &Fake) -> GidCache {
    cache(&"fake0".into(), fake.clone(), None, |_| ()).expect("the first read")
}

#[test]
fn cached_stays_until_fresh_reads() {
    let fake = Fake::default();
    let cache = cache_of(&fake);
    let kept = cache.cached().to_arc();
    fake.number.store(7, Ordering::Relaxed);
    assert_eq!(cache.cached().rows(), kept.rows());
    let fresh = cache.fresh().expect("a read");
    assert_eq!(fresh.rows()[0].gid(), Gid::from_parts(1, 7));
    assert_eq!(fresh.rows()[0].generation(), kept.rows()[0].generation() + 1);
    assert_eq!(cache.cached().rows(), fresh.rows());
    assert_eq!(kept.rows()[0].gid(), Gid::from_parts(1, 0), "a kept snapshot never changes");
}

#[test]
fn a_read_that_finds_no_change_changes_nothing() {
    let fake = Fake::default();
    let cache = cache_of(&fake);
    let before = cache.cached().to_arc();
    let after = cache.fresh().expect("a read").to_arc();
    assert!(Arc::ptr_eq(&before, &after));
}

#[test]
fn a_failed_read_keeps_what_there_was() {
    let fake = Fake::default();
    let cache = cache_of(&fake);
    fake.fails.store(true, Ordering::Relaxed);
    let error = cache.fresh().expect_err("the device has gone");
    assert!(error.to_string().starts_with("ibv_query_gid_table on fake0: EIO"), "{error}");
    assert_eq!(cache.cached().rows().len(), 2);
}

/// Two readers during a thousand changes: both rows of every snapshot are of one read.
#[test]
fn no_reader_sees_a_mix() {
    let fake = Fake::default();
    let cache = cache_of(&fake);
    let first = cache.cached().rows()[0].generation();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut last = 0;
                while !done.load(Ordering::Relaxed) {
                    let snapshot = cache.cached();
                    let [a, b] = snapshot.rows() else { panic!("{snapshot:?}") };
                    assert_eq!(a.gid().interface_id(), b.gid().interface_id());
                    assert!(a.generation() >= last, "generations only grow");
                    last = a.generation();
                }
            });
        }
        for number in 1..=1000 {
            fake.number.store(number, Ordering::Relaxed);
            cache.fresh().expect("a read");
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(cache.cached().rows()[0].generation(), first + 1000);
}

/// A device that is opened anew, or another of its name, does not begin at a generation that was there.
#[test]
fn generations_go_on_from_one_cache_to_the_next() {
    let fake = Fake::default();
    let first = cache_of(&fake);
    fake.number.store(1, Ordering::Relaxed);
    first.fresh().expect("a read");
    let last = first.cached().rows()[0].generation();
    assert!(cache_of(&fake).cached().rows()[0].generation() > last);
}
