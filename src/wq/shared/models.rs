//! The table of a shared receive queue under every order in which its threads can run.

use loom::thread;

use super::*;
use crate::types::WcOpcode;
use crate::wq::{Number, WrId};

fn entry(wr_id: u64) -> Entry {
    Entry { wr_id, opcode: WcOpcode::RECV, pieces: 1, internal: false }
}

fn poster(depth: u32) -> SharedPoster {
    SharedPoster::new(Arc::new(Ring::shared(Number::take().expect("a number"), depth, 2)))
}

fn put(poster: &mut SharedPoster, after: u32, wr_id: u64) -> u32 {
    assert!(poster.has_room(after));
    WrId::of(poster.put(after, entry(wr_id), ((), ()).0)).sequence
}

fn post(poster: &mut SharedPoster, wr_id: u64) -> u32 {
    let sequence = put(poster, 0, wr_id);
    poster.reserve(1);
    poster.posted(1);
    sequence
}

/// Claims as a poller does, takes all that is there, and tells its number and how many pieces there were.
fn claim(table: &Ring, sequence: u32) -> Option<(u64, usize)> {
    let claim = table.claim_shared(sequence)?;
    // SAFETY: claimed here, and made whole once.
    let mut claimed = unsafe { claim.of(table) };
    let wr_id = claimed.wr_id();
    let pieces = std::iter::from_fn(|| claimed.take()).count();
    // Still its own: nobody filled it meanwhile.
    assert_eq!(claimed.wr_id(), wr_id);
    Some((wr_id, pieces))
}

/// The same completion on two completion queues, while the poster posts again as soon as there is room: one
/// has it, and the second is nobody's by that number.
#[test]
fn one_completion_on_two_queues() {
    loom::model(|| {
        let mut poster = poster(1);
        let sequence = post(&mut poster, 1);
        let pollers = [(); 2].map(|()| {
            let table = poster.table().clone();
            thread::spawn(move || claim(&table, sequence))
        });
        let again = poster.has_room(0).then(|| post(&mut poster, 2));
        let claims: Vec<_> =
            pollers.into_iter().filter_map(|poller| poller.join().unwrap()).collect();
        assert_eq!(claims, [(1, 1)]);
        if let Some(again) = again {
            assert_eq!(claim(poster.table(), again), Some((2, 1)), "the second is still there");
        }
        assert_eq!(poster.in_flight(), 0);
    });
}

/// Two receives complete out of order on two queues, each twice, while the poster fills what is free again.
#[test]
fn two_pollers_and_a_poster() {
    loom::model(|| {
        let mut poster = poster(2);
        let posted = [post(&mut poster, 1), post(&mut poster, 2)];
        let poller = thread::spawn({
            let table = poster.table().clone();
            move || usize::from(claim(&table, posted[1]).is_some())
        });
        let other = thread::spawn({
            let table = poster.table().clone();
            move || {
                // Of the other, forged, and its own.
                let forged = usize::from(claim(&table, posted[1]).is_some());
                (usize::from(claim(&table, posted[0]).is_some()), forged)
            }
        });
        let again = poster.has_room(0).then(|| post(&mut poster, 3));
        let (first, forged) = other.join().unwrap();
        assert_eq!((first, forged + poller.join().unwrap()), (1, 1));
        if let Some(again) = again {
            assert_eq!(claim(poster.table(), again), Some((3, 1)));
        }
        assert_eq!(poster.in_flight(), 0);
    });
}

/// Of a batch of two the device takes the first, and completes both all the same, while the second is taken
/// back, and its claim forgotten; then a third is posted. Each has one owner, and what was forgotten takes no
/// room.
#[test]
fn taken_back_while_it_completes() {
    loom::model(|| {
        let mut poster = poster(2);
        let (first, second) = (put(&mut poster, 0, 1), put(&mut poster, 1, 2));
        poster.reserve(2);
        let poller = thread::spawn({
            let table = poster.table().clone();
            move || {
                let theirs = usize::from(claim(&table, second).is_some());
                (theirs, usize::from(claim(&table, first).is_some()))
            }
        });
        poster.refused(2, 1);
        let mine = poster.next_refused().map_or(0, |claimed| {
            assert_eq!(claimed.wr_id(), 2);
            std::mem::forget(claimed);
            1
        });
        assert!(poster.next_refused().is_none());
        let again = poster.has_room(0).then(|| post(&mut poster, 3));
        let (theirs, one) = poller.join().unwrap();
        assert_eq!((mine + theirs, one), (1, 1));
        if let Some(again) = again {
            assert_eq!(claim(poster.table(), again), Some((3, 1)));
        }
        assert_eq!(poster.in_flight(), 0);
    });
}

/// What a poller forgot is finished by it alone, while another poller holds a claim, and the poster fills the
/// slot that is free again.
#[test]
fn forgotten_beside_another_s_claim() {
    loom::model(|| {
        let mut poster = poster(2);
        let (forgotten, held) = (post(&mut poster, 1), post(&mut poster, 2));
        let forgetful = thread::spawn({
            let table = poster.table().clone();
            move || {
                let claim = table.claim_shared(forgotten).expect("nobody else's");
                // SAFETY: claimed here, and made whole once.
                std::mem::forget(unsafe { claim.of(&table) });
                // SAFETY: claimed above, and forgotten.
                unsafe { table.finish_forgotten_by_poller(forgotten) };
            }
        });
        let holder = thread::spawn({
            let table = poster.table().clone();
            move || claim(&table, held)
        });
        let again = poster.has_room(0).then(|| post(&mut poster, 3));
        forgetful.join().unwrap();
        assert_eq!(holder.join().unwrap(), Some((2, 1)));
        if let Some(again) = again {
            assert_eq!(claim(poster.table(), again), Some((3, 1)));
        }
        assert_eq!(poster.in_flight(), 0);
    });
}

/// Poster and pollers let go of the table in any order while one still takes something out: what is left is
/// dropped by the last, and what was taken is not there any more.
#[test]
fn the_last_owner_drops_what_is_left() {
    loom::model(|| {
        let mut poster = poster(2);
        let (taken, _left) = (post(&mut poster, 1), post(&mut poster, 2));
        let poller = thread::spawn({
            let table = loom::sync::Arc::new(poster.table().clone());
            move || claim(&table, taken)
        });
        drop(poster);
        assert_eq!(poller.join().unwrap(), Some((1, 1)));
    });
}
