use super::*;
use crate::mem::Held;
use crate::types::WcOpcode;
use crate::wq::{Number, WrId};

fn entry(wr_id: u64) -> Entry {
    Entry { wr_id, opcode: WcOpcode::RECV, pieces: 1, internal: false }
}

fn poster(depth: u32) -> SharedPoster {
    let number = Number::take().expect("a number");
    SharedPoster::new(Arc::new(Ring::shared(number, depth, 3)))
}

/// Posts one; gives what a completion of it says.
fn post(poster: &mut SharedPoster, wr_id: u64) -> u32 {
    assert!(poster.has_room(0));
    let id = WrId::of(poster.put(0, entry(wr_id), ()));
    poster.reserve(1);
    poster.posted(1);
    assert_eq!(WrId { sequence: 0, ..id }, poster.table().owner());
    id.sequence
}

fn claim(poster: &SharedPoster, sequence: u32) -> Option<u64> {
    let claim = poster.table().claim_shared(sequence)?;
    assert!(claim.is_shared() && !claim.is_internal());
    // SAFETY: claimed here, and made whole once.
    Some(unsafe { claim.of(poster.table()) }.wr_id())
}

#[test]
fn each_once_in_any_order() {
    let mut poster = poster(5);
    for round in 0..3000_u64 {
        let mut posted: Vec<_> =
            (0..5).map(|n| (post(&mut poster, round * 5 + n), round * 5 + n)).collect();
        assert!(!poster.has_room(0));
        assert_eq!((poster.in_flight(), poster.overtaken()), (5, 0));
        posted.rotate_left(round as usize % 5);
        for (sequence, wr_id) in &posted {
            assert_eq!(claim(&poster, *sequence), Some(*wr_id));
            assert_eq!(claim(&poster, *sequence), None, "twice");
        }
        assert_eq!(poster.in_flight(), 0);
        for (sequence, _) in posted {
            assert_eq!(claim(&poster, sequence), None, "late");
        }
    }
}

/// The number of a slot's use runs over the end of all numbers and begins anew.
#[test]
fn numbers_end_and_begin_anew() {
    let mut poster = poster(1 << 16);
    let mut seen = std::collections::HashSet::new();
    // The free list gives what was given back last.
    for round in 0..70_000 {
        let sequence = post(&mut poster, round);
        assert_eq!(poster.table().place(sequence), 0);
        if round < 65_536 {
            assert!(seen.insert(sequence));
        }
        assert_eq!(claim(&poster, sequence), Some(round));
    }
    assert_eq!(seen.len(), 65_536);
}

#[test]
fn what_is_not_in_flight_is_not_claimed() {
    let mut poster = poster(3);
    for sequence in [0, 1, 2, 3, 4, 7, 8, 1 << 31, u32::MAX] {
        assert_eq!(claim(&poster, sequence), None, "nothing was posted");
    }
    let sequence = post(&mut poster, 7);
    for other in (0..64).map(|n| sequence.wrapping_add(n * 7)).filter(|other| *other != sequence) {
        assert_eq!(claim(&poster, other), None, "{other}");
    }
    // Put, and not reserved.
    assert!(poster.has_room(0));
    let put = WrId::of(poster.put(0, entry(8), ())).sequence;
    assert_eq!(claim(&poster, put), None);
    poster.reserve(1);
    assert_eq!(claim(&poster, put), Some(8), "completed before the post returned");
    poster.posted(1);
    assert_eq!(claim(&poster, sequence), Some(7));
}

/// What was refused is still to be taken back when a batch without requests goes: nothing of it stays in flight.
#[test]
fn what_was_refused_does_not_go_with_an_empty_batch() {
    let mut poster = poster(4);
    for _ in 0..3 {
        for wr_id in 0..4 {
            assert!(poster.has_room(wr_id));
            poster.put(wr_id, entry(wr_id.into()), ());
        }
        poster.reserve(4);
        poster.refused(4, 1);
        std::mem::forget(poster.next_refused().expect("the second"));
        // Its error was forgotten, and so this comes first.
        poster.withdraw(0);
        assert_eq!(poster.in_flight(), 1);
        let (left, _) = poster.left();
        assert_eq!(poster.table().claim_slot(left[0]).map(|left| left.wr_id()), Some(0));
        assert_eq!((left.len(), poster.in_flight()), (1, 0));
    }
}

#[test]
fn what_was_refused_is_taken_back() {
    let mut poster = poster(4);
    for forgets in [false, true, false] {
        for wr_id in 0..4 {
            assert!(poster.has_room(wr_id));
            poster.put(wr_id, entry(wr_id.into()), ());
        }
        assert!(!poster.has_room(4));
        poster.reserve(4);
        poster.refused(4, 1);
        let back = poster.next_refused().expect("the second");
        assert_eq!(back.wr_id(), 1);
        if forgets {
            std::mem::forget(back)
        } else {
            drop(back)
        }
        // The third is completed all the same.
        let third = poster.pending[1];
        assert_eq!(claim(&poster, third), Some(2));
        assert_eq!(poster.next_refused().map(|back| back.wr_id()), Some(3));
        assert!(poster.next_refused().is_none());
        assert_eq!((poster.in_flight(), poster.overtaken()), (1, 0));
        let (left, overtaken) = poster.left();
        assert_eq!((left.len(), overtaken), (1, 0));
        assert_eq!(poster.table().claim_slot(left[0]).map(|left| left.wr_id()), Some(0));
        assert_eq!(poster.in_flight(), 0);
    }
    // Nobody takes it back.
    for wr_id in 0..2 {
        assert!(poster.has_room(wr_id));
        poster.put(wr_id, entry(wr_id.into()), ());
    }
    poster.reserve(2);
    poster.refused(2, 0);
    assert!(poster.has_room(0));
    assert_eq!(poster.in_flight(), 0);
}

/// As `mem::forget` of a batch leaves it.
#[test]
fn what_was_put_and_forgotten_is_dropped() {
    let mut poster = poster(2);
    for _ in 0..10 {
        for after in 0..2 {
            assert!(poster.has_room(after));
            poster.put(after, entry(1), ());
        }
        assert!(poster.has_room(0));
    }
    assert_eq!(poster.in_flight(), 0);
    poster.put(0, entry(1), ());
    poster.withdraw(1);
    assert_eq!(poster.in_flight(), 0);
}

#[test]
fn overtaken_are_those_before_the_latest_that_completed() {
    let mut poster = poster(8);
    let posted: Vec<_> = (0..8).map(|wr_id| post(&mut poster, wr_id)).collect();
    assert_eq!(claim(&poster, posted[5]), Some(5));
    assert_eq!(poster.overtaken(), 5);
    assert_eq!(claim(&poster, posted[0]), Some(0));
    assert_eq!(poster.overtaken(), 4);
    // Their slots are used again, and taken back: what had completed stays known.
    for _ in 0..2 {
        assert!(poster.has_room(0));
        poster.put(0, entry(9), ());
        poster.reserve(1);
        poster.refused(1, 0);
        poster.end_refused();
    }
    post(&mut poster, 10);
    post(&mut poster, 11);
    assert_eq!((poster.overtaken(), poster.in_flight()), (4, 8));
    let (left, overtaken) = poster.left();
    let told: Vec<_> = left
        .iter()
        .map(|place| poster.table().claim_slot(*place).expect("in flight").wr_id())
        .collect();
    assert_eq!((told, overtaken), (vec![1, 2, 3, 4, 6, 7, 10, 11], 4));
}

#[test]
fn what_is_in_flight_goes_with_the_last_owner() {
    let mut poster = poster(3);
    let table = Arc::clone(poster.table());
    post(&mut poster, 1);
    let claimed = post(&mut poster, 2);
    let held = table.claim_shared(claimed).expect("in flight");
    drop(poster);
    // SAFETY: claimed just now, and made whole once.
    let mut held = unsafe { held.of(&table) };
    assert!(held.take().is_some());
    drop(held);
    assert_eq!(table.free_slots(), 2);
    drop(table);
    let _ = Held::nothing();
}
