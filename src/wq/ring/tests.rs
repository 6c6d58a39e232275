use super::*;

fn entry(wr_id: u64) -> Entry {
    Entry { wr_id, opcode: WcOpcode::RECV, pieces: 1, internal: false }
}

fn claim(ring: &Ring, sequence: u32) -> Option<u64> {
    // SAFETY: one thread, and the claim ends here.
    unsafe { ring.claim(sequence) }.map(|claimed| claimed.wr_id())
}

fn post(ring: &Ring, sequence: u32) {
    assert!(ring.is_free(sequence));
    ring.put(sequence, entry(sequence.into()), Held::nothing());
    ring.reserve(sequence.wrapping_add(1));
    ring.posted(sequence.wrapping_add(1));
}

/// Over the end of the numbers, many times around.
#[test]
fn every_work_request_once() {
    let first = u32::MAX - 10;
    let ring = Ring::new(3, 9, 4, 1, first);
    for step in 0..40_u32 {
        let sequence = first.wrapping_add(step);
        post(&ring, sequence);
        if step >= 3 {
            let oldest = sequence.wrapping_sub(3);
            assert_eq!(claim(&ring, oldest), Some(oldest.into()));
            assert_eq!(claim(&ring, oldest), None, "twice");
        }
    }
}

#[test]
fn what_is_not_in_flight_is_not_claimed() {
    let ring = Ring::new(0, 0, 4, 1, 100);
    post(&ring, 100);
    for sequence in [99, 101, 104, 96, 100_u32.wrapping_add(1 << 31), !100, 0, u32::MAX] {
        assert_eq!(claim(&ring, sequence), None, "{sequence}");
    }
    assert_eq!(claim(&ring, 100), Some(100));
}

#[test]
fn what_is_taken_back_is_not_claimed() {
    let ring = Ring::new(0, 0, 1, 3, 0);
    ring.put(0, Entry { pieces: 3, ..entry(5) }, Held::nothing());
    ring.put_more(0, 1, Held::nothing());
    ring.put_more(0, 2, Held::nothing());
    ring.reserve(1);
    let mut back = ring.take_back(0).expect("it is there");
    assert_eq!((back.wr_id(), back.opcode()), (5, WcOpcode::RECV));
    assert!(ring.take_back(0).is_none());
    assert_eq!(std::iter::from_fn(|| back.take()).count(), 3);
    assert!(!ring.is_free(0), "not before it is finished");
    drop(back);
    assert!(ring.is_free(0));
    ring.posted(1);
    assert_eq!(claim(&ring, 0), None);
    post(&ring, 1);
    assert_eq!((claim(&ring, 0), claim(&ring, 1)), (None, Some(1)));
}

#[test]
fn a_completion_before_the_post_has_returned() {
    let ring = Ring::new(0, 0, 2, 1, 0);
    ring.put(0, entry(1), Held::nothing());
    assert_eq!(claim(&ring, 0), None, "not reserved yet");
    ring.reserve(1);
    assert_eq!(claim(&ring, 0), Some(1));
    assert!(ring.take_back(0).is_none(), "it has completed");
    ring.posted(1);
    assert!(ring.is_free(0));
}

#[test]
fn a_claim_that_is_forgotten() {
    let ring = Ring::new(0, 0, 1, 1, 0);
    post(&ring, 0);
    // SAFETY: one thread, one claim.
    std::mem::forget(unsafe { ring.claim(0) });
    assert!(!ring.is_free(0));
    // SAFETY: none but the forgotten one.
    unsafe { ring.finish_all_forgotten() };
    assert!(ring.is_free(0));
    post(&ring, 1);
    // SAFETY: none at all.
    unsafe { ring.finish_all_forgotten() };
    assert_eq!(claim(&ring, 1), Some(1), "another's is left alone");
}

/// Refusals finish nothing at the poller's, whose hint then is of half of all numbers ago, and of nearly all.
#[test]
fn a_hint_of_long_ago() {
    let ring = Ring::new(0, 0, 4, 1, 0);
    post(&ring, 0);
    assert_eq!(claim(&ring, 0), Some(0));
    assert_eq!(ring.free_to(0, 4), 1);
    for since in [2, 1 << 31, (1 << 31) + 2, u32::MAX - 8] {
        assert_eq!(ring.free_to(since, since.wrapping_add(4)), since, "{since}");
    }
}

#[test]
fn entries_are_as_they_were_put() {
    let ring = Ring::new(0, 0, 1, 1, 0);
    for (sequence, entry) in [
        Entry { wr_id: u64::MAX, opcode: WcOpcode::FETCH_ADD, pieces: 1, internal: true },
        Entry { wr_id: 0, opcode: WcOpcode::RECV_RDMA_WITH_IMM, pieces: 1, internal: false },
    ]
    .into_iter()
    .enumerate()
    {
        let sequence = sequence as u32;
        ring.put(sequence, entry, Held::nothing());
        ring.reserve(sequence + 1);
        ring.posted(sequence + 1);
        // SAFETY: one thread, one claim.
        let claim = unsafe { ring.claim_parts(sequence) }.expect("it is in flight");
        // SAFETY: of this ring, once.
        let claimed = unsafe { claim.of(&ring) };
        let read = (claimed.wr_id(), claimed.opcode(), claim.is_internal());
        assert_eq!(read, (entry.wr_id, entry.opcode, entry.internal));
    }
}

/// The measure of memory: a slot, and what each further entry adds.
#[test]
fn a_work_request_takes_little_memory() {
    assert!(size_of::<Slot>() <= 24, "{}", size_of::<Slot>());
    assert_eq!(size_of::<AtomicPtr<u8>>(), 8);
}
