//! The ring under every order in which two threads can run.

use loom::sync::Arc;
use loom::thread;

use super::*;
use crate::wq::{Poster as PostingSide, Posting};

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

/// Of a batch of two the device takes the first, and completes both all the same, out of order, while the
/// second is taken back and its claim forgotten; then a third is posted, if there is room. Each has one
/// owner, and what was forgotten takes no room.
#[test]
fn a_batch_half_taken() {
    loom::model(|| {
        let ring = std::sync::Arc::new(Ring::new(0, 0, 2, 1, 0));
        let poller = thread::spawn({
            let ring = ring.clone();
            move || {
                [1, 0].map(|sequence| {
                    // SAFETY: this thread alone claims.
                    unsafe { ring.claim(sequence) }.map_or(0, take_all)
                })
            }
        });
        let mut poster = PostingSide::new(ring.clone());
        poster.put(0, entry(10, 1), ());
        poster.put(1, entry(11, 1), ());
        poster.reserve(2);
        poster.refused(2, 1);
        let mine = poster.next_refused().map_or(0, |claimed| {
            assert_eq!(claimed.wr_id(), 11);
            std::mem::forget(claimed);
            1
        });
        assert!(poster.next_refused().is_none());
        let again = poster.has_room(0);
        if again {
            poster.put(0, entry(12, 1), ());
            poster.reserve(1);
            poster.posted(1);
        }
        let [second, mut first] = poller.join().unwrap();
        assert_eq!(mine + second, 1);
        // SAFETY: the other thread has ended.
        first += unsafe { ring.claim(0) }.map_or(0, take_all);
        // SAFETY: as above.
        let third = unsafe { ring.claim(2) }.map_or(0, take_all);
        assert_eq!((first, third), (1, usize::from(again)));
        assert_eq!(poster.in_flight(), 0);
    });
}

/// Of a batch of two the device refuses the second, and the error is forgotten; then a third is posted. A
/// poller who sees the third, and takes out all before it, finds nothing of the second: it is dropped before
/// anything is put behind it, not beside the poller.
#[test]
fn a_forgotten_refusal_before_another_post() {
    loom::model(|| {
        let ring = std::sync::Arc::new(Ring::new(0, 0, 4, 1, 0));
        let poller = thread::spawn({
            let ring = ring.clone();
            move || {
                let seen = ring.has(2);
                // SAFETY: this thread alone claims.
                if seen && unsafe { ring.claim(1) }.is_some() {
                    panic!("what was refused has not been taken back");
                }
            }
        });
        let mut poster = PostingSide::new(ring.clone());
        poster.put(0, entry(10, 1), ());
        poster.put(1, entry(11, 1), ());
        poster.reserve(2);
        poster.refused(2, 1);
        assert!(poster.has_room(0));
        poster.put(0, entry(12, 1), ());
        poster.reserve(1);
        poster.posted(1);
        assert_eq!(poster.in_flight(), 2);
        poller.join().unwrap();
    });
}

/// What was refused is taken back, and its slot filled again, while the poller finishes what it forgot: the
/// poster's claim is none of that, and the new work request stays.
#[test]
fn taken_back_while_forgotten_claims_are_finished() {
    loom::model(|| {
        let ring = std::sync::Arc::new(Ring::new(0, 0, 1, 1, 0));
        let poller = thread::spawn({
            let ring = ring.clone();
            // SAFETY: this thread alone claims, and has claimed nothing.
            move || unsafe { ring.finish_all_forgotten() }
        });
        let mut poster = PostingSide::new(ring.clone());
        poster.put(0, entry(10, 1), ());
        poster.reserve(1);
        poster.refused(1, 0);
        poster.end_refused();
        assert!(poster.has_room(0));
        poster.put(0, entry(11, 1), ());
        poster.reserve(1);
        poster.posted(1);
        poller.join().unwrap();
        // SAFETY: the other thread has ended.
        assert_eq!(unsafe { ring.claim(1) }.map_or(0, take_all), 1);
    });
}

/// The poller finishes in order and out of it, holds one claim for a while, and so moves its hint of how far
/// all are free; the poster, who refills by that hint, meets a refused one on its way, which leaves a hole. A
/// slot is free when it is filled, and everything that the device took is claimed once.
fn room_by_the_hint(order: [u32; 3]) {
    loom::model(move || {
        let ring = std::sync::Arc::new(Ring::new(0, 0, 4, 1, 0));
        let mut poster = PostingSide::new(ring.clone());
        // 0, 1 and 3; 2 was refused.
        poster.put(0, entry(0, 1), ());
        poster.put(1, entry(1, 1), ());
        poster.put(2, entry(2, 1), ());
        poster.reserve(3);
        poster.refused(3, 2);
        poster.end_refused();
        poster.put(0, entry(3, 1), ());
        poster.reserve(1);
        poster.posted(1);
        let poller = thread::spawn({
            let ring = ring.clone();
            move || {
                let mut count = 0;
                for sequence in order {
                    // SAFETY: this thread alone claims, one at a time.
                    let mut claimed = unsafe { ring.claim(sequence) }.expect("it is in flight");
                    assert_eq!(claimed.wr_id(), u64::from(sequence));
                    count += usize::from(claimed.take().is_some());
                    // Still its own: nobody filled it.
                    assert_eq!(claimed.wr_id(), u64::from(sequence));
                    drop(claimed);
                }
                count
            }
        });
        let mut refilled = 0;
        for _ in 0..2 {
            if poster.has_room(0) {
                let sequence = 4 + refilled;
                assert!(ring.is_free(sequence), "filled while a claim is unfinished");
                poster.put(0, entry(u64::from(sequence), 1), ());
                poster.reserve(1);
                poster.posted(1);
                refilled += 1;
            }
        }
        assert_eq!(poller.join().unwrap(), 3);
        for sequence in 4..4 + refilled {
            // SAFETY: the other thread has ended.
            let claimed = unsafe { ring.claim(sequence) }.expect("nobody else had it");
            assert_eq!(claimed.wr_id(), u64::from(sequence));
            drop(claimed);
        }
        assert!(poster.has_room(3), "all is free in the end");
        assert_eq!(poster.in_flight(), 0);
    });
}

#[test]
fn room_by_the_hint_of_what_is_finished_in_order() {
    room_by_the_hint([0, 1, 3]);
}

#[test]
fn room_by_the_hint_of_what_is_finished_out_of_order() {
    room_by_the_hint([1, 0, 3]);
    room_by_the_hint([3, 0, 1]);
}
