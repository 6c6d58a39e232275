//! Completions of receives of a shared queue that are not what they should be, or come as they like.

use rdma_verbs::{Completion, WcStatus};

use super::{DEPTH, Shared};
use crate::interposed::faults::Wc;
use crate::interposed::rig::{Random, completions, forget, poll, word};
use crate::interposed::{faults, interposed, leaks_on_purpose};

/// What the device was told of a receive of the first shared receive queue of this process.
fn name(generation: u16, sequence: u32) -> u64 {
    word(1 << 15, generation, sequence)
}

/// That a receive completed.
fn says(wr_id: u64, qp_num: u32) -> Wc {
    Wc { wr_id, opcode: 1 << 7, qp_num, byte_len: 5, ..Wc::default() }
}

interposed! {
    fn numbers_that_name_nothing() {
        let mut shared = Shared::new();
        let (mut a, b) = shared.pair(true);
        shared.post(0..3);
        let mut strays = 0;
        let (first, second) = (faults::nth("cq", 0), faults::nth("cq", 1));
        // The first three places of eight, used for the first time.
        let in_flight = [name(1, 8), name(1, 9), name(1, 10)];
        let forged = [
            name(1, 0), name(1, 1), name(1, 11), name(1, 16), name(1, 17), name(1, u32::MAX),
            name(0, 8), name(2, 8), name(u16::MAX, 9), word(1 << 15 | 1, 1, 8), word(u16::MAX, 1, 8),
            word(77, 1, 8), 0, u64::MAX,
        ];
        for wr_id in forged {
            faults::push(first, &says(wr_id, 1));
            faults::push(second, &says(wr_id, 1));
            strays += 1;
            // One at the time, and all at once.
            if strays % 2 == 0 {
                assert_eq!((poll(&mut shared.rig.cq).len(), poll(&mut shared.other).len()), (0, 0));
            }
        }
        assert_eq!((shared.rig.cq.strays(), shared.other.strays()), (strays, strays));
        assert_eq!((shared.srq.in_flight(), shared.rig.out()), (3, 3));
        for (wr_id, number) in in_flight.into_iter().zip(0..) {
            faults::copies(3);
            shared.send(&mut a, b"12345");
            let seen = poll(&mut shared.other);
            assert_eq!((seen.len(), seen[0].wr_id, seen[0].bytes()), (1, number, &b"12345"[..]));
            // And again, where it may not even come.
            faults::push(first, &says(wr_id, b.qpn().get()));
            assert_eq!(poll(&mut shared.rig.cq).iter().filter(|seen| seen.wr_id != 1000).count(), 0);
        }
        assert_eq!(shared.srq.in_flight(), 0);
        assert_eq!(shared.other.strays(), strays + 3 * 2);
        drop((a, b));
    }

    /// On either of two completion queues, in any order, each named twice on each: one has it.
    fn any_order_on_two_queues() {
        let mut shared = Shared::new();
        let mut pairs = (shared.pair(false), shared.pair(true));
        let cqs = [faults::nth("cq", 0), faults::nth("cq", 1)];
        let mut random = Random::new(7);
        for round in 1..200_u32 {
            shared.post(0..u64::from(DEPTH));
            // The device's own come last, and name what is gone.
            faults::hold(true);
            for _ in 0..DEPTH {
                let to = if random.once_in(2) { &mut pairs.0 } else { &mut pairs.1 };
                shared.send(&mut to.0, b"");
            }
            // What the free list gave, nobody knows: all places, of every use so far.
            let mut names: Vec<u64> = Vec::new();
            for uses in 1..=round {
                names.extend((0..DEPTH).map(|place| name(1, uses * DEPTH + place)));
            }
            let from = names.len().saturating_sub(3 * DEPTH as usize);
            let mut recent: Vec<u64> = names.split_off(from);
            recent.extend(recent.clone());
            random.shuffle(&mut recent);
            let mut seen = Vec::new();
            for wr_id in recent {
                faults::push(cqs[random.below(2)], &says(wr_id, pairs.0.1.qpn().get()));
                if random.once_in(3) {
                    seen.extend(poll(&mut shared.rig.cq));
                    seen.extend(poll(&mut shared.other));
                }
            }
            for released in [false, true] {
                faults::hold(!released);
                for _ in 0..4 {
                    seen.extend(poll(&mut shared.rig.cq));
                    seen.extend(poll(&mut shared.other));
                }
            }
            seen.retain(|seen| seen.wr_id < 1000);
            let mut told: Vec<u64> = seen.iter().map(|seen| seen.wr_id).collect();
            told.sort_unstable();
            assert_eq!(told, (0..u64::from(DEPTH)).collect::<Vec<_>>());
            assert_eq!((shared.srq.in_flight(), shared.rig.out()), (0, DEPTH as usize));
            drop(seen);
            assert_eq!(shared.rig.out(), 0);
        }
        let strays = shared.rig.cq.strays() + shared.other.strays();
        // Of 48 that name something, or nothing any more, 8 were taken; less in the first two rounds.
        assert_eq!(strays, 199 * 40 - 2 * 16 - 16 + 199 * 8);
        drop(pairs);
    }

    /// What one poller forgot gives back its own place, and not that of another's completion.
    fn forgotten_beside_another_s_completion() {
        // The memory of what was forgotten, and so its pool.
        leaks_on_purpose();
        let mut shared = Shared::new();
        let (mut a, b) = shared.pair(false);
        let (mut c, d) = shared.pair(true);
        for round in 0..50 {
            shared.post(0..u64::from(DEPTH));
            shared.send(&mut a, b"forgotten");
            shared.send(&mut c, b"held");
            // All but receives.
            let mut drain = shared.other.poll().expect("polled");
            let mut held = drain.next().expect("a message");
            let buffer = held.take_buffer().expect("its buffer");
            let mut mine = shared.rig.cq.poll().expect("polled");
            let is_receive = |completion: &Completion<'_>| completion.wr_id() < 1000;
            loop {
                let Some(completion) = mine.next() else { panic!("a message") };
                if is_receive(&completion) {
                    forget(completion);
                    break;
                }
            }
            while mine.next().is_some() {}
            drop(mine);
            // Its place is free, and the other's is not.
            assert_eq!(shared.srq.in_flight(), DEPTH - 1);
            let wr_id = 100 + round;
            let receive = rdma_verbs::wr::Receive::new(()).wr_id(wr_id);
            shared.srq.post(receive).expect("the forgotten one's");
            shared.srq.post(rdma_verbs::wr::Receive::new(())).expect_err("the other's is held");
            assert!(held.wr_id() < 2 && held.status() == WcStatus::SUCCESS);
            assert_eq!(buffer[..], b"held"[..]);
            drop(held);
            while drain.next().is_some() {}
            drop((drain, buffer));
            // The rest is received and let go of.
            for _ in 0..DEPTH - 1 {
                shared.send(&mut c, b"");
            }
            let seen = completions(&mut shared.other, DEPTH as usize - 1);
            assert_eq!(seen.last().map(|seen| seen.wr_id), Some(wr_id));
            drop(seen);
            poll(&mut shared.rig.cq);
            assert_eq!(shared.srq.in_flight(), 0);
            // The one that was forgotten is lost.
            assert_eq!(shared.rig.out(), round as usize + 1);
        }
        drop((a, b, c, d));
    }

    /// Failures tell the queue pair that they are of; the memory comes back.
    fn a_message_that_is_too_long() {
        let mut shared = Shared::new();
        let (mut a, b) = shared.pair(true);
        shared.srq.post(rdma_verbs::wr::Receive::new(()).wr_id(5)).expect("room");
        shared.post(6..7);
        shared.send(&mut a, b"longer than nothing");
        let mut drain = shared.other.poll().expect("polled");
        let completion = drain.next().expect("it failed");
        assert_eq!((completion.wr_id(), completion.qpn()), (5, b.qpn()));
        assert_eq!((completion.status(), completion.byte_len()), (WcStatus::LOC_LEN_ERR, 0));
        drop(completion);
        assert!(drain.next().is_none());
        drop(drain);
        // The other is still there, for others.
        let (mut c, d) = shared.pair(false);
        shared.send(&mut c, b"short");
        assert!(completions(&mut shared.rig.cq, 3).iter().any(|seen| seen.wr_id == 6));
        drop((a, b, c, d));
    }
}
