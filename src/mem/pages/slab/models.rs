//! Models of who frees a slab.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::*;

/// Two bytes that nobody reads, and what happens to the slab.
struct Fake {
    memory: Box<[u8; 2]>,
    /// Written by each owner of a part, and by who frees: loom fails the model if one of these does not
    /// happen before the other.
    used: Arc<[UnsafeCell<u32>; 2]>,
    freed: Arc<AtomicU32>,
}

// SAFETY: the cells are written by who owns the fragment of their number.
unsafe impl Send for Fake {}
// SAFETY: as above.
unsafe impl Sync for Fake {}

// SAFETY: on the heap, and reached by nobody.
unsafe impl Region for Fake {
    fn memory(&self) -> NonNull<[u8]> {
        NonNull::from(&self.memory[..])
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.freed.fetch_add(1, Ordering::Relaxed);
        // SAFETY: nobody else has a part of the slab.
        self.used.iter().for_each(|used| used.with_mut(|used| unsafe { *used += 1 }));
    }
}

fn slab() -> (Share<Fake>, Arc<AtomicU32>) {
    let freed = Arc::new(AtomicU32::new(0));
    let used = Arc::new([UnsafeCell::new(0), UnsafeCell::new(0)]);
    let region = Fake { memory: Box::new([0; 2]), used, freed: freed.clone() };
    (Share::new(region, 2, 1), freed)
}

/// Uses the memory of a fragment.
fn touch(part: &Part<Fake>, number: usize) {
    // SAFETY: the fragment of this number is the caller's.
    part.region().used[number].with_mut(|used| unsafe { *used += 1 });
}

/// The pool goes while the last fragments come back on another thread: one frees.
#[test]
fn one_frees_a_slab() {
    loom::model(|| {
        let (mut share, freed) = slab();
        assert!(share.begin());
        let (mine, theirs) = (share.take().unwrap(), share.take().unwrap());
        let other = thread::spawn(move || {
            touch(&theirs, 1);
            drop(theirs);
        });
        touch(&mine, 0);
        drop(mine);
        drop(share);
        other.join().unwrap();
        assert_eq!(freed.load(Ordering::Relaxed), 1);
    });
}

/// The same when one was never handed out.
#[test]
fn one_frees_a_slab_half_handed_out() {
    loom::model(|| {
        let (mut share, freed) = slab();
        assert!(share.begin());
        let theirs = share.take().unwrap();
        let other = thread::spawn(move || {
            touch(&theirs, 0);
            drop(theirs);
        });
        drop(share);
        other.join().unwrap();
        assert_eq!(freed.load(Ordering::Relaxed), 1);
    });
}

/// The pool looks whether all came back while the two come back on two threads: what it hands out then was
/// let go of before.
#[test]
fn none_is_handed_out_while_another_has_it() {
    loom::model(|| {
        let (mut share, freed) = slab();
        assert!(share.begin());
        let others: [_; 2] = std::array::from_fn(|number| {
            let theirs = share.take().unwrap();
            thread::spawn(move || {
                touch(&theirs, number);
                drop(theirs);
            })
        });
        if share.begin() {
            touch(&share.take().unwrap(), 0);
            touch(&share.take().unwrap(), 1);
        }
        others.into_iter().for_each(|other| other.join().unwrap());
        assert!(share.begin() || share.left() == 2 || share.is_complete());
        drop(share);
        assert_eq!(freed.load(Ordering::Relaxed), 1);
    });
}
