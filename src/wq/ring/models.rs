//! The ring under every order in which two threads can run.

use loom::sync::Arc;
use loom::thread;

use super::*;

fn entry(wr_id: u64, pieces: u8) -> Entry {
    Entry { wr_id, opcode: WcOpcode::SEND, pieces, internal: false }
}

/// How many pieces are taken out.
fn take_all(mut claimed: Claimed<'_>) -> usize {
    std::iter::from_fn(|| claimed.take()).count()
}

/// The device refuses a work request of two pieces, and completes it all the same, twice, on another
/// thread: each piece has one owner.
#[test]
fn refused_and_completed() {
    loom::model(|| {
        let ring = Arc::new(Ring::new(0, 0, 1, 2, 0));
        let poller = thread::spawn({
            let ring = ring.clone();
            move || {
                // SAFETY: this thread alone claims.
                let mut taken = unsafe { ring.claim(0) }.map_or(0, take_all);
                // SAFETY: as above.
                taken += unsafe { ring.claim(0) }.map_or(0, take_all);
                taken
            }
        });
        ring.put(0, entry(7, 2), Held::nothing());
        ring.put_more(0, 1, Held::nothing());
        ring.reserve(1);
        let mine = ring.take_back(0).map_or(0, |claimed| {
            assert_eq!(claimed.wr_id(), 7);
            take_all(claimed)
        });
        ring.posted(1);
        let theirs = poller.join().unwrap();
        assert_eq!(mine + theirs, 2);
        assert!(mine == 0 || theirs == 0, "one has all");
        assert!(ring.is_free(0));
    });
}

/// The completion comes before, while or after the post returns; then the slot is used again, and an old
/// completion comes once more.
#[test]
fn completed_early_and_used_again() {
    loom::model(|| {
        let ring = Arc::new(Ring::new(0, 0, 1, 1, 0));
        let poller = thread::spawn({
            let ring = ring.clone();
            move || {
                let mut seen = Vec::new();
                for sequence in [0, 0, 1] {
                    // SAFETY: this thread alone claims.
                    if let Some(claimed) = unsafe { ring.claim(sequence) } {
                        assert_eq!(claimed.wr_id(), u64::from(sequence) + 10);
                        seen.push((sequence, take_all(claimed)));
                    }
                }
                seen
            }
        });
        ring.put(0, entry(10, 1), Held::nothing());
        ring.reserve(1);
        ring.posted(1);
        let again = ring.is_free(0);
        if again {
            ring.put(1, entry(11, 1), Held::nothing());
            ring.reserve(2);
            ring.posted(2);
        }
        let mut seen = poller.join().unwrap();
        // What the poller has not seen in time is still there, once.
        for sequence in 0..if again { 2 } else { 1 } {
            // SAFETY: the other thread has ended.
            if let Some(claimed) = unsafe { ring.claim(sequence) } {
                seen.push((sequence, take_all(claimed)));
            }
        }
        seen.sort();
        let all: &[(u32, usize)] = if again { &[(0, 1), (1, 1)] } else { &[(0, 1)] };
        assert_eq!(seen, all);
    });
}
